//! What this process knows of its own claims: those that stand, those that have ended, and who waits
//! for word of which resource.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Claim, ClaimId, Cursor, Ended, Grant, Hint, Holder, HolderId, Life, Mode, Moment, Previous,
    Pushed, PushedEnd, ResourceName, Slots, Ticket, Token, belief_end,
};
use tokio::sync::Notify;

use crate::keys::Keys;
use crate::leases::Belief;
use crate::mirror::Mirror;
use crate::proto::Event;

/// The most ended claims that are remembered.
const GRAVES_MAX: usize = 100_000;
/// For how long one is remembered at least.
const GRAVE_MIN: Duration = Duration::from_secs(60);
/// The most words for waiters that nobody has taken.
const PUSHED_MAX: usize = 64;

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// By the claim in whose name the key stands.
    pub(crate) holds: HashMap<ClaimId, Hold>,
    /// Which hold a claim is part of.
    part_of: HashMap<ClaimId, ClaimId>,
    at: HashMap<ResourceName, BTreeSet<ClaimId>>,
    graves: HashMap<ClaimId, (Ended, Moment)>,
    pub(crate) slots: HashMap<ResourceName, Slot>,
    /// Resources that none of ours stands at any more since it was last looked.
    deserted: Vec<ResourceName>,
    /// Unclean ends, by what marks them, and when this process first saw them.
    unclean: HashMap<ResourceName, ((i64, i64), Moment)>,
}

/// A key of ours in a queue: one claim, and those that re-entered it.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) key: ClaimId,
    pub(crate) resource: ResourceName,
    pub(crate) keys: Keys,
    pub(crate) holder: Holder,
    pub(crate) mode: Mode,
    pub(crate) create: i64,
    /// The lease on which the key stands.
    pub(crate) lease: i64,
    pub(crate) life: Life,
    pub(crate) after_loss: Duration,
    pub(crate) entered_us: u64,
    pub(crate) held: Option<Held>,
    pub(crate) parts: Vec<Part>,
    /// An operator broke it, and we know.
    pub(crate) broken: bool,
    /// It is being confirmed by a write: a watch must not grant it meanwhile.
    pub(crate) confirming: bool,
    /// Its last claim has ended; only the key is still to go.
    pub(crate) leaving: bool,
    /// A task sees to that.
    pub(crate) ending: bool,
}

/// A grant.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) slots: Slots,
    pub(crate) previous: Previous,
    pub(crate) since_us: u64,
    /// How many claims had ended untold when it was made.
    pub(crate) untold: i64,
}

/// One claim of a hold.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) claim: ClaimId,
    pub(crate) mode: Mode,
    pub(crate) term: Duration,
    /// When belief in it ends.
    pub(crate) until: Moment,
    /// When it has ended for this process whatever the cluster says.
    pub(crate) end: Moment,
}

/// Who waits for word of a resource.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Counts what has happened.
    cursor: u64,
    /// When last something happened for all who wait.
    all: u64,
    /// When last something happened for one of them.
    one: HashMap<ClaimId, u64>,
    pub(crate) pushed: VecDeque<Pushed>,
    pub(crate) listeners: usize,
    pub(crate) notify: Arc<Notify>,
    pub(crate) followed: Option<Followed>,
}

/// A resource that is watched.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) mirror: Mirror,
    pub(crate) keys: Keys,
    pub(crate) watch: i64,
    pub(crate) reach: Reach,
    /// What the watch has told before the gap between the mirror and its beginning was closed by a
    /// look; `None` once it is closed.
    pub(crate) early: Option<Vec<Event>>,
    /// When somebody last waited.
    pub(crate) wanted: Moment,
}

/// How much of a resource is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All of it, so that what happens proves grants.
    Near,
    /// Only the claim with this key, some turns before our first one: once it is gone, all of it.
    Far(Vec<u8>),
}

/// What a claim is to this process.
#[derive(Debug)]
pub(crate) enum Known {
    /// Never heard of, or forgotten.
    No,
    Ended(Ended),
    /// It stands in a queue, or holds.
    Part,
}

impl Hold {
    pub(crate) fn part(&self, claim: ClaimId) -> Option<&Part> {
        self.parts.iter().find(|part| part.claim == claim)
    }

    pub(crate) fn part_mut(&mut self, claim: ClaimId) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.claim == claim)
    }

    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(u64::try_from(self.create).unwrap_or_default())
    }

    pub(crate) fn grant(&self, part: &Part, held: &Held) -> Grant {
        let slots = match part.mode {
            Mode::Permits { count, .. } => {
                Slots::new(held.slots.as_slice().iter().copied().take(count as usize).collect())
            }
            Mode::Exclusive | Mode::Shared => Slots::default(),
        };
        Grant {
            claim: part.claim,
            token: held.token,
            until: part.until,
            slots,
            previous: held.previous,
        }
    }
}

