//! One of the servers: reached, known again, and whether it counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, Clock, Cursor, Error, ErrorKind, Moment, Result};
use leasehold_net::BootClock;
use leasehold_redis::member::{self, Vetted};
use leasehold_redis::{RedisConfig, RedisStore};

/// Claims whose enter a member has not answered, before those long over are forgotten.
const UNANSWERED_ROOM: usize = 1024;

/// One of the servers.
pub(crate) struct Member {
    /// As the user has named it.
    pub(crate) name: String,
    pub(crate) config: RedisConfig,
    max_term: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    store: Option<Arc<RedisStore>>,
    /// What had happened to the server when it was last looked at.
    vetted: Option<Cursor>,
    run_id: Option<String>,
    /// Until then it may have forgotten a grant.
    barred_until: Option<Moment>,
    /// Why it cannot be used, if it is known.
    refused: Option<Error>,
    unanswered: HashMap<ClaimId, Moment>,
}

impl Member {
    pub(crate) fn new(name: String, config: RedisConfig, max_term: Duration) -> Member {
        Member { name, config, max_term, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, or why there is none.
    pub(crate) fn store(&self) -> Result<Arc<RedisStore>> {
        let state = self.state();
        let unreached = || {
            let detail = format!("the member {} was not reached yet", self.name);
            Error::new(ErrorKind::Unreachable, "ask a member", detail)
        };
        state.store.clone().ok_or_else(|| state.refused.clone().unwrap_or_else(unreached))
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.state().store.is_some()
    }

    pub(crate) fn reached(&self, store: Arc<RedisStore>) {
        let mut state = self.state();
        state.store = Some(store);
        state.refused = None;
    }

    pub(crate) fn refused(&self, error: Error) {
        self.state().refused = Some(error);
    }

    pub(crate) fn run_id(&self) -> Option<String> {
        self.state().run_id.clone()
    }

    /// How often something has happened to it.
    pub(crate) fn disturbances(&self) -> u64 {
        self.state().store.as_ref().map_or(0, |store| member::disturbances(store).0)
    }

    /// Takes in what the server was found to be; `since` was read before it was asked.
    pub(crate) fn judge(&self, vetted: Vetted, since: Cursor, now: Moment) {
        let mut state = self.state();
        state.barred_until = match (&vetted.run_id, &state.run_id) {
            (None, _) => Some(now + self.max_term),
            (Some(now), Some(before)) if now == before => state.barred_until,
            (Some(_), Some(_)) if vetted.is_durable && vetted.marked.is_some() => {
                state.barred_until
            }
            (Some(_), Some(_)) => Some(now + self.max_term),
            (Some(_), None) if vetted.is_durable => None,
            (Some(_), None) => {
                // It had a life before this client, and may have forgotten what was granted then.
                let missing = self.max_term.saturating_sub(vetted.uptime.unwrap_or_default());
                (!missing.is_zero()).then(|| now + missing)
            }
        };
        if let Some(until) = state.barred_until.filter(|until| *until > now) {
            let left = until.since(now);
            tracing::warn!(
                target: "leasehold", member = self.name, ?left,
                "a member has started anew, or may have: it counts in no majority for a while"
            );
        }
        state.run_id = vetted.run_id;
        state.vetted = Some(since);
    }

    /// Whether its answers count, or why not.
    pub(crate) fn counts(&self) -> Result<()> {
        let state = self.state();
        let name = &self.name;
        let not = |why: String| Err(Error::new(ErrorKind::Unavailable, "ask a member", why));
        let (Some(store), Some(vetted)) = (&state.store, state.vetted) else {
            return not(format!("the member {name} was not looked at yet"));
        };
        if member::may_have_forgotten(store, vetted, state.run_id.is_some()) {
            return not(format!("the member {name} has started anew"));
        }
        let now = BootClock.now();
        match state.barred_until {
            Some(until) if until > now => {
                let left = until.since(now).as_secs() + 1;
                not(format!(
                    "the member {name} has started anew, or may have: what it may have forgotten \
                     has ended in {left} s"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Notes that an enter of this claim is on its way.
    pub(crate) fn sends(&self, claim: ClaimId) {
        let now = BootClock.now();
        let mut state = self.state();
        if state.unanswered.len() >= UNANSWERED_ROOM {
            state.unanswered.retain(|_, until| *until > now);
        }
        state.unanswered.insert(claim, now + self.max_term * 2);
    }

    pub(crate) fn has_answered(&self, claim: ClaimId) {
        self.state().unanswered.remove(&claim);
    }

    pub(crate) fn is_unanswered(&self, claim: ClaimId) -> bool {
        self.state().unanswered.contains_key(&claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Drift, Epoch};

    const TERM: Duration = Duration::from_secs(60);

    fn member() -> Member {
        let mut config = RedisConfig::new("h", 1);
        (config.drift, config.epoch) = (Drift::Tenth, Epoch(0));
        Member::new("h:1".into(), config, TERM)
    }

    fn found(run: Option<&str>, uptime_s: u64, is_durable: bool, is_marked: bool) -> Vetted {
        Vetted {
            run_id: run.map(str::to_owned),
            uptime: Some(Duration::from_secs(uptime_s)),
            is_durable,
            marked: is_marked.then(|| "p".to_owned()),
        }
    }

    fn barred_for(member: &Member, vetted: Vetted) -> u64 {
        let now = Moment::from_nanos(1);
        member.judge(vetted, Cursor(1), now);
        member.state().barred_until.map_or(0, |until| until.since(now).as_secs())
    }

    #[test]
    fn who_may_have_forgotten_is_kept_out_for_the_longest_term() {
        // First seen: what it has forgotten ended a term after it started.
        assert_eq!(barred_for(&member(), found(Some("a"), 10, false, false)), 50);
        assert_eq!(barred_for(&member(), found(Some("a"), 60, false, false)), 0);
        assert_eq!(barred_for(&member(), found(Some("a"), 0, true, false)), 0);
        assert_eq!(barred_for(&member(), found(None, 600, true, true)), 60);
        // Seen again.
        for (vetted, expected) in [
            (found(Some("a"), 0, false, false), 0),
            (found(Some("b"), 600, false, true), 60),
            (found(Some("b"), 600, true, false), 60),
            (found(Some("b"), 600, true, true), 0),
            (found(None, 600, true, true), 60),
        ] {
            let seen = member();
            barred_for(&seen, found(Some("a"), 60, false, false));
            assert_eq!(barred_for(&seen, vetted.clone()), expected, "{vetted:?}");
        }
    }
}
