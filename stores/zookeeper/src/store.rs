//! The store: verbs that run on its own thread, wherever they are asked for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Cursor, Epoch, Error, Hint, Left, Page,
    Profile, Queue, Record, Renewed, ResourceName, Result, Route, Store, Token, Written,
};
use leasehold_net::Io;

use crate::config::ZookeeperConfig;
use crate::hall::Hall;
use crate::wire::Op;

/// The store over ZooKeeper. See the [crate's documentation](crate) for what it promises.
#[derive(Debug)]
pub struct ZookeeperStore {
    hall: Arc<Hall>,
    /// Ends the store's thread when the last clone is dropped; the session's task has one too.
    _io: Io,
}

/// How long `close` waits for the server's word.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

impl ZookeeperStore {
    /// Connects, and begins a session. Its future may be polled anywhere.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_core::Result<()> {
    /// use leasehold_core::Store;
    /// use leasehold_zookeeper::{ZookeeperConfig, ZookeeperStore};
    ///
    /// let config = ZookeeperConfig::from_url("zookeeper://a,b,c/app/locks")?;
    /// let store = ZookeeperStore::connect(config).await?;
    /// println!("terms up to {:?}", store.profile().term_bounds.1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Unreachable` if no server with a quorum answered within `connect_within`, `Permission` for
    /// credentials that the server or the root's ACL refuses, `Config` for unfit certificates,
    /// `Version` for a root of a newer leasehold.
    pub async fn connect(config: ZookeeperConfig) -> Result<ZookeeperStore> {
        let io = Io::start("leasehold-zk")?;
        let (on, url) = (io.clone(), config.url());
        let opened =
            io.on_back("connect to ZooKeeper", async move { crate::open::open(&on, config).await });
        let hall = opened.await.flatten().map_err(|e| e.at(url))?;
        Ok(ZookeeperStore { hall, _io: io })
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.hall.config.epoch
    }

    /// The path of a granted claim's own node, which stands for as long as the claim does and is
    /// never used again: a `check` of it in a transaction of the caller's is the strongest fence for
    /// what is kept in the same ensemble. `None` for a claim that is not granted here.
    pub fn node(&self, claim: &ClaimRef) -> Option<String> {
        crate::check::node(&self.hall, claim)
    }

    /// Whether a claim is granted at this moment, asked of the ensemble by a transaction of its own
    /// that changes nothing: no server can answer it that has lost the others.
    ///
    /// # Errors
    ///
    /// `Unreachable` and `Unavailable` if there is no answer.
    pub async fn check(&self, claim: &ClaimRef) -> Result<bool> {
        let (hall, claim) = (Arc::clone(&self.hall), claim.clone());
        self.hall.run(async move { crate::check::check(&hall, &claim).await }).await
    }
}

#[async_trait]
impl Store for ZookeeperStore {
    fn profile(&self) -> &Profile {
        &self.hall.profile
    }

    fn route(&self, _resource: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let (hall, asked) = (Arc::clone(&self.hall), claim.clone());
        let entered = self.hall.run(async move { crate::enter::enter(&hall, &asked).await }).await;
        entered.map_err(|e| e.while_doing("enter the queue").on(&claim.resource))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        if claims.is_empty() {
            return Vec::new();
        }
        let (hall, asked) = (Arc::clone(&self.hall), claims.to_vec());
        let renewed = self.hall.run(async move { Ok(crate::renew::renew(&hall, &asked).await) });
        let named = |e: Error| e.while_doing("renew").at(self.hall.profile.url.as_str());
        match renewed.await {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| match answer {
                    Renewed::Unknown(error) => Renewed::Unknown(named(error)),
                    answer => answer,
                })
                .collect(),
            Err(error) => {
                let error = named(error);
                claims.iter().map(|_| Renewed::Unknown(error.clone())).collect()
            }
        }
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let (hall, named) = (Arc::clone(&self.hall), claim.clone());
        let left = self.hall.run(async move { crate::leave::leave(&hall, &named).await }).await;
        left.map_err(|e| e.while_doing("leave").on(&claim.resource))
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        Ok(crate::changed::changed(&self.hall, resource, claim, since, at_most).await)
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        let (hall, name) = (Arc::clone(&self.hall), resource.clone());
        let seen = self.hall.run(async move { crate::inspect::inspect(&hall, &name).await }).await;
        seen.map_err(|e| e.while_doing("inspect").on(resource))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        let (hall, page) = (Arc::clone(&self.hall), page.clone());
        let listed = self.hall.run(async move { crate::list::list(&hall, &page).await }).await;
        listed.map_err(|e| e.while_doing("list the names"))
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let (hall, named, value) = (Arc::clone(&self.hall), claim.clone(), value.to_vec());
        let written = self
            .hall
            .run(async move { crate::write::write(&hall, &named, &value, keep).await })
            .await;
        written.map_err(|e| e.while_doing("write a record").on(&claim.resource))
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        let (hall, name) = (Arc::clone(&self.hall), resource.clone());
        let read = self.hall.run(async move { crate::read::read(&hall, &name).await }).await;
        read.map_err(|e| e.while_doing("read a record").on(resource))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let (hall, name) = (Arc::clone(&self.hall), resource.clone());
        let broken = self
            .hall
            .run(async move { crate::break_::break_(&hall, &name, expect, now).await })
            .await;
        broken.map_err(|e| e.while_doing("break a grant").on(resource))
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let (hall, page) = (Arc::clone(&self.hall), page.clone());
        let cleaned =
            self.hall.run(async move { crate::clean::clean(&hall, keep, &page, dry).await }).await;
        cleaned.map_err(|e| e.while_doing("clean"))
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        crate::changed::disturbed(&self.hall, since).await
    }

    /// Closes the session: what this client holds is free at once.
    async fn close(&self) {
        let hall = Arc::clone(&self.hall);
        let closing = async move {
            if let Some(now) = hall.wire.session().now() {
                let close = hall.ask(now.generation, &Op::Close);
                let _ = tokio::time::timeout(CLOSE_WITHIN, close).await;
            }
            Ok(())
        };
        let _ = self.hall.run(closing).await;
    }
}
