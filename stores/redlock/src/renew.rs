//! Renews grants: alive is what a majority says is alive. Nothing is locked anew for that.

use std::sync::Arc;

use leasehold_core::{ClaimRef, Ended, Error, Grant, Moment, Renewed, Result, Store, Token};
use leasehold_redis::member::{self, Taken};
use tokio::sync::oneshot;

use crate::core::{Core, borne_by, most, worst};

pub(crate) async fn renew(core: Arc<Core>, claims: Arc<[ClaimRef]>) -> Result<Vec<Renewed>> {
    let (tell, told) = oneshot::channel();
    tokio::spawn(gather(core, Arc::clone(&claims), tell));
    told.await.map_err(|_| {
        Error::new(leasehold_core::ErrorKind::Closed, "renew", "the store's runtime has ended")
    })
}

/// What each member has said of each claim.
struct Answers {
    of_claim: Vec<Vec<(usize, Renewed)>>,
    failed: Vec<(usize, Error)>,
}

/// Answers once all is clear, and goes on until all members have answered: who is not there yet
/// joins then, and counts from the next renewal on.
async fn gather(core: Arc<Core>, claims: Arc<[ClaimRef]>, tell: oneshot::Sender<Vec<Renewed>>) {
    let term = claims.iter().map(|claim| claim.term).min().unwrap_or_default();
    let mut asked = core.ask(core.all(), core.within(term), |_, store| {
        let claims = Arc::clone(&claims);
        async move { Ok(store.renew(&claims).await) }
    });
    let mut answers =
        Answers { of_claim: claims.iter().map(|_| Vec::new()).collect(), failed: Vec::new() };
    let mut tell = Some(tell);
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(renewed) if said.counts => {
                for (of_claim, renewed) in answers.of_claim.iter_mut().zip(renewed) {
                    of_claim.push((said.at, renewed));
                }
            }
            Ok(_) => {}
            Err(error) => answers.failed.push((said.at, error)),
        }
        if tell.is_some() && (0..claims.len()).all(|at| answers.decide(&core, at).is_some()) {
            answers.tell(&core, &claims, tell.take());
        }
    }
    answers.tell(&core, &claims, tell.take());
    for (at, claim) in claims.iter().enumerate() {
        answers.join(&core, at, claim);
    }
}

impl Answers {
    fn tell(
        &self,
        core: &Arc<Core>,
        claims: &[ClaimRef],
        tell: Option<oneshot::Sender<Vec<Renewed>>>,
    ) {
        let Some(tell) = tell else { return };
        let decided = claims.iter().enumerate().map(|(at, claim)| {
            let decided = self.decide(core, at).unwrap_or_else(|| self.unknown(core, at));
            match &decided {
                Renewed::Alive { .. } | Renewed::Granted(_) => {
                    core.still_holds(claim.id, claim.term);
                }
                Renewed::Gone(_) => core.holds_no_more(claim.id),
                _ => {}
            }
            decided
        });
        // Whoever has asked may have gone.
        drop(tell.send(decided.collect()));
    }

    fn decide(&self, core: &Core, at: usize) -> Option<Renewed> {
        let majority = core.majority();
        let said = self.of_claim.get(at)?;
        let alive: Vec<Moment> = said.iter().filter_map(|(_, said)| alive(said)).collect();
        if alive.len() >= majority {
            return Some(Renewed::Alive { until: borne_by(majority, alive) });
        }
        let granted: Vec<&Grant<Moment>> =
            said.iter().filter_map(|(_, said)| granted(said)).collect();
        let agreed = most(granted.iter().map(|grant| grant.token));
        if let Some((token, count)) = agreed
            && count >= majority
        {
            return told_grant(&granted, token, majority).map(Renewed::Granted);
        }
        let gone: Vec<Ended> = said.iter().filter_map(|(_, said)| gone(said)).collect();
        if gone.len() > core.minority() {
            return Some(Renewed::Gone(worst(gone).unwrap_or(Ended::Unknown)));
        }
        None
    }

    fn unknown(&self, core: &Core, at: usize) -> Renewed {
        let said = self.of_claim.get(at).map(Vec::as_slice).unwrap_or_default();
        let mut failed = self.failed.clone();
        for (at, said) in said {
            if let Renewed::Unknown(error) = said {
                failed.push((*at, error.clone()));
            }
        }
        let counted = said.iter().filter(|(_, said)| alive(said).is_some()).count();
        Renewed::Unknown(core.too_few(&failed, counted).maybe_applied())
    }

    /// Lets members in that have never had the claim, or have forgotten it, if it is alive without
    /// them; they refuse it if they have issued a higher token since.
    fn join(&self, core: &Arc<Core>, at: usize, claim: &ClaimRef) {
        let said = self.of_claim.get(at).map(Vec::as_slice).unwrap_or_default();
        let is_alive = matches!(self.decide(core, at), Some(Renewed::Alive { .. }));
        let Some(held) = core.still_holds(claim.id, claim.term).filter(|_| is_alive) else {
            return;
        };
        if claim.token != Some(held.token) {
            return;
        }
        let absent = said.iter().filter(|(_, said)| matches!(said, Renewed::Gone(Ended::Unknown)));
        let absent: Vec<usize> = absent.map(|(at, _)| *at).collect();
        let within = core.within(claim.term);
        let held = Arc::new(held);
        drop(core.ask_to_take(claim.id, absent, within, |_, store| {
            let (core, held) = (Arc::clone(core), Arc::clone(&held));
            async move {
                // It may have left meanwhile; that leave bars what comes after this look.
                if !core.is_held(held.claim.id) {
                    return Ok(());
                }
                let joined =
                    member::take(&store, &held.claim, &held.slots, Some(held.token)).await?;
                if matches!(joined, Taken::Granted { is_confirmed: false, .. }) {
                    member::confirm(&store, &held.claim, held.token).await?;
                }
                Ok(())
            }
        }));
    }
}

fn told_grant(granted: &[&Grant<Moment>], token: Token, majority: usize) -> Option<Grant> {
    let agreed: Vec<&&Grant<Moment>> = granted.iter().filter(|g| g.token == token).collect();
    let until = borne_by(majority, agreed.iter().map(|grant| grant.until));
    agreed.first().map(|grant| Grant { until, ..(**grant).clone() })
}

fn alive(said: &Renewed) -> Option<Moment> {
    match said {
        Renewed::Alive { until } => Some(*until),
        _ => None,
    }
}

fn granted(said: &Renewed) -> Option<&Grant<Moment>> {
    match said {
        Renewed::Granted(grant) => Some(grant),
        _ => None,
    }
}

fn gone(said: &Renewed) -> Option<Ended> {
    match said {
        Renewed::Gone(how) => Some(*how),
        _ => None,
    }
}