impl Slot {
    fn moved(&mut self) {
        self.cursor += 1;
        self.all = self.cursor;
        self.notify.notify_waiters();
    }
}

impl Part {
    pub(crate) fn new(claim: &Claim) -> Part {
        Part {
            claim: claim.id,
            mode: claim.mode,
            term: claim.term,
            until: Moment::START,
            end: Moment::NEVER,
        }
    }

    /// Its turn has come: it is over a term from now, unless it was begun before.
    pub(crate) fn begin(&mut self, now: Moment) {
        if self.end == Moment::NEVER {
            self.end = now + self.term;
        }
    }

    /// Believed for its term from `sent`, as far as its lease lets it; over for this process a term
    /// after `now`. Never less than before.
    pub(crate) fn extend(&mut self, sent: Moment, now: Moment, belief: Belief) {
        let by_term = belief_end(sent, self.term, belief.drift);
        self.until = self.until.max(by_term.min(belief.end()));
        let end = now + self.term;
        self.end = if self.end == Moment::NEVER { end } else { self.end.max(end) };
    }
}

impl Desk {
    pub(crate) fn known(&self, claim: ClaimId) -> Known {
        if self.part_of.contains_key(&claim) {
            return Known::Part;
        }
        self.graves.get(&claim).map_or(Known::No, |(how, _)| Known::Ended(*how))
    }

    /// The hold that a claim is part of.
    pub(crate) fn hold_of(&mut self, claim: ClaimId) -> Option<&mut Hold> {
        let key = self.part_of.get(&claim)?;
        self.holds.get_mut(key)
    }

    pub(crate) fn insert(&mut self, hold: Hold) {
        for part in &hold.parts {
            self.part_of.insert(part.claim, hold.key);
        }
        self.at.entry(hold.resource.clone()).or_default().insert(hold.key);
        self.holds.insert(hold.key, hold);
    }

    /// Adds a claim that re-enters.
    pub(crate) fn join(&mut self, key: ClaimId, part: Part) {
        if let Some(hold) = self.holds.get_mut(&key) {
            self.part_of.insert(part.claim, key);
            hold.parts.push(part);
        }
    }

    /// Takes a hold out, with all its claims.
    pub(crate) fn remove(&mut self, key: ClaimId, how: Ended, now: Moment) -> Option<Hold> {
        self.unpush(key);
        let hold = self.holds.remove(&key)?;
        for part in &hold.parts {
            self.part_of.remove(&part.claim);
            self.bury(part.claim, how, now, part.term);
        }
        if let Some(keys) = self.at.get_mut(&hold.resource) {
            keys.remove(&key);
            if keys.is_empty() {
                self.at.remove(&hold.resource);
                if self.slots.contains_key(&hold.resource) {
                    self.deserted.push(hold.resource.clone());
                }
            }
        }
        Some(hold)
    }

    /// Takes one claim out of its hold; whether others are left in it.
    pub(crate) fn remove_part(&mut self, claim: ClaimId, how: Ended, now: Moment) -> bool {
        let Some(key) = self.part_of.remove(&claim) else { return false };
        let Some(hold) = self.holds.get_mut(&key) else { return false };
        let term = hold.part(claim).map_or(Duration::ZERO, |part| part.term);
        hold.parts.retain(|part| part.claim != claim);
        let left = !hold.parts.is_empty();
        self.bury(claim, how, now, term);
        left
    }

    /// A claim that was refused has left no trace: its id may be used yet.
    pub(crate) fn exhume(&mut self, claim: ClaimId) {
        self.graves.remove(&claim);
    }

    /// Remembers how a claim ended.
    pub(crate) fn bury(&mut self, claim: ClaimId, how: Ended, now: Moment, term: Duration) {
        let until = now + term.max(GRAVE_MIN);
        if self.graves.len() >= GRAVES_MAX {
            self.graves.retain(|_, (_, until)| *until > now);
        }
        if self.graves.len() >= GRAVES_MAX {
            self.graves.clear(); // the tombstones of withdrawn ones are in the store
        }
        self.graves.entry(claim).or_insert((how, until));
    }

    /// The hold that a claim of this holder may re-enter, or whether it would upgrade.
    pub(crate) fn outer(&self, claim: &Claim) -> Result<Option<ClaimId>, Upgrade> {
        let holder: HolderId = claim.holder.id;
        let Some(keys) = self.at.get(&claim.resource) else { return Ok(None) };
        let mut holds: Vec<&Hold> = keys.iter().filter_map(|key| self.holds.get(key)).collect();
        holds.sort_by_key(|hold| hold.create); // the first that covers it
        for hold in holds {
            if hold.holder.id != holder || hold.held.is_none() || hold.leaving {
                continue;
            }
            if hold.mode.covers(claim.mode) && !hold.broken {
                return Ok(Some(hold.key));
            }
            if hold.mode == Mode::Shared && claim.mode == Mode::Exclusive {
                return Err(Upgrade);
            }
        }
        Ok(None)
    }

