//! Asking for a lease.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future;
use leasehold_core::{
    Acquire, AcquirePlan, Busy, Claim, ClaimId, Error, ErrorKind, Holder, Life, Mode, Patience,
    Place, ResourceName, Result,
};
use tracing::Instrument;

use crate::client::Client;
use crate::driver::{Job, closed};
use crate::here::Here;
use crate::lease::Lease;
use crate::observer::Observer;
use crate::random::bits128;

/// A wish for a lease, made by [`Client::lock`].
///
/// Nothing is done before [`Request::acquire`] or [`Request::try_acquire`].
#[derive(Clone)]
#[must_use = "nothing is acquired before `acquire` or `try_acquire`"]
pub struct Request {
    client: Client,
    name: String,
    mode: Mode,
    ttl: Duration,
    wait: Wait,
    renewed: bool,
    holder: Option<Holder>,
    label: Option<String>,
    after_loss: Duration,
    life: Life,
    reach_within: Option<Duration>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Forever,
    AtMost(Duration),
    Until(Instant),
    No,
}

/// Why no lease was acquired.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AcquireError {
    /// Others hold it, and the request was not to wait.
    #[error("{}", busy_text("busy", .0))]
    Busy(Busy),
    /// Others held it until the time was up.
    #[error("{}", busy_text("still busy when the time was up", .0))]
    TimedOut(Busy),
    /// The store refused, or was not reached.
    #[error(transparent)]
    Failed(#[from] Error),
}

fn busy_text(what: &str, busy: &Busy) -> String {
    match &busy.holder {
        Some(holder) => format!("{what}: held by {}", leasehold_core::shown(&holder.label, 200)),
        None => what.to_owned(),
    }
}

impl Request {
    /// The default term of a lease.
    pub const TTL_DEFAULT: Duration = Duration::from_secs(30);

    pub(crate) fn new(client: Client, name: &str) -> Request {
        Request {
            client,
            name: name.to_owned(),
            mode: Mode::Exclusive,
            ttl: Request::TTL_DEFAULT,
            wait: Wait::Forever,
            renewed: true,
            holder: None,
            label: None,
            after_loss: Duration::ZERO,
            life: Life::Process,
            reach_within: None,
            observer: None,
        }
    }

    /// The term: how long the lease outlives its holder if nobody renews it. 30 s by default.
    ///
    /// It is renewed at a third of it. A short one frees the resource sooner after a crash on a
    /// store that cannot see one; a long one survives longer outages of the store.
    pub fn ttl(mut self, ttl: Duration) -> Request {
        self.ttl = ttl;
        self
    }

    /// Waits at most this long; zero is [`Request::no_wait`]. Without it, for ever.
    pub fn wait(mut self, at_most: Duration) -> Request {
        self.wait = if at_most.is_zero() { Wait::No } else { Wait::AtMost(at_most) };
        self
    }

    /// Waits until this moment at the latest, however much of the time is gone when it is
    /// acquired; a moment that has passed is [`Request::no_wait`].
    pub fn deadline(mut self, at: Instant) -> Request {
        self.wait = Wait::Until(at);
        self
    }

    /// Does not wait and does not queue.
    pub fn no_wait(mut self) -> Request {
        self.wait = Wait::No;
        self
    }

    /// Together with other shared leases, not beside an exclusive one.
    pub fn shared(mut self) -> Request {
        self.mode = Mode::Shared;
        self
    }

    /// `count` of `limit` numbered permits. All who use the resource must name the same limit.
    pub fn permits(mut self, count: u32, limit: u32) -> Request {
        self.mode = Mode::Permits { count, limit };
        self
    }

    /// One term without renewal: the lease ends by itself after the ttl.
    pub fn fixed_term(mut self) -> Request {
        self.renewed = false;
        self
    }

    /// Claims as this holder. If it holds the resource already, in a mode that covers this one, the
    /// claim re-enters: it is granted at once and shares the token; the last one released frees.
    pub fn holder(mut self, holder: &Holder) -> Request {
        self.holder = Some(holder.clone());
        self
    }

    /// What others see as the holder; host, pid and program by default. A label never re-enters.
    pub fn label(mut self, label: &str) -> Request {
        self.label = Some(label.to_owned());
        self
    }

    /// Holds the lease back this long after the one before ended otherwise than by a release: for
    /// things that cannot check a token, so that a late write of the old holder has passed.
    pub fn after_loss(mut self, span: Duration) -> Request {
        self.after_loss = span;
        self
    }

    /// What ends the claim besides its term: [`Life::Process`] by default.
    pub fn life(mut self, life: Life) -> Request {
        self.life = life;
        self
    }

    /// Fails if the store has not answered anything within this time (10 s by default); once it
    /// has, an outage is waited out.
    pub fn reach_within(mut self, span: Duration) -> Request {
        self.reach_within = Some(span);
        self
    }

