//! The connection for renewals, and for the poller that looks after waiting claims. Nothing on it
//! ever waits for a row's lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, ClaimRef, Error, ErrorKind, Grant, Previous, Pushed, PushedEnd, Renewed, ResourceName,
    Result, Slots, Ticket,
};
use tokio::sync::{Mutex, MutexGuard};

use crate::cells::Cells;
use crate::core::{Answer, Core};
use crate::desk::{Ask, Told};
use crate::engine::{Locked, Seen};
use crate::error::{DOING, Fail, made};
use crate::hub::Waited;
use crate::lit::{Lit, Sql};
use crate::session::{Session, Set};

/// How many claims one transaction renews.
const BATCH: usize = 128;
/// When rows that were locked are looked at again: most transactions are over in milliseconds.
const LOOKS_AGAIN_MS: [u64; 3] = [3, 8, 20];
/// How often waiting claims are looked after: soon after something has happened, then less.
const POLL_FIRST: Duration = Duration::from_millis(10);
const POLL_CAP: Duration = Duration::from_millis(150);
/// How many names one look asks about.
const NAMES: usize = 500;

/// The connection for renewals and the poller.
#[derive(Debug)]
pub(crate) struct Back {
    core: Arc<Core>,
    session: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    session: Option<Session>,
    was_open: bool,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("is_open", &self.session.is_some()).finish_non_exhaustive()
    }
}

impl Back {
    pub(crate) fn start(core: Arc<Core>) -> Arc<Back> {
        let back = Arc::new(Back { core, session: Mutex::default() });
        let poller = Arc::clone(&back);
        back.core.io.back().spawn(poller.poll_on());
        back
    }

    async fn open(&self) -> Result<Open<'_>> {
        let mut slot = self.session.lock().await;
        if slot.session.as_ref().is_none_or(Session::is_broken) {
            slot.session = None;
            let session =
                if slot.was_open { self.core.redial().await? } else { self.core.dial().await? };
            slot.session = Some(session);
            slot.was_open = true;
        }
        Ok(Open(slot))
    }

    /// Renews these, each alone as far as it may be sick; in order.
    pub(crate) async fn renew(&self, claims: &[ClaimRef]) -> Vec<Option<Result<Answer>>> {
        let mut answers: Vec<Option<Result<Answer>>> = claims.iter().map(|_| None).collect();
        for pause in std::iter::once(0).chain(LOOKS_AGAIN_MS) {
            let left: Vec<usize> = (0..claims.len()).filter(|n| answers[*n].is_none()).collect();
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
            for batch in left.chunks(BATCH) {
                let asks: Vec<Ask> = batch.iter().map(|n| Ask::Renew(claims[*n].clone())).collect();
                let renewed = self.renew_batch(&asks).await;
                for (n, answer) in batch.iter().zip(renewed) {
                    answers[*n] = answer;
                }
            }
        }
        answers
    }

    async fn renew_batch(&self, asks: &[Ask]) -> Vec<Option<Result<Answer>>> {
        match self.try_batch(asks).await {
            Ok(answers) => answers,
            // One damaged row must not cost the others their leases.
            Err(error) if asks.len() > 1 && error.kind() == ErrorKind::Corrupt => {
                let mut answers = Vec::with_capacity(asks.len());
                for ask in asks {
                    let one = self.try_batch(std::slice::from_ref(ask)).await;
                    answers.push(one.map_or_else(|e| Some(Err(e)), |mut a| a.pop().flatten()));
                }
                answers
            }
            Err(error) => asks.iter().map(|_| Some(Err(error.clone()))).collect(),
        }
    }

    async fn try_batch(&self, asks: &[Ask]) -> Result<Vec<Option<Result<Answer>>>> {
        let mut open = self.open().await?;
        let answers = self.core.together(open.session()?, asks, Locked::Skip).await;
        match answers {
            // A renewal may be sent again: where the connection breaks, another is tried once.
            Err(error) if error.kind().is_transient() && open.session()?.is_broken() => {
                drop(open);
                let mut open = self.open().await.map_err(|_| error)?;
                self.core.together(open.session()?, asks, Locked::Skip).await
            }
            answers => answers,
        }
    }

    /// Looks after all waiting claims, until the store is closed.
    async fn poll_on(self: Arc<Back>) {
        let hub = &self.core.hub;
        let mut interval = POLL_FIRST;
        while !hub.is_closed() {
            let waited: Vec<(ResourceName, Waited)> = hub.waited().into_iter().collect();
            if waited.is_empty() {
                hub.poked().await;
                interval = POLL_FIRST;
                continue;
            }
            let pause = self.core.noise().between(interval * 3 / 4, interval * 5 / 4);
            tokio::time::sleep(pause).await;
            let mut any = false;
            for names in waited.chunks(NAMES) {
                match self.poll(names).await {
                    Ok(news) => any |= news,
                    // The next look comes; those who wait also look by themselves.
                    Err(_) => interval = POLL_CAP,
                }
            }
            interval = if any { POLL_FIRST } else { (interval * 4 / 3).min(POLL_CAP) };
        }
        // The last of the connection.
        if let Some(session) = self.session.lock().await.session.take() {
            session.close().await;
        }
    }

    /// Looks once; whether anybody has been granted since the last look.
    async fn poll(&self, waited: &[(ResourceName, Waited)]) -> Result<bool> {
        let mut open = self.open().await?;
        let clocks = &self.core.clocks;
        let names: Vec<Lit> = waited.iter().map(|(name, _)| Lit::word(name.as_str())).collect();
        let mut sql = Sql::new();
        sql.text("SELECT name, token, h_claim, h_until, h_previous, ").text(&clocks.server);
        sql.text(" FROM leasehold_resource WHERE name IN ").list(&names);
        let sent = clocks.now();
        let sets = open.session()?.ask(&sql).await.map_err(Fail::into_error)?;
        let received = clocks.now();
        let found = plain_holders(sets)?;
        let mut changed = Vec::new();
        for (name, waiting) in waited {
            let Some(holder) = found.iter().find(|holder| holder.name == *name) else {
                self.core.hub.moved_on(name);
                continue;
            };
            let server_us = holder.now;
            self.core.observe(Some(Seen { sent, received, server_us }));
            if holder.token <= waiting.token {
                continue;
            }
            changed.push((name, waiting, holder));
        }
        if changed.is_empty() {
            return Ok(false);
        }
        let mut others = Vec::new();
        for (name, waiting, holder) in changed {
            match waiting.claims.iter().find(|(claim, _)| holder.claim == Some(*claim)) {
                Some((claim, ticket)) => {
                    let until = holder.until.saturating_sub(holder.now);
                    let until = self.core.believed(sent, Duration::from_micros(until));
                    let grant = Grant {
                        claim: *claim,
                        token: holder
                            .token
                            .ok_or_else(|| made(ErrorKind::Corrupt, "a token is missing"))?,
                        until: PushedEnd::At(until),
                        slots: Slots::default(),
                        previous: holder.previous,
                    };
                    self.core.hub.push(Pushed { grant, ticket: *ticket });
                }
                None if holder.claim.is_none() => others.push((name, waiting)),
                None => {}
            }
            self.core.saw(name, holder.token);
        }
        if !others.is_empty() {
            self.poll_claims(open.session()?, &others).await?;
        }
        Ok(true)
    }

    /// Looks for grants that do not stand in their resource's own row.
    async fn poll_claims(
        &self,
        session: &mut Session,
        waited: &[(&ResourceName, &Waited)],
    ) -> Result<()> {
        let clocks = &self.core.clocks;
        let names: Vec<Lit> = waited.iter().map(|(name, _)| Lit::word(name.as_str())).collect();
        let own: Vec<&(ClaimId, Ticket)> = waited.iter().flat_map(|(_, w)| &w.claims).collect();
        let ids: Vec<Lit> = own.iter().map(|(id, _)| Lit::id(id.bits())).collect();
        let mut sql = Sql::new();
        sql.text("SELECT claim, token, until, previous, slots, ").text(&clocks.server);
        sql.text(" FROM leasehold_claim WHERE resource IN ").list(&names);
        sql.text(" AND token IS NOT NULL AND claim IN ").list(&ids);
        let sent = clocks.now();
        let sets = session.ask(&sql).await.map_err(Fail::into_error)?;
        for row in sets.into_iter().flat_map(|set| set.rows) {
            let mut cells = Cells::new(row);
            let (claim, token, until) = (cells.claim()?, cells.maybe_token()?, cells.num()?);
            let previous = cells.maybe_previous()?.unwrap_or(Previous::First);
            let slots = cells.slots(leasehold_core::Mode::Exclusive)?;
            let left = Duration::from_micros(until.saturating_sub(cells.num()?));
            let ticket = own.iter().find(|(id, _)| *id == claim).map(|(_, ticket)| *ticket);
            if let (Some(token), Some(ticket)) = (token, ticket) {
                let until = PushedEnd::At(self.core.believed(sent, left));
                let grant = Grant { claim, token, until, slots, previous };
                self.core.hub.push(Pushed { grant, ticket });
            }
        }
        Ok(())
    }
}

