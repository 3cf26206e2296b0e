//! A client of the simulation: core's machines, and tasks that want, hold and use things.

use std::collections::{BTreeMap, VecDeque};

use leasehold_core::acquire::CallId;
use leasehold_core::{
    Acquire, Claim, ClaimId, ClaimRef, Cursor, Hint, HolderId, Mode, Moment, Renewal, ResourceName,
    Slots, Token,
};

use super::clock::Clock;
use super::world::Happening;
use crate::history::Verb;

/// Which machine of a client a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Renewal,
    Acquire(u32),
}

/// A call that has no answer yet.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) owner: Owner,
    pub(super) call: CallId,
    pub(super) verb: Verb,
    pub(super) claims: Vec<(ResourceName, ClaimId)>,
    /// When it was sent, on the client's clock.
    pub(super) sent: Moment,
}

/// An acquisition under way.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) acquire: Acquire,
    pub(super) task: usize,
    /// It is to enter again what the task holds.
    pub(super) inner: bool,
    pub(super) wish: u64,
    pub(super) over: bool,
    /// The watch that is out, and from where.
    pub(super) watch: Option<(u64, Cursor)>,
    /// Words that came while no watch was out.
    pub(super) words: VecDeque<Hint>,
}

/// A lease that a task believes to hold.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) task: usize,
    pub(super) inner: bool,
    pub(super) resource: ResourceName,
    /// The end of belief has been recorded.
    pub(super) ceased: bool,
}

#[derive(Debug)]
pub(super) enum Doing {
    /// Nothing, until the next step.
    Idle,
    Acquiring,
    Holding(Box<Hold>),
}

/// What a task does with what it holds.
#[derive(Debug, Clone)]
pub(super) struct Hold {
    pub(super) claim: Claim,
    pub(super) token: Token,
    pub(super) slots: Slots,
    /// How many accesses were let through: the first enters, the second reads, the others write.
    pub(super) done: u32,
    pub(super) wanted: u32,
    /// A machine that enters again, or the claim with which it has.
    pub(super) inner: Option<ClaimId>,
    pub(super) inner_tried: bool,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) doing: Doing,
    pub(super) holder: HolderId,
    /// Steps that were planned for what the task did before are ignored.
    pub(super) plan: u64,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) clock: Clock,
    /// Counts its deaths.
    pub(super) life: u32,
    pub(super) up: bool,
    /// Why it stands still: what happens to it meanwhile waits in the inbox.
    pub(super) standing: bool,
    pub(super) inbox: Vec<Happening>,
    pub(super) renewal: Renewal,
    pub(super) machines: BTreeMap<u32, Machine>,
    pub(super) machines_made: u32,
    pub(super) tasks: Vec<Task>,
    pub(super) leases: BTreeMap<ClaimId, Lease>,
    pub(super) calls: BTreeMap<u64, InFlight>,
    /// The connection that carries words is there.
    pub(super) subscribed: bool,
    pub(super) parted_until: Moment,
    /// The planned wake, and its number.
    pub(super) wake: Option<Moment>,
    pub(super) wakes: u64,
    /// When the last message of each direction arrives.
    pub(super) last_arrival: [Moment; 2],
}

/// How many tasks a client has.
pub(super) const TASKS: usize = 2;

impl Client {
    pub(super) fn new(clock: Clock, seed: u64, holders: &mut impl FnMut() -> HolderId) -> Client {
        let task = |holder| Task { doing: Doing::Idle, holder, plan: 0 };
        Client {
            clock,
            life: 0,
            up: true,
            standing: false,
            inbox: Vec::new(),
            renewal: Renewal::new(seed),
            machines: BTreeMap::new(),
            machines_made: 0,
            tasks: (0..TASKS).map(|_| task(holders())).collect(),
            leases: BTreeMap::new(),
            calls: BTreeMap::new(),
            subscribed: true,
            parted_until: Moment::START,
            wake: None,
            wakes: 0,
            last_arrival: [Moment::START; 2],
        }
    }

    /// Whether it has nothing to do and nothing to see through.
    pub(super) fn is_quiet(&self) -> bool {
        self.up
            && !self.standing
            && self.machines.is_empty()
            && self.renewal.is_idle()
            && self.tasks.iter().all(|t| matches!(t.doing, Doing::Idle))
    }

    /// The machine that this word is for.
    pub(super) fn machine_of(&self, claim: ClaimId) -> Option<u32> {
        let of = |(id, m): (&u32, &Machine)| (m.acquire.claim_id() == claim).then_some(*id);
        self.machines.iter().find_map(of)
    }

    /// When something is due on the client's clock.
    pub(super) fn due(&self) -> Option<Moment> {
        let machines = self.machines.values().filter_map(|m| m.acquire.poll_timeout());
        machines.chain(self.renewal.poll_timeout()).min()
    }

    pub(super) fn hold(&mut self, task: usize) -> Option<&mut Hold> {
        match &mut self.tasks[task].doing {
            Doing::Holding(hold) => Some(hold),
            Doing::Idle | Doing::Acquiring => None,
        }
    }

    /// Whether a lease is believed at this moment of the client's clock.
    pub(super) fn believes(&self, claim: ClaimId, now: Moment) -> bool {
        self.leases.contains_key(&claim) && self.renewal.until(claim).is_some_and(|u| u > now)
    }
}

/// The claims of a call, for the record.
pub(super) fn named(claims: &[ClaimRef]) -> Vec<(ResourceName, ClaimId)> {
    claims.iter().map(|c| (c.resource.clone(), c.id)).collect()
}

/// The modes in which tasks want each resource.
pub(super) const MODES: [(&str, &[Mode]); 3] = [
    ("lock", &[Mode::Exclusive]),
    ("rw", &[Mode::Exclusive, Mode::Shared, Mode::Shared]),
    ("permits", &[Mode::Permits { count: 1, limit: 3 }, Mode::Permits { count: 2, limit: 3 }]),
];
