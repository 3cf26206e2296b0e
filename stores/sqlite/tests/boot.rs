//! Reboots, clocks that go back, and tokens that rise all the same.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{claim, config, granted, hands, leave, name, renew, waiting};
use futures_lite::future::block_on;
use leasehold_core::{Claim, Ended, Left, Life, Page, Previous, Renewed, Store};
use leasehold_sqlite::{BootId, SqliteStore};

const HOUR_US: u64 = 3_600_000_000;

#[test]
fn after_a_reboot_nothing_moves_for_one_term_and_waiters_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let before = hands();
    let store = SqliteStore::open_on(config(&dir), before.machine.clone()).unwrap();
    let (held, shared) =
        (claim("held"), Claim { mode: leasehold_core::Mode::Shared, ..claim("s") });
    let old = granted(&store, &held);
    granted(&store, &shared);
    waiting(&store, &claim("held"));
    let unclean = claim("unclean");
    granted(&store, &unclean);
    block_on(store.break_(&unclean.resource, None, true)).unwrap();
    let kept = claim("kept");
    granted(&store, &kept);
    block_on(store.write(&kept.to_ref(), b"x", Duration::from_secs(100))).unwrap();
    leave(&store, &kept);
    drop(store);

    let mut after = hands(); // its monotonic clock starts anew
    after.clock.0.store(5_000_000_000, Ordering::SeqCst);
    after.wall.0.fetch_add(40_000_000, Ordering::SeqCst);
    after.machine.boot = BootId([8; 16]);
    let store = SqliteStore::open_on(config(&dir), after.machine.clone()).unwrap();
    for resource in ["held", "s"] {
        let queue = block_on(store.inspect(&name(resource))).unwrap();
        assert_eq!(queue.entries.len(), 1, "{resource}");
        assert_eq!(queue.entries[0].life, Life::Term);
    }
    after.pass(Duration::from_secs(59));
    let record = block_on(store.read(&kept.resource)).unwrap().unwrap();
    assert_eq!(record.kept_for, Duration::from_secs(1), "records keep by the wall clock");
    let next = claim("held");
    waiting(&store, &next);
    let writer = claim("s");
    waiting(&store, &writer);
    after.pass(Duration::from_secs(1));
    let Renewed::Granted(new) = renew(&store, &next.to_ref()) else { panic!() };
    assert!(new.token > old.token);
    assert_eq!(new.previous, Previous::Ended(Ended::Expired));
    assert!(matches!(renew(&store, &writer.to_ref()), Renewed::Granted(_)));
    let again = granted(&store, &claim("unclean"));
    assert_eq!(again.previous, Previous::Ended(Ended::Broken));
}

#[test]
fn one_damaged_row_keeps_no_other_from_being_used_after_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let before = hands();
    let store = SqliteStore::open_on(config(&dir), before.machine.clone()).unwrap();
    granted(&store, &claim("sick"));
    granted(&store, &Claim { mode: leasehold_core::Mode::Shared, ..claim("sick too") });
    drop(store);
    let db = rusqlite::Connection::open(config(&dir).path).unwrap();
    db.execute("UPDATE resource SET h_term = 9223372036854775807 WHERE name = 'sick'", []).unwrap();
    db.execute("UPDATE claim SET term = 9223372036854775807", []).unwrap();
    drop(db);
    let mut after = hands();
    after.machine.boot = BootId([8; 16]);
    let store = SqliteStore::open_on(config(&dir), after.machine.clone()).unwrap();
    granted(&store, &claim("well"));
}

#[test]
fn tokens_rise_over_a_reboot_that_lost_the_last_writes_and_turned_the_clock_back() {
    let dir = tempfile::tempdir().unwrap();
    let before = hands();
    let store = SqliteStore::open_on(config(&dir), before.machine.clone()).unwrap();
    granted(&store, &claim("other")); // reserves the first block, on the disk
    let lost = granted(&store, &claim("r"));
    drop(store);
    // A power loss takes back what no sync has kept: the whole of the last grant.
    let db = rusqlite::Connection::open(config(&dir).path).unwrap();
    db.execute("DELETE FROM resource WHERE name = 'r'", []).unwrap();
    drop(db);
    let mut after = hands();
    after.machine.boot = BootId([8; 16]);
    after.wall.0.store(HOUR_US, Ordering::SeqCst); // a board without a clock wakes in 1970
    let store = SqliteStore::open_on(config(&dir), after.machine.clone()).unwrap();
    let new = granted(&store, &claim("r"));
    assert!(new.token > lost.token, "{new:?} after {lost:?}");
}

