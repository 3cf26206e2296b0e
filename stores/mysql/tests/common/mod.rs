//! What the tests stand on: one server a test program, configurations and claims.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::OnceLock;
use std::time::Duration;

use leasehold_core::{
    Claim, ClaimId, ClaimRef, Holder, HolderId, Life, Mode, Place, Renewed, ResourceName, Store,
};
use leasehold_mysql::MysqlConfig;
use leasehold_testkit::server::mariadb::MariaDb;

/// The server of this test program, with a database `leasehold`.
pub(crate) fn server() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = MariaDb::start();
        server.sql("mysql", "CREATE DATABASE leasehold");
        server
    })
}

/// The database `leasehold` of the server that listens on this port, as `root`.
pub(crate) fn config(port: u16) -> MysqlConfig {
    MysqlConfig::from_url(&url(port)).unwrap()
}

/// As [`config`].
pub(crate) fn url(port: u16) -> String {
    format!("mysql://root@127.0.0.1:{port}/leasehold")
}

fn random() -> u128 {
    use std::hash::{BuildHasher, Hasher};
    let half = || {
        let hasher = std::collections::hash_map::RandomState::new().build_hasher();
        u128::from(hasher.finish())
    };
    half() << 64 | half()
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::new(text).unwrap()
}

/// A new exclusive claim of a new holder, that queues.
pub(crate) fn claim(on: &str) -> Claim {
    Claim {
        id: ClaimId::from_bits(random()),
        resource: name(on),
        holder: Holder::new(HolderId::from_bits(random()), "test"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(10),
        life: Life::Term,
        place: Place::Term(Duration::from_secs(10)),
        after_loss: Duration::ZERO,
    }
}

/// Renews one claim.
pub(crate) async fn renew(store: &dyn Store, claim: &ClaimRef) -> Renewed {
    store.renew(std::slice::from_ref(claim)).await.pop().unwrap()
}

/// Takes a name out of the database, as an operator's hand would.
pub(crate) fn evict(name: &ResourceName) {
    let hex: String = name.as_str().bytes().map(|b| format!("{b:02x}")).collect();
    let mut sql = String::new();
    for table in ["claim", "record", "grave"] {
        sql += &format!("DELETE FROM leasehold_{table} WHERE resource = x'{hex}';");
    }
    sql += &format!("DELETE FROM leasehold_resource WHERE name = x'{hex}';");
    server().sql("leasehold", &sql);
}

/// A connection beside the store's, as a user's program has one.
pub(crate) struct Raw {
    runtime: tokio::runtime::Runtime,
    conn: mysql_async::Conn,
}

impl Raw {
    pub(crate) fn new(port: u16) -> Raw {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let opts = mysql_async::OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(port)
            .prefer_socket(false)
            .user(Some("root"))
            .db_name(Some("leasehold"));
        let conn = runtime.block_on(mysql_async::Conn::new(opts)).unwrap();
        Raw { runtime, conn }
    }

    pub(crate) fn sql(&mut self, sql: &str) -> Vec<Vec<String>> {
        use mysql_async::prelude::Queryable;
        let rows: Vec<mysql_async::Row> =
            self.runtime.block_on(self.conn.query(sql)).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let text = |value: mysql_async::Value| match value {
            mysql_async::Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => other.as_sql(true),
        };
        rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect()
    }

    /// Locks the row of a name, until [`Raw::sql`] ends the transaction.
    pub(crate) fn lock(&mut self, name: &str) {
        self.sql("BEGIN");
        let sql = format!("SELECT name FROM leasehold_resource WHERE name = '{name}' FOR UPDATE");
        assert_eq!(self.sql(&sql).len(), 1, "{name} is locked");
    }
}