/// The connection, while it is used.
struct Open<'b>(MutexGuard<'b, Slot>);

impl Open<'_> {
    fn session(&mut self) -> Result<&mut Session> {
        let gone = || Error::new(ErrorKind::Unreachable, DOING, "the connection is gone");
        self.0.session.as_mut().ok_or_else(gone)
    }
}

/// What a look finds of a resource.
struct PlainHolder {
    name: ResourceName,
    token: Option<leasehold_core::Token>,
    claim: Option<ClaimId>,
    until: u64,
    previous: Previous,
    now: u64,
}

fn plain_holders(sets: Vec<Set>) -> Result<Vec<PlainHolder>> {
    let mut found = Vec::new();
    for row in sets.into_iter().flat_map(|set| set.rows) {
        let mut cells = Cells::new(row);
        found.push(PlainHolder {
            name: cells.name()?,
            token: cells.maybe_token()?,
            claim: cells.maybe_id()?.map(ClaimId::from_bits),
            until: cells.maybe_num()?.unwrap_or(0),
            previous: cells.maybe_previous()?.unwrap_or(Previous::First),
            now: cells.num()?,
        });
    }
    Ok(found)
}

/// An answer to one claim of a renewal, where there is one.
pub(crate) fn renewed(answer: Result<Answer>, core: &Core, claim: &ClaimRef) -> Renewed {
    let unknown = |e: Error| {
        Renewed::Unknown(e.while_doing("renew").on(&claim.resource).at(core.url.as_str()))
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return unknown(error),
    };
    match answer.told {
        Told::Renewed(Renewed::Gone(how)) => {
            Renewed::Gone(core.ended(how, claim.term, claim.token.is_some()))
        }
        Told::Renewed(Renewed::Unknown(error)) => unknown(error),
        Told::Renewed(Renewed::Waiting(waiting)) => {
            Renewed::Waiting(crate::waiting::looks_again(waiting))
        }
        Told::Renewed(renewed) => renewed.map_until(|left| core.believed(answer.sent, left)),
        _ => unknown(made(ErrorKind::Bug, "another request was answered")),
    }
}
