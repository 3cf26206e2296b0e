//! What the marks are, and of what.

use leasehold_fence::sql::{Engine, enter, guard, marks};
use leasehold_fence::{Access, Access::Exclusive, Access::Shared, Epoch, ErrorKind};
use leasehold_fence::{Mark, Marks, Resource, Token};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::drivers::{Driver, at, begin, run};

pub(crate) async fn all(driver: &Driver) {
    a_live_reader_is_not_refused_because_a_newer_one_came_by(driver).await;
    a_rollback_leaves_the_marks_unraised(driver).await;
    a_guard_finds_a_forgotten_enter(driver).await;
    slots_epochs_and_odd_names_are_kept_apart(driver).await;
    a_token_of_an_earlier_epoch_is_told_as_one(driver).await;
    it_answers_as_the_marks_of_core_do(driver).await;
}

fn named(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

async fn a_live_reader_is_not_refused_because_a_newer_one_came_by(driver: &Driver) {
    let of = named("read");
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    enter(&mut tx, &of, Shared, at(10)).await.unwrap();
    enter(&mut tx, &of, Shared, at(11)).await.unwrap();
    enter(&mut tx, &of, Shared, at(10)).await.expect("the older reader is a live reader");
    assert!(enter(&mut tx, &of, Exclusive, at(9)).await.is_err(), "a writer before them");
    enter(&mut tx, &of, Exclusive, at(12)).await.unwrap();
    let now = marks(&mut tx, &of).await.unwrap();
    assert_eq!(now, Marks { exclusive: Some(at(12)), shared: Some(at(11)) });
    assert!(enter(&mut tx, &of, Shared, at(11)).await.is_err());
    run(&mut *db, "COMMIT").await;
}

async fn a_rollback_leaves_the_marks_unraised(driver: &Driver) {
    let account = driver.account("undone").await;
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    enter(&mut tx, &account.of, Exclusive, at(5)).await.unwrap();
    account.set(&mut *db, 0).await;
    run(&mut *db, "ROLLBACK").await;
    let mut tx = begin(&mut *db).await;
    assert_eq!(marks(&mut tx, &account.of).await.unwrap(), Marks::default());
    enter(&mut tx, &account.of, Exclusive, at(4)).await.unwrap();
    run(&mut *db, "COMMIT").await;
    let mut tx = begin(&mut *db).await;
    assert_eq!(marks(&mut tx, &account.of).await.unwrap().exclusive, Some(at(4)));
    run(&mut *db, "COMMIT").await;
    assert_eq!(account.balance(&mut *db).await, 100);
}

async fn a_guard_finds_a_forgotten_enter(driver: &Driver) {
    let of = named("forgotten");
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    for _ in 0..2 {
        let error = guard(&mut tx, &of, Exclusive, at(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotEntered);
        assert!(error.to_string().contains("before the transaction's first read"), "{error}");
    }
    enter(&mut tx, &of, Exclusive, at(5)).await.unwrap();
    guard(&mut tx, &of, Exclusive, at(5)).await.unwrap();
    let shared = guard(&mut tx, &of, Shared, at(5)).await.unwrap_err();
    assert_eq!(shared.kind(), ErrorKind::NotEntered);
    run(&mut *db, "COMMIT").await;
}

async fn slots_epochs_and_odd_names_are_kept_apart(driver: &Driver) {
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    let longest = "ü".repeat(256);
    let names = [
        "r",
        "R",
        "r ",
        "r\u{301}",
        "ß",
        "ss",
        "'; DROP TABLE account --",
        "slot 1 of `r`",
        "r\\",
        &longest,
    ];
    let mut all: Vec<Resource> = names.map(named).into();
    all.extend([0, 1, u32::MAX].map(|slot| Resource::slot("r", slot).unwrap()));
    for (n, resource) in (1..).zip(&all) {
        enter(&mut tx, resource, Exclusive, at(n)).await.unwrap();
    }
    for (n, resource) in (1..).zip(&all) {
        let now = marks(&mut tx, resource).await.unwrap();
        assert_eq!(now.exclusive, Some(at(n)), "{resource}");
    }
    let later = Mark { epoch: Epoch(u32::MAX), token: Token::new(1).unwrap() };
    enter(&mut tx, &all[0], Exclusive, later).await.expect("a later epoch outranks any token");
    let biggest = Mark { epoch: Epoch(0), token: Token::MAX };
    assert!(enter(&mut tx, &all[0], Exclusive, biggest).await.is_err());
    enter(&mut tx, &all[1], Exclusive, biggest).await.unwrap();
    run(&mut *db, "COMMIT").await;
}

async fn a_token_of_an_earlier_epoch_is_told_as_one(driver: &Driver) {
    let of = named("moved");
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    enter(&mut tx, &of, Exclusive, Mark { epoch: Epoch(2), ..at(3) }).await.unwrap();
    let error =
        enter(&mut tx, &of, Exclusive, Mark { epoch: Epoch(1), ..at(9) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherEpoch(error.stale_mark().unwrap()));
    let text = error.to_string();
    let wanted = "stale token 9 of epoch 1 refused: a holder with token 3 of epoch 2 has been here; \
                  take the lock anew";
    assert!(text.ends_with(wanted), "{text}");
    run(&mut *db, "ROLLBACK").await;
}

/// Random accesses, a new resource each time; some are rolled back.
async fn it_answers_as_the_marks_of_core_do(driver: &Driver) {
    let one = (any::<bool>(), 0..2_u32, 1..9_u64, any::<bool>());
    let accesses = proptest::collection::vec(one, 1..12);
    let mut runner = TestRunner::default();
    let mut db = driver.open().await;
    let rounds = if driver.engine == Engine::Sqlite { 64 } else { 24 };
    for round in 0..rounds {
        let of = named(&format!("random/{round}"));
        let accesses = accesses.new_tree(&mut runner).unwrap().current();
        let mut model = Marks::default();
        for &(exclusive, epoch, n, commit) in &accesses {
            let access: Access = if exclusive { Exclusive } else { Shared };
            let mark = Mark { epoch: Epoch(epoch), ..at(n) };
            let mut tx = begin(&mut *db).await;
            let answer = enter(&mut tx, &of, access, mark).await;
            let wanted = model.admit(access, mark);
            let refused = answer.err().map(|e| e.stale_mark().unwrap_or_else(|| panic!("{e:?}")));
            assert_eq!(refused, wanted.err(), "{accesses:?}");
            let now = marks(&mut tx, &of).await.unwrap();
            assert_eq!(now, wanted.unwrap_or(model), "{accesses:?}");
            if commit {
                model = wanted.unwrap_or(model);
            }
            run(&mut *db, if commit { "COMMIT" } else { "ROLLBACK" }).await;
        }
    }
}
