//! Claims a resource.

use std::time::Duration;

use leasehold_core::{
    Admission, Claim, Ended, Error, ErrorKind, Kind, Mode, Place, Result, Waiting,
};

use crate::desk::{Desk, QUEUE_MAX};
use crate::entry::Entry;
use crate::error::Step;
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn enter(store: &SqliteStore, claim: &Claim) -> Result<Admission> {
    SqliteStore::check_term(&claim.resource, claim.term)?;
    let on = |e: Error| e.on(&claim.resource);
    let (sent, answer) = store.decide(|tx| step(tx, claim)).await.map_err(on)?;
    let answer = answer?;
    match &answer {
        Admission::Waiting(_) => store.hub().ensure_thread().map_err(on)?,
        _ => store.hub().forget(claim.id),
    }
    Ok(answer.map_until(|left| SqliteStore::believed(sent, left)))
}

/// A refusal is an answer too: what was settled before it stays settled.
fn step(tx: &mut Tx<'_>, claim: &Claim) -> Step<Result<Admission<Duration>>> {
    let mut desk = Desk::open(tx, &claim.resource)?;
    let answer = decide(&mut desk, claim)?;
    desk.close()?;
    Ok(answer)
}

fn decide(desk: &mut Desk<'_, '_>, claim: &Claim) -> Step<Result<Admission<Duration>>> {
    desk.settle(Some(claim.id))?;
    if let Some(how) = desk.grave(claim.id)? {
        return Ok(Ok(Admission::Gone(how)));
    }
    if let Some(entry) = desk.find(claim.id)? {
        return Ok(Ok(answer(desk, &entry)?));
    }
    if let Some(refusal) = refusal(desk, claim)? {
        // Perhaps only the dead are in the way.
        if !desk.bury_dead_holders()? {
            return Ok(Err(refusal));
        }
        desk.settle(None)?;
        if let Some(refusal) = self::refusal(desk, claim)? {
            return Ok(Err(refusal));
        }
    }
    let queue = claim.place != Place::No;
    let mut joined = desk.join(claim, false)?;
    if joined.is_none() {
        if desk.bury_dead_holders()? {
            desk.settle(None)?;
        }
        joined = desk.join(claim, queue)?;
    }
    match joined {
        Some(entry) => Ok(Ok(answer(desk, &entry)?)),
        None => Ok(Ok(Admission::Busy(desk.busy(claim.after_loss)))),
    }
}

/// The state of a claim as an answer.
fn answer(desk: &mut Desk<'_, '_>, entry: &Entry) -> Step<Admission<Duration>> {
    match entry.grant(desk.tx.now) {
        Some(_) if entry.held.as_ref().is_some_and(|h| h.broken) => {
            Ok(Admission::Gone(Ended::Broken))
        }
        Some(grant) => Ok(Admission::Granted(grant)),
        None => Ok(Admission::Waiting(waiting(desk, entry)?)),
    }
}

/// How often at most a waiter looks by itself. A grant that was handed to a process which was then
/// stopped ends after its short first term; that nobody sees but the next in line who looks.
const RECHECK: Duration = Duration::from_secs(3);
/// The later in line, the later the look when a term runs out: one at a time.
const STAGGER: Duration = Duration::from_millis(20);

/// What a waiting claim is told; from here on this process listens for it.
pub(crate) fn waiting(desk: &mut Desk<'_, '_>, entry: &Entry) -> Step<Waiting> {
    let neighbour = desk.living_before((entry.order, entry.sub))?;
    desk.tx.expect(entry, entry.ticket, desk.name, neighbour.as_ref())?;
    let ahead = desk.ahead(entry)?;
    let busy = desk.busy(entry.after_loss);
    let position = ahead.saturating_sub(1).min(100);
    let jitter = Duration::from_millis(entry.ticket.0.wrapping_mul(37) % 1000);
    let free_in = busy.free_in.unwrap_or(Duration::from_secs(1)) + STAGGER * position;
    Ok(Waiting {
        ticket: entry.ticket,
        ahead: Some(ahead),
        recheck_in: free_in.min(RECHECK + jitter) + Duration::from_millis(1),
        holder: busy.holder,
    })
}

fn refusal(desk: &mut Desk<'_, '_>, claim: &Claim) -> Step<Option<Error>> {
    if !claim.mode.is_valid() {
        let detail = "permits must be at least 1 and fit their limit";
        return Ok(Some(desk.refuse(ErrorKind::Usage, detail)));
    }
    let asked = claim.mode.kind();
    if let Some(there) = desk.kind()?
        && there != asked
    {
        return Ok(Some(desk.refuse(ErrorKind::Usage, other_kind(there, asked))));
    }
    let upgrades = claim.mode == Mode::Exclusive
        && desk
            .granted
            .iter()
            .any(|e| e.holder.id == claim.holder.id && e.stands_as == Mode::Shared);
    if upgrades {
        let detail = "this holder has a shared grant, and a shared grant is not upgraded";
        return Ok(Some(desk.refuse(ErrorKind::Usage, detail)));
    }
    if desk.count() >= QUEUE_MAX {
        return Ok(Some(desk.refuse(ErrorKind::Unavailable, "its queue is full")));
    }
    Ok(None)
}

fn other_kind(there: Kind, asked: Kind) -> String {
    match (there, asked) {
        (Kind::Permits { limit }, Kind::Permits { limit: other }) => {
            format!("it has {limit} permits while claims on it live, not {other}")
        }
        (Kind::Permits { limit }, Kind::Lock) => {
            format!("it is a semaphore of {limit} permits while claims on it live, not a lock")
        }
        (Kind::Lock, _) => String::from("it is a lock while claims on it live, not a semaphore"),
    }
}
