//! Where several want one lock, one member is asked before the others: who gets it there goes on to
//! them, who does not asks nobody else. Otherwise each gets a few of the members and nobody a
//! majority, again and again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use leasehold_core::{Claim, Clock, Error, ErrorKind, Mode, Moment, ResourceName, Result};
use leasehold_net::BootClock;

use crate::core::Core;

/// For how long after a refusal a resource counts as wanted.
const WANTED_FOR: Duration = Duration::from_secs(1);
/// How many names are remembered as wanted.
const WANTED_ROOM: usize = 1024;
/// Each time this many tries were turned away, all members are asked at once: the pilot may keep
/// what no majority holds.
const ALL_AT_ONCE_EVERY: u32 = 4;
/// For how long the pilot is waited for before the others are asked all the same.
const PILOT_WITHIN: Duration = Duration::from_millis(30);

/// The names that were refused a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    names: Mutex<HashMap<ResourceName, (Moment, u32)>>,
}

impl Wanted {
    fn names(&self) -> MutexGuard<'_, HashMap<ResourceName, (Moment, u32)>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, name: &ResourceName, now: Moment) {
        let mut names = self.names();
        if names.len() >= WANTED_ROOM {
            names.retain(|_, (until, _)| *until > now);
        }
        if names.len() < WANTED_ROOM || names.contains_key(name) {
            let entry = names.entry(name.clone()).or_insert((now, 0));
            *entry = (now + WANTED_FOR, entry.1.wrapping_add(1));
        }
    }

    /// Whether a try is to begin with the pilot.
    fn asks_pilot(&self, name: &ResourceName, now: Moment) -> bool {
        let is_wanted = |(until, tries): &(Moment, u32)| {
            *until > now && !tries.is_multiple_of(ALL_AT_ONCE_EVERY)
        };
        self.names().get(name).is_some_and(is_wanted)
    }
}

impl Core {
    /// Notes that a claim of this resource was refused.
    pub(crate) fn is_wanted(&self, name: &ResourceName) {
        self.wanted.note(name, BootClock.now());
    }

    /// The member to ask first, if there is to be one: the same for all clients that see the same
    /// members well, whatever order they name them in.
    pub(crate) fn pilot(&self, claim: &Claim) -> Option<usize> {
        let is_first = claim.mode == Mode::Exclusive
            && self.wanted.asks_pilot(&claim.resource, BootClock.now())
            && !self.holds_for(claim)
            // What may be there already has to be looked for everywhere.
            && !self.members.iter().any(|member| member.is_unanswered(claim.id));
        if !is_first {
            return None;
        }
        let well = self.members.iter().enumerate().filter(|(_, m)| m.counts().is_ok());
        well.max_by_key(|(_, m)| weight(claim.resource.as_str(), &m.name)).map(|(at, _)| at)
    }
}

/// How much of a pilot a member is for a name (rendezvous hashing: Thaler and Ravishankar, 1998),
/// by FNV-1a, which need not resist anybody.
fn weight(name: &str, member: &str) -> u64 {
    let bytes = name.bytes().chain([0]).chain(member.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What holds the others back until the pilot has answered.
pub(crate) struct Gate {
    pilot: Option<usize>,
    state: AtomicU8,
    moved: Event,
}

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
const SHUT: u8 = 2;

impl Gate {
    pub(crate) fn new(pilot: Option<usize>) -> Gate {
        Gate { pilot, state: AtomicU8::new(CLOSED), moved: Event::new() }
    }

    /// Whether nobody passes any more.
    pub(crate) fn is_shut(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SHUT
    }

    /// Waits until this member may be asked.
    pub(crate) async fn pass(&self, at: usize) -> Result<()> {
        if self.pilot.is_none_or(|pilot| pilot == at) {
            return Ok(());
        }
        let moved = self.moved.listen();
        if self.state.load(Ordering::SeqCst) == CLOSED
            && tokio::time::timeout(PILOT_WITHIN, moved).await.is_err()
        {
            self.settle(OPEN);
        }
        if self.is_shut() {
            let detail = "another holds it at the member that is asked first";
            return Err(Error::new(ErrorKind::Unavailable, "ask a member", detail));
        }
        Ok(())
    }

    /// Notes what the pilot has said.
    pub(crate) fn heard(&self, at: usize, is_busy: bool) {
        if self.pilot == Some(at) {
            self.settle(if is_busy { SHUT } else { OPEN });
        }
    }

    /// The first word counts.
    fn settle(&self, state: u8) {
        let settled =
            self.state.compare_exchange(CLOSED, state, Ordering::SeqCst, Ordering::SeqCst);
        if settled.is_ok() {
            self.moved.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_so_often_all_are_asked_at_once() {
        let wanted = Wanted::default();
        let name = ResourceName::new("x").unwrap();
        let now = Moment::from_nanos(1);
        assert!(!wanted.asks_pilot(&name, now), "nobody was refused yet");
        let asked: Vec<bool> = (0..8)
            .map(|_| {
                wanted.note(&name, now);
                wanted.asks_pilot(&name, now)
            })
            .collect();
        assert_eq!(asked, [true, true, true, false, true, true, true, false]);
        assert!(!wanted.asks_pilot(&name, now + WANTED_FOR));
    }

    #[test]
    fn the_pilot_does_not_depend_on_the_order_of_members_and_differs_by_name() {
        let members = ["a:1", "b:1", "c:1", "d:1", "e:1"];
        let pilot = |name: &str, members: &[&str]| {
            (*members.iter().max_by_key(|member| weight(name, member)).unwrap()).to_owned()
        };
        let mut turned = members;
        turned.reverse();
        let mut seen = std::collections::HashSet::new();
        for n in 0..100 {
            let name = format!("name-{n}");
            assert_eq!(pilot(&name, &members), pilot(&name, &turned));
            seen.insert(pilot(&name, &members));
        }
        assert_eq!(seen.len(), members.len());
    }

    #[test]
    fn who_the_pilot_turns_away_asks_nobody_else() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let gate = Gate::new(Some(1));
            gate.pass(1).await.unwrap();
            gate.heard(1, true);
            gate.heard(1, false);
            assert!(gate.pass(0).await.is_err());
            let gate = Gate::new(Some(1));
            gate.heard(1, false);
            gate.pass(0).await.unwrap();
            // A pilot that says nothing holds up nobody for long; what it says later is too late.
            let gate = Gate::new(Some(1));
            gate.pass(0).await.unwrap();
            gate.heard(1, true);
            gate.pass(2).await.unwrap();
            Gate::new(None).pass(4).await.unwrap();
        });
    }
}
