//! The usual case in one statement: an exclusive claim of a free resource, and its release. Their
//! whole state is the resource's row, so that the statement's own lock on it is enough.

use std::time::Duration;

use leasehold_core::{
    Admission, Busy, Claim, ClaimId, ClaimRef, Ended, Grant, Mode, Occupant, Place, Previous,
    Result, Slots, Token,
};

use crate::cells::{Cells, life_word, span_micros};
use crate::engine::Seen;
use crate::error::{Fail, Step, corrupt_table};
use crate::lit::{Lit, Sql};
use crate::now::Clocks;
use crate::session::{Session, Set};

/// What the one statement came to.
#[derive(Debug)]
pub(crate) enum Quick<T> {
    /// The answer, and when the server's clock was read, if it was told.
    Done(T, leasehold_core::Moment, Option<Seen>),
    /// More has to be looked at.
    Not,
}

/// Enters an exclusive claim if the resource is free and nobody waits.
pub(crate) async fn enter(
    session: &mut Session,
    clocks: &Clocks,
    claim: &Claim,
) -> Step<Quick<Admission<Duration>>> {
    if claim.mode != Mode::Exclusive {
        return Ok(Quick::Not);
    }
    let values = [
        ("name", &Lit::word(claim.resource.as_str())),
        ("claim", &Lit::id(claim.id.bits())),
        ("holder", &Lit::id(claim.holder.id.bits())),
        ("label", &Lit::word(claim.holder.label())),
        ("term", &Lit::Num(span_micros(claim.term))),
        ("life", &Lit::word(life_word(claim.life))),
    ];
    let mut sql = Sql::new();
    sql.fill(&clocks.timed(include_str!("enter.sql")), &values);
    let sent = clocks.now();
    let sets = session.run(&sql).await?;
    let received = clocks.now();
    let [update, row] = two(sets)?;
    if update.affected == 1 {
        let grant = granted(claim, update.insert_id, Previous::Ended(Ended::Released))?;
        return Ok(Quick::Done(Admission::Granted(grant), sent, None));
    }
    if let Some(row) = row.rows.into_iter().next() {
        let Some((busy, server_us)) = busy(claim, row)? else { return Ok(Quick::Not) };
        let seen = Seen { sent, received, server_us };
        return Ok(Quick::Done(Admission::Busy(busy), sent, Some(seen)));
    }
    let mut sql = Sql::new();
    sql.fill(&clocks.timed(include_str!("enter_new.sql")), &values);
    let sent = clocks.now();
    match session.run(&sql).await {
        Ok(sets) => match sets.first() {
            Some(set) if set.affected == 1 => {
                let grant = granted(claim, set.insert_id, Previous::First)?;
                Ok(Quick::Done(Admission::Granted(grant), sent, None))
            }
            _ => Ok(Quick::Not),
        },
        Err(Fail::Duplicate) => Ok(Quick::Not),
        Err(fail) => Err(fail),
    }
}

/// Releases a plain exclusive grant that nobody waits for.
pub(crate) async fn leave(
    session: &mut Session,
    clocks: &Clocks,
    claim: &ClaimRef,
) -> Step<Quick<()>> {
    if claim.token.is_none() || claim.enter_unanswered {
        return Ok(Quick::Not);
    }
    let mut sql = Sql::new();
    let values =
        [("name", &Lit::word(claim.resource.as_str())), ("claim", &Lit::id(claim.id.bits()))];
    sql.fill(&clocks.timed(include_str!("leave.sql")), &values);
    let sent = clocks.now();
    let sets = session.run(&sql).await?;
    match sets.first() {
        Some(set) if set.affected == 1 => Ok(Quick::Done((), sent, None)),
        _ => Ok(Quick::Not),
    }
}

fn two(sets: Vec<Set>) -> Result<[Set; 2]> {
    sets.try_into().map_err(|_| corrupt_table("an answer is missing"))
}

fn granted(claim: &Claim, token: u64, previous: Previous) -> Result<Grant<Duration>> {
    let token = Token::new(token).ok_or_else(|| corrupt_table("a token is out of range"))?;
    let until = claim.term;
    Ok(Grant { claim: claim.id, token, until, slots: Slots::default(), previous })
}

/// A claim that is not to queue is busy without a lock taken, where a plain holder is in its way
/// and nothing more has to be known.
fn busy(claim: &Claim, row: mysql_async::Row) -> Result<Option<(Busy, u64)>> {
    let mut cells = Cells::new(row);
    let (Some(holding), Some(holder)) = (cells.maybe_id()?, cells.maybe_id()?) else {
        return Ok(None);
    };
    let label = cells.text()?;
    let (token, since) = (cells.maybe_token()?, cells.num()?);
    let (span, until) = (cells.num()?, cells.num()?);
    let (free_at, broken) = (cells.num()?, cells.flag()?);
    let (remembered, now) = (cells.flag()?, cells.num()?);
    let own = ClaimId::from_bits(holding) == claim.id || holder == claim.holder.id.bits();
    let runs = until > now && until - now <= span;
    if claim.place != Place::No || own || broken || remembered || !runs {
        return Ok(None);
    }
    let occupant =
        Occupant { label, held_for: Some(Duration::from_micros(now.saturating_sub(since))), token };
    let free_in = Some(Duration::from_micros(free_at.saturating_sub(now)));
    Ok(Some((Busy { holder: Some(occupant), free_in }, now)))
}
