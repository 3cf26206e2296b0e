//! One of many: acquires, counts, releases, until the time is up; then tells of it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use leasehold::blocking::block_on;
use leasehold::sqlite::{SqliteConfig, SqliteStore};
use leasehold::{Client, Options, Release};

use super::counted::Counted;
use crate::{Result, sys};

pub(crate) fn contender(folder: &str) -> Result<()> {
    let config = SqliteConfig::from_url(&format!("sqlite:{folder}/store.db"))?;
    let store = Arc::new(Counted::new(SqliteStore::open(config)?));
    let client = Client::new(Arc::clone(&store) as Arc<_>, Options::default())?;
    let counter =
        std::fs::File::options().read(true).write(true).open(format!("{folder}/counter"))?;
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let numbers: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [begin, end, hold] = numbers[..] else { return Err("no word to begin".into()) };
    sleep(Duration::from_nanos(begin.saturating_sub(sys::now_ns())));
    let mut sleeps = None;
    let mut text = String::new();
    while sys::now_ns() < end {
        let asked = sys::now_ns();
        let lease = block_on(client.lock("bench").acquire())?;
        let acquired = sys::now_ns();
        let mut count = [0; 8];
        counter.read_exact_at(&mut count, 0)?;
        sleep(Duration::from_nanos(hold));
        counter.write_all_at(&(u64::from_ne_bytes(count) + 1).to_ne_bytes(), 0)?;
        let token = lease.token();
        let releasing = sys::now_ns();
        match block_on(lease.release()) {
            Release::Released => {}
            other => return Err(format!("not released: {other:?}").into()),
        }
        let released = sys::now_ns();
        writeln!(text, "{asked} {acquired} {releasing} {released} {token}")?;
        if sleeps.is_none() {
            // The first time all have come at once.
            sleeps = Some(sys::sleeps()?);
        }
    }
    let sleeps = sys::sleeps()? - sleeps.unwrap_or_default();
    let (hints, looks) = store.counts();
    let mut out = std::io::stdout().lock();
    write!(out, "{hints} {looks} {sleeps}\n{text}")?;
    out.flush()?;
    Ok(())
}
