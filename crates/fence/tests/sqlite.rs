//! The fence in the caller's own SQLite transaction, on real database files and connections.
#![allow(clippy::unwrap_used)] // Also in the helpers of tests.

use std::path::Path;
use std::time::Duration;

use leasehold_fence::{Access, Applied, Epoch, ErrorKind, Mark, Marks, Resource, Token, sqlite};
use proptest::prelude::*;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use Access::{Exclusive, Shared};

fn at(n: u64) -> Mark {
    Mark::from(Token::new(n).unwrap())
}

fn account() -> Resource {
    Resource::new("account/7").unwrap()
}

fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(Duration::ZERO).unwrap();
    db
}

/// A database with 100 in an account, in WAL mode or not.
fn database(wal: bool) -> (tempfile::TempDir, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("db"));
    if wal {
        db.pragma_update(None, "journal_mode", "wal").unwrap();
    }
    sqlite::create_table(&db).unwrap();
    sqlite::create_table(&db).expect("making it again is harmless");
    db.execute_batch("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (100)")
        .unwrap();
    (dir, db)
}

fn immediate(db: &mut Connection) -> Transaction<'_> {
    db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn balance(db: &Connection) -> i64 {
    db.query_row("SELECT balance FROM account", [], |row| row.get(0)).unwrap()
}

fn set_balance(db: &Connection, to: i64) {
    db.execute("UPDATE account SET balance = ?1", [to]).unwrap();
}

#[test]
fn a_late_write_is_refused_and_changes_nothing() {
    let (dir, mut new) = database(true);
    let mut old = open(&dir.path().join("db"));

    let tx = immediate(&mut old);
    sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap();
    tx.commit().unwrap();
    // The holder of token 1 pauses here; its lease ends; token 2 is granted, reads and writes.
    let tx = immediate(&mut new);
    sqlite::enter(&tx, &account(), Exclusive, at(2)).unwrap();
    set_balance(&tx, balance(&tx) - 10);
    tx.commit().unwrap();

    let tx = immediate(&mut old);
    let refused = sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap_err();
    let stale = refused.stale_mark().expect("refused as stale");
    assert_eq!((stale.offered, stale.newest), (at(1), at(2)));
    assert_eq!(refused.applied(), Applied::No);
    assert_eq!(
        refused.to_string(),
        "enter `account/7` in SQLite: stale token 1 refused: a holder with token 2 has been here"
    );
    assert!(sqlite::guard(&tx, &account(), Exclusive, at(1)).unwrap_err().stale_mark().is_some());
    tx.rollback().unwrap();
    assert_eq!(balance(&old), 90);
}

/// The schedule that a fence on writes alone lets through: a write between read and write.
#[test]
fn nothing_lands_between_a_newer_holders_first_read_and_its_write() {
    for wal in [true, false] {
        let (dir, mut new) = database(wal);
        let mut old = open(&dir.path().join("db"));
        let tx = immediate(&mut new);
        sqlite::enter(&tx, &account(), Exclusive, at(2)).unwrap();
        tx.commit().unwrap();
        let read = balance(&new);
        // Between two transactions of the new holder: only its mark stands in the way.
        let late = immediate(&mut old);
        assert!(sqlite::enter(&late, &account(), Exclusive, at(1)).is_err());
        late.rollback().unwrap();
        let tx = immediate(&mut new);
        sqlite::enter(&tx, &account(), Exclusive, at(2)).unwrap();
        assert_eq!(balance(&tx), read);
        // Within its transaction: the write lock stands in the way.
        let late = old.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
        let busy = sqlite::enter(&late, &account(), Exclusive, at(3)).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        drop(late);
        set_balance(&tx, read - 10);
        tx.commit().unwrap();
        assert_eq!(balance(&new), 90);
    }
}