    /// Told how it goes.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Request {
        self.observer = Some(observer);
        self
    }

    /// Acquires it.
    ///
    /// # Fairness
    ///
    /// First come, first served: among the tasks of a client always, among processes where the
    /// store's profile says so.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]; after any of them no claim is left behind, or one that is being withdrawn
    /// in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, or releases what was granted meanwhile.
    pub async fn acquire(self) -> Result<Lease, AcquireError> {
        let mode = self.mode;
        let span = tracing::debug_span!(target: "leasehold", "acquire", name = ?self.name, ?mode);
        self.acquire_now().instrument(span).await
    }

    async fn acquire_now(self) -> Result<Lease, AcquireError> {
        let name = self.client.resource(&self.name)?;
        self.client.shared().ensure_open("acquire a lease")?;
        let now = self.client.shared().clock().now();
        let patience = match self.wait {
            Wait::No => Patience::Try,
            Wait::Forever => Patience::Forever,
            Wait::AtMost(span) => Patience::Until(now + span),
            Wait::Until(at) => match at.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Patience::Try,
                span => Patience::Until(now + span),
            },
        };
        let claim = self.claim(name)?;
        // A try does not wait for a turn; a holder that re-enters must not wait for those who
        // wait for it.
        let alone = patience == Patience::Try || self.holder.is_some();
        let turn =
            if alone { None } else { Some(self.take_turn(&claim.resource, patience).await?) };
        let mut plan = AcquirePlan::new(claim, patience, self.client.profile());
        if let Some(span) = self.reach_within {
            plan.reach_within = span;
        }
        // A first term that another's release granted is short, and nothing lengthens it later.
        plan.confirm_pushed = !self.renewed;
        let lease = self.see_through(plan).await?;
        drop(turn);
        Ok(lease)
    }

    /// Acquires it if it is free now; `None` if it is not.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn try_acquire(self) -> Result<Option<Lease>> {
        match self.no_wait().acquire().await {
            Ok(lease) => Ok(Some(lease)),
            Err(AcquireError::Busy(_) | AcquireError::TimedOut(_)) => Ok(None),
            Err(AcquireError::Failed(error)) => Err(error),
        }
    }

    fn claim(&self, resource: ResourceName) -> Result<Claim> {
        let refuse = |detail: String| {
            Err(Error::new(ErrorKind::Usage, "acquire a lease", detail).on(&resource))
        };
        let (shortest, longest) = self.client.profile().term_bounds;
        if self.ttl < shortest || self.ttl > longest {
            return refuse(format!(
                "a term of {:?} is out of bounds: want {shortest:?} to {longest:?}",
                self.ttl
            ));
        }
        if !self.mode.is_valid() {
            return refuse(format!(
                "permits must be at least 1 and fit their limit, which is at most {}",
                Mode::LIMIT_MAX
            ));
        }
        let modes = self.client.profile().modes;
        let supported = match self.mode {
            Mode::Exclusive => true,
            Mode::Shared => modes.shared,
            Mode::Permits { .. } => modes.permits,
        };
        if !supported {
            let detail = "this store has no such mode";
            let error = Error::new(ErrorKind::Unsupported, "acquire a lease", detail);
            return Err(error.on(&resource));
        }
        let holder = match &self.holder {
            Some(holder) => holder.clone(),
            None => self.client.new_holder(self.label.as_deref())?,
        };
        Ok(Claim {
            id: ClaimId::from_bits(0),
            resource,
            holder,
            mode: self.mode,
            term: self.ttl,
            life: self.life,
            place: Place::No,
            after_loss: self.after_loss,
        })
    }

    async fn take_turn(
        &self,
        name: &ResourceName,
        patience: Patience,
    ) -> Result<crate::turns::Turn, AcquireError> {
        let shared = self.client.shared();
        let taking = async { Ok(self.client.turns().take(name).await) };
        let closing = async {
            shared.until_closing().await;
            Err(AcquireError::Failed(closed("acquire a lease")))
        };
        let taken = future::or(taking, closing);
        let Patience::Until(end) = patience else { return taken.await };
        let time_up = async {
            shared.sleep_until(end).await;
            Err(AcquireError::TimedOut(Busy::default()))
        };
        future::or(taken, time_up).await
    }

    /// Runs the machine: in this task where the store's calls may be polled in it, else on the
    /// driver.
    async fn see_through(&self, plan: AcquirePlan) -> Result<Lease, AcquireError> {
        let shared = self.client.shared();
        let resource = plan.claim.resource.clone();
        let machine = Acquire::new(plan, shared.clock().now(), bits128()?);
        let job = Job::new(machine, resource, self.observer.clone(), self.renewed);
        let acquired = if self.client.profile().polls_anywhere {
            Here::new(shared, job).await
        } else {
            shared.submit(job)?.await
        };
        let kept = acquired?;
        let (name, token) = (&kept.granted.claim.resource, kept.granted.grant.token);
        tracing::debug!(target: "leasehold", %name, %token, "acquired");
        Ok(Lease::new(self.client.clone(), kept))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
