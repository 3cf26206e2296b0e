//! What all verbs stand on: the members, and what this client knows of its claims.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use leasehold_core::{
    Claim, ClaimId, Clock, Ended, Error, ErrorKind, Moment, Result, Slots, Token,
};
use leasehold_net::{BootClock, Io};
use tokio::runtime::Handle;

use crate::config::RedlockConfig;
use crate::member::Member;
use crate::pilot::Wanted;

/// A member is given a part of the term, within these bounds.
const PART: u32 = 4;
const WITHIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Claims that hold, before those that must have ended are forgotten.
const HELD_ROOM: usize = 4096;

/// What the verbs share.
pub(crate) struct Core {
    pub(crate) config: RedlockConfig,
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) io: Io,
    held: Mutex<HashMap<ClaimId, Held>>,
    pub(crate) wanted: Wanted,
    /// Leaves of this client and members reached, counted, and word of them.
    changes: AtomicU64,
    pub(crate) changed: Event,
    front_has_ended: AtomicBool,
    is_closed: AtomicBool,
    pub(crate) closed: Event,
}

/// What a member that was not there when a claim was granted is told of it later.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) claim: Claim,
    pub(crate) token: Token,
    pub(crate) slots: Slots,
    until: Moment,
}

impl Core {
    pub(crate) fn new(config: RedlockConfig, members: Vec<Arc<Member>>, io: Io) -> Core {
        Core {
            config,
            members,
            io,
            held: Mutex::default(),
            wanted: Wanted::default(),
            changes: AtomicU64::new(0),
            changed: Event::new(),
            front_has_ended: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            closed: Event::new(),
        }
    }

    pub(crate) fn majority(&self) -> usize {
        self.config.majority()
    }

    /// How many may be missing from a majority.
    pub(crate) fn minority(&self) -> usize {
        self.members.len() - self.majority()
    }

    pub(crate) fn all(&self) -> std::ops::Range<usize> {
        0..self.members.len()
    }

    /// For how long a member is waited for: far less than the term.
    pub(crate) fn within(&self, term: Duration) -> Duration {
        (term / PART).clamp(WITHIN.0, WITHIN.1)
    }

    /// For what holds up no lease.
    pub(crate) fn patient(&self) -> Duration {
        WITHIN.1 * 3
    }

    fn held(&self) -> MutexGuard<'_, HashMap<ClaimId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn holds(&self, claim: &Claim, token: Token, slots: &Slots) {
        let now = BootClock.now();
        let mut held = self.held();
        if held.len() >= HELD_ROOM && held.len() == held.capacity() {
            held.retain(|_, held| held.until > now);
        }
        let until = now + claim.term * 2;
        held.insert(claim.id, Held { claim: claim.clone(), token, slots: slots.clone(), until });
    }

    /// Notes that it holds for another term, and tells what is known of it.
    pub(crate) fn still_holds(&self, claim: ClaimId, term: Duration) -> Option<Held> {
        let mut held = self.held();
        let found = held.get_mut(&claim)?;
        found.until = found.until.max(BootClock.now() + term * 2);
        found.claim.term = term;
        Some(found.clone())
    }

    pub(crate) fn is_held(&self, claim: ClaimId) -> bool {
        self.held().contains_key(&claim)
    }

    /// Whether the holder of this claim has a grant of the resource already.
    pub(crate) fn holds_for(&self, claim: &Claim) -> bool {
        let is_its = |held: &Held| {
            held.claim.resource == claim.resource && held.claim.holder.id == claim.holder.id
        };
        self.held().values().any(is_its)
    }

    pub(crate) fn holds_no_more(&self, claim: ClaimId) {
        self.held().remove(&claim);
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub(crate) fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify(usize::MAX);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    pub(crate) fn has_closed(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.closed.notify(usize::MAX);
        self.changed.notify(usize::MAX);
    }

    /// Runs a verb where its answers come: at the front if the caller is on a runtime, which must
    /// be the front's or can wait for it, else at the back.
    pub(crate) async fn run<T, F>(&self, doing: &'static str, verb: impl Fn() -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let at_front = self.io.has_front()
            && Handle::try_current().is_ok()
            && !self.front_has_ended.load(Ordering::SeqCst);
        if at_front {
            match self.io.on_front(doing, verb()).await {
                Err(error) if error.kind() == ErrorKind::Closed => {
                    self.front_has_ended.store(true, Ordering::SeqCst);
                }
                answer => return answer,
            }
        }
        self.io.on_back(doing, verb()).await
    }

    /// That too few members answer: who, and why.
    pub(crate) fn too_few(&self, failed: &[(usize, Error)], counted: usize) -> Error {
        let mut details: Vec<String> = Vec::new();
        for (at, member) in self.members.iter().enumerate() {
            let failed = failed.iter().find(|(failed, _)| *failed == at);
            match (failed, member.counts()) {
                (Some((_, error)), _) => details.push(format!("{}: {error}", member.name)),
                (None, Err(error)) => details.push(error.to_string()),
                (None, Ok(())) => {}
            }
        }
        let (want, of) = (self.majority(), self.members.len());
        let why = if details.is_empty() { String::new() } else { ": ".to_owned() };
        let detail =
            format!("{counted} of {of} members agree, want {want}{why}{}", details.join("; "));
        let kind = failed.iter().map(|(_, error)| error.kind()).find(|k| k.is_transient());
        let error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), "ask a majority", detail);
        let is_unclear = failed.iter().any(|(_, e)| e.applied() == leasehold_core::Applied::Maybe);
        if is_unclear { error.maybe_applied() } else { error }
    }
}

/// What ended a claim, where members say different things: the worst that one of them knows.
pub(crate) fn worst(ends: impl IntoIterator<Item = Ended>) -> Option<Ended> {
    ends.into_iter().max_by_key(|end| match end {
        Ended::Unknown => 0,
        Ended::Released => 1,
        Ended::Failover => 2,
        Ended::Evicted => 3,
        Ended::Died => 4,
        Ended::Expired => 5,
        Ended::Clock => 6,
        _ => 7,
    })
}

/// The end of belief that a majority of these bears.
pub(crate) fn borne_by(majority: usize, untils: impl IntoIterator<Item = Moment>) -> Moment {
    let mut untils: Vec<Moment> = untils.into_iter().collect();
    untils.sort_unstable_by(|a, b| b.cmp(a));
    untils.get(majority.saturating_sub(1)).copied().unwrap_or(Moment::START)
}

/// What most say, and how many.
pub(crate) fn most<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Option<(T, usize)> {
    let mut counted: Vec<(T, usize)> = Vec::new();
    for one in all {
        match counted.iter_mut().find(|(other, _)| *other == one) {
            Some((_, count)) => *count += 1,
            None => counted.push((one, 1)),
        }
    }
    counted.into_iter().rev().max_by_key(|(_, count)| *count)
}
