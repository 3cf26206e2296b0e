//! What can be wrong with the transaction that a lock is to live in: each told by a name of its own.
#![allow(clippy::unwrap_used)]

mod lock_common;

use std::time::Duration;

use leasehold_core::BadName;
use leasehold_data::Table;
use leasehold_data::lock::row::Rows;
use leasehold_data::lock::{Error, Key, Wait, advisory};
use leasehold_sql::{Answer, Connection, Engine, Row, Transaction, Value};
use leasehold_testkit::server::mariadb::{MariaDb, Options};
use lock_common::{
    Db, Driver, LONG, MysqlAsync, Place, Rusqlite, SERVERS, SqlxMysql, SqlxPostgres, SqlxSqlite,
    TokioPostgres, fresh, kill, mariadb, postgres, until, waits,
};
use tempfile::tempdir;

const ALL: [Driver; 6] = [TokioPostgres, SqlxPostgres, MysqlAsync, SqlxMysql, Rusqlite, SqlxSqlite];
const WAIT: Wait = Wait::AtMost(LONG);

/// A connection that says it were a transaction, as a careless implementation of the trait would.
struct Claims<'a>(&'a mut (dyn Connection + Send));

impl Transaction for Claims<'_> {
    fn engine(&self) -> Engine {
        self.0.engine()
    }

    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
        self.0.rows(statement, values)
    }

    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
        self.0.execute(statement, values)
    }
}

#[tokio::test]
async fn outside_of_a_transaction() {
    let folder = tempdir().unwrap();
    for driver in ALL {
        let place = Place::new(driver, folder.path());
        let mut db = place.open().await;
        let name = fresh("outside");
        for wait in [Wait::No, WAIT] {
            let told = Rows::default().lock(&mut Claims(db.raw()), &name, wait).await.unwrap_err();
            assert!(matches!(told, Error::OutsideTransaction), "{driver:?} {told:?}");
            assert!(told.to_string().contains("begin one first"), "{told}");
        }
        let told = Rows::default().first_free(&mut Claims(db.raw()), &[&name]).await;
        assert!(matches!(told, Err(Error::OutsideTransaction)), "{driver:?} {told:?}");
        if place.is_postgres() {
            let key = Key::new(&name).unwrap();
            let told = advisory::lock(&mut Claims(db.raw()), &key, Wait::No).await;
            assert!(matches!(told, Err(Error::OutsideTransaction)), "{driver:?} {told:?}");
        }
        // It is left as it was.
        let mut tx = db.begin().await;
        Rows::default().lock(&mut tx, &name, Wait::No).await.unwrap();
        db.commit().await;
    }
}

/// On MySQL the making of a table commits: the transaction is over, whatever its driver thinks.
#[tokio::test]
async fn after_a_statement_that_commits_by_itself() {
    let folder = tempdir().unwrap();
    for driver in [MysqlAsync, SqlxMysql] {
        let mut db = Place::new(driver, folder.path()).open().await;
        let mut tx = db.begin().await;
        let own = Rows::on(Table::new(fresh("locks")).unwrap());
        own.create(&mut tx).await.unwrap();
        let told = own.lock(&mut tx, "a", Wait::No).await.unwrap_err();
        assert!(matches!(told, Error::OutsideTransaction), "{driver:?} {told:?}");
        // Without autocommit there always is a transaction.
        db.sql("SET SESSION autocommit = 0").await;
        own.lock(&mut db.again().await, "a", Wait::No).await.unwrap();
    }
}

#[tokio::test]
async fn in_a_transaction_that_has_failed() {
    let folder = tempdir().unwrap();
    for driver in [TokioPostgres, SqlxPostgres] {
        let mut db = Place::new(driver, folder.path()).open().await;
        let mut tx = db.begin().await;
        tx.execute("SELECT 1 / 0", &[]).await.unwrap_err();
        let told = Rows::default().lock(&mut tx, "a", WAIT).await.unwrap_err();
        assert!(matches!(told, Error::Aborted(_)) && told.ends_transaction(), "{told:?}");
        let told = advisory::lock(&mut tx, &Key::new("a").unwrap(), WAIT).await.unwrap_err();
        assert!(matches!(told, Error::Aborted(_)), "{told:?}");
    }
}

