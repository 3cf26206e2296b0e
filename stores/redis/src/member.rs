//! What a server does as one of several independent ones, for the Redlock store.

use std::time::Duration;

use leasehold_core::{
    Busy, Claim, ClaimRef, Cursor, Ended, ErrorKind, Grant, Moment, Place, Result, Slots, Token,
};

use crate::enter::life;
use crate::keys::DECIDING;
use crate::link::{Cause, Lane, Reply};
use crate::scripts::{CONFIRM, ENTER, WITHDRAW};
use crate::store::RedisStore;
use crate::told::{Told, corrupt, token_of};

/// The key by which a server is known again that has kept its data.
const MARK: &[u8] = b"leasehold:member";

/// What a server says to a claim.
#[derive(Debug, Clone)]
pub enum Taken {
    /// It holds here.
    Granted {
        /// As this server made it.
        grant: Grant<Moment>,
        /// Whether its token is that of a majority.
        is_confirmed: bool,
    },
    /// Others hold.
    Busy(Busy),
    /// It has ended here.
    Gone(Ended),
}

/// What a server says to the token of a majority.
#[derive(Debug, Clone)]
pub enum Confirmed {
    /// The claim holds here with this token.
    Yes(Grant<Moment>),
    /// Another grant had this token or a higher one here: the lowest that would do.
    Higher(Token),
    /// The claim does not hold here.
    Gone(Ended),
}

/// What a server is.
#[derive(Debug, Clone, Default)]
pub struct Vetted {
    /// Another after each start; `None` where the user may not ask.
    pub run_id: Option<String>,
    /// For how long it has run.
    pub uptime: Option<Duration>,
    /// Whether a restart loses nothing: every write is on disk before it is answered.
    pub is_durable: bool,
    /// The layout in the mark that was found here, if there was one.
    pub marked: Option<String>,
}

/// Claims, with these slots if it is one of permits; with this token, and then only if none higher
/// was issued.
///
/// # Errors
///
/// As [`Store::enter`](leasehold_core::Store::enter).
pub async fn take(
    store: &RedisStore,
    claim: &Claim,
    slots: &Slots,
    token: Option<Token>,
) -> Result<Taken> {
    let keys = store.keys(&claim.resource)?;
    let (mode, count, limit) = crate::enter::mode(claim.mode);
    let (id, term) = (claim.id.to_string(), claim.term.as_micros().to_string());
    debug_assert_eq!(claim.place, Place::No, "several servers keep no queue");
    let (life, after) = (life(claim.life), claim.after_loss.as_micros());
    let asked = format!("{count} {limit} {term} {life} 0 {after}");
    let channel = if token.is_some() { "C" } else { "M" };
    let whose = format!("{} {channel}", claim.holder.id);
    let slots = if slots.is_empty() { "-".to_owned() } else { slots.to_string() };
    let fixed = token.map_or("-".to_owned(), |token| token.get().to_string());
    let [layout, publish, spans] = store.common();
    let mut args: Vec<&[u8]> = vec![
        layout,
        publish,
        spans,
        id.as_bytes(),
        mode.as_bytes(),
        term.as_bytes(),
        asked.as_bytes(),
        whose.as_bytes(),
        claim.holder.label().as_bytes(),
    ];
    let is_plain = slots == "-" && token.is_none();
    if !is_plain {
        args.extend([slots.as_bytes(), fixed.as_bytes()]);
    }
    let lane = if token.is_some() { Lane::Renewals } else { Lane::Front };
    let mut told = store.tell(lane, &ENTER, &keys.first(DECIDING), &args).await?;
    let word = told.text()?;
    match word.as_str() {
        "granted" => {
            let (grant, is_confirmed) = grant(store, claim, &mut told)?;
            Ok(Taken::Granted { grant, is_confirmed })
        }
        "busy" => told.busy().map(Taken::Busy),
        "gone" => told.ended().map(Taken::Gone),
        word => Err(told.refusal(word, &claim.resource)),
    }
}

/// Gives a claim that holds here the token of a majority.
///
/// # Errors
///
/// As [`Store::enter`](leasehold_core::Store::enter).
pub async fn confirm(store: &RedisStore, claim: &Claim, token: Token) -> Result<Confirmed> {
    let keys = store.keys(&claim.resource)?;
    let (id, token) = (claim.id.to_string(), token.get().to_string());
    let [layout, publish, spans] = store.common();
    let args = [layout, publish, spans, id.as_bytes(), token.as_bytes()];
    let mut told = store.tell(Lane::Front, &CONFIRM, &keys.first(DECIDING), &args).await?;
    let word = told.text()?;
    match word.as_str() {
        "granted" => grant(store, claim, &mut told).map(|(grant, _)| Confirmed::Yes(grant)),
        "higher" => token_of(told.number()?).map(Confirmed::Higher),
        "gone" => told.ended().map(Confirmed::Gone),
        word => Err(told.refusal(word, &claim.resource)),
    }
}