#[test]
fn a_live_reader_is_not_refused_because_a_newer_one_came_by() {
    let (_dir, mut db) = database(true);
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Shared, at(10)).unwrap();
    sqlite::enter(&tx, &account(), Shared, at(11)).unwrap();
    sqlite::enter(&tx, &account(), Shared, at(10)).expect("the older reader is a live reader");
    assert!(sqlite::enter(&tx, &account(), Exclusive, at(9)).is_err(), "a writer before them");
    let marks = sqlite::enter(&tx, &account(), Exclusive, at(12)).unwrap();
    assert_eq!(marks, Marks { exclusive: Some(at(12)), shared: Some(at(11)) });
    assert!(sqlite::enter(&tx, &account(), Shared, at(11)).is_err());
}

#[test]
fn a_rollback_leaves_the_marks_unraised() {
    let (_dir, mut db) = database(true);
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Exclusive, at(5)).unwrap();
    set_balance(&tx, 0);
    tx.rollback().unwrap();
    assert_eq!(sqlite::marks(&db, &account()).unwrap(), Marks::default());
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Exclusive, at(4)).unwrap();
    tx.commit().unwrap();
    assert_eq!(sqlite::marks(&db, &account()).unwrap().exclusive, Some(at(4)));
    assert_eq!(balance(&db), 100);
}

#[test]
fn outside_a_transaction_it_refuses_to_answer() {
    let (_dir, db) = database(true);
    for answer in [
        sqlite::enter(&db, &account(), Exclusive, at(1)).map(drop),
        sqlite::guard(&db, &account(), Exclusive, at(1)),
    ] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInTransaction);
        assert!(error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
    }
    assert_eq!(sqlite::marks(&db, &account()).unwrap(), Marks::default());
}

#[test]
fn entering_takes_the_write_lock_even_where_it_changes_nothing() {
    let (dir, mut db) = database(true);
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap();
    tx.commit().unwrap();

    let tx = db.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap();
    let other = open(&dir.path().join("db"));
    let error = other.execute("UPDATE account SET balance = 0", []).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
    tx.commit().unwrap();
    other.execute("UPDATE account SET balance = 1", []).unwrap();
}

#[test]
fn a_deferred_transaction_that_read_before_it_entered_must_run_again() {
    let (dir, mut db) = database(true);
    let tx = db.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    let read = balance(&tx);
    set_balance(&open(&dir.path().join("db")), read - 1);
    let error = sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Restart, "{error:?}");
    assert!(error.to_string().contains("run it again whole"), "{error}");
    tx.rollback().unwrap();
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap();
    assert_eq!(balance(&tx), read - 1);
}

