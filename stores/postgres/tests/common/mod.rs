//! One real server for a whole test binary, and a schema of its own for each test.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Holder, HolderId, Life, Mode, Place, ResourceName};
use leasehold_postgres::{PostgresConfig, PostgresStore};
use leasehold_testkit::server::postgres::Postgres;

/// The server that the tests of a binary share.
pub(crate) fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// The name of a schema that nobody else uses.
pub(crate) fn schema() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test{}", NUMBER.fetch_add(1, Ordering::SeqCst))
}

/// How to reach a schema by this port.
pub(crate) fn config(port: u16, schema: &str) -> PostgresConfig {
    let mut config = PostgresConfig::new("127.0.0.1", port, "postgres");
    config.schema = schema.to_owned();
    config
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) async fn connect(config: &PostgresConfig) -> PostgresStore {
    PostgresStore::connect(config.clone()).await.unwrap()
}

pub(crate) fn name(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

/// A new exclusive claim that queues.
pub(crate) fn claim(on: &str) -> Claim {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let bits =
        u128::from(NUMBER.fetch_add(1, Ordering::SeqCst)) << 64 | u128::from(std::process::id());
    Claim {
        id: ClaimId::from_bits(bits),
        resource: name(on),
        holder: Holder::new(HolderId::from_bits(bits), "test"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(30),
        life: Life::Term,
        place: Place::Term(Duration::from_secs(30)),
        after_loss: Duration::ZERO,
    }
}
