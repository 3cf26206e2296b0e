//! Servers, users and tables that are not as they should be: each is told apart, or works.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::claim;
use futures_lite::future::block_on;
use leasehold_core::{Admission, Claim, Error, ErrorKind, Mode, Place, Renewed, Store};
use leasehold_mysql::{MysqlConfig, MysqlStore};
use leasehold_testkit::server::mariadb::{MariaDb, Options};

fn server(args: &[&str]) -> MariaDb {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let server = MariaDb::with(Options { args, ..Options::default() });
    server.sql("mysql", "CREATE DATABASE leasehold");
    server
}

fn connect(url: &str) -> Result<MysqlStore, Error> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let config = MysqlConfig::from_url(&format!("{url}{separator}connect_within_ms=300"))?;
    block_on(MysqlStore::connect(config))
}

/// Refused, of this kind, with these words.
fn refused(url: &str, kind: ErrorKind, words: &str) -> Error {
    let error = connect(url).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(words), "{text}");
    assert!(!text.contains("s3cret") && !format!("{error:?}").contains("s3cret"), "{text}");
    error
}

fn granted(store: &MysqlStore, on: &str) {
    let answer = block_on(store.enter(&claim(on))).unwrap();
    assert!(matches!(answer, Admission::Granted(_)), "{answer:?}");
}

#[test]
fn servers_that_cannot_keep_the_promises_are_refused() {
    let now = server(&["--sysdate-is-now"]);
    refused(&common::url(now.port()), ErrorKind::Config, "sysdate-is-now");
    let log = ["--log-bin=log", "--binlog-format=STATEMENT"];
    let statement = server(&log);
    refused(&common::url(statement.port()), ErrorKind::Config, "binlog_format");
    statement.sql("mysql", "SET GLOBAL read_only = ON");
    refused(&common::url(statement.port()), ErrorKind::Unavailable, "read-only");
}

#[test]
fn a_galera_cluster_is_refused() {
    let galera = MariaDb::galera();
    galera.sql("mysql", "CREATE DATABASE leasehold");
    refused(&common::url(galera.port()), ErrorKind::Config, "Galera");
}

#[test]
fn a_server_with_other_defaults_works_the_same() {
    let server = server(&[
        "--transaction-isolation=SERIALIZABLE",
        "--collation-server=latin1_swedish_ci",
        "--character-set-server=latin1",
        "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,ORACLE,SIMULTANEOUS_ASSIGNMENT",
        "--default-time-zone=+05:30",
        "--autocommit=0",
        "--completion-type=CHAIN",
        "--innodb-rollback-on-timeout=ON",
        "--innodb-lock-wait-timeout=50",
        "--lower-case-table-names=1",
        "--log-bin=log",
        "--binlog-format=ROW",
        "--default-storage-engine=Aria",
    ]);
    server.sql("mysql", "SET GLOBAL sql_select_limit = 1, GLOBAL sql_safe_updates = 1");
    let (one, other) = (
        connect(&common::url(server.port())).unwrap(),
        connect(&common::url(server.port())).unwrap(),
    );
    for name in ["Case", "case", "case ", "cäse", "c\u{61}\u{308}se", "'; --", "x\\"] {
        granted(&one, name);
    }
    let held = claim("held");
    assert!(matches!(block_on(one.enter(&held)).unwrap(), Admission::Granted(_)));
    let waits = claim("held");
    assert!(matches!(block_on(other.enter(&waits)).unwrap(), Admission::Waiting(_)));
    block_on(one.leave(&held.to_ref())).unwrap();
    let answer = block_on(common::renew(&other, &waits.to_ref()));
    assert!(matches!(answer, Renewed::Granted(_)), "{answer:?}");
    for n in 0..5 {
        let shared = Claim { mode: Mode::Shared, ..claim("readers") };
        assert!(matches!(block_on(one.enter(&shared)).unwrap(), Admission::Granted(_)), "{n}");
    }
    assert_eq!(block_on(other.list(&Default::default())).unwrap().len(), 9);
}

