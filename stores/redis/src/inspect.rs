//! What stands on a resource.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::{
    ClaimId, Ended, Holder, HolderId, Kind, Life, Mode, Previous, Queue, QueueEntry, QueueState,
    ResourceName, Result, Ticket, Token, shown,
};

use crate::keys::DECIDING;
use crate::link::{Lane, Reply};
use crate::scripts::INSPECT;
use crate::store::RedisStore;
use crate::told::{corrupt, ended_of, previous_of, slots_of, token_of};
use crate::usual::redissons;

pub(crate) async fn inspect(store: &RedisStore, name: &ResourceName) -> Result<Queue> {
    let keys = store.keys(name)?;
    let keys = keys.first(DECIDING);
    let mut told = store.tell(Lane::Slow, &INSPECT, &keys, &store.common()).await?;
    let now = told.server_us;
    let counter = told.item()?;
    let counter = counter.str().ok().and_then(|text| text.parse().ok()).and_then(Token::new);
    let state = pairs(told.item()?)?;
    let ends: HashMap<Vec<u8>, u64> =
        scores(told.item()?)?.into_iter().chain(scores(told.item()?)?).collect();
    let lock = Lock::read(told.item()?)?;
    let Some((_, meta)) = state.iter().find(|(key, _)| key == b"m") else {
        return Ok(only_foreign(&lock, counter));
    };
    let (mut meta, sole) = Meta::read(meta)?;
    if meta.is_bound && counter.is_some() {
        meta.last = None;
    }
    let mut standing = Standing::default();
    if let Some(sole) = sole {
        standing.add(sole, now);
    }
    for (key, value) in &state {
        let Some(id) = std::str::from_utf8(key).ok().and_then(|k| k.parse::<ClaimId>().ok()) else {
            continue;
        };
        if value.starts_with(b"R ") {
            continue; // it was released
        }
        let until = meta.ends.get(&id).copied().or_else(|| ends.get(key).copied());
        standing.add(Stood::read(id, value, until.unwrap_or_default())?, now);
    }
    Ok(standing.queue(&meta, &lock, counter, now))
}

/// What foreign clients see.
struct Lock {
    kind: String,
    owner: String,
    left: i64,
}

impl Lock {
    fn read(reply: Reply) -> Result<Lock> {
        let parts = reply.into_array()?;
        let [kind, owner, left] = parts.as_slice() else {
            return Err(corrupt("a lock is told by something else"));
        };
        let owner = String::from_utf8_lossy(owner.bytes()?);
        let owner = shown(&owner, Holder::LABEL_MAX).into_owned();
        Ok(Lock { kind: kind.str()?.into(), owner, left: left.int()? })
    }

    /// As an entry: its token is known to nobody, so it is told with the newest.
    fn entry(&self, counter: Option<Token>) -> Option<QueueEntry> {
        if self.kind != "hash" && self.kind != "string" {
            return None;
        }
        let left = Duration::from_millis(u64::try_from(self.left).unwrap_or(u64::MAX / 2_000_000));
        let state = QueueState::Granted {
            token: counter.or_else(|| Token::new(1))?,
            slots: leasehold_core::Slots::default(),
            held_for: Duration::ZERO,
            left,
            broken: false,
        };
        Some(QueueEntry {
            claim: ClaimId::from_bits(0),
            holder: Holder::new(HolderId::from_bits(0), &self.owner),
            mode: Mode::Exclusive,
            life: Life::Term,
            entered_ago: Duration::ZERO,
            state,
        })
    }
}

/// What a state says of the resource itself.
struct Meta {
    own: String,
    last: Option<Token>,
    /// Whether the last token was that or less.
    is_bound: bool,
    end: Option<Ended>,
    end_at: u64,
    ends: HashMap<ClaimId, u64>,
}

