//! What is unfit is refused in words that say what to do, or works all the same.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::{Admission, Claim, Error, ErrorKind, Place, Renewed, Store};
use leasehold_net::{Secret, Tls};
use leasehold_postgres::{PostgresConfig, PostgresStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::postgres::{Options, Postgres};
use leasehold_testkit::server::wait_until;

/// A server that wants passwords of some, and speaks TLS.
fn strict() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Postgres::with(Options {
            hba: vec![
                "host all careful 127.0.0.1/32 scram-sha-256".into(),
                "hostssl all veiled 127.0.0.1/32 scram-sha-256".into(),
                "host all veiled 127.0.0.1/32 reject".into(),
            ],
            tls: true,
            ..Options::default()
        });
        server.sql(
            "CREATE ROLE careful LOGIN PASSWORD 's3cret'; CREATE ROLE veiled LOGIN PASSWORD 's3cret';
             GRANT CREATE ON DATABASE postgres TO careful, veiled",
        );
        server
    })
}

fn at(server: &Postgres, user: &str, schema: &str) -> PostgresConfig {
    let mut config = common::config(server.port(), schema);
    config.user = user.into();
    config
}

fn refused(config: &PostgresConfig) -> Error {
    let error = block_on(PostgresStore::connect(config.clone())).unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains("s3cret"), "a secret shows: {text}");
    error
}

fn works(config: &PostgresConfig) -> PostgresStore {
    let store = block_on(PostgresStore::connect(config.clone())).unwrap();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("works {}", NUMBER.fetch_add(1, Ordering::SeqCst));
    let claim = common::claim(&name);
    let answer = block_on(store.enter(&claim)).unwrap();
    assert!(matches!(answer, Admission::Granted(_)), "{answer:?}");
    let waiting = block_on(store.enter(&common::claim(&name))).unwrap();
    assert!(matches!(waiting, Admission::Waiting(_)), "{waiting:?}");
    let renewed = block_on(store.renew(&[claim.to_ref()])).pop().unwrap();
    assert!(matches!(renewed, Renewed::Granted(_)), "{renewed:?}");
    block_on(store.leave(&claim.to_ref())).unwrap();
    store
}

fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} of {error}");
    }
}

#[test]
fn a_role_that_may_not_make_the_tables_is_told_what_to_print_and_needs_no_more() {
    let (server, schema) = (common::server(), common::schema());
    server.sql(&format!("CREATE ROLE plain_{schema} LOGIN"));
    let config = at(server, &format!("plain_{schema}"), &schema);
    let error = refused(&config);
    says(&error, ErrorKind::Permission, &["may not make them", "leasehold schema postgres"]);
    // By its owner, as printed; the rights as its comments say.
    let sql = PostgresStore::schema_sql(&schema);
    server.sql(&sql);
    says(&refused(&config), ErrorKind::Permission, &["with its grants"]);
    let grants = sql.split("needs:").nth(1).unwrap();
    let grants: String =
        grants.replace("--", "").replace(" TO app", &format!(" TO plain_{schema}"));
    server.sql(&grants);
    works(&config);
}

#[test]
fn many_that_make_the_tables_at_once_all_succeed() {
    let config = common::config(common::server().port(), &common::schema());
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let config = config.clone();
            std::thread::spawn(move || block_on(PostgresStore::connect(config)).map(drop))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    works(&config);
}

#[test]
fn tables_of_another_version_are_refused_and_older_ones_are_brought_to_this() {
    let (server, schema) = (common::server(), common::schema());
    let config = common::config(server.port(), &schema);
    let store = works(&config);
    let held = common::claim("held");
    let Admission::Granted(grant) = block_on(store.enter(&held)).unwrap() else { panic!("busy") };
    drop(store);
    let set = |version: i32| {
        server.sql(&format!("UPDATE {schema}.leasehold_meta SET version = {version}"));
    };
    let run = PostgresStore::schema_sql(&schema);
    set(2);
    says(&refused(&config), ErrorKind::Version, &["version 2", "as new as"]);
    let error = sql(server, &run).unwrap_err();
    assert!(error.contains("version 2, newer"), "{error}");
    says(&refused(&config), ErrorKind::Version, &["version 2", "as new as"]);

    // The older one had less, and decided otherwise.
    set(0);
    server.sql(&format!(
        "DROP TABLE {schema}.leasehold_record;
         CREATE OR REPLACE FUNCTION {schema}.leasehold_step(q jsonb, wait boolean) RETURNS jsonb
           LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''of old''; END'"
    ));
    let advice = "run the SQL that `leasehold schema postgres` prints";
    says(&refused(&config), ErrorKind::Version, &["version 0", advice]);
    server.sql(&run);
    let store = works(&config);
    let other = Claim { place: Place::No, ..common::claim("held") };
    let busy = block_on(store.enter(&other)).unwrap();
    assert!(matches!(busy, Admission::Busy(_)), "what was held is lost: {busy:?}");
    block_on(store.leave(&held.to_ref())).unwrap();
    let Admission::Granted(next) = block_on(store.enter(&other)).unwrap() else { panic!("busy") };
    assert!(next.token > grant.token);
    drop(store);
    // Once more does no harm.
    server.sql(&run);
    drop(works(&config));
    server.sql(&format!("DELETE FROM {schema}.leasehold_meta"));
    says(&refused(&config), ErrorKind::Corrupt, &["no row"]);
}