#[test]
fn tokens_are_reserved_an_hour_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let hands = hands();
    let store = SqliteStore::open_on(config(&dir), hands.machine.clone()).unwrap();
    let db = rusqlite::Connection::open(config(&dir).path).unwrap();
    let end = || -> u64 {
        let end: i64 = db.query_row("SELECT token_end FROM meta", [], |row| row.get(0)).unwrap();
        u64::try_from(end).unwrap()
    };
    let first = granted(&store, &claim("a")).token.get();
    assert_eq!(end(), first + HOUR_US);
    hands.pass(Duration::from_secs(3599));
    let second = granted(&store, &claim("b")).token.get();
    assert_eq!((second, end()), (first + 3_599_000_000, first + HOUR_US));
    hands.pass(Duration::from_secs(1));
    let third = granted(&store, &claim("c")).token.get();
    assert_eq!((third, end()), (first + HOUR_US, first + 2 * HOUR_US));
}

#[test]
fn a_cleaned_name_goes_on_above_its_tokens_though_the_clock_went_back() {
    let dir = tempfile::tempdir().unwrap();
    let hands = hands();
    let open = || SqliteStore::open_on(config(&dir), hands.machine.clone()).unwrap();
    let (store, other) = (open(), open());
    granted(&other, &claim("warm"));
    let used = claim("r");
    let old = granted(&store, &used);
    assert_eq!(leave(&store, &used), Left::Released);
    let (keep, page) = (Duration::from_secs(7 * 24 * 3600), Page::default());
    let cleaned = block_on(store.clean(keep, &page, false)).unwrap();
    assert_eq!(cleaned.names, []);
    hands.pass(keep);
    let dry = block_on(store.clean(keep, &page, true)).unwrap();
    assert!(dry.names.contains(&used.resource));
    let cleaned = block_on(store.clean(keep, &page, false)).unwrap();
    assert!(cleaned.names.contains(&used.resource));
    assert!(!block_on(store.list(&page)).unwrap().contains(&used.resource));
    let back = u64::try_from(keep.as_micros()).unwrap() + HOUR_US;
    hands.wall.0.fetch_sub(back, Ordering::SeqCst);
    let new = granted(&other, &claim("r"));
    assert!(new.token > old.token, "{new:?} after {old:?}");
    assert_eq!(new.previous, Previous::First);
}

#[test]
fn a_name_idle_over_reboots_is_cleaned_by_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let before = hands();
    let store = SqliteStore::open_on(config(&dir), before.machine.clone()).unwrap();
    let used = claim("r");
    granted(&store, &used);
    leave(&store, &used);
    drop(store);
    let mut after = hands();
    after.clock.0.store(1, Ordering::SeqCst);
    after.machine.boot = BootId([8; 16]);
    after.wall.0.fetch_add(10 * HOUR_US, Ordering::SeqCst);
    let store = SqliteStore::open_on(config(&dir), after.machine.clone()).unwrap();
    let keep = |hours: u64| Duration::from_secs(hours * 3600);
    let cleaned = block_on(store.clean(keep(11), &Page::default(), false)).unwrap();
    assert_eq!(cleaned.names, []);
    let cleaned = block_on(store.clean(keep(10), &Page::default(), false)).unwrap();
    assert_eq!(cleaned.names, [used.resource]);
}

#[test]
fn processes_in_different_time_namespaces_see_one_clock() {
    let dir = tempfile::tempdir().unwrap();
    let here = hands();
    let store = SqliteStore::open_on(config(&dir), here.machine.clone()).unwrap();
    let held = claim("r");
    let grant = granted(&store, &held);
    // A container whose monotonic clock is an hour ahead.
    let mut there = hands();
    let hour = Duration::from_secs(3600);
    there.clock.0.fetch_add(u64::try_from(hour.as_nanos()).unwrap(), Ordering::SeqCst);
    there.machine.ahead_ns = i64::try_from(hour.as_nanos()).unwrap();
    let other = SqliteStore::open_on(config(&dir), there.machine.clone()).unwrap();
    waiting(&other, &claim("r"));
    // What it is told of ends is on its own clock.
    let Renewed::Granted(seen) = renew(&other, &held.to_ref()) else { panic!("it was lost") };
    assert_eq!(seen.until, grant.until + hour);
}
