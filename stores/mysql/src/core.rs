//! What all connections of a client share, and the two ways of deciding requests on one of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{
    Admission, Backoff, ClaimId, Ended, Hint, Left, Moment, Noise, Renewed, ResourceName, Result,
    Token, belief_end,
};
use leasehold_net::{Io, ServerClock, Skew};

use crate::config::MysqlConfig;
use crate::desk::{Ask, Told};
use crate::engine::{self, Decided, Locked, Seen};
use crate::error::{Fail, Step};
use crate::hub::Hub;
use crate::now::Clocks;
use crate::quick::{self, Quick};
use crate::server::check_schema;
use crate::session::{Dialer, Session};
use crate::wake::Wake;

/// What all connections of a client share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: MysqlConfig,
    pub(crate) url: String,
    pub(crate) clocks: Clocks,
    pub(crate) io: Io,
    pub(crate) hub: Arc<Hub>,
    /// Where waking by named locks was asked for.
    pub(crate) wake: Option<Arc<Wake>>,
    dialer: Dialer,
    /// Watches the server's wall clock against ours.
    server_clock: ServerClock,
    seen: Mutex<Servers>,
    noise: Mutex<Noise>,
}

/// The servers that were reached.
#[derive(Debug, Default)]
struct Servers {
    /// Their tables were looked at.
    checked: HashSet<String>,
    last: Option<String>,
    /// Another than before has answered.
    changed: bool,
}

/// An answer, and when the request was sent that it vouches for.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) sent: Moment,
    pub(crate) told: Told,
}

/// How often a step that lost a deadlock is begun again.
const DEADLOCK_TRIES: u32 = 5;
/// How much the server's clock may move against ours between two answers.
const STEP_TOLERATED: Duration = Duration::from_millis(200);

impl Core {
    pub(crate) fn new(config: MysqlConfig, clocks: Clocks, io: Io, seed: u64) -> Result<Core> {
        Ok(Core {
            url: config.url(),
            dialer: Dialer::new(&config)?,
            wake: (config.wake == crate::Wake::GetLock).then(Arc::default),
            config,
            clocks,
            io,
            hub: Hub::new(),
            server_clock: ServerClock::new(),
            seen: Mutex::default(),
            noise: Mutex::new(Noise::seeded(seed)),
        })
    }