/// Statements of somebody else's, all of which may fail.
fn sql(server: &Postgres, statements: &str) -> Result<(), String> {
    common::runtime().block_on(async {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(server.port()).user("postgres").dbname("postgres");
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let told = |e: tokio_postgres::Error| e.as_db_error().unwrap().message().to_owned();
        client.batch_execute(statements).await.map_err(told)
    })
}

#[test]
fn altered_tables_are_named() {
    let server = common::server();
    for (altered, words) in [
        (
            "ALTER TABLE {s}.leasehold_resource RENAME COLUMN h_until TO h_till",
            "leasehold_resource.h_until timestamp with time zone",
        ),
        (
            "ALTER TABLE {s}.leasehold_claim ALTER COLUMN term TYPE numeric",
            "leasehold_claim.term bigint",
        ),
        ("DROP PROCEDURE {s}.leasehold_serve", "the functions beside them"),
    ] {
        let schema = common::schema();
        let config = common::config(server.port(), &schema);
        drop(works(&config));
        server.sql(&altered.replace("{s}", &schema));
        says(&refused(&config), ErrorKind::Corrupt, &[words]);
    }
}

#[test]
fn tables_that_go_are_told_as_gone() {
    let (server, schema) = (common::server(), common::schema());
    let store = works(&common::config(server.port(), &schema));
    server.sql(&format!("DROP SCHEMA {schema} CASCADE"));
    let error = block_on(store.enter(&common::claim("r"))).unwrap_err();
    says(&error, ErrorKind::Replaced, &["gone"]);
    let lost = block_on(store.renew(&[common::claim("r").to_ref()])).pop().unwrap();
    let Renewed::Unknown(error) = lost else { panic!("{lost:?}") };
    says(&error, ErrorKind::Replaced, &["gone"]);
}

#[test]
fn a_damaged_row_is_told_and_others_go_on() {
    let (server, schema) = (common::server(), common::schema());
    let store = works(&common::config(server.port(), &schema));
    let (bad, good) = (common::claim("bad"), common::claim("good"));
    block_on(store.enter(&bad)).unwrap();
    block_on(store.enter(&good)).unwrap();
    server.sql(&format!(
        "UPDATE {schema}.leasehold_resource SET h_label = NULL, token = -5 WHERE name = 'bad'"
    ));
    let answers = block_on(store.renew(&[bad.to_ref(), good.to_ref()]));
    assert!(matches!(&answers[0], Renewed::Unknown(e) if e.kind() == ErrorKind::Corrupt));
    assert!(matches!(&answers[1], Renewed::Granted(_)), "{answers:?}");
}

#[test]
fn a_server_that_may_not_be_written_to_is_named_as_what_it_is() {
    let primary = Postgres::start();
    let standby = Postgres::with(Options {
        standby_of: Some((primary.port(), "standby".into())),
        ..Options::default()
    });
    let mut config = common::config(standby.port(), "public");
    config.connect_within = Duration::ZERO;
    says(&refused(&config), ErrorKind::Unavailable, &["is a standby", "name the primary"]);
    // Whichever of several it is.
    let primary_host = common::config(primary.port(), "public").hosts.remove(0);
    config.hosts.push(primary_host);
    let store = works(&config);
    // One that turns read-only later.
    primary.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    primary.sql("SELECT pg_reload_conf()");
    let mut alone = common::config(primary.port(), "public");
    alone.connect_within = Duration::ZERO;
    says(&refused(&alone), ErrorKind::Unavailable, &["is read-only"]);
    wait_until("it is told", Duration::from_secs(30), || {
        match block_on(store.enter(&common::claim("r"))) {
            Err(error) if error.to_string().contains("read-only") => Ok(()),
            Err(error) => Err(error.to_string()),
            Ok(answer) => Err(format!("{answer:?}")), // its session has not read the setting yet
        }
    });
}

