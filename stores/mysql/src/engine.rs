//! Requests decided on one connection: the rows' locks first, in a statement of their own, what
//! stands there read under them, and what has changed written back with the commit.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use leasehold_core::{ClaimId, Hint, Moment, ResourceName, Result, Token};

use crate::cells::Cells;
use crate::desk::{Ask, Desk, Loaded, Told};
use crate::error::{Fail, Step, corrupt_table};
use crate::lit::{Lit, Sql};
use crate::now::Clocks;
use crate::rows::{CLAIM_COLUMNS, RESOURCE_COLUMNS, ResourceRow, read_claim};
use crate::session::{Session, Set};

/// How rows that another transaction has locked are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locked {
    /// Waited for, for a second at most; of one name only.
    Wait,
    /// Left alone; their requests are not decided.
    Skip,
}

/// What came of a transaction.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) seen: Seen,
    /// In the order of the requests; `None` where the name's row was locked, or has to be made.
    pub(crate) answers: Vec<Option<Result<Told>>>,
    /// Words to waiters.
    pub(crate) hints: Vec<(ResourceName, ClaimId, Hint)>,
    /// Behind whom the claims of the requests stand.
    pub(crate) predecessors: HashMap<ClaimId, ClaimId>,
    /// The newest tokens, as they stand after it.
    pub(crate) tokens: HashMap<ResourceName, Option<Token>>,
}

/// When the server's clock was read, on ours and on its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Before the request was sent that the answers vouch for.
    pub(crate) sent: Moment,
    pub(crate) received: Moment,
    pub(crate) server_us: u64,
}

/// How long the server keeps the locks of a client that has fallen silent between the two packets
/// of a transaction, in seconds, and how long it keeps a session that has none.
const SILENT_SECONDS: u64 = 3;
const IDLE_SECONDS: u64 = 28_800;
/// How often a name's row is made and looked for again, while others clean it away.
const MAKE_TRIES: u32 = 3;

/// Decides these requests in one transaction.
pub(crate) async fn decide(
    session: &mut Session,
    clocks: &Clocks,
    asks: &[Ask],
    locked: Locked,
) -> Step<Decided> {
    let decided = try_to(session, clocks, asks, locked).await;
    if decided.is_err() && !session.is_broken() {
        session.roll_back().await;
    }
    decided
}

async fn try_to(
    session: &mut Session,
    clocks: &Clocks,
    asks: &[Ask],
    locked: Locked,
) -> Step<Decided> {
    let names: BTreeSet<&ResourceName> = asks.iter().map(Ask::resource).collect();
    let load = load_sql(clocks, asks, &names, locked);
    let mut tries = 0;
    let (sent, received, now, mut loaded) = loop {
        let sent = clocks.now();
        let sets = session.ask(&load).await?;
        let received = clocks.now();
        let (now, loaded) = read_sets(sets, asks)?;
        let missing = names.iter().find(|name| loaded.get(**name).is_none_or(|l| l.row.is_none()));
        match missing {
            Some(name) if locked == Locked::Wait && asks.iter().any(Ask::needs_row) => {
                tries += 1;
                if tries > MAKE_TRIES {
                    let error = corrupt_table("a row that was made is not there");
                    return Err(Fail::Error(error.on(name)));
                }
                make_row(session, clocks, name).await?;
            }
            _ => break (sent, received, now, loaded),
        }
    };
    let mut desks: BTreeMap<&ResourceName, Desk> = BTreeMap::new();
    for name in &names {
        let found = loaded.remove(*name).unwrap_or_default();
        // Where there is no row, nothing of the name stands.
        if found.row.is_some() || !found.is_there {
            desks.insert(name, Desk::new((*name).clone(), now, found));
        }
    }
    let decide = |ask: &Ask| {
        let desk = desks.get_mut(ask.resource())?;
        if !desk.exists() && ask.needs_row() {
            return None;
        }
        Some(desk.decide(ask).map_err(|e| e.on(ask.resource())))
    };
    let answers = asks.iter().map(decide).collect();
    let mut sql = Sql::new();
    let (mut hints, mut tokens) = (Vec::new(), HashMap::new());
    for (name, desk) in &mut desks {
        desk.write(&mut sql);
        hints.extend(desk.hints());
        tokens.insert((*name).clone(), desk.last_token());
    }
    sql.text("COMMIT; SET SESSION wait_timeout = ").num(IDLE_SECONDS);
    session.run(&sql).await?;
    let seen = Seen { sent, received, server_us: now };
    let before = |ask: &Ask| {
        let claim = ask.claim()?;
        Some((claim, desks.get(ask.resource())?.predecessor(claim)?))
    };
    let predecessors = asks.iter().filter_map(before).collect();
    Ok(Decided { seen, answers, hints, predecessors, tokens })
}