    /// A connection that is ready to be used.
    pub(crate) async fn dial(&self) -> Result<Session> {
        let mut session = self.dialer.dial().await?;
        let identity = session.server.identity.clone();
        if !self.servers().checked.contains(&identity) {
            check_schema(&mut session, self.config.create_tables).await?;
        }
        let mut servers = self.servers();
        let changed = servers.last.as_ref().is_some_and(|last| *last != identity);
        servers.changed |= changed;
        servers.last = Some(identity.clone());
        servers.checked.insert(identity);
        drop(servers);
        if changed {
            tracing::warn!(store = %self.url, "another server than before answers");
            self.hub.disturb();
        }
        Ok(session)
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, Servers> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection in the place of one that broke.
    pub(crate) async fn redial(&self) -> Result<Session> {
        let session = self.dial().await?;
        self.hub.disturb();
        Ok(session)
    }

    /// A new series of waits.
    pub(crate) fn backoff(&self, first: Duration, cap: Duration) -> Backoff {
        Backoff::new(first, cap, self.noise().next_u64())
    }

    pub(crate) fn noise(&self) -> std::sync::MutexGuard<'_, Noise> {
        self.noise.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn believed(&self, sent: Moment, left: Duration) -> Moment {
        belief_end(sent, left, self.config.drift)
    }

    /// Decides one request: in one statement where that is enough, else with its row's lock.
    pub(crate) async fn one(self: &Arc<Core>, session: &mut Session, ask: &Ask) -> Result<Answer> {
        let mut again = Again::new(self);
        let quick = loop {
            match self.quick(session, ask).await {
                Ok(quick) => break quick,
                Err(fail) => again.after(fail).await?,
            }
        };
        if let Some(answer) = quick {
            return Ok(answer);
        }
        let asks = std::slice::from_ref(ask);
        let mut answers = self.together(session, asks, Locked::Wait).await?;
        match answers.pop().flatten() {
            Some(answer) => answer,
            None => Err(crate::error::corrupt_table("a request was not decided")),
        }
    }

    async fn quick(&self, session: &mut Session, ask: &Ask) -> Step<Option<Answer>> {
        match ask {
            Ask::Enter(claim) => match quick::enter(session, &self.clocks, claim).await? {
                Quick::Done(admission, sent, seen) => {
                    self.observe(seen);
                    self.hub.forget(claim.id);
                    Ok(Some(Answer { sent, told: Told::Entered(admission) }))
                }
                Quick::Not => Ok(None),
            },
            Ask::Leave(claim) => match quick::leave(session, &self.clocks, claim).await? {
                Quick::Done((), sent, _) => {
                    self.hub.forget(claim.id);
                    self.wake_ended(claim.id);
                    Ok(Some(Answer { sent, told: Told::Left(Left::Released) }))
                }
                Quick::Not => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Decides these in one transaction; `None` for those whose rows are locked or not there.
    pub(crate) async fn together(
        self: &Arc<Core>,
        session: &mut Session,
        asks: &[Ask],
        locked: Locked,
    ) -> Result<Vec<Option<Result<Answer>>>> {
        let mut again = Again::new(self);
        let decided = loop {
            match engine::decide(session, &self.clocks, asks, locked).await {
                Ok(decided) => break decided,
                Err(fail) => again.after(fail).await?,
            }
        };
        self.note(asks, &decided);
        let sent = decided.seen.sent;
        let answer = |told: Option<Result<Told>>| told.map(|t| t.map(|told| Answer { sent, told }));
        Ok(decided.answers.into_iter().map(answer).collect())
    }

    fn note(self: &Arc<Core>, asks: &[Ask], decided: &Decided) {
        self.observe(Some(decided.seen));
        for (ask, told) in asks.iter().zip(&decided.answers) {
            let (Some(id), Some(Ok(told))) = (ask.claim(), told) else { continue };
            let waiting = match told {
                Told::Entered(Admission::Waiting(waiting)) => Some(waiting),
                Told::Renewed(Renewed::Waiting(waiting)) => Some(waiting),
                Told::Renewed(Renewed::Alive { .. }) => {
                    self.note_wake(ask, told, None);
                    continue;
                }
                Told::Renewed(Renewed::Unknown(_)) | Told::Written(_) => continue,
                _ => None,
            };
            self.note_wake(ask, told, decided.predecessors.get(&id).copied());
            let token = decided.tokens.get(ask.resource()).copied().flatten();
            match waiting {
                Some(waiting) => self.hub.expect(id, ask.resource(), waiting.ticket, token),
                None => self.hub.forget(id),
            }
        }
        for (_, claim, hint) in &decided.hints {
            match hint {
                Hint::Granted(pushed) => self.hub.push(pushed.clone()),
                Hint::Moved(_) => self.hub.moved(*claim),
            }
        }
    }

    fn wake_ended(&self, claim: ClaimId) {
        if let Some(wake) = &self.wake {
            wake.ended(claim);
        }
    }

    /// What the named locks have to know of an answer.
    fn note_wake(self: &Arc<Core>, ask: &Ask, told: &Told, predecessor: Option<ClaimId>) {
        let Some(wake) = &self.wake else { return };
        let now = self.clocks.now();
        let (id, term) = match ask {
            Ask::Enter(claim) => (claim.id, claim.term),
            Ask::Renew(claim) | Ask::Leave(claim) => (claim.id, claim.term),
            _ => return,
        };
        match told {
            Told::Entered(Admission::Waiting(_)) | Told::Renewed(Renewed::Waiting(_)) => {
                wake.waits(self, id, predecessor, now + term);
            }
            Told::Entered(Admission::Granted(_))
            | Told::Renewed(Renewed::Granted(_) | Renewed::Alive { .. }) => {
                wake.holds(id, now + term);
            }
            Told::Renewed(Renewed::Unknown(_)) => {}
            _ => wake.ended(id),
        }
    }

    /// Takes in the server's time; where it has stepped, all who hold or wait look.
    pub(crate) fn observe(&self, seen: Option<Seen>) {
        let Some(Seen { sent, received, server_us }) = seen else { return };
        let skew = self.server_clock.observe(sent, received, server_us, STEP_TOLERATED);
        if skew != Skew::Steady {
            tracing::warn!(store = %self.url, ?skew, "the server's clock has stepped");
            self.hub.disturb();
        }
    }

    /// How a claim that is gone has ended, as far as this side knows more than the server.
    pub(crate) fn ended(&self, how: Ended, term: Duration, granted: bool) -> Ended {
        match how {
            Ended::Expired => {
                let since = self.clocks.now().before(term);
                let gained = self.server_clock.stepped_since(since);
                let drift = i64::try_from(self.config.drift.within(term).as_micros());
                if gained > drift.unwrap_or(i64::MAX) { Ended::Clock } else { how }
            }
            Ended::Unknown if granted && self.servers().changed => Ended::Failover,
            _ => how,
        }
    }

    /// The newest token of a resource was seen in passing.
    pub(crate) fn saw(&self, resource: &ResourceName, token: Option<Token>) {
        self.hub.saw(resource, token);
    }
}

/// Lets a step that lost a deadlock begin again, a few times.
struct Again {
    backoff: Backoff,
    tries: u32,
}

impl Again {
    fn new(core: &Core) -> Again {
        let (first, cap) = (Duration::from_millis(2), Duration::from_millis(40));
        Again { backoff: core.backoff(first, cap), tries: 1 }
    }

    async fn after(&mut self, fail: Fail) -> Result<()> {
        if !matches!(fail, Fail::Again(_)) || self.tries >= DEADLOCK_TRIES {
            return Err(fail.into_error());
        }
        self.tries += 1;
        tokio::time::sleep(self.backoff.next_wait()).await;
        Ok(())
    }
}
