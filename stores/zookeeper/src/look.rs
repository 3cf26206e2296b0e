//! Looking where a seat stands: one round trip, and a second one where something is to be put in
//! order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::admission::free_slots;
use leasehold_core::{
    ClaimId, Ended, Error, ErrorKind, Kind, Mode, Moment, Occupant, Result, Slots, Ticket, Token,
    Waiting,
};
use tokio::sync::oneshot;

use crate::card::{Card, Mark, Memory};
use crate::error::DOING;
use crate::hall::{Hall, children, data, maybe, stat};
use crate::names::{RECORD, SLOT};
use crate::queue::{self, Line};
use crate::seat::{Held, Seat, Stage};
use crate::wire::{Call, Fail, Make, Now, Op, Stat, code};

/// How often a look starts over because others moved at the same time.
const TRIES: usize = 20;
/// The most claims on one resource.
const QUEUE_MAX: usize = 10_000;
/// The most nodes that one step puts in order.
const STEP_MAX: usize = 100;
/// Marks that are left for who does not know yet go after this time, in ms.
const OLD_MS: i64 = 3_600_000;
/// When a waiter looks again at the latest.
pub(crate) const RECHECK: Duration = Duration::from_secs(10);

/// What a look has shown.
pub(crate) enum Seen {
    /// Granted, or ended: the seat's stage says which.
    Settled,
    /// It waits for this node, or for any change of the queue; or only for time to pass.
    Waits(WaitFor),
}

#[derive(Debug, Clone)]
pub(crate) enum WaitFor {
    /// A contender goes or changes.
    Node(String),
    /// Anything changes in the queue with these names, in order of bytes.
    Queue(Vec<String>),
    /// It is held back for so long.
    Time(Duration),
}

/// One listing of all that decides.
struct Listing {
    sent: Moment,
    marks: HashSet<ClaimId>,
    slots: Vec<u32>,
    names: Vec<String>,
    memory: Option<Memory>,
    memory_stat: Stat,
    own: Option<Stat>,
}

/// The requests of one listing, on their way.
pub(crate) struct Asking {
    marks: Call,
    names: Call,
    last: Call,
    own: Call,
    /// Asked for by the claim's mark, right after both were made by one request of this session.
    made: bool,
}

impl Asking {
    /// Marks are listed before contenders: a claim is made and removed in one step with its mark, so
    /// a mark without a contender is then a death, unless the mark has gone by now.
    fn send(hall: &Hall, seat: &Seat, now: Now, own: String, made: bool) -> Asking {
        let (queue, memory) = (seat.paths.queue.clone(), seat.paths.memory.clone());
        let call = |op: &Op| hall.wire.call(now.generation, op);
        Asking {
            marks: call(&Op::Children { path: memory.clone(), watch: false }),
            names: call(&Op::Children { path: queue, watch: false }),
            last: call(&Op::Get { path: memory, watch: false }),
            own: call(&Op::Exists { path: own, watch: false }),
            made,
        }
    }

    /// To be sent right behind the request that makes the contender, whose name is not known yet:
    /// the server answers in order, and what one transaction made has one number and one time.
    pub(crate) fn behind_making(hall: &Hall, seat: &Seat, now: Now) -> Asking {
        Asking::send(hall, seat, now, seat.paths.mark(seat.claim.id), true)
    }

    async fn listing(self, now: Now) -> Result<Listing, Fail> {
        let marks = maybe(children(self.marks.answer().await.result))?.unwrap_or_default();
        let names = maybe(children(self.names.answer().await.result))?.unwrap_or_default();
        let (memory, memory_stat) =
            maybe(data(self.last.answer().await.result))?.unwrap_or_default();
        let own = self.own.answer().await;
        let stands = maybe(stat(own.result))?;
        Ok(Listing {
            sent: own.sent,
            slots: marks.iter().filter_map(|m| m.strip_prefix(SLOT)?.parse().ok()).collect(),
            marks: marks.iter().filter(|m| *m != RECORD).filter_map(|m| m.parse().ok()).collect(),
            names,
            memory: Memory::read(&memory),
            memory_stat,
            // Whom the mark's contender belongs to is known without asking: this session made both.
            own: if self.made { stands.map(|own| Stat { owner: now.id, ..own }) } else { stands },
        })
    }
}