#[tokio::test]
async fn names_that_are_none() {
    let folder = tempdir().unwrap();
    for driver in ALL {
        let mut db = Place::new(driver, folder.path()).open().await;
        let mut tx = db.begin().await;
        let long = "x".repeat(513);
        for (name, bad) in [
            ("", BadName::Empty),
            (&long, BadName::TooLong { len: 513 }),
            ("a\nb", BadName::Control { at: 1, code: 10 }),
        ] {
            let told = Rows::default().lock(&mut tx, name, WAIT).await.unwrap_err();
            assert!(matches!(&told, Error::Name(b) if *b == bad), "{told:?}");
        }
        let told = Rows::default().lock_all(&mut tx, &[], WAIT).await.unwrap_err();
        assert!(matches!(told, Error::Count { count: 0, .. }), "{told:?}");
        // The longest, and what a pattern, a quote or a collation would mistake.
        let longest = "ä".repeat(256);
        for name in [longest.as_str(), "a'; --", "%", "A", "a", "a ", "é", "e\u{301}"] {
            Rows::default().lock(&mut tx, name, Wait::No).await.unwrap();
        }
        db.rollback().await;
    }
}

/// Names that differ in case, blanks or composition are different locks.
#[tokio::test]
async fn names_are_compared_byte_by_byte() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let mut held = Vec::new();
        for name in ["Case", "case", "case ", "é", "e\u{301}", "e"] {
            let mut db = place.open().await;
            Rows::default().lock(&mut db.begin().await, name, Wait::No).await.unwrap();
            held.push(db);
        }
        for db in &mut held {
            db.rollback().await;
        }
    }
}

#[tokio::test]
async fn without_the_table() {
    let folder = tempdir().unwrap();
    for driver in ALL {
        let mut db = Place::new(driver, folder.path()).open().await;
        let name = fresh("No Such Table");
        let rows = Rows::on(Table::new(&name).unwrap());
        let mut tx = db.begin().await;
        for wait in [Wait::No, WAIT] {
            let told = rows.lock(&mut tx, "a", wait).await.unwrap_err();
            assert!(matches!(&told, Error::NoTable { table, .. } if *table == name), "{told:?}");
            assert!(!told.ends_transaction());
        }
        // Made by the callable statement, twice, it works under its own name.
        rows.create(&mut tx).await.unwrap();
        rows.create(&mut tx).await.unwrap();
        db.raw().execute("COMMIT", &[]).await.unwrap();
        let mut tx = db.begin().await;
        rows.lock_all(&mut tx, &["b", "a"], WAIT).await.unwrap();
        assert_eq!(rows.first_free(&mut tx, &["a"]).await.unwrap(), Some(0));
        db.commit().await;
    }
}

/// Two make the table at the same time.
#[tokio::test]
async fn the_table_is_made_once() {
    let folder = tempdir().unwrap();
    for driver in [TokioPostgres, SqlxPostgres] {
        let place = Place::new(driver, folder.path());
        let rows = Rows::on(Table::new(fresh("twice")).unwrap());
        let (mut a, mut b) = (place.open().await, place.open().await);
        let id = b.server_id().await;
        rows.create(&mut a.begin().await).await.unwrap();
        let mut tx = b.begin().await;
        let mut second = Box::pin(async { rows.create(&mut tx).await });
        tokio::select! {
            biased;
            early = &mut second => panic!("made too early: {early:?}"),
            () = until("it waits", async || waits(Engine::Postgres, &id)) => {}
        }
        a.commit().await;
        second.await.unwrap();
        rows.lock(&mut tx, "a", Wait::No).await.unwrap();
        b.commit().await;
    }
}

#[tokio::test]
async fn without_permission() {
    let folder = tempdir().unwrap();
    postgres().sql("CREATE ROLE guest");
    for driver in [TokioPostgres, SqlxPostgres] {
        let mut db = Place::new(driver, folder.path()).open().await;
        db.sql("SET ROLE guest").await;
        let mut tx = db.begin().await;
        let told = Rows::default().lock(&mut tx, "a", WAIT).await.unwrap_err();
        assert!(matches!(told, Error::Permission(_)) && !told.ends_transaction(), "{told:?}");
        // An advisory lock needs none.
        advisory::lock(&mut tx, &Key::new("guest").unwrap(), WAIT).await.unwrap();
    }
    let made = "CREATE USER guest; GRANT SELECT ON app.counter TO guest;";
    mariadb().sql("app", made);
    let opts = lock_common::mysql_opts(mariadb().port()).user(Some("guest"));
    let mut conn = mysql_async::Conn::new(opts).await.unwrap();
    let mut tx = conn.start_transaction(Default::default()).await.unwrap();
    let told = Rows::default().lock(&mut tx, "a", WAIT).await.unwrap_err();
    assert!(matches!(told, Error::Permission(_)), "{told:?}");
}

#[tokio::test]
async fn in_a_transaction_that_takes_no_writes() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let mut db = Place::new(driver, folder.path()).open().await;
        let mut tx = db.begin_with("START TRANSACTION READ ONLY").await;
        let told = Rows::default().lock(&mut tx, "a", WAIT).await.unwrap_err();
        assert!(matches!(told, Error::ReadOnly(_)), "{driver:?} {told:?}");
    }
}