impl Meta {
    /// Also a claim that is told in it.
    fn read(bytes: &[u8]) -> Result<(Meta, Option<Stood>)> {
        if let [b'i' | b'x', ..] = bytes {
            return Meta::read_plain(bytes).ok_or_else(damaged);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
        let fields: Vec<&str> = text.split(' ').collect();
        let field = |at: usize| fields.get(at).copied().ok_or_else(damaged);
        let number = |at: usize| field(at)?.parse::<u64>().map_err(|_| damaged());
        let meta = |own: String, last: usize, how: usize, at: usize| {
            let end = match field(how)? {
                "-" => None,
                how => Some(ended_of(how)?),
            };
            let last = Token::new(number(last)?);
            Ok(Meta { own, last, is_bound: false, end, end_at: number(at)?, ends: HashMap::new() })
        };
        let mut meta = meta(field(7)?.into(), 10, 11, 12)?;
        for pair in field(9)?.split(',').filter(|list| *list != "-") {
            let (id, until) = pair.split_once(':').ok_or_else(damaged)?;
            let id = id.parse().map_err(|_| damaged())?;
            meta.ends.insert(id, until.parse().map_err(|_| damaged())?);
        }
        Ok((meta, None))
    }

    /// Of a state that is a string; see `desk.lua`.
    fn read_plain(bytes: &[u8]) -> Option<(Meta, Option<Stood>)> {
        let part = |from: usize, to: usize| std::str::from_utf8(bytes.get(from..to)?).ok();
        let number = |from: usize| part(from, from + 16)?.parse::<u64>().ok();
        let ends = HashMap::new();
        if bytes.first() == Some(&b'i') {
            let (end_at, end) = (number(2)?, Some(Ended::Released));
            let last = Token::new(end_at);
            let meta = Meta { own: "-".into(), last, is_bound: true, end, end_at, ends };
            return Some((meta, None));
        }
        let owner_size = if bytes.get(1) == Some(&b'r') { 38 } else { 32 };
        let whose_size = owner_size + 16;
        let (end_at, token, base) = (number(3)?, number(19)?, number(35)?);
        let owner = part(51, 51 + owner_size)?;
        let id: ClaimId = owner.split(':').next()?.replace('-', "").parse().ok()?;
        let term: u64 = part(52 + owner_size, 66 + owner_size)?.parse().ok()?;
        let end = match previous_of(part(2, 3)?).ok()? {
            Previous::Ended(end) => Some(end),
            Previous::First => None,
        };
        let rest = String::from_utf8_lossy(bytes.get(51 + 2 * whose_size..)?).into_owned();
        let mut rest = rest.splitn(3, ' ');
        let life = if rest.next()? == "P" { Life::Process } else { Life::Term };
        let holder = HolderId::from_bits(rest.next()?.parse::<HolderId>().ok()?.bits());
        let state = QueueState::Granted {
            token: Token::new(token)?,
            slots: leasehold_core::Slots::default(),
            held_for: Duration::ZERO,
            left: Duration::ZERO,
            broken: false,
        };
        let entry = QueueEntry {
            claim: id,
            holder: Holder::new(holder, rest.next()?),
            mode: Mode::Exclusive,
            life,
            entered_ago: Duration::ZERO,
            state,
        };
        let stood = Stood {
            order: token,
            since: token,
            until: base + term,
            label_end: Ended::Expired,
            entry,
            entered: token,
        };
        let own = if bytes.get(1) == Some(&b'p') { id.to_string() } else { redissons(id) };
        let last = Token::new(token);
        Some((Meta { own, last, is_bound: false, end, end_at, ends }, Some(stood)))
    }
}

fn damaged() -> leasehold_core::Error {
    corrupt("its state is damaged")
}

/// A claim as the state has it.
struct Stood {
    order: u64,
    since: u64,
    until: u64,
    label_end: Ended,
    entry: QueueEntry,
    entered: u64,
}

impl Stood {
    fn read(claim: ClaimId, bytes: &[u8], until: u64) -> Result<Stood> {
        let text = String::from_utf8_lossy(bytes);
        let fields: Vec<&str> = text.splitn(20, ' ').collect();
        let field = |at: usize| fields.get(at).copied().ok_or_else(damaged);
        let number = |at: usize| field(at)?.parse::<u64>().map_err(|_| damaged());
        let small = |at: usize| field(at)?.parse::<u32>().map_err(|_| damaged());
        let order = number(1)?;
        let mode = match field(2)? {
            "X" => Mode::Exclusive,
            "S" => Mode::Shared,
            "P" => Mode::Permits { count: small(3)?, limit: small(4)? },
            _ => return Err(damaged()),
        };
        let broken = field(15)? == "1";
        let since = number(13)?;
        let state = if field(0)? == "W" {
            QueueState::Waiting { ticket: Ticket(order) }
        } else {
            QueueState::Granted {
                token: token_of(number(12)?)?,
                slots: slots_of(field(16)?)?,
                held_for: Duration::ZERO,
                left: Duration::ZERO,
                broken,
            }
        };
        let id = HolderId::from_bits(field(10)?.parse::<HolderId>().map_err(|_| damaged())?.bits());
        let entry = QueueEntry {
            claim,
            holder: Holder::new(id, field(19)?),
            mode,
            life: if field(6)? == "P" { Life::Process } else { Life::Term },
            entered_ago: Duration::ZERO,
            state,
        };
        let label_end = if broken { Ended::Broken } else { Ended::Expired };
        Ok(Stood { order, since, until, label_end, entry, entered: number(9)? })
    }

