//! Entering: a contender and its mark in one step, then a look where it stands.

use std::sync::Arc;

use leasehold_core::{
    Admission, Busy, Claim, Ended, Error, ErrorKind, Grant, Mode, Place, ResourceName, Result,
};

use crate::card::{Card, Mark};
use crate::error::DOING;
use crate::hall::{Hall, Known, children, data, maybe};
use crate::look::{self, Asking, Seen, WaitFor};
use crate::names::{protected, stem};
use crate::queue;
use crate::seat::{Hold, Seat, Stage};
use crate::wire::{Answer, Fail, Make, Now, Op, Reply, code};

/// How often the parents are made anew, when they are removed as often.
const TRIES: usize = 5;

pub(crate) async fn enter(hall: &Arc<Hall>, claim: &Claim) -> Result<Admission> {
    check(hall, claim)?;
    let paths = hall.paths(&claim.resource)?;
    match hall.find(claim.id) {
        Known::Ended(how) => return Ok(Admission::Gone(how)),
        Known::Sits(seat) => return again(hall, &seat, claim).await,
        Known::Nothing => {}
    }
    for outer in hall.seats_on(&claim.resource) {
        if let Some(answer) = reenter(hall, &outer, claim).await? {
            return Ok(answer);
        }
    }
    if claim.place == Place::No
        && let Some(busy) = busy_already(hall, claim).await?
    {
        return Ok(Admission::Busy(busy));
    }
    match hall.sit(claim, paths) {
        Known::Sits(seat) => again(hall, &seat, claim).await,
        Known::Ended(how) => Ok(Admission::Gone(how)),
        Known::Nothing => Err(Error::new(ErrorKind::Bug, DOING, "a claim has no seat")),
    }
}

fn check(hall: &Hall, claim: &Claim) -> Result<()> {
    let refuse =
        |detail: String| Err(Error::new(ErrorKind::Usage, DOING, detail).on(&claim.resource));
    let (low, high) = hall.profile.term_bounds;
    if !(low..=high).contains(&claim.term) {
        return refuse(format!(
            "its term is {:?}: want {low:?} to {high:?}, the session timeout that was agreed with \
             the server",
            claim.term
        ));
    }
    if !claim.mode.is_valid() {
        return refuse("permits must be at least 1 and fit their limit".into());
    }
    Ok(())
}

/// A claim that has a seat: where it is, or where it gets now.
async fn again(hall: &Arc<Hall>, seat: &Arc<Seat>, claim: &Claim) -> Result<Admission> {
    crate::expire::expire(hall, seat);
    if let Some(answer) = rejoin(hall, seat, claim).await? {
        return Ok(answer);
    }
    if let Some(answer) = told(hall, seat, claim) {
        return Ok(answer);
    }
    take(hall, seat).await?;
    let waits = matches!(seat.facts().stage, Stage::Waiting(_));
    if waits && claim.place == Place::No {
        return withdraw_try(hall, seat).await;
    }
    Ok(told(hall, seat, claim).unwrap_or_else(|| Admission::Gone(ended(hall, claim))))
}

fn ended(hall: &Hall, claim: &Claim) -> Ended {
    match hall.find(claim.id) {
        Known::Ended(how) => how,
        _ => Ended::Unknown,
    }
}

/// What is known of a claim without asking; `None` if it must be asked.
pub(crate) fn told(hall: &Hall, seat: &Seat, claim: &Claim) -> Option<Admission> {
    let facts = seat.facts();
    match &facts.stage {
        Stage::Asked => None,
        Stage::Over(how) => Some(Admission::Gone(*how)),
        Stage::Waiting(waiting) => Some(Admission::Waiting(waiting.clone())),
        Stage::Granted(held) if held.broken => Some(Admission::Gone(Ended::Broken)),
        Stage::Granted(held) => {
            let Some(hold) = facts.hold(claim.id) else {
                drop(facts);
                return Some(Admission::Gone(ended(hall, claim)));
            };
            let until = hall.until(facts.generation, hold.sent, hold.term);
            let slots = facts.slots_for(hold.mode);
            let (token, previous) = (held.token, held.previous);
            Some(Admission::Granted(Grant { claim: claim.id, token, until, slots, previous }))
        }
    }
}