/// The transaction would read from before its lock.
#[tokio::test]
async fn in_a_transaction_with_an_old_snapshot() {
    let folder = tempdir().unwrap();
    for driver in [TokioPostgres, SqlxPostgres] {
        let mut db = Place::new(driver, folder.path()).open().await;
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let name = fresh("old");
            let mut tx = db.begin_with(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            let told = Rows::default().lock(&mut tx, &name, WAIT).await.unwrap_err();
            assert!(matches!(&told, Error::Isolation { level: l } if l == level), "{told:?}");
            let told = advisory::lock(&mut tx, &Key::new(&name).unwrap(), WAIT).await.unwrap_err();
            assert!(matches!(&told, Error::Isolation { level: l } if l == level), "{told:?}");
            let told = Rows::default().first_free(&mut tx, &[&name]).await.unwrap_err();
            assert!(matches!(told, Error::Isolation { .. }), "{told:?}");
            assert!(!told.ends_transaction());
            tx.rows("SELECT 1", &[]).await.unwrap();
            db.rollback().await;
        }
    }
}

/// SQLite: the transaction has read, another has written since.
#[tokio::test]
async fn in_a_transaction_whose_reads_are_old() {
    for driver in [Rusqlite, SqlxSqlite] {
        let folder = tempdir().unwrap();
        let place = Place::new(driver, folder.path());
        let (mut db, mut other) = (place.open().await, place.open().await);
        let mut tx = db.begin().await;
        tx.rows("SELECT n FROM counter", &[]).await.unwrap();
        other.sql("INSERT INTO counter VALUES ('a', 1)").await;
        let told = Rows::default().lock(&mut tx, "a", WAIT).await.unwrap_err();
        assert!(matches!(told, Error::Restart(_)) && told.ends_transaction(), "{told:?}");
    }
}

/// Two transactions that lock two names one by one, in different orders.
#[tokio::test]
async fn in_a_deadlock() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let (a, b) = (fresh("a"), fresh("b"));
        let mut maker = place.open().await;
        Rows::default().make(&mut maker.begin().await, &[&a, &b]).await.unwrap();
        maker.commit().await;
        let (mut one, mut two) = (place.open().await, place.open().await);
        Rows::default().lock(&mut one.begin().await, &a, WAIT).await.unwrap();
        Rows::default().lock(&mut two.begin().await, &b, WAIT).await.unwrap();
        let cross = async |db: &mut Db, name: &str| {
            let told = Rows::default().lock(&mut db.again().await, name, WAIT).await;
            match &told {
                Err(error) if !error.ends_transaction() => db.commit().await,
                Err(_) => db.rollback().await,
                Ok(()) => db.commit().await,
            }
            told
        };
        let (first, second) = tokio::join!(cross(&mut one, &b), cross(&mut two, &a));
        let told = [first, second].into_iter().filter_map(Result::err).collect::<Vec<_>>();
        assert!(matches!(told[..], [Error::Deadlock(_)]), "{driver:?} {told:?}");
        // PostgreSQL undoes what is behind the savepoint, MySQL all.
        assert_eq!(told[0].ends_transaction(), !place.is_postgres());
    }
}

#[tokio::test]
async fn on_a_connection_that_is_gone() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let name = fresh("gone");
        let (mut db, mut other) = (place.open().await, place.open().await);
        let id = db.server_id().await;
        // Killed before it asks, and while it waits.
        let taken = Rows::default().lock(&mut other.begin().await, &name, Wait::No).await;
        taken.unwrap_or_else(|error| panic!("{driver:?}: {error:?}"));
        let mut tx = db.begin().await;
        let mut waiting = Box::pin(async { Rows::default().lock(&mut tx, &name, WAIT).await });
        tokio::select! {
            biased;
            early = &mut waiting => panic!("taken too early: {early:?}"),
            () = until("it waits", async || waits(place.engine(), &id)) => {}
        }
        kill(place.engine(), &id);
        for told in [waiting.await, Rows::default().lock(&mut tx, &name, WAIT).await] {
            let told = told.unwrap_err();
            assert!(matches!(told, Error::ConnectionLost(_)), "{driver:?} {told:?}");
            assert!(told.ends_transaction());
        }
        other.rollback().await;
    }
}