    fn holds(&self) -> bool {
        matches!(self.entry.state, QueueState::Granted { .. })
    }

    fn told(mut self, now: u64) -> QueueEntry {
        let span = |from: u64, to: u64| Duration::from_micros(to.saturating_sub(from));
        self.entry.entered_ago = span(self.entered, now);
        if let QueueState::Granted { held_for, left, .. } = &mut self.entry.state {
            *held_for = span(self.since, now);
            *left = span(now, self.until);
        }
        self.entry
    }
}

/// All claims of a state, the living and those that have run out unseen.
#[derive(Default)]
struct Standing {
    held: Vec<Stood>,
    waiting: Vec<Stood>,
    dead: Vec<Stood>,
}

impl Standing {
    fn add(&mut self, stood: Stood, now: u64) {
        if stood.until <= now {
            self.dead.push(stood);
        } else if stood.holds() {
            self.held.push(stood);
        } else {
            self.waiting.push(stood);
        }
    }

    fn queue(mut self, meta: &Meta, lock: &Lock, counter: Option<Token>, now: u64) -> Queue {
        let (mut end, mut end_at) = (meta.end, meta.end_at);
        self.dead.sort_by_key(|stood| stood.until);
        for dead in self.dead.iter().filter(|stood| stood.holds()) {
            if !self.held.iter().any(|stood| stood.order == dead.order) {
                (end, end_at) = (Some(dead.label_end), dead.until);
            }
        }
        let is_ours = meta.own != "-" && lock.kind != "none" && lock.owner == meta.own;
        if !self.held.is_empty() && !is_ours {
            self.held.clear();
            (end, end_at) = (Some(Ended::Evicted), now);
        }
        self.held.sort_by_key(|stood| (stood.order, stood.since, stood.entered));
        self.waiting.sort_by_key(|stood| stood.order);
        let kind = self.held.iter().chain(&self.waiting).next().map(|s| s.entry.mode.kind());
        let foreign = if is_ours { None } else { lock.entry(counter) };
        let ours = self.held.into_iter().chain(self.waiting).map(|stood| stood.told(now));
        Queue {
            kind: kind.or_else(|| foreign.as_ref().map(|_| Kind::Lock)),
            entries: foreign.into_iter().chain(ours).collect(),
            last_token: meta.last.max(counter),
            last_end: end,
            last_end_ago: end.map(|_| Duration::from_micros(now.saturating_sub(end_at))),
        }
    }
}

/// A name that only foreign clients use.
fn only_foreign(lock: &Lock, counter: Option<Token>) -> Queue {
    match lock.entry(counter) {
        Some(entry) => Queue {
            kind: Some(Kind::Lock),
            entries: vec![entry],
            last_token: counter,
            ..Queue::default()
        },
        None => Queue::default(),
    }
}

fn pairs(reply: Reply) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let items = reply.into_array()?;
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(corrupt("a hash has an odd number of parts"));
    }
    pairs.iter().map(|[key, value]| Ok((key.bytes()?.to_vec(), value.bytes()?.to_vec()))).collect()
}

fn scores(reply: Reply) -> Result<Vec<(Vec<u8>, u64)>> {
    let read = |(key, score): (Vec<u8>, Vec<u8>)| {
        let score = std::str::from_utf8(&score).ok().and_then(|text| text.parse::<f64>().ok());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // whole, below 2^53
        let score = score.map(|score| score.max(0.0) as u64);
        score.map(|score| (key, score)).ok_or_else(|| corrupt("a score is no number"))
    };
    pairs(reply)?.into_iter().map(read).collect()
}