/// Makes the contender, unless it stands, and looks where.
async fn take(hall: &Arc<Hall>, seat: &Arc<Seat>) -> Result<()> {
    let _turn = seat.turn.lock().await;
    if !matches!(seat.facts().stage, Stage::Asked) || seat.facts().leaving {
        return Ok(());
    }
    let now = hall.session().await?;
    let first = {
        let mut facts = seat.facts();
        if facts.generation == 0 {
            facts.generation = now.generation;
        }
        facts.generation == now.generation
    };
    if !first {
        hall.finish(seat, Ended::Expired);
        return Ok(());
    }
    let mut asked = None;
    if seat.path().is_none() {
        let made = make(hall, seat, now).await.map_err(|e| hall.error(e))?;
        match made {
            Made::Here(name, asking) => {
                seat.facts().node = Some(name);
                asked = Some(asking);
            }
            Made::Before(name) => seat.facts().node = Some(name),
            Made::Over(how) => {
                hall.finish(seat, how);
                return Ok(());
            }
        }
    }
    if let Seen::Waits(wait_for) = look::look(hall, seat, asked).await? {
        watch(hall, seat, wait_for);
    }
    Ok(())
}

fn watch(hall: &Arc<Hall>, seat: &Arc<Seat>, wait_for: WaitFor) {
    if seat.claim.place != Place::No {
        crate::wait::start(hall, seat, wait_for);
    }
}

/// What came of making a contender.
enum Made {
    /// It stands by its name, and where was asked for in the same breath.
    Here(String, Asking),
    /// An earlier request of ours made it.
    Before(String),
    /// The claim has ended.
    Over(Ended),
}

async fn make(hall: &Hall, seat: &Seat, now: Now) -> Result<Made, Fail> {
    let mark = seat.paths.mark(seat.claim.id);
    let stem = stem(seat.claim.id, seat.claim.mode, hall.config.layout);
    let op = Op::Multi(vec![
        Op::Create { path: mark.clone(), data: Mark::Stands.write(), make: Make::Persistent },
        Op::Create {
            path: format!("{}/{stem}", seat.paths.queue),
            data: Card::of(&seat.claim).write(),
            make: Make::EphemeralSequential,
        },
    ]);
    for _ in 0..TRIES {
        let making = hall.wire.call(now.generation, &op);
        let asking = Asking::behind_making(hall, seat, now);
        match making.answer().await.result {
            Ok(Reply::Multi(replies)) => {
                let made = replies.into_iter().find_map(|reply| match reply {
                    Reply::Created(path) if path != mark => Some(path),
                    _ => None,
                });
                let name = made.and_then(|path| path.rsplit('/').next().map(str::to_owned));
                return name.map(|name| Made::Here(name, asking)).ok_or(Fail::Garbled);
            }
            Ok(_) => return Err(Fail::Garbled),
            // An earlier try of ours, whose answer was lost, had arrived.
            Err(Fail::Refused(refusal)) if refusal.code == code::NODE_EXISTS => {
                return Ok(match find(hall, seat, now).await? {
                    Ok(name) => Made::Before(name),
                    Err(how) => Made::Over(how),
                });
            }
            Err(Fail::Refused(refusal)) if refusal.code == code::NO_NODE => {
                make_parents(hall, seat, now).await?;
            }
            // A part is refused so by a session that has ended, and by one that is local.
            Err(Fail::Refused(refusal)) if refusal.code == code::SESSION_EXPIRED => {
                return Err(why_expired(hall, seat, now).await);
            }
            Err(fail) => return Err(fail),
        }
    }
    Err(Fail::Lost { maybe: false })
}