fn load_sql(clocks: &Clocks, asks: &[Ask], names: &BTreeSet<&ResourceName>, locked: Locked) -> Sql {
    let mut sql = Sql::new();
    sql.text("SET SESSION wait_timeout = ").num(SILENT_SECONDS).text("; BEGIN; ");
    let cleans = asks.iter().any(|ask| matches!(ask, Ask::Clean { dry: false, .. }));
    if cleans {
        // Before the name's row, as whoever makes a row does it.
        sql.text("SELECT one FROM leasehold_meta WHERE one = 1 FOR UPDATE; ");
    }
    sql.text("SELECT ")
        .text(RESOURCE_COLUMNS)
        .text(" FROM leasehold_resource FORCE INDEX (PRIMARY)");
    of_names(&mut sql, "name", names);
    match locked {
        Locked::Wait => sql.text(" FOR UPDATE; "),
        Locked::Skip => sql.text(" ORDER BY name FOR UPDATE SKIP LOCKED; "),
    };
    // Those that are there, locked or not.
    sql.text("SELECT name FROM leasehold_resource");
    of_names(&mut sql, "name", names);
    sql.text("; SELECT ").text(&clocks.server).text("; ");
    sql.text("SELECT ").text(CLAIM_COLUMNS).text(" FROM leasehold_claim");
    of_names(&mut sql, "resource", names);
    sql.text(
        " ORDER BY resource, ord, sub; SELECT resource, claim, how, until FROM leasehold_grave",
    );
    of_names(&mut sql, "resource", names);
    let claims: Vec<Lit> =
        asks.iter().filter_map(Ask::claim).map(|id| Lit::id(id.bits())).collect();
    sql.text(" AND (until <= ").text(&clocks.server);
    if !claims.is_empty() {
        sql.text(" OR claim IN ").list(&claims);
    }
    sql.text(") LIMIT 1000; ");
    if asks.iter().any(|ask| matches!(ask, Ask::Clean { .. })) {
        sql.text("SELECT resource, until FROM leasehold_record");
        of_names(&mut sql, "resource", names);
    }
    sql
}

/// One name is looked for by equality: then nothing beside it is locked.
fn of_names(sql: &mut Sql, column: &str, names: &BTreeSet<&ResourceName>) {
    sql.text(" WHERE ").text(column);
    let names: Vec<Lit> = names.iter().map(|name| Lit::word(name.as_str())).collect();
    match names.as_slice() {
        [name] => sql.text(" = ").lit(name),
        names => sql.text(" IN ").list(names),
    };
}

fn read_sets(sets: Vec<Set>, asks: &[Ask]) -> Result<(u64, HashMap<ResourceName, Loaded>)> {
    let with_records = asks.iter().any(|ask| matches!(ask, Ask::Clean { .. }));
    let mut sets = sets.into_iter().rev();
    let records = if with_records { sets.next() } else { None }.unwrap_or_default();
    let mut next = || sets.next().unwrap_or_default().rows;
    let (graves, claims, now, there, resources) = (next(), next(), next(), next(), next());
    let mut loaded: HashMap<ResourceName, Loaded> = HashMap::new();
    for row in there {
        loaded.entry(Cells::new(row).name()?).or_default().is_there = true;
    }
    for row in resources {
        let (name, row) = ResourceRow::read(row)?;
        loaded.entry(name).or_default().row = Some(row);
    }
    for row in claims {
        let (name, seat) = read_claim(row)?;
        loaded.entry(name).or_default().claims.push(seat);
    }
    for row in graves {
        let mut cells = Cells::new(row);
        let name = cells.name()?;
        let (claim, how, until) = (cells.claim()?, cells.maybe_ended()?, cells.num()?);
        let how = how.ok_or_else(|| cells.bad("how a claim ended is missing"))?;
        loaded.entry(name).or_default().graves.push((claim, how, until));
    }
    for row in records.rows {
        let mut cells = Cells::new(row);
        let name = cells.name()?;
        loaded.entry(name).or_default().record_until = Some(cells.num()?);
    }
    let now = now.into_iter().next().ok_or_else(|| corrupt_table("the time is missing"))?;
    Ok((Cells::new(now).num()?, loaded))
}

/// Makes the row of a name, in a transaction of its own. That somebody else has made it is as good.
async fn make_row(session: &mut Session, clocks: &Clocks, name: &ResourceName) -> Step<()> {
    let mut sql = Sql::new();
    sql.text("ROLLBACK; ");
    let name = Lit::word(name.as_str());
    sql.fill(&clocks.timed(include_str!("resource_new.sql")), &[("name", &name)]);
    match session.run(&sql).await {
        Ok(_) | Err(Fail::Duplicate) => Ok(()),
        Err(fail) => Err(fail),
    }
}

/// What stands on one resource, read from one snapshot, without a lock.
pub(crate) mod snapshot {
    use super::*;

    /// The statements.
    pub(crate) fn sql(clocks: &Clocks, name: &ResourceName) -> Sql {
        let names = BTreeSet::from([name]);
        let mut sql = Sql::new();
        sql.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; ");
        sql.text("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; ");
        sql.text("SELECT ").text(RESOURCE_COLUMNS).text(" FROM leasehold_resource");
        of_names(&mut sql, "name", &names);
        sql.text("; SELECT name FROM leasehold_resource LIMIT 0; ");
        sql.text("SELECT ").text(&clocks.server).text("; ");
        sql.text("SELECT ").text(CLAIM_COLUMNS).text(" FROM leasehold_claim");
        of_names(&mut sql, "resource", &names);
        sql.text(" ORDER BY ord, sub; SELECT resource, claim, how, until FROM leasehold_grave");
        of_names(&mut sql, "resource", &names);
        sql.text(" LIMIT 0; COMMIT");
        sql
    }

    /// The answers.
    pub(crate) fn read(mut sets: Vec<Set>, name: &ResourceName) -> Result<Desk> {
        sets.pop();
        let (now, mut loaded) = read_sets(sets, &[])?;
        Ok(Desk::new(name.clone(), now, loaded.remove(name).unwrap_or_default()))
    }
}