#[test]
fn a_guard_finds_a_forgotten_enter() {
    let (_dir, mut db) = database(true);
    let tx = immediate(&mut db);
    let error = sqlite::guard(&tx, &account(), Exclusive, at(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotEntered);
    sqlite::enter(&tx, &account(), Exclusive, at(5)).unwrap();
    sqlite::guard(&tx, &account(), Exclusive, at(5)).unwrap();
    let shared = sqlite::guard(&tx, &account(), Shared, at(5)).unwrap_err();
    assert_eq!(shared.kind(), ErrorKind::NotEntered);
    tx.commit().unwrap();
}

#[test]
fn slots_epochs_and_odd_names_are_kept_apart() {
    let (_dir, mut db) = database(true);
    let tx = immediate(&mut db);
    let names = ["r", "R", "r ", "r\u{301}", "'; DROP TABLE account --", "slot 1 of `r`", "r@1"];
    let mut all: Vec<Resource> = names.map(|name| Resource::new(name).unwrap()).into();
    all.extend([0, 1, u32::MAX].map(|slot| Resource::slot("r", slot).unwrap()));
    for (n, resource) in (1..).zip(&all) {
        sqlite::enter(&tx, resource, Exclusive, at(n)).unwrap();
    }
    for (n, resource) in (1..).zip(&all) {
        assert_eq!(sqlite::marks(&tx, resource).unwrap().exclusive, Some(at(n)), "{resource}");
    }
    let later = Mark { epoch: Epoch(u32::MAX), token: Token::new(1).unwrap() };
    sqlite::enter(&tx, &all[0], Exclusive, later).expect("a later epoch outranks any token");
    let biggest = Mark { epoch: Epoch(0), token: Token::MAX };
    assert!(sqlite::enter(&tx, &all[0], Exclusive, biggest).is_err());
}

#[test]
fn a_corrupt_row_is_named_and_not_trusted() {
    let broken = [
        "exclusive_token = 'x', exclusive_epoch = 0",
        "exclusive_token = 5, exclusive_epoch = NULL",
        "exclusive_token = 0, exclusive_epoch = 0",
        "exclusive_token = 9007199254740992, exclusive_epoch = 0",
        "exclusive_token = 5, exclusive_epoch = -1",
        "shared_token = 5, shared_epoch = 4294967296",
        "shared_token = 5.5, shared_epoch = 0",
        "shared_token = x'05', shared_epoch = 0",
    ];
    let (_dir, mut db) = database(true);
    db.pragma_update(None, "ignore_check_constraints", true).unwrap();
    for set in broken {
        let tx = immediate(&mut db);
        sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap();
        tx.execute(&format!("UPDATE leasehold_fence SET {set}"), []).unwrap();
        for access in [Exclusive, Shared] {
            let error = sqlite::enter(&tx, &account(), access, at(99)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{set}");
            assert!(error.to_string().contains("`account/7`"), "{error}");
        }
        assert_eq!(sqlite::marks(&tx, &account()).unwrap_err().kind(), ErrorKind::Corrupt);
        tx.rollback().unwrap();
    }
}

#[test]
fn the_table_refuses_what_is_no_mark() {
    let (_dir, mut db) = database(true);
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap();
    for set in ["exclusive_token = 0", "exclusive_token = NULL", "shared_epoch = 0", "slot = -2"] {
        assert!(tx.execute(&format!("UPDATE leasehold_fence SET {set}"), []).is_err(), "{set}");
    }
}

#[test]
fn a_missing_table_is_an_error_with_its_cause() {
    let mut db = Connection::open_in_memory().unwrap();
    let tx = immediate(&mut db);
    let error = sqlite::enter(&tx, &account(), Exclusive, at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("leasehold_fence"), "{cause}");
}

/// A temporary table of the same name must not take the marks' place.
#[test]
fn a_temporary_table_does_not_stand_in_for_the_marks() {
    let (_dir, mut db) = database(true);
    let tx = immediate(&mut db);
    sqlite::enter(&tx, &account(), Exclusive, at(5)).unwrap();
    tx.commit().unwrap();
    db.execute_batch(
        "CREATE TEMP TABLE leasehold_fence AS SELECT * FROM main.leasehold_fence; \
                      DELETE FROM temp.leasehold_fence",
    )
    .unwrap();
    let tx = immediate(&mut db);
    assert!(sqlite::enter(&tx, &account(), Exclusive, at(4)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_answers_as_the_marks_of_core_do(
        accesses in proptest::collection::vec(
            (any::<bool>(), 0..2_u32, 1..9_u64, any::<bool>()), 1..40),
    ) {
        let mut db = Connection::open_in_memory().unwrap();
        sqlite::create_table(&db).unwrap();
        let mut model = Marks::default();
        for (exclusive, epoch, n, commit) in accesses {
            let access = if exclusive { Exclusive } else { Shared };
            let mark = Mark { epoch: Epoch(epoch), ..at(n) };
            let tx = immediate(&mut db);
            let answer = sqlite::enter(&tx, &account(), access, mark);
            let wanted = model.admit(access, mark);
            prop_assert_eq!(answer.as_ref().ok(), wanted.as_ref().ok());
            prop_assert_eq!(answer.err().and_then(|e| e.stale_mark()), wanted.err());
            if commit {
                tx.commit().unwrap();
                model = wanted.unwrap_or(model);
            }
        }
        prop_assert_eq!(sqlite::marks(&db, &account()).unwrap(), model);
    }
}
