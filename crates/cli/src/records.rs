//! The JSON objects that leasehold prints. Fields are only ever added, and never change meaning.

use leasehold::Lease;
use leasehold_core::{Mode, Queue, QueueEntry, QueueState, Token};
use serde::Serialize;

use crate::durations::{millis, rfc3339_ago};
use crate::exit::{Code, End};
use crate::names::Named;

/// One object on one line.
pub(crate) fn line(record: &impl Serialize) -> Result<String, End> {
    let text = serde_json::to_string(record);
    text.map(|text| text + "\n")
        .map_err(|error| End::Fail(Code::Bug, format!("cannot write the answer as JSON: {error}")))
}

/// The word for a mode.
pub(crate) fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

fn number(token: Token) -> u64 {
    token.get()
}

/// A grant, as `acquire` and `hold` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Granted<'a> {
    name: &'a str,
    store: &'a str,
    claim: String,
    holder: &'a str,
    token: u64,
    epoch: u32,
    slots: &'a [u32],
    ttl_ms: u64,
    expires_in_ms: u64,
    previous: &'static str,
    namespace: &'a str,
    holder_id: String,
    mode: &'static str,
}

impl<'a> Granted<'a> {
    pub(crate) fn new(
        named: &'a Named,
        namespace: &'a str,
        store: &'a str,
        lease: &'a Lease,
        mode: Mode,
        ttl: std::time::Duration,
    ) -> Granted<'a> {
        Granted {
            name: &named.given,
            store,
            claim: lease.claim_id().to_string(),
            holder: lease.holder().label(),
            token: number(lease.token()),
            epoch: lease.epoch().0,
            slots: lease.slots().as_slice(),
            ttl_ms: millis(ttl),
            expires_in_ms: millis(lease.valid_for()),
            previous: lease.previous().word(),
            namespace,
            holder_id: lease.holder().id.to_string(),
            mode: mode_word(mode),
        }
    }
}

/// A name, as `ls` and `show` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Shown<'a> {
    name: &'a str,
    store: &'a str,
    namespace: &'a str,
    held: bool,
    kind: Option<&'static str>,
    limit: Option<u32>,
    holders: Vec<Holding<'a>>,
    waiters: Vec<WaitingFor<'a>>,
    last_token: Option<u64>,
    last_end: Option<&'static str>,
    last_end_at: Option<String>,
    last_end_ago_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Holding<'a> {
    claim: String,
    holder: &'a str,
    holder_id: String,
    mode: &'static str,
    token: u64,
    slots: &'a [u32],
    since: String,
    held_ms: u64,
    expires_in_ms: u64,
    broken: bool,
}

#[derive(Debug, Serialize)]
struct WaitingFor<'a> {
    claim: String,
    holder: &'a str,
    holder_id: String,
    mode: &'static str,
    permits: Option<u32>,
    since: String,
    waited_ms: u64,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(
        named: &'a Named,
        namespace: &'a str,
        store: &'a str,
        queue: &'a Queue,
    ) -> Shown<'a> {
        use leasehold_core::Kind;
        let (kind, limit) = match queue.kind {
            None => (None, None),
            Some(Kind::Lock) => (Some("lock"), None),
            Some(Kind::Permits { limit }) => (Some("permits"), Some(limit)),
        };
        let holders: Vec<_> = queue.entries.iter().filter_map(holding).collect();
        Shown {
            name: &named.given,
            store,
            namespace,
            held: !holders.is_empty(),
            kind,
            limit,
            holders,
            waiters: queue.entries.iter().filter_map(waiting).collect(),
            last_token: queue.last_token.map(number),
            last_end: queue.last_end.map(leasehold_core::Ended::word),
            last_end_at: queue.last_end_ago.map(rfc3339_ago),
            last_end_ago_ms: queue.last_end_ago.map(millis),
        }
    }
}

fn holding(entry: &QueueEntry) -> Option<Holding<'_>> {
    let QueueState::Granted { token, slots, held_for, left, broken } = &entry.state else {
        return None;
    };
    Some(Holding {
        claim: entry.claim.to_string(),
        holder: entry.holder.label(),
        holder_id: entry.holder.id.to_string(),
        mode: mode_word(entry.mode),
        token: number(*token),
        slots: slots.as_slice(),
        since: rfc3339_ago(*held_for),
        held_ms: millis(*held_for),
        expires_in_ms: millis(*left),
        broken: *broken,
    })
}

fn waiting(entry: &QueueEntry) -> Option<WaitingFor<'_>> {
    let QueueState::Waiting { .. } = &entry.state else { return None };
    let permits = match entry.mode {
        Mode::Permits { count, .. } => Some(count),
        _ => None,
    };
    Some(WaitingFor {
        claim: entry.claim.to_string(),
        holder: entry.holder.label(),
        holder_id: entry.holder.id.to_string(),
        mode: mode_word(entry.mode),
        permits,
        since: rfc3339_ago(entry.entered_ago),
        waited_ms: millis(entry.entered_ago),
    })
}

/// How a run ended, for `--status-fd`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) store: String,
    pub(crate) namespace: String,
    /// done, lost, busy, unreachable, interrupted or failed.
    pub(crate) outcome: &'static str,
    /// What leasehold exits with; 128+N where it ends by signal N.
    pub(crate) exit_code: i32,
    pub(crate) command_exit_code: Option<i32>,
    pub(crate) command_signal: Option<i32>,
    /// Why the command was ended by force.
    pub(crate) ended_by: Option<&'static str>,
    /// How the lease was lost.
    pub(crate) lost: Option<&'static str>,
    /// released, by_term, already_lost, unknown or kept.
    pub(crate) release: Option<&'static str>,
    pub(crate) claim: Option<String>,
    pub(crate) holder: Option<String>,
    pub(crate) token: Option<u64>,
    pub(crate) epoch: Option<u32>,
    pub(crate) slots: Vec<u32>,
    pub(crate) previous: Option<&'static str>,
    pub(crate) waited_ms: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) ended_at: String,
}

impl Status {
    /// Notes the grant.
    pub(crate) fn granted(&mut self, lease: &Lease) {
        self.claim = Some(lease.claim_id().to_string());
        self.holder = Some(lease.holder().label().to_string());
        self.token = Some(number(lease.token()));
        self.epoch = Some(lease.epoch().0);
        self.slots = lease.slots().as_slice().to_vec();
        self.previous = Some(lease.previous().word());
    }
}
