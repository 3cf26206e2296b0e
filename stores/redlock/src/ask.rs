//! Asks members side by side; whoever is slow holds up nobody.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Applied, ClaimId, Error, ErrorKind, Result};
use leasehold_redis::RedisStore;
use tokio::sync::mpsc;

use crate::core::Core;
use crate::member::Member;

/// What a member has said.
#[derive(Debug)]
pub(crate) struct Said<T> {
    /// Which member.
    pub(crate) at: usize,
    pub(crate) what: Result<T>,
    /// Whether it counts in a majority.
    pub(crate) counts: bool,
}

/// The answers of members, as they come.
pub(crate) struct Asked<T> {
    told: mpsc::UnboundedReceiver<Said<T>>,
    /// How many have not answered yet.
    pub(crate) open: usize,
}

impl<T> Asked<T> {
    /// The next answer; none once all have answered or were given up.
    pub(crate) async fn next(&mut self) -> Option<Said<T>> {
        let said = if self.open == 0 { None } else { self.told.recv().await };
        self.open = if said.is_some() { self.open - 1 } else { 0 };
        said
    }
}

impl Core {
    /// Asks these members. What was asked goes on though nobody waits for the answers any more.
    /// To be called on a runtime of the store's.
    pub(crate) fn ask<T, C, F>(
        &self,
        which: impl IntoIterator<Item = usize>,
        within: Duration,
        call: C,
    ) -> Asked<T>
    where
        T: Send + 'static,
        C: Fn(usize, Arc<RedisStore>) -> F,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (tell, told) = mpsc::unbounded_channel();
        let mut open = 0;
        for at in which {
            let Some(member) = self.members.get(at) else { continue };
            open += 1;
            let counted = member.counts().is_ok();
            let told = match member.store() {
                Ok(store) => Ok(call(at, store)),
                Err(error) => Err(error),
            };
            match told {
                Err(error) => drop(tell.send(Said { at, what: Err(error), counts: false })),
                Ok(future) => {
                    let (member, tell) = (Arc::clone(member), tell.clone());
                    tokio::spawn(async move {
                        let what = in_time(&member, within, future).await;
                        let counts = counted && member.counts().is_ok();
                        // Nobody may wait for it any more.
                        drop(tell.send(Said { at, what, counts }));
                    });
                }
            }
        }
        Asked { told, open }
    }

    /// As [`Core::ask`], for what may create this claim at a member.
    pub(crate) fn ask_to_take<T, C, F>(
        &self,
        claim: ClaimId,
        which: impl IntoIterator<Item = usize>,
        within: Duration,
        call: C,
    ) -> Asked<T>
    where
        T: Send + 'static,
        C: Fn(usize, Arc<RedisStore>) -> F,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.ask(which, within, |at, store| {
            let member = self.members.get(at).cloned();
            if let Some(member) = &member {
                member.sends(claim);
            }
            let future = call(at, store);
            async move {
                let what = future.await;
                let is_clear = what.as_ref().map_or_else(|e| e.applied() == Applied::No, |_| true);
                if let Some(member) = member.filter(|_| is_clear) {
                    member.has_answered(claim);
                }
                what
            }
        })
    }
}

async fn in_time<T>(
    member: &Member,
    within: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(within, future).await {
        Ok(what) => what,
        Err(_) => {
            let detail = format!("the member {} does not answer within {within:?}", member.name);
            Err(Error::new(ErrorKind::Unreachable, "ask a member", detail).maybe_applied())
        }
    }
}