/// A server that ends the whole transaction with a wait says so; a MariaDB does not even then.
#[tokio::test]
async fn at_a_server_that_rolls_back_with_a_wait() {
    let args = vec!["--innodb-rollback-on-timeout=ON".to_owned()];
    let server = MariaDb::with(Options { args, ..Options::default() });
    lock_common::prepare_mariadb(&server);
    let folder = tempdir().unwrap();
    for driver in [MysqlAsync, SqlxMysql] {
        for as_mysql in [false, true] {
            let place = Place::at(driver, server.port(), folder.path());
            let (mut holder, mut db) = (place.open().await, place.open().await);
            let name = fresh("rolls-back");
            Rows::default().lock(&mut holder.begin().await, &name, Wait::No).await.unwrap();
            for wait in [Wait::No, Wait::AtMost(Duration::from_millis(1100))] {
                let row = fresh("row");
                let insert = format!("INSERT INTO counter VALUES ('{row}', 1)");
                db.begin().await.execute(&insert, &[]).await.unwrap();
                let told = if as_mysql {
                    let mut tx = AsMysql(db.raw());
                    Rows::default().lock(&mut tx, &name, wait).await.unwrap_err()
                } else {
                    let mut tx = db.again().await;
                    Rows::default().lock(&mut tx, &name, wait).await.unwrap_err()
                };
                db.commit().await;
                let kept = db.rows(&format!("SELECT n FROM counter WHERE name = '{row}'")).await;
                let ended = told.ends_transaction();
                assert_eq!(kept.is_empty(), ended, "{driver:?} {as_mysql} {wait:?} {told:?}");
            }
            holder.rollback().await;
        }
    }
}

/// A MariaDB that is taken for a MySQL: what only MariaDB reads is not there.
struct AsMysql<'a>(&'a mut (dyn Connection + Send));

impl Transaction for AsMysql<'_> {
    fn engine(&self) -> Engine {
        self.0.engine()
    }

    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
        Box::pin(async move {
            let plain = statement.split("/*M!").next().unwrap();
            self.0.rows(plain, values).await
        })
    }

    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
        assert!(!statement.contains("SET STATEMENT"), "{statement}");
        self.0.execute(statement, values)
    }
}

/// The statements for MySQL itself, run by a MariaDB, which knows them too.
#[tokio::test]
async fn the_ways_of_mysql_itself() {
    let folder = tempdir().unwrap();
    for driver in [MysqlAsync, SqlxMysql] {
        let place = Place::new(driver, folder.path());
        let (mut holder, mut db) = (place.open().await, place.open().await);
        let (name, free) = (fresh("mysql"), fresh("mysql"));
        let told = Rows::default().lock(&mut AsMysql(db.raw()), &name, WAIT).await.unwrap_err();
        assert!(matches!(told, Error::OutsideTransaction), "{told:?}");
        Rows::default().make(&mut db.begin().await, &[&name, &free]).await.unwrap();
        db.commit().await;
        db.sql("SET SESSION innodb_lock_wait_timeout = 9").await;
        holder.sql("BEGIN").await;
        db.sql("BEGIN").await;
        let (mut held, mut tx) = (AsMysql(holder.raw()), AsMysql(db.raw()));
        Rows::default().lock(&mut held, &name, Wait::No).await.unwrap();
        let told = Rows::default().lock(&mut tx, &name, Wait::No).await.unwrap_err();
        assert!(matches!(told, Error::Busy { rolled_back: false, .. }), "{told:?}");
        let short = Wait::AtMost(Duration::from_millis(300));
        let told = Rows::default().lock(&mut tx, &name, short).await.unwrap_err();
        assert!(matches!(told, Error::WaitOver { rolled_back: false, .. }), "{told:?}");
        let names = [name.as_str(), free.as_str()];
        assert_eq!(Rows::default().first_free(&mut tx, &names).await.unwrap(), Some(1));
        assert_eq!(
            tx.rows("SELECT @@innodb_lock_wait_timeout", &[]).await.unwrap()[0].int(0),
            Some(9)
        );
        holder.commit().await;
        Rows::default().lock_all(&mut tx, &names, WAIT).await.unwrap();
        // A name without a row, met without a wait.
        Rows::default().lock(&mut tx, &fresh("mysql-new"), Wait::No).await.unwrap();
        db.commit().await;
    }
}

/// Of the databases that have no such locks, each with what they have.
#[tokio::test]
async fn advisory_locks_are_refused_where_there_are_none() {
    let folder = tempdir().unwrap();
    for driver in [MysqlAsync, SqlxMysql, Rusqlite, SqlxSqlite] {
        let mut db = Place::new(driver, folder.path()).open().await;
        let mut tx = db.begin().await;
        let told = advisory::lock(&mut tx, &Key::new("a").unwrap(), WAIT).await.unwrap_err();
        assert!(matches!(told, Error::Unsupported { .. }), "{told:?}");
        assert!(told.to_string().contains("lock::row"), "{told}");
    }
}