/// Looks where a seat stands, and grants it if it is its turn. Under the seat's turn. What was asked
/// for when the contender was made is the first listing.
///
/// # Errors
///
/// `Usage` where claims of another kind live: the seat has then left the queue, and is forgotten.
pub(crate) async fn look(
    hall: &Arc<Hall>,
    seat: &Arc<Seat>,
    mut asked: Option<Asking>,
) -> Result<Seen> {
    let Some(now) = hall.wire.session().now() else {
        return Err(hall.error(Fail::SessionOver));
    };
    for _ in 0..TRIES {
        let Some(path) = seat.path() else { break };
        if seat.facts().generation != now.generation || seat_is_over(seat) {
            return Ok(Seen::Settled);
        }
        let making = asked.is_some();
        let asking = asked.take().unwrap_or_else(|| Asking::send(hall, seat, now, path, false));
        let listing = asking.listing(now).await.map_err(|e| hall.error(e))?;
        let owned = listing.own.filter(|own| own.owner == now.id);
        let Some(own) = owned else {
            if making {
                continue; // an operator removed the mark, and the contender perhaps not
            }
            let how = vanished(hall, seat, now.generation).await.map_err(|e| hall.error(e))?;
            hall.finish(seat, how);
            return Ok(Seen::Settled);
        };
        hall.note_time(own.ctime);
        let resource = &seat.claim.resource;
        let line = queue::read(hall, now.generation, resource, &seat.paths, &listing.names).await?;
        let name = seat.facts().node.clone().unwrap_or_default();
        // A listing after our own making lacks it only if it goes right now.
        let Some(place) = line.position(&name) else { continue };
        if let Some(error) = refusal(seat, &line, place) {
            crate::leave::take_back(hall, seat).await?;
            return Err(error.on(resource));
        }
        if !line.admitted.get(place).copied().unwrap_or(false) {
            return Ok(waits(hall, seat, now, &line, place, &own).await);
        }
        let ended = dead(&listing, &line);
        if !ended.is_empty()
            && bury_dead(hall, seat, now, &listing, &own, ended).await.map_err(|e| hall.error(e))?
        {
            continue;
        }
        if let Some(back) = held_back(hall, seat, &listing) {
            note_waiting(seat, &own, None, back);
            return Ok(Seen::Waits(WaitFor::Time(back)));
        }
        if grant(hall, seat, now, &listing, own).await.map_err(|e| hall.error(e))? {
            return Ok(Seen::Settled);
        }
    }
    let detail = "others changed the queue at each look";
    Err(Error::new(ErrorKind::Unavailable, DOING, detail).on(&seat.claim.resource))
}

fn seat_is_over(seat: &Seat) -> bool {
    matches!(seat.facts().stage, Stage::Over(_))
}

/// How a seat ended whose node is gone though its session lives.
pub(crate) async fn vanished(hall: &Hall, seat: &Seat, generation: u64) -> Result<Ended, Fail> {
    let mark = seat.paths.mark(seat.claim.id);
    let get = Op::Get { path: mark.clone(), watch: false };
    let Some((found, _)) = maybe(data(hall.ask(generation, &get).await.result))? else {
        let facts = seat.facts();
        let broken = facts.held().is_some_and(|held| held.broken);
        return Ok(match (facts.removal_sent, broken) {
            (_, true) => Ended::Broken,
            (true, false) => Ended::Released,
            (false, false) => Ended::Unknown,
        });
    };
    // Nobody else needs it any more; if it stays, it is found to be old.
    let remove = Op::Delete { path: mark, version: -1 };
    let _ = hall.ask(generation, &remove).await;
    Ok(match Mark::read(&found) {
        Mark::Broken => Ended::Broken,
        Mark::Barred => Ended::Released,
        Mark::Stands => Ended::Unknown,
    })
}

fn refusal(seat: &Seat, line: &Line, place: usize) -> Option<Error> {
    let asked = seat.claim.mode.kind();
    let detail = match line.kind_before(place) {
        _ if place >= QUEUE_MAX => {
            return Some(Error::new(ErrorKind::Unavailable, DOING, "its queue is full"));
        }
        Some(there) if there != asked => match (there, asked) {
            (Kind::Permits { limit }, Kind::Permits { limit: other }) => {
                format!("it has {limit} permits while claims on it live, not {other}")
            }
            (Kind::Permits { limit }, Kind::Lock) => {
                format!("it is a semaphore of {limit} permits while claims on it live, not a lock")
            }
            (Kind::Lock, _) => "it is a lock while claims on it live, not a semaphore".to_owned(),
        },
        _ => return None,
    };
    Some(Error::new(ErrorKind::Usage, DOING, detail))
}

async fn waits(hall: &Hall, seat: &Seat, now: Now, line: &Line, place: usize, own: &Stat) -> Seen {
    let wait_for = match line.wait_for(place) {
        Some(contender) => WaitFor::Node(format!("{}/{}", seat.paths.queue, contender.name)),
        None => {
            let mut names: Vec<String> = line.contenders.iter().map(|c| c.name.clone()).collect();
            names.sort_unstable();
            WaitFor::Queue(names)
        }
    };
    // Whom it waits for in the end is told once; that it is not known hurts nobody.
    let holder = if matches!(seat.facts().stage, Stage::Asked) {
        occupant(hall, now.generation, seat, line).await
    } else {
        None
    };
    let recheck = holder.as_ref().map_or(RECHECK, |(_, term)| (*term).min(RECHECK));
    note_waiting(seat, own, u32::try_from(place).ok(), recheck.max(Duration::from_millis(50)));
    if let Stage::Waiting(waiting) = &mut seat.facts().stage
        && let Some((holder, _)) = holder
    {
        waiting.holder = Some(holder);
    }
    Seen::Waits(wait_for)
}