    /// The keys of this process's claims on a resource.
    pub(crate) fn keys_at(&self, resource: &ResourceName) -> Vec<ClaimId> {
        self.at.get(resource).map(|keys| keys.iter().copied().collect()).unwrap_or_default()
    }

    /// Whether some claim of this process waits for the resource.
    pub(crate) fn waits(&self, resource: &ResourceName) -> bool {
        let keys = self.at.get(resource).into_iter().flatten();
        keys.filter_map(|key| self.holds.get(key)).any(|hold| hold.held.is_none())
    }

    /// Resources that none of ours stood at any more for a moment.
    pub(crate) fn take_deserted(&mut self) -> Vec<ResourceName> {
        std::mem::take(&mut self.deserted)
    }

    /// The leases on which something of ours stands.
    pub(crate) fn leases_in_use(&self) -> HashSet<i64> {
        self.holds.values().map(|hold| hold.lease).collect()
    }

    /// For how much longer a careful claim is held back: counted from when this process first saw
    /// the unclean end, which is never before it was.
    pub(crate) fn held_back(
        &mut self,
        resource: &ResourceName,
        mirror: &Mirror,
        after_loss: Duration,
        now: Moment,
    ) -> Duration {
        if after_loss.is_zero() || mirror.last_end().is_none_or(Ended::is_clean) {
            return Duration::ZERO;
        }
        let mark = mirror.end_mark();
        let seen = self.unclean.entry(resource.clone()).or_insert((mark, now));
        if seen.0 != mark {
            *seen = (mark, now);
        }
        (seen.1 + after_loss).since(now)
    }

    /// Something may have changed for all claims that wait here: whoever listens looks.
    pub(crate) fn moved(&mut self, resource: &ResourceName) {
        if let Some(slot) = self.slots.get_mut(resource) {
            slot.moved();
        }
    }

    /// Something may have changed for this claim.
    pub(crate) fn moved_for(&mut self, resource: &ResourceName, claim: ClaimId) {
        if let Some(slot) = self.slots.get_mut(resource) {
            slot.cursor += 1;
            slot.one.insert(claim, slot.cursor);
            slot.notify.notify_waiters();
        }
    }

    /// Something may have changed for all claims on all resources.
    pub(crate) fn all_moved(&mut self) {
        self.slots.values_mut().for_each(Slot::moved);
    }

    /// A claim of this process was granted by what the watch has told.
    pub(crate) fn push(&mut self, key: ClaimId) {
        let Some(hold) = self.holds.get(&key) else { return };
        let Some(held) = &hold.held else { return };
        let Some(part) = hold.parts.first() else { return };
        let grant = hold.grant(part, held).map_until(PushedEnd::At);
        let pushed = Pushed { grant, ticket: hold.ticket() };
        let resource = hold.resource.clone();
        let slot = self.slots.entry(resource).or_default();
        if slot.pushed.len() >= PUSHED_MAX {
            slot.pushed.pop_front();
        }
        slot.pushed.push_back(pushed);
        slot.notify.notify_waiters();
    }

    /// Word for who listens on behalf of this claim, or of none in particular.
    pub(crate) fn word(
        &mut self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
    ) -> Result<Hint, Cursor> {
        let known = claim.filter(|claim| self.part_of.contains_key(claim));
        let slot = self.slots.entry(resource.clone()).or_default();
        let at = slot.pushed.iter().position(|p| claim.is_none_or(|c| c == p.grant.claim));
        if let Some(pushed) = at.and_then(|at| slot.pushed.remove(at)) {
            return Ok(Hint::Granted(pushed));
        }
        let happened = match known {
            Some(claim) => slot.all.max(slot.one.get(&claim).copied().unwrap_or_default()),
            None => slot.cursor,
        };
        let cursor = Cursor(slot.cursor);
        if happened > since.0 { Ok(Hint::Moved(cursor)) } else { Err(since.max(cursor)) }
    }

    /// The word of a grant is not needed any more: it was told otherwise, or has ended.
    pub(crate) fn unpush(&mut self, key: ClaimId) {
        let Some(hold) = self.holds.get(&key) else { return };
        if let Some(slot) = self.slots.get_mut(&hold.resource) {
            slot.pushed.retain(|pushed| pushed.grant.claim != key);
            slot.one.remove(&key);
        }
    }

    /// Drops what nobody needs any more. Watches that are not wanted have been ended before.
    pub(crate) fn tidy(&mut self, now: Moment) {
        self.graves.retain(|_, (_, until)| *until > now);
        let waiting: HashSet<ResourceName> =
            self.slots.keys().filter(|resource| self.waits(resource)).cloned().collect();
        self.slots.retain(|resource, slot| {
            slot.listeners > 0 || slot.followed.is_some() || waiting.contains(resource)
        });
        if self.unclean.len() > GRAVES_MAX {
            self.unclean.clear();
        }
    }
}

/// A shared grant is not upgraded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upgrade;
