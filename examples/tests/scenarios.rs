//! Each scenario: the wrong ways fail, by just as much as they must, and the right ones are exact.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::OnceLock;

use leasehold_examples::db::Db;
use leasehold_examples::way::Way;
use leasehold_examples::{Result, cache, callback, clicks, nightly, provider, stock};
use leasehold_testkit::server::postgres::Postgres;

fn url() -> String {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    let server = SERVER.get_or_init(Postgres::start);
    format!("postgres://postgres@127.0.0.1:{}/postgres", server.port())
}

/// Runs a scenario in this process, and its program, which must say the same.
fn failures(
    name: &str,
    program: &str,
    scenario: impl AsyncFnOnce(&Db) -> Result<Vec<Way>>,
) -> Vec<u64> {
    let url = url();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ways = runtime.block_on(async {
        let db = Db::at(&url, name).await.unwrap();
        scenario(&db).await.unwrap()
    });
    assert!(ways.iter().all(Way::is_as_told), "{ways:#?}");
    let output = Command::new(program).arg(&url).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    for way in &ways {
        assert!(printed.contains(way.how) && printed.contains(&way.saw), "{printed}\n{way:?}");
    }
    ways.iter().map(|way| way.failures).collect()
}

#[test]
fn stock_is_oversold_by_reading_first_and_exact_by_a_condition() {
    assert_eq!(failures("stock", env!("CARGO_BIN_EXE_stock"), stock::run), [15, 0]);
}

#[test]
fn clicks_order_twice_without_a_lock_and_with_one_and_once_with_a_key() {
    assert_eq!(failures("clicks", env!("CARGO_BIN_EXE_clicks"), clicks::run), [4, 1, 0]);
}

#[test]
fn a_callback_is_booked_five_times_by_looking_first_and_once_by_its_unique_id() {
    assert_eq!(failures("callback", env!("CARGO_BIN_EXE_callback"), callback::run), [4, 0]);
}

#[test]
fn a_night_is_invoiced_three_times_by_cron_and_by_a_lock_alone_and_once_by_its_row() {
    assert_eq!(failures("nightly", env!("CARGO_BIN_EXE_nightly"), nightly::run), [8, 8, 0]);
}

#[test]
fn a_cache_is_rebuilt_by_all_or_by_one_and_a_late_write_is_refused_by_a_fence_alone() {
    assert_eq!(failures("cache", env!("CARGO_BIN_EXE_cache"), cache::run), [19, 0, 2, 0]);
}

#[test]
fn a_provider_charges_twice_under_a_lease_and_once_by_a_derived_key() {
    assert_eq!(failures("provider", env!("CARGO_BIN_EXE_provider"), provider::run), [1, 0]);
}
