//! A claim known by its id, for scripts that acquire in one process and release in another.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, ClaimRef, Ended, Left, Life, QueueState, Renewed, ResourceName, Result,
};

use crate::client::Client;

/// A claim that lives at the store and is known by its id. Nothing renews it but
/// [`Claimed::renew`], and dropping this does nothing to it.
#[derive(Debug, Clone)]
pub struct Claimed {
    client: Client,
    name: ResourceName,
    id: ClaimId,
}

impl Claimed {
    pub(crate) fn new(client: Client, name: ResourceName, id: ClaimId) -> Claimed {
        Claimed { client, name, id }
    }

    /// Gives it another term from now. `Err` with how it ended inside, if it has.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn renew(&self, term: Duration) -> Result<Result<(), Ended>> {
        // A renewal says what else ends the claim: that stays as it is.
        let queue = self.client.inspect(self.name.as_str()).await?;
        let entry = queue.entries.iter().find(|e| e.claim == self.id);
        let life = entry.map_or(Life::Term, |e| e.life);
        let claim = ClaimRef { term, life, ..self.claim_ref() };
        let store = Arc::clone(self.client.store());
        let call = Box::pin(async move { Ok(store.renew(&[claim]).await) });
        let answers = self.client.shared().call("renew a claim", call).await?;
        match answers.into_iter().next() {
            Some(Renewed::Alive { .. } | Renewed::Granted(_)) => Ok(Ok(())),
            Some(Renewed::Gone(how)) => Ok(Err(how)),
            Some(Renewed::Waiting(_)) | None => Ok(Err(Ended::Unknown)),
            Some(Renewed::Unknown(error)) => Err(error),
        }
    }

    /// Whether it is granted now. Changes nothing; old when it arrives.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn is_held(&self) -> Result<bool> {
        let queue = self.client.inspect(self.name.as_str()).await?;
        let granted =
            |state: &QueueState| matches!(state, QueueState::Granted { broken: false, .. });
        Ok(queue.entries.iter().any(|e| e.claim == self.id && granted(&e.state)))
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// The store's; [`Error::applied`](leasehold_core::Error::applied) says whether it may have
    /// left all the same.
    pub async fn release(&self) -> Result<Left> {
        let claim = self.claim_ref();
        let store = Arc::clone(self.client.store());
        let call = Box::pin(async move { store.leave(&claim).await });
        self.client.shared().call("leave", call).await
    }

    fn claim_ref(&self) -> ClaimRef {
        ClaimRef {
            id: self.id,
            resource: self.name.clone(),
            token: None,
            term: crate::Request::TTL_DEFAULT,
            life: Life::Term,
            enter_unanswered: false,
        }
    }
}
