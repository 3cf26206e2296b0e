//! Clients that contend for names while something hurts them, and the judgement over it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{
    Admission, Claim, Clock, Cursor, Error, Grant, Hint, Left, Mode, PushedEnd, Result, Store,
};
use leasehold_net::BootClock;
use leasehold_testkit::checkers::check_all;
use leasehold_testkit::history::Cease;
use leasehold_testkit::{Recorder, block_on};

use super::claim;

/// How long anything that must happen may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A recorder by the clock of belief.
pub(crate) fn recorder() -> Recorder {
    Recorder::new(|| BootClock.now())
}

/// The checkers' verdict.
pub(crate) fn judge(recorder: &Recorder) {
    let history = recorder.history();
    if let Err(violation) = check_all(&history) {
        let from = violation.event.saturating_sub(40);
        let events = history.events.iter().skip(from).take(45);
        panic!("{violation}\n{:#?}", events.collect::<Vec<_>>());
    }
}

/// What a contender claims.
#[derive(Clone)]
pub(crate) struct Wish {
    pub(crate) names: Vec<String>,
    pub(crate) modes: Vec<Mode>,
    pub(crate) term: Duration,
    pub(crate) rounds: usize,
}

/// A contender on a thread of its own.
pub(crate) fn contender(
    recorder: &Recorder,
    client: u32,
    store: Arc<dyn Store>,
    wish: Wish,
) -> std::thread::JoinHandle<()> {
    let (recorder, wrapped) = (recorder.clone(), recorder.wrap(client, store));
    std::thread::spawn(move || block_on(contend(&recorder, client, &wrapped, &wish)))
}

async fn contend(recorder: &Recorder, client: u32, store: &Arc<dyn Store>, wish: &Wish) {
    for round in 0..wish.rounds {
        let number = round * 7 + client as usize;
        let name = &wish.names[number % wish.names.len()];
        let mode = wish.modes[(number / wish.names.len()) % wish.modes.len()];
        loop {
            let claim = Claim { mode, term: wish.term, ..claim(name) };
            let (grant, unanswered) = take(store, &claim).await;
            let Some(grant) = grant else {
                leave(store, &claim, unanswered).await;
                continue;
            };
            if BootClock.now() < grant.until {
                recorder.believes(client, &claim, &grant);
                std::thread::yield_now();
                let late = BootClock.now() >= grant.until;
                let why = if late { Cease::Deadline } else { Cease::Release };
                recorder.ceases(client, &claim, why);
            }
            leave(store, &claim, unanswered).await;
            break;
        }
    }
}

/// Acquires as a client does: enters, waits for word, looks again. Without a grant where the claim
/// is lost.
async fn take(store: &Arc<dyn Store>, claim: &Claim) -> (Option<Grant>, bool) {
    let (mut since, mut unanswered) = (Cursor::default(), false);
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "{:?} was not granted in time", claim.resource);
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
                let PushedEnd::At(until) = pushed.grant.until else { continue };
                if waiting.is_some_and(|w| w.ticket == pushed.ticket) {
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