#[test]
fn any_default_isolation_encoding_and_search_path_will_do() {
    let server = common::server();
    for setting in [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
        "synchronous_commit = off",
        "search_path = ''",
        "standard_conforming_strings = off",
        "TimeZone = 'Pacific/Kiritimati'",
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = 'iso_8601'",
        "plpgsql.variable_conflict = use_column",
        "lock_timeout = '1ms'",
    ] {
        let schema = common::schema();
        let role = format!("set_{schema}");
        server.sql(&format!("CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET {setting}"));
        drop(works(&at(server, &role, &schema)));
    }
    server.sql("CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0");
    let mut config = common::config(server.port(), "public");
    config.database = "latin".into();
    let store = works(&config);
    let accents = common::claim("é");
    assert!(matches!(block_on(store.enter(&accents)).unwrap(), Admission::Granted(_)));
    let error = block_on(store.enter(&common::claim("鍵"))).unwrap_err();
    says(&error, ErrorKind::Unsupported, &["encoding"]);
    assert_eq!(error.applied(), leasehold_core::Applied::No);
}

#[test]
fn wrong_credentials_are_refused_without_showing_them() {
    let server = strict();
    let mut config = at(server, "careful", "careful");
    for password in [None, Some("wrong s3cret")] {
        config.password = password.map(Secret::from);
        says(&refused(&config), ErrorKind::Permission, &["password"]);
    }
    config.password = Some("s3cret".into());
    drop(works(&config));
    says(&refused(&at(server, "nobody", "x")), ErrorKind::Permission, &["check user and password"]);
    config.database = "missing".into();
    says(&refused(&config), ErrorKind::Config, &["no such database"]);
}

#[test]
fn tls_is_used_where_it_is_asked_for_and_nothing_else_then() {
    let server = strict();
    let mut config = at(server, "veiled", "veiled");
    config.password = Some("s3cret".into());
    let error = refused(&config);
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    let made = server.certificates();
    let mut tls = Tls::new();
    tls.ca = Some(made.ca());
    config.tls = Some(tls.clone());
    drop(works(&config));
    config.hosts[0].host = "localhost".into();
    drop(works(&config));
    // Another authority, another name, a server that does not speak it.
    tls.ca = Some(made.stranger());
    config.tls = Some(tls.clone());
    says(&refused(&config), ErrorKind::Config, &["`ca` and `server_name`"]);
    tls.ca = Some(made.ca());
    tls.server_name = Some("elsewhere".into());
    config.tls = Some(tls.clone());
    says(&refused(&config), ErrorKind::Config, &["`ca` and `server_name`"]);
    let mut plain = common::config(common::server().port(), "public");
    plain.tls = Some(tls);
    says(&refused(&plain), ErrorKind::Config, &["does not support TLS"]);
}

#[test]
fn what_is_not_there_is_unreachable_and_too_many_is_unavailable() {
    let server = Postgres::with(Options {
        settings: vec!["max_connections = 5".into(), "superuser_reserved_connections = 3".into()],
        ..Options::default()
    });
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let mut config = at(&server, "app", "app");
    config.connect_within = Duration::ZERO;
    // There is room for two: renewals then go the way of the requests.
    let store = block_on(PostgresStore::connect(config.clone())).unwrap();
    let other = block_on(PostgresStore::connect(config.clone())).unwrap();
    says(&refused(&config), ErrorKind::Unavailable, &["no room"]);
    let claim = common::claim("r");
    block_on(store.enter(&claim)).unwrap();
    wait_until("it is renewed", Duration::from_secs(30), || {
        match block_on(store.renew(&[claim.to_ref()])).pop().unwrap() {
            Renewed::Granted(_) => Ok(()),
            Renewed::Unknown(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    });
    drop((store, other));
    server.server().kill9();
    says(&refused(&config), ErrorKind::Unreachable, &["was not reached"]);
    // Within a runtime as well as without.
    config.hosts[0].port = Some(1);
    let bare = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let error = bare.unwrap().block_on(PostgresStore::connect(config)).unwrap_err();
    says(&error, ErrorKind::Unreachable, &["was not reached"]);
}

/// The runtime in which it was connected may end: it goes on by itself.
#[test]
fn it_outlives_the_runtime_it_was_connected_in() {
    let config = common::config(common::server().port(), &common::schema());
    let runtime = common::runtime();
    let store = runtime.block_on(common::connect(&config));
    let claim = common::claim("r");
    runtime.block_on(store.enter(&claim)).unwrap();
    runtime.shutdown_background();
    let mut left = block_on(store.leave(&claim.to_ref()));
    while let Err(error) = left {
        assert!(error.kind().is_transient(), "{error}");
        left = block_on(store.leave(&claim.to_ref()));
    }
    assert!(matches!(block_on(store.enter(&common::claim("r"))), Ok(Admission::Granted(_))));
    block_on(store.close());
    let error = block_on(store.enter(&common::claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
