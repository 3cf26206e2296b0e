//! Contenders for names at a store, on threads of their own, while something hurts it; and the verdict
//! of all [`checkers`](crate::checkers) over what they did.
//!
//! For stores on other machines: time is `CLOCK_BOOTTIME`, on which belief in them is measured.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_core::{
    Admission, Claim, Cursor, Error, Grant, Hint, Left, Mode, Moment, PushedEnd, Result, Store,
    belief_end,
};
use rustix::time::{ClockId, clock_gettime};

use crate::checkers::check_all;
use crate::history::Cease;
use crate::{Recorder, block_on};

/// How long anything that must happen may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A recorder by the clock of belief.
pub fn recorder() -> Recorder {
    Recorder::new(now)
}

/// Holds what was recorded to every promise.
///
/// # Panics
///
/// Naming the promise that was broken, with the events before and after.
pub fn judge(recorder: &Recorder) {
    let history = recorder.history();
    if let Err(violation) = check_all(&history) {
        let from = violation.event.saturating_sub(40);
        let events = history.events.iter().skip(from).take(45);
        panic!("{violation}\n{:#?}", events.collect::<Vec<_>>());
    }
}

/// What a contender claims.
#[derive(Clone, Debug)]
pub struct Wish {
    /// A new claim of a name that queues; its mode and term are those below.
    pub claim: fn(&str) -> Claim,
    /// Names, taken in turn.
    pub names: Vec<String>,
    /// Modes, taken in turn.
    pub modes: Vec<Mode>,
    /// The term of every claim.
    pub term: Duration,
    /// For how long each grant is used, unless belief ends before.
    pub hold: Duration,
    /// How often.
    pub rounds: usize,
}

/// Starts a contender. Its thread panics if it is not served within [`PATIENCE`], or is refused for
/// good.
pub fn contender(
    recorder: &Recorder,
    client: u32,
    store: Arc<dyn Store>,
    wish: Wish,
) -> JoinHandle<()> {
    let (recorder, wrapped) = (recorder.clone(), recorder.wrap(client, store));
    std::thread::spawn(move || block_on(contend(&recorder, client, &wrapped, &wish)))
}

fn now() -> Moment {
    let at = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(at.tv_sec).unwrap_or_default();
    Moment::from_nanos(seconds * 1_000_000_000 + u64::try_from(at.tv_nsec).unwrap_or_default())
}

async fn contend(recorder: &Recorder, client: u32, store: &Arc<dyn Store>, wish: &Wish) {
    for round in 0..wish.rounds {
        let number = round * 7 + client as usize;
        let name = &wish.names[number % wish.names.len()];
        let mode = wish.modes[(number / wish.names.len()) % wish.modes.len()];
        loop {
            let claim = Claim { mode, term: wish.term, ..(wish.claim)(name) };
            let (grant, unanswered) = take(store, &claim).await;
            let Some(grant) = grant else {
                leave(store, &claim, unanswered).await;
                continue;
            };
            if now() < grant.until {
                recorder.believes(client, &claim, &grant);
                use_it(grant.until, wish.hold);
                let late = now() >= grant.until;
                let why = if late { Cease::Deadline } else { Cease::Release };
                recorder.ceases(client, &claim, why);
            }
            leave(store, &claim, unanswered).await;
            break;
        }
    }
}

fn use_it(until: Moment, hold: Duration) {
    let done = now() + hold;
    std::thread::yield_now();
    while now() < done.min(until) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Acquires as a client does: enters, waits for word, looks again. Without a grant where the claim
/// is lost.
async fn take(store: &Arc<dyn Store>, claim: &Claim) -> (Option<Grant>, bool) {
    let (mut since, mut unanswered) = (Cursor::default(), false);
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "{:?} was not granted in time", claim.resource);
        let base = now();
        let waiting = match store.enter(claim).await {
            Ok(Admission::Granted(grant)) => return (Some(grant), unanswered),
            Ok(Admission::Waiting(waiting)) => Some(waiting),
            Ok(Admission::Busy(busy)) => panic!("a claim that queues is busy: {busy:?}"),
            Ok(Admission::Gone(_)) => return (None, unanswered),
            Err(error) => {
                unanswered = true;
                pause(&error);
                continue;
            }
        };
        let at_most = Duration::from_millis(500);
        match store.changed(&claim.resource, Some(claim.id), since, at_most).await {
            Ok(Hint::Moved(cursor)) => since = cursor,
            Ok(Hint::Granted(pushed)) => {
                assert_eq!(pushed.grant.claim, claim.id);
                let until = match pushed.grant.until {
                    PushedEnd::FirstTerm(term) => belief_end(base, term, store.profile().drift),
                    PushedEnd::At(until) => until,
                };
                // It was still to be granted when the latest look was sent.
                if waiting.is_some_and(|w| w.ticket == pushed.ticket) && now() < until {
                    return (Some(pushed.grant.map_until(|_| until)), unanswered);
                }
            }
            Err(error) => pause(&error),
        }
    }
}

async fn leave(store: &Arc<dyn Store>, claim: &Claim, unanswered: bool) {
    let mut named = claim.to_ref();
    named.enter_unanswered = unanswered;
    let end = Instant::now() + PATIENCE;
    let mut left: Result<Left> = store.leave(&named).await;
    while let Err(error) = left {
        assert!(Instant::now() < end, "{:?} cannot be left: {error}", claim.resource);
        pause(&error);
        named.enter_unanswered = true;
        left = store.leave(&named).await;
    }
}

fn pause(error: &Error) {
    assert!(error.kind().is_transient(), "{error:?}");
    std::thread::sleep(Duration::from_millis(10));
}