fn note_waiting(seat: &Seat, own: &Stat, ahead: Option<u32>, recheck_in: Duration) {
    let mut facts = seat.facts();
    let holder = match &mut facts.stage {
        Stage::Waiting(before) => before.holder.take(),
        _ => None,
    };
    let ticket = Ticket(u64::try_from(own.czxid).unwrap_or(0));
    if !matches!(facts.stage, Stage::Over(_)) {
        facts.stage = Stage::Waiting(Waiting { ticket, ahead, recheck_in, holder });
    }
}

/// Who holds, and the term that its card tells.
pub(crate) async fn occupant(
    hall: &Hall,
    generation: u64,
    seat: &Seat,
    line: &Line,
) -> Option<(Occupant, Duration)> {
    let first = line.contenders.first()?;
    let path = format!("{}/{}", seat.paths.queue, first.name);
    let answer = hall.ask(generation, &Op::Get { path, watch: false }).await;
    let (found, stat) = data(answer.result).ok()?;
    let (label, term) = describe(&found);
    Some((Occupant { label, held_for: None, token: token_of(&stat).ok() }, term))
}

/// The label and the term of a contender by its data, which a foreign client may have written.
pub(crate) fn describe(found: &[u8]) -> (String, Duration) {
    match Card::read(found) {
        Some(card) => (card.holder.label().to_owned(), card.term),
        None => {
            let text = std::str::from_utf8(found).unwrap_or("").trim();
            let text = if text.is_empty() { "a foreign client" } else { text };
            (leasehold_core::shown(text, 100).into_owned(), RECHECK)
        }
    }
}

/// Marks without a contender.
fn dead(listing: &Listing, line: &Line) -> Vec<ClaimId> {
    let standing: HashSet<ClaimId> = line.contenders.iter().filter_map(|c| c.claim).collect();
    listing.marks.difference(&standing).copied().take(STEP_MAX).collect()
}

/// Takes the marks of the dead away, and remembers that a grant ended with its holder; whether the
/// listing has changed with it.
async fn bury_dead(
    hall: &Hall,
    seat: &Seat,
    now: Now,
    listing: &Listing,
    own: &Stat,
    dead: Vec<ClaimId>,
) -> Result<bool, Fail> {
    let get = |path| hall.wire.call(now.generation, &Op::Get { path, watch: false });
    let calls: Vec<_> =
        dead.iter().map(|id| seat.paths.mark(*id)).map(|path| (path.clone(), get(path))).collect();
    let (mut ops, mut newest) = (Vec::new(), None);
    let mut gone = false;
    for (path, call) in calls {
        let Some((found, stat)) = maybe(data(call.answer().await.result))? else {
            gone = true; // it left between the two listings
            continue;
        };
        match Mark::read(&found) {
            Mark::Barred | Mark::Broken if stat.mtime + OLD_MS > own.ctime => continue,
            Mark::Barred | Mark::Broken => {}
            // Behind an exclusive claim that is admitted nobody has ever held.
            Mark::Stands if seat.claim.mode == Mode::Exclusive && stat.czxid > own.czxid => {}
            Mark::Stands => newest = newest.max(Some(stat.czxid)),
        }
        ops.push(Op::Delete { path, version: -1 });
    }
    if let Some(newest) = newest {
        let token = u64::try_from(newest).ok().and_then(Token::new);
        let data = Memory { how: Ended::Expired, token }.write();
        let (path, version) = (seat.paths.memory.clone(), listing.memory_stat.version);
        ops.push(Op::Set { path, data, version });
    }
    if ops.is_empty() {
        return Ok(gone);
    }
    match hall.ask(now.generation, &Op::Multi(ops)).await.result {
        // Refused: another has done it, or one of them left.
        Ok(_) | Err(Fail::Refused(_)) => Ok(true),
        Err(fail) => Err(fail),
    }
}