fn grant(store: &RedisStore, claim: &Claim, told: &mut Told) -> Result<(Grant<Moment>, bool)> {
    let grant = told.grant(claim.id)?;
    let is_confirmed = matches!(told.next(), Some(Reply::Int(1)));
    store.vouched(claim.id, told, grant.until);
    let until = store.believed(told, grant.until);
    Ok((grant.map_until(|_| until), is_confirmed))
}

/// Takes a grant back that no majority has joined, as if it had never been made.
///
/// # Errors
///
/// As [`Store::leave`](leasehold_core::Store::leave).
pub async fn withdraw(store: &RedisStore, claim: &ClaimRef, confirmed_too: bool) -> Result<()> {
    let keys = store.keys(&claim.resource)?;
    let id = claim.id.to_string();
    let [layout, publish, spans] = store.common();
    let confirmed_too = if confirmed_too { b"1" } else { b"0" };
    let args = [layout, publish, spans, id.as_bytes(), confirmed_too];
    let mut told = store.tell(Lane::Front, &WITHDRAW, &keys.first(DECIDING), &args).await?;
    store.unsee(claim.id);
    match told.text()?.as_str() {
        "withdrawn" => Ok(()),
        word => Err(told.refusal(word, &claim.resource)),
    }
}

/// Asks what the server is, and marks it.
///
/// # Errors
///
/// What hinders asking, but not that the user may not ask.
pub async fn vet(store: &RedisStore) -> Result<Vetted> {
    let mut vetted = Vetted::default();
    let Some(info) = ask(store, &[b"INFO"]).await? else { return Ok(vetted) };
    let info = String::from_utf8_lossy(info.bytes()?).into_owned();
    let told =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    vetted.run_id = told("run_id").map(str::to_owned);
    vetted.uptime =
        told("uptime_in_seconds").and_then(|text| text.parse().ok()).map(Duration::from_secs);
    if told("aof_enabled") == Some("1")
        && let Some(policy) = ask(store, &[b"CONFIG", b"GET", b"appendfsync"]).await?
    {
        vetted.is_durable = says_always(&policy);
    }
    let layout = store.layout().letter();
    let found = ask(store, &[b"SET", MARK, layout, b"NX", b"GET"]).await;
    vetted.marked = match found {
        Ok(found) => found.and_then(|mark| mark.str().ok().map(str::to_owned)),
        // Before 7.0 the two options exclude each other.
        Err(_) => {
            let mark = ask(store, &[b"GET", MARK]).await?;
            ask(store, &[b"SET", MARK, layout, b"NX"]).await?;
            mark.and_then(|mark| mark.str().ok().map(str::to_owned))
        }
    };
    Ok(vetted)
}

fn says_always(policy: &Reply) -> bool {
    match policy {
        Reply::Array(items) => items.iter().any(says_always),
        Reply::Map(pairs) => pairs.iter().any(|(_, value)| says_always(value)),
        other => other.str().is_ok_and(|text| text == "always"),
    }
}

/// The answer to a command, or nothing where the user may not give it.
async fn ask(store: &RedisStore, words: &[&[u8]]) -> Result<Option<Reply>> {
    let Some(node) = store.link().masters().into_iter().next() else {
        return Err(corrupt("a single server is none"));
    };
    match store.link().command_at(node, words).await {
        Ok(answer) => Ok(Some(answer.reply)),
        Err(error) if error.kind() == ErrorKind::Permission => Ok(None),
        Err(error) => Err(error),
    }
}

/// The letter by which a mark names the layout of a store.
pub fn layout_mark(store: &RedisStore) -> &'static str {
    match store.layout() {
        crate::Layout::Redisson => "r",
        crate::Layout::Plain => "p",
    }
}

/// How often something has happened to the server, and one.
pub fn disturbances(store: &RedisStore) -> Cursor {
    Cursor(store.link().epoch())
}

/// Whether the server may have forgotten something after that: it has started anew, or, where
/// that cannot be told, was away.
pub fn may_have_forgotten(store: &RedisStore, since: Cursor, knows_runs: bool) -> bool {
    match store.link().cause_since(MARK, since.0) {
        Some(Cause::Restarted | Cause::Failover) => true,
        Some(Cause::Reconnected | Cause::Moved) => !knows_runs,
        None => false,
    }
}

/// Resolves once something has happened to the server.
pub async fn disturbed(store: &RedisStore, since: Cursor) -> Cursor {
    Cursor(store.link().disturbed(since.0).await)
}