/// Asks with a single node, whose refusal has words of its own.
async fn why_expired(hall: &Hall, seat: &Seat, now: Now) -> Fail {
    let path = format!("{}-probe", seat.paths.mark(seat.claim.id));
    let probe = Op::Create { path: path.clone(), data: Vec::new(), make: Make::Ephemeral };
    match hall.ask(now.generation, &probe).await.result {
        Err(fail) => fail,
        Ok(_) => {
            let remove = Op::Delete { path, version: -1 };
            let _ = hall.ask(now.generation, &remove).await;
            Fail::Lost { maybe: false }
        }
    }
}

/// Finds a contender by its claim's id.
pub(crate) async fn find(
    hall: &Hall,
    seat: &Seat,
    now: Now,
) -> Result<Result<String, Ended>, Fail> {
    let op = Op::Children { path: seat.paths.queue.clone(), watch: false };
    let names = maybe(children(hall.ask(now.generation, &op).await.result))?.unwrap_or_default();
    let begins = protected(seat.claim.id);
    match names.into_iter().find(|name| name.starts_with(&begins)) {
        Some(name) => Ok(Ok(name)),
        None => Ok(Err(look::vanished(hall, seat, now.generation).await?)),
    }
}

/// Makes what is missing above a contender and its mark. Containers of contenders go by themselves
/// once they are empty, so this may be needed at any time.
pub(crate) async fn make_parents(hall: &Hall, seat: &Seat, now: Now) -> Result<(), Fail> {
    for (path, last) in
        [(&seat.paths.memory, Make::Persistent), (&seat.paths.queue, Make::Container)]
    {
        make_path(hall, now.generation, path, last).await?;
    }
    Ok(())
}

/// Makes a node and all above it; those above are containers too, but for what remembers.
pub(crate) async fn make_path(
    hall: &Hall,
    generation: u64,
    path: &str,
    last: Make,
) -> Result<(), Fail> {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
    let calls: Vec<_> = ends
        .filter_map(|end| path.get(..end))
        .map(|part| {
            let make = if part.len() == path.len() { last } else { Make::Persistent };
            let op = Op::Create { path: part.into(), data: Vec::new(), make };
            hall.wire.call(generation, &op)
        })
        .collect();
    for call in calls {
        match call.answer().await {
            Answer { result: Ok(_), .. } => {}
            Answer { result: Err(Fail::Refused(refusal)), .. }
                if matches!(refusal.code, code::NODE_EXISTS | code::NO_AUTH) => {}
            Answer { result: Err(fail), .. } => return Err(fail),
        }
    }
    Ok(())
}

/// A try that finds others before it makes no contender: the busy answer, or `None` to go on.
async fn busy_already(hall: &Hall, claim: &Claim) -> Result<Option<Busy>> {
    let now = hall.session().await?;
    let paths = hall.paths(&claim.resource)?;
    // A server may lag behind a release that was answered elsewhere.
    let sync = hall.wire.call(now.generation, &Op::Sync { path: paths.queue.clone() });
    let list = Op::Children { path: paths.queue.clone(), watch: false };
    let list = hall.wire.call(now.generation, &list);
    let failed = |fail| hall.error(fail);
    sync.answer().await.result.map_err(failed)?;
    let mut names =
        maybe(children(list.answer().await.result)).map_err(failed)?.unwrap_or_default();
    if names.is_empty() {
        return Ok(None);
    }
    // As if it stood at the end.
    let last = format!("{}{:010}", stem(claim.id, claim.mode, hall.config.layout), i32::MAX - 1);
    names.push(last.clone());
    let line = queue::read(hall, now.generation, &claim.resource, &paths, &names).await?;
    let Some(place) = line.position(&last) else { return Ok(None) };
    let other_kind = line.kind_before(place).is_some_and(|kind| kind != claim.mode.kind());
    if other_kind || line.admitted.get(place).copied().unwrap_or(false) {
        return Ok(None); // to be granted, or refused with the right words
    }
    let seat = Seat::new(claim.clone(), paths);
    let holder = look::occupant(hall, now.generation, &seat, &line).await;
    Ok(Some(Busy { holder: holder.map(|(holder, _)| holder), free_in: None }))
}

