//! What stands on a resource, for people and tests.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::{
    ClaimId, Ended, Holder, HolderId, Life, Mode, Queue, QueueEntry, QueueState, ResourceName,
    Result, Ticket,
};
use serde_json::Value;

use crate::answer::Read;
use crate::error::{failed, strange};
use crate::line::Text;
use crate::store::{PostgresStore, statement};

pub(crate) async fn inspect(store: &PostgresStore, resource: &ResourceName) -> Result<Queue> {
    let params = vec![Text::One(resource.as_str().to_owned())];
    let sql = statement(store, include_str!("sql/inspect.sql"));
    let rows = store.front().query(sql, params).await?;
    let Some(row) = rows.first() else { return Ok(Queue::default()) };
    let text: String = row.try_get(0).map_err(|e| failed(e).into_error())?;
    let all: Value = serde_json::from_str(&text).map_err(|e| strange(&e.to_string()))?;
    queue(&all)
}

fn queue(all: &Value) -> Result<Queue> {
    let read = Read(all);
    let claims = all.get("claims").and_then(Value::as_array).ok_or_else(|| strange("claims"))?;
    // What has ended and was not touched since is told as ended.
    let (live, ended): (Vec<&Value>, Vec<&Value>) =
        claims.iter().partition(|c| c.get("left").and_then(Value::as_i64).is_some_and(|us| us > 0));
    let entries = live.iter().map(|c| entry(Read(c))).collect::<Result<Vec<_>>>()?;
    let noted = match read.maybe_text("end_how") {
        Some(_) => Some((read.ended("end_how")?, read.span("end_ago")?)),
        None => None,
    };
    let last_end = unseen_end(&live, &ended)?.or(noted);
    Ok(Queue {
        kind: entries.first().map(|e: &QueueEntry| e.mode.kind()),
        entries,
        last_token: read.maybe_token("token"),
        last_end: last_end.map(|(how, _)| how),
        last_end_ago: last_end.map(|(_, ago)| ago),
    })
}

/// The last end of a grant that nobody has looked at since.
fn unseen_end(live: &[&Value], ended: &[&Value]) -> Result<Option<(Ended, Duration)>> {
    let granted = |c: &&&Value| c.get("token").is_some_and(Value::is_u64);
    let standing: BTreeSet<i64> =
        live.iter().filter(granted).filter_map(|c| c.get("ord").and_then(Value::as_i64)).collect();
    let mut latest: Option<(Ended, Duration)> = None;
    for claim in ended.iter().filter(granted) {
        let ord = claim.get("ord").and_then(Value::as_i64).ok_or_else(|| strange("ord"))?;
        let left = claim.get("left").and_then(Value::as_i64).ok_or_else(|| strange("left"))?;
        let ago = Duration::from_micros(left.unsigned_abs());
        let broken = claim.get("broken").and_then(Value::as_bool).unwrap_or(false);
        let how = if broken { Ended::Broken } else { Ended::Expired };
        if !standing.contains(&ord) && latest.is_none_or(|(_, before)| ago < before) {
            latest = Some((how, ago));
        }
    }
    Ok(latest)
}

fn entry(read: Read<'_>) -> Result<QueueEntry> {
    let claim: ClaimId = read.text("claim")?.parse().map_err(|_| strange("claim"))?;
    let holder: HolderId = read.text("holder")?.parse().map_err(|_| strange("holder"))?;
    let mode = match read.text("mode")? {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "permits" => Mode::Permits { count: read.count("count")?, limit: read.count("limit")? },
        _ => return Err(strange("mode")),
    };
    let state = match read.maybe_token("token") {
        None => QueueState::Waiting { ticket: Ticket(read.natural("ticket")?) },
        Some(token) => QueueState::Granted {
            token,
            slots: read.slots("slots")?,
            held_for: read.span("held_for")?,
            left: read.span("left")?,
            broken: read.0.get("broken").and_then(Value::as_bool).unwrap_or(false),
        },
    };
    Ok(QueueEntry {
        claim,
        holder: Holder::new(holder, read.text("label")?),
        mode,
        life: if read.text("life")? == "process" { Life::Process } else { Life::Term },
        entered_ago: read.span("entered_ago")?,
        state,
    })
}
