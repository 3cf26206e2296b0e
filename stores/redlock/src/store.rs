//! The store: each verb asks all members, and answers as a majority does.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, Cursor, Epoch, Error, ErrorKind,
    Hint, Left, Mode, Noise, Page, Place, Profile, Queue, Record, Renewed, ResourceName, Result,
    Route, Store, Token, Written,
};

use leasehold_net::BootClock;

use crate::config::RedlockConfig;
use crate::core::Core;
use crate::profile::profile;

/// The shortest term: a member is given a part of it to answer.
pub(crate) const TERM_MIN: Duration = Duration::from_secs(1);
/// There are no places; what the profile has to name.
pub(crate) const PLACE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
/// How often who watches is told to look.
const POLL: Duration = Duration::from_millis(100);

/// The store over several Redis servers. See the [crate's documentation](crate) for what it
/// promises.
pub struct RedlockStore {
    core: Arc<Core>,
    profile: Profile,
}

impl std::fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedlockStore").field("url", &self.profile.url).finish_non_exhaustive()
    }
}

impl Drop for RedlockStore {
    fn drop(&mut self) {
        self.core.has_closed();
    }
}

impl RedlockStore {
    /// Reaches a majority of the members, and checks that they can be used. The others are tried
    /// on and on, and are told of what is held once they are there. The future may be polled by any
    /// executor.
    ///
    /// # Errors
    ///
    /// `Unreachable` without a majority after `connect_within`; `Config` for a member that is a
    /// replica, is another member by another name, or has another layout, and for a configuration
    /// that cannot be; `Permission` for credentials that are refused.
    pub async fn connect(config: RedlockConfig) -> Result<RedlockStore> {
        crate::open::connect(config).await
    }

    pub(crate) fn new(core: Arc<Core>) -> RedlockStore {
        RedlockStore { profile: profile(&core.config), core }
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.core.config.epoch
    }

    fn check(&self, claim: &Claim) -> Result<()> {
        let refused = |kind, detail: String| Err(Error::new(kind, "enter", detail));
        let (least, most) = self.profile.term_bounds;
        match claim.mode {
            Mode::Shared => refused(
                ErrorKind::Unsupported,
                "there are no shared claims over several servers".into(),
            ),
            mode if !mode.is_valid() => {
                refused(ErrorKind::Usage, "permits must be at least 1 and fit their limit".into())
            }
            _ if !(least..=most).contains(&claim.term) => self.bad_term(claim.term),
            _ => Ok(()),
        }
    }

    fn bad_term(&self, term: Duration) -> Result<()> {
        let (least, most) = self.profile.term_bounds;
        let detail = format!("the term {term:?} is out of bounds: want {least:?} to {most:?}");
        Err(Error::new(ErrorKind::Usage, "enter", detail).advise("or choose another `?max_term=`"))
    }

    fn named(&self, error: Error, doing: &'static str) -> Error {
        error.while_doing(doing).at(self.profile.url.as_str())
    }

    /// Runs a verb and names what it failed at.
    async fn verb<T, F>(
        &self,
        doing: &'static str,
        name: Option<&ResourceName>,
        verb: impl Fn(Arc<Core>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let answer = self.core.run(doing, || verb(Arc::clone(&self.core))).await;
        answer.and_then(|answer| answer).map_err(|error| {
            let error = self.named(error, doing);
            match name {
                Some(name) => error.on(name),
                None => error,
            }
        })
    }
}

/// Between half of this span and one and a half of it, so that those who wait do not try together.
fn at_random(span: Duration, claim: Option<ClaimId>) -> Duration {
    let bits = claim.map_or(0, |claim| u64::try_from(claim.bits() >> 64).unwrap_or_default());
    let mut noise = Noise::seeded(bits ^ BootClock.now().as_nanos());
    noise.between(span / 2, span + span / 2)
}

#[async_trait]
impl Store for RedlockStore {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, _: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        self.check(claim).map_err(|e| self.named(e, "enter").on(&claim.resource))?;
        let asked = Arc::new(Claim { place: Place::No, ..claim.clone() });
        let verb = |core| crate::enter::enter(core, Arc::clone(&asked));
        self.verb("enter", Some(&claim.resource), verb).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        if claims.is_empty() {
            return Vec::new();
        }
        let asked: Arc<[ClaimRef]> = claims.into();
        let back = Arc::clone(&self.core);
        let renewed = self
            .core
            .io
            .on_back("renew", async move { crate::renew::renew(back, asked).await })
            .await
            .and_then(|renewed| renewed);
        match renewed {
            Ok(renewed) => renewed
                .into_iter()
                .zip(claims)
                .map(|(renewed, claim)| match renewed {
                    Renewed::Unknown(error) => {
                        Renewed::Unknown(self.named(error, "renew").on(&claim.resource))
                    }
                    renewed => renewed,
                })
                .collect(),
            Err(error) => {
                let unknown = |claim: &ClaimRef| {
                    Renewed::Unknown(self.named(error.clone(), "renew").on(&claim.resource))
                };
                claims.iter().map(unknown).collect()
            }
        }
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let verb = |core| crate::leave::leave(core, claim.clone());
        self.verb("leave", Some(&claim.resource), verb).await
    }

    async fn changed(
        &self,
        _: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let changed = self.core.changed.listen();
        if self.core.changes() <= since.0 {
            let poll = at_most.min(at_random(POLL, claim));
            let slept =
                self.core.io.on_back("watch", async move { tokio::time::sleep(poll).await });
            futures_lite::future::or(
                async {
                    changed.await;
                    Ok(())
                },
                slept,
            )
            .await
            .map_err(|error| self.named(error, "watch"))?;
        }
        Ok(Hint::Moved(Cursor(self.core.changes().max(since.0))))
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        let verb = |core| crate::inspect::inspect(core, resource.clone());
        self.verb("inspect", Some(resource), verb).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.verb("list names", None, |core| crate::list::list(core, page.clone())).await
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let value: Arc<[u8]> = value.into();
        let verb = |core| crate::write::write(core, claim.clone(), Arc::clone(&value), keep);
        self.verb("write a record", Some(&claim.resource), verb).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        let verb = |core| crate::read::read(core, resource.clone());
        self.verb("read a record", Some(resource), verb).await
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let verb = |core| crate::break_::break_(core, resource.clone(), expect, now);
        self.verb("break a grant", Some(resource), verb).await
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let verb = |core| crate::clean::clean(core, keep, page.clone(), dry);
        self.verb("clean names", None, verb).await
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        loop {
            let changed = self.core.changed.listen();
            let epochs = self.core.members.iter().map(|member| member.disturbances());
            let now = Cursor(epochs.sum());
            if now > since {
                return now;
            }
            let mut waits = vec![crate::open::boxed(async move {
                changed.await;
            })];
            for member in &self.core.members {
                if let Ok(store) = member.store() {
                    let seen = leasehold_redis::member::disturbances(&store);
                    waits.push(crate::open::boxed(async move {
                        leasehold_redis::member::disturbed(&store, seen).await;
                    }));
                }
            }
            select_all(waits).await;
        }
    }

    async fn close(&self) {
        for member in &self.core.members {
            if let Ok(store) = member.store() {
                store.close().await;
            }
        }
        self.core.has_closed();
    }
}