/// Takes back a try that got into the queue and is not its head.
async fn withdraw_try(hall: &Arc<Hall>, seat: &Arc<Seat>) -> Result<Admission> {
    let holder = match &seat.facts().stage {
        Stage::Waiting(waiting) => waiting.holder.clone(),
        _ => None,
    };
    let _turn = seat.turn.lock().await;
    crate::leave::take_back(hall, seat).await?;
    Ok(Admission::Busy(Busy { holder, free_in: None }))
}

/// A claim whose holder has a grant here that covers it stands by that grant's node, once the
/// server has shown that it is still there.
async fn reenter(hall: &Arc<Hall>, outer: &Arc<Seat>, claim: &Claim) -> Result<Option<Admission>> {
    if outer.claim.holder.id != claim.holder.id {
        return Ok(None);
    }
    {
        let facts = outer.facts();
        let Some(held) = facts.held().filter(|_| !facts.leaving) else { return Ok(None) };
        if outer.claim.mode == Mode::Shared && claim.mode == Mode::Exclusive {
            return Err(upgrade(&claim.resource));
        }
        if held.broken {
            return Ok(None);
        }
        if !facts.holds.iter().any(|hold| hold.mode.covers(claim.mode))
            && !outer.claim.mode.covers(claim.mode)
        {
            return Ok(None);
        }
        if !facts.holds.iter().any(|hold| has_slots(hold, claim.mode)) {
            return Ok(None);
        }
    }
    let _turn = outer.turn.lock().await;
    let sent = match crate::renew::verify(hall, outer).await? {
        Some(sent) => sent,
        None => return Ok(None),
    };
    {
        let mut facts = outer.facts();
        if facts.held().is_none_or(|held| held.broken) || facts.leaving {
            return Ok(None);
        }
        let (id, mode, term) = (claim.id, claim.mode, claim.term);
        facts.holds.push(Hold { id, mode, term, sent, ends: sent + term });
    }
    hall.join(claim.id, outer);
    Ok(told(hall, outer, claim))
}

/// A claim that waits while its holder has been granted another here stands by that one's node from
/// now on: behind it, it would wait for itself.
pub(crate) async fn rejoin(
    hall: &Arc<Hall>,
    seat: &Arc<Seat>,
    claim: &Claim,
) -> Result<Option<Admission>> {
    if !matches!(seat.facts().stage, Stage::Waiting(_)) {
        return Ok(None);
    }
    for outer in hall.seats_on(&claim.resource) {
        if Arc::ptr_eq(&outer, seat)
            || outer.claim.mode == Mode::Shared && claim.mode == Mode::Exclusive
        {
            continue;
        }
        let Some(answer) = reenter(hall, &outer, claim).await? else { continue };
        let _turn = seat.turn.lock().await;
        seat.facts().holds.clear();
        seat.facts().leaving = true;
        match crate::leave::remove(hall, seat, Ended::Released).await {
            Ok(_) => hall.finish(seat, Ended::Released),
            Err(_) => crate::leave::retry(hall, seat, Ended::Released),
        }
        return Ok(Some(answer));
    }
    Ok(None)
}

/// What an inner claim that outlived its outer one may still cover.
fn has_slots(hold: &Hold, mode: Mode) -> bool {
    match (hold.mode, mode) {
        (Mode::Permits { count, .. }, Mode::Permits { count: asked, .. }) => asked <= count,
        _ => true,
    }
}

fn upgrade(resource: &ResourceName) -> Error {
    let detail = "this holder has a shared grant, and a shared grant is not upgraded";
    Error::new(ErrorKind::Usage, DOING, detail).on(resource)
}

/// The data of a node, if it is there.
pub(crate) async fn get(
    hall: &Hall,
    generation: u64,
    path: String,
) -> Result<Option<(Vec<u8>, crate::wire::Stat)>, Fail> {
    maybe(data(hall.ask(generation, &Op::Get { path, watch: false }).await.result))
}