/// How much longer it is held back because the grant before it ended uncleanly.
fn held_back(hall: &Hall, seat: &Seat, listing: &Listing) -> Option<Duration> {
    let after = seat.claim.after_loss;
    let unclean = listing.memory.is_some_and(|memory| !memory.how.is_clean());
    if after.is_zero() || !unclean {
        return None;
    }
    // Two times of the servers' clock, never one of ours; and never longer than since this client
    // has first seen that end, should the servers' clock have been set back.
    let now = hall.server_now().unwrap_or(listing.memory_stat.mtime);
    let since = u64::try_from(now.saturating_sub(listing.memory_stat.mtime)).unwrap_or(0);
    let version = listing.memory_stat.version;
    let seen = {
        let mut facts = seat.facts();
        let before = facts.unclean.filter(|(known, _)| *known == version);
        let (_, first) = *facts.unclean.insert(before.unwrap_or((version, listing.sent)));
        listing.sent.since(first)
    };
    let left = after.saturating_sub(Duration::from_millis(since).max(seen));
    (!left.is_zero()).then_some(left)
}

pub(crate) fn token_of(own: &Stat) -> Result<Token, Fail> {
    u64::try_from(own.czxid).ok().and_then(Token::new).ok_or(Fail::Garbled)
}

/// Grants a seat whose turn it is; false if another took a slot first.
async fn grant(
    hall: &Arc<Hall>,
    seat: &Arc<Seat>,
    now: Now,
    listing: &Listing,
    own: Stat,
) -> Result<bool, Fail> {
    let Some((slots, version)) = slots(hall, seat, now, listing, &own).await? else {
        return Ok(false);
    };
    {
        let mut facts = seat.facts();
        if matches!(facts.stage, Stage::Over(_)) {
            return Ok(true);
        }
        facts.stage = Stage::Granted(Held {
            token: token_of(&own)?,
            slots,
            previous: Memory::previous(listing.memory),
            version,
            broken: false,
            since: hall.now(),
        });
        facts.begin(listing.sent);
    }
    watch_own(hall, seat, now);
    Ok(true)
}

/// Takes the lowest free slots, if it is permits; `None` if the listing was older than another's
/// taking.
async fn slots(
    hall: &Hall,
    seat: &Seat,
    now: Now,
    listing: &Listing,
    own: &Stat,
) -> Result<Option<(Slots, i32)>, Fail> {
    let Mode::Permits { count, limit } = seat.claim.mode else {
        return Ok(Some((Slots::default(), own.version)));
    };
    let Some(path) = seat.path() else { return Ok(None) };
    if own.version > 0 {
        // It has taken them before, and the answer was lost.
        let get = Op::Get { path, watch: false };
        let (found, stat) = data(hall.ask(now.generation, &get).await.result)?;
        let slots = Card::read(&found).map(|card| card.slots).unwrap_or_default();
        return Ok(Some((slots, stat.version)));
    }
    let Some(slots) = free_slots(count, limit, listing.slots.iter().copied()) else {
        return Ok(None);
    };
    let card = Card { slots: slots.clone(), ..Card::of(&seat.claim) };
    let mut ops: Vec<Op> = slots
        .as_slice()
        .iter()
        .map(|&number| Op::Create {
            path: seat.paths.slot(number),
            data: seat.claim.id.to_string().into_bytes(),
            make: Make::Ephemeral,
        })
        .collect();
    ops.push(Op::Set { path, data: card.write(), version: own.version });
    match hall.ask(now.generation, &Op::Multi(ops)).await.result {
        Ok(_) => Ok(Some((slots, own.version + 1))),
        Err(Fail::Refused(refusal)) if is_race(refusal.code) => Ok(None),
        Err(fail) => Err(fail),
    }
}

fn is_race(refused: i32) -> bool {
    matches!(refused, code::NODE_EXISTS | code::NO_NODE | code::BAD_VERSION)
}

/// Hears when the node of a grant changes or goes: it was broken, or an operator removed it.
pub(crate) fn watch_own(hall: &Arc<Hall>, seat: &Arc<Seat>, now: Now) {
    let Some(path) = seat.path() else { return };
    if std::mem::replace(&mut seat.facts().own_watched, true) {
        return;
    }
    let (told, word) = oneshot::channel();
    let call = hall.wire.watch(now.generation, &Op::Exists { path, watch: true }, told);
    let (hall, seat) = (Arc::downgrade(hall), Arc::downgrade(seat));
    let Some(runtime) = hall.upgrade().map(|hall| hall.runtime.clone()) else { return };
    runtime.spawn(async move {
        let answer = call.answer().await;
        let changed = |seat: &Seat| {
            let found = stat(answer.result).map(|found| found.version);
            found.is_ok_and(|found| seat.facts().held().is_some_and(|held| held.version != found))
        };
        // What happened between the look and this watch is not told by it.
        if !seat.upgrade().is_some_and(|seat| changed(&seat)) {
            let _ = word.await;
        }
        let (Some(hall), Some(seat)) = (hall.upgrade(), seat.upgrade()) else { return };
        let still = {
            let mut facts = seat.facts();
            facts.own_watched = false;
            facts.held().is_some() && !facts.leaving
        };
        if still {
            hall.stir(&seat);
            hall.disturb();
        }
    });
}
