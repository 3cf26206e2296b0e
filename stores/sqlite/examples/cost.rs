//! What the store costs beside raw SQLite, in one run: `cost pair` for acquire and release in one
//! process, `cost once PATH` for one of each in a fresh process.

use std::io::Write as _;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use leasehold_core::{
    Admission, Claim, Holder, HolderId, Ids, Life, Mode, Place, PlaceKept, ResourceName, Store,
};
use leasehold_sqlite::{SqliteConfig, SqliteStore};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["once", path] => once(path),
        ["pair"] | [] => pairs(),
        _ => Err("want `pair` or `once PATH`".into()),
    }
}

fn claim(ids: &mut Ids) -> Result<Claim, Box<dyn std::error::Error>> {
    Ok(Claim {
        id: ids.claim(),
        resource: ResourceName::new("nightly")?,
        holder: Holder::new(HolderId::from_bits(7), "host/123/cost"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(30),
        life: Life::Process,
        place: Place::Term(PlaceKept::Watched.term()),
        after_loss: Duration::ZERO,
    })
}

fn one_pair(store: &SqliteStore, ids: &mut Ids) -> Result<(), Box<dyn std::error::Error>> {
    let claim = claim(ids)?;
    match block_on(store.enter(&claim))? {
        Admission::Granted(_) => {}
        other => return Err(format!("not granted: {other:?}").into()),
    }
    block_on(store.leave(&claim.to_ref()))?;
    Ok(())
}

fn once(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let store = SqliteStore::open(SqliteConfig::new(path))?;
    let opened = started.elapsed();
    let mut ids = Ids::seeded(started.elapsed().as_nanos());
    one_pair(&store, &mut ids)?;
    let paired = started.elapsed();
    drop(store);
    let all = started.elapsed();
    let mut out = std::io::stdout();
    writeln!(out, "open {opened:?}, with a pair {paired:?}, closed {all:?}")?;
    Ok(())
}

fn pairs() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let store = SqliteStore::open(SqliteConfig::new(directory.path().join("store.db")))?;
    let raw = rusqlite::Connection::open(directory.path().join("raw.db"))?;
    raw.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
         CREATE TABLE lock (name TEXT PRIMARY KEY, owner BLOB, until INTEGER, token INTEGER);",
    )?;
    let mut ids = Ids::seeded(1);
    let mut ratios = Vec::new();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let started = Instant::now();
        for n in 0..500_i64 {
            for until in [30, 0] {
                raw.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
                raw.prepare_cached(
                    "INSERT INTO lock VALUES ('nightly', ?1, ?2, 1) ON CONFLICT (name) DO UPDATE
                     SET owner = excluded.owner, until = excluded.until, token = token + 1",
                )?
                .execute((&n.to_be_bytes()[..], until))?;
                raw.prepare_cached("COMMIT")?.execute([])?;
            }
        }
        let raw_time = started.elapsed() / 500;
        let started = Instant::now();
        for _ in 0..500 {
            one_pair(&store, &mut ids)?;
        }
        let our_time = started.elapsed() / 500;
        ratios.push(our_time.as_secs_f64() / raw_time.as_secs_f64());
        ours.push(our_time);
        theirs.push(raw_time);
    }
    ratios.sort_by(f64::total_cmp);
    ours.sort();
    theirs.sort();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "acquire + release {:?}, two raw writes {:?}, ratio {:.2} (medians of 40 blocks)",
        ours[20], theirs[20], ratios[20]
    )?;
    Ok(())
}