#[test]
fn who_may_not_log_in_or_make_tables_is_told_what_to_do() {
    let server = server(&[]);
    let port = server.port();
    let at = |who: &str, database: &str| format!("mysql://{who}@127.0.0.1:{port}/{database}");
    server.sql("mysql", "CREATE USER app@'%' IDENTIFIED BY 's3cret'");
    refused(&at("app:s3cret2", "leasehold"), ErrorKind::Permission, "user or password");
    refused(&at("app:s3cret", "leasehold"), ErrorKind::Permission, "user or password");
    refused(&at("root", "nowhere"), ErrorKind::Config, "no such database");
    server.sql("mysql", "GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.* TO app@'%'");
    let app = at("app:s3cret", "leasehold");
    let error = refused(&app, ErrorKind::Permission, "leasehold schema mysql");
    let mut cause = std::error::Error::source(&error);
    let mut told = String::new();
    while let Some(error) = cause {
        told += &error.to_string();
        cause = error.source();
    }
    assert!(told.contains("CREATE TABLE IF NOT EXISTS leasehold_claim"), "{told}");
    refused(&(at("root", "leasehold") + "?create=off"), ErrorKind::Permission, "is missing");
    // What the program prints is all that is needed.
    server.sql("leasehold", MysqlStore::schema_sql());
    granted(&connect(&app).unwrap(), "as the application");
    // A server that becomes read-only for its users while it is used.
    let store = connect(&app).unwrap();
    server.sql("mysql", "SET GLOBAL read_only = ON");
    let error = block_on(store.enter(&claim("read-only"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.sql("mysql", "SET GLOBAL read_only = OFF");
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while block_on(store.enter(&claim("writable"))).is_err() {
        assert!(std::time::Instant::now() < end, "it is not used again");
    }
}

#[test]
fn tables_that_are_not_ours_are_refused() {
    let server = server(&[]);
    let url = common::url(server.port());
    let held = Claim { term: Duration::from_secs(120), ..claim("held all the while") };
    let answer = block_on(connect(&url).unwrap().enter(&held)).unwrap();
    assert!(matches!(answer, Admission::Granted(_)), "{answer:?}");
    let cases = [
        (
            "ALTER TABLE leasehold_resource MODIFY name VARCHAR(512) NOT NULL",
            "ALTER TABLE leasehold_resource MODIFY name VARBINARY(512) NOT NULL",
            ErrorKind::Corrupt,
            "leasehold_resource.name",
        ),
        (
            "ALTER TABLE leasehold_claim DROP COLUMN label",
            "ALTER TABLE leasehold_claim ADD COLUMN label VARBINARY(200) NOT NULL",
            ErrorKind::Corrupt,
            "leasehold_claim.label",
        ),
        (
            "ALTER TABLE leasehold_grave ENGINE=Aria",
            "ALTER TABLE leasehold_grave ENGINE=InnoDB",
            ErrorKind::Config,
            "engine",
        ),
        (
            // Nor does the SQL for it make older ones of them.
            concat!("UPDATE leasehold_meta SET version = 7;", include_str!("../src/older.sql")),
            "UPDATE leasehold_meta SET version = 0",
            ErrorKind::Version,
            "a leasehold as new as its tables",
        ),
        (
            "SELECT 1",
            // It keeps what is in them.
            MysqlStore::schema_sql(),
            ErrorKind::Version,
            "run the SQL that `leasehold schema mysql` prints",
        ),
        (
            "DELETE FROM leasehold_meta",
            "INSERT INTO leasehold_meta VALUES (1, 1, 0)",
            ErrorKind::Corrupt,
            "leasehold_meta",
        ),
    ];
    for (break_it, mend_it, kind, words) in cases {
        server.sql("leasehold", break_it);
        refused(&url, kind, words);
        server.sql("leasehold", mend_it);
    }
    let store = connect(&url).unwrap();
    granted(&store, "mended");
    let other = Claim { place: Place::No, ..claim("held all the while") };
    let answer = block_on(store.enter(&other)).unwrap();
    assert!(matches!(answer, Admission::Busy(_)), "{answer:?}");
}

#[test]
fn a_column_altered_in_use_is_an_error_and_grants_nothing() {
    let server = server(&[]);
    let store = connect(&common::url(server.port())).unwrap();
    let held = claim("altered");
    assert!(matches!(block_on(store.enter(&held)).unwrap(), Admission::Granted(_)));
    server.sql("leasehold", "ALTER TABLE leasehold_claim MODIFY label VARBINARY(1) NOT NULL");
    let error = block_on(store.enter(&claim("altered"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let shared = Claim { mode: Mode::Shared, place: Place::No, ..claim("altered-too") };
    let error = block_on(store.enter(&shared)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    server.sql("leasehold", "ALTER TABLE leasehold_claim MODIFY label VARBINARY(200) NOT NULL");
    let queue = block_on(store.inspect(&held.resource)).unwrap();
    assert_eq!(queue.entries.len(), 1, "{queue:?}");
    assert!(block_on(store.inspect(&shared.resource)).unwrap().entries.is_empty());
    // An error late in a packet of statements counts as well.
    let (first, second) = (claim("late"), claim("late"));
    assert!(matches!(block_on(store.enter(&first)).unwrap(), Admission::Granted(_)));
    assert!(matches!(block_on(store.enter(&second)).unwrap(), Admission::Waiting(_)));
    server.sql("leasehold", "ALTER TABLE leasehold_resource MODIFY past VARBINARY(1) NOT NULL");
    let error = block_on(store.leave(&first.to_ref())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    server.sql("leasehold", "ALTER TABLE leasehold_resource MODIFY past VARBINARY(768) NOT NULL");
    let queue = block_on(store.inspect(&first.resource)).unwrap();
    assert_eq!(queue.entries.len(), 2, "nothing was done: {queue:?}");
    // A damaged row is named, and others go on.
    granted(&store, "whole");
    server.sql("leasehold", "UPDATE leasehold_resource SET past = 'x' WHERE name = 'altered'");
    let error = block_on(store.enter(&claim("altered"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("\"altered\""), "{error}");
    granted(&store, "whole-too");
    server.sql("leasehold", "DROP TABLE leasehold_resource");
    let error = block_on(store.enter(&claim("gone"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
}

#[test]
fn tls_is_on_for_both_or_told() {
    let server = MariaDb::with(Options { tls: true, ..Options::default() });
    server.sql("mysql", "CREATE DATABASE leasehold");
    let made = server.certificates();
    let port = server.port();
    let url = |host: &str, options: &str| format!("mysql://root@{host}:{port}/leasehold?{options}");
    let ca = made.ca();
    let ca = ca.display();
    let good = url("127.0.0.1", &format!("ca={ca}"));
    let store = connect(&good).unwrap();
    granted(&store, "by tls");
    server.sql("mysql", "CREATE USER safe@'%' REQUIRE SSL");
    server.sql("mysql", "GRANT ALL ON leasehold.* TO safe@'%'");
    connect(&good.replace("root@", "safe@")).unwrap();
    refused(&url("127.0.0.1", "tls=off").replace("root@", "safe@"), ErrorKind::Permission, "");
    refused(&url("127.0.0.1", "tls=on"), ErrorKind::Config, "TLS");
    let other = url("127.0.0.1", &format!("ca={ca}&server_name=elsewhere.example"));
    refused(&other, ErrorKind::Config, "TLS");
    let plain = common::server();
    let asked = format!("mysql://root@127.0.0.1:{}/leasehold?ca={ca}", plain.port());
    refused(&asked, ErrorKind::Config, "does not speak TLS");
}

#[test]
fn nobody_there_is_unreachable_in_time() {
    let port = leasehold_testkit::server::Port::reserve();
    let url = format!("mysql://root:s3cret@127.0.0.1:{}/leasehold", port.number());
    refused(&url, ErrorKind::Unreachable, "");
    drop(Arc::new(port));
}
