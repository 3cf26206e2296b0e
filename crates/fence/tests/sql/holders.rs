//! Old holders and new ones.

use leasehold_fence::sql::{Engine, enter, guard};
use leasehold_fence::{Access::Exclusive, Applied, ErrorKind};

use crate::drivers::{Account, Driver, at, begin, run};

pub(crate) async fn all(driver: &Driver) {
    a_late_write_is_refused_before_and_after_the_new_holders_first(driver).await;
    if driver.engine == Engine::Sqlite {
        an_old_holders_transaction_keeps_the_new_one_out(driver).await;
    } else {
        old_and_new_follow_one_another(driver).await;
        a_release_before_the_commit_loses_a_write(driver).await;
        and_with_the_fence_it_loses_none(driver).await;
        first_entries_at_the_same_moment(driver).await;
    }
}

async fn a_late_write_is_refused_before_and_after_the_new_holders_first(driver: &Driver) {
    let account = driver.account("late").await;
    let (mut old, mut new) = (driver.open().await, driver.open().await);
    let mut tx = begin(&mut *old).await;
    enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap();
    run(&mut *old, "COMMIT").await;
    // The holder of token 1 is paused here, its lease ends, and token 2 is granted and enters.
    let mut tx = begin(&mut *new).await;
    enter(&mut tx, &account.of, Exclusive, at(2)).await.unwrap();
    let read = account.balance(&mut *new).await;
    run(&mut *new, "COMMIT").await;

    // Before the new holder's first write.
    refused(&account, &mut *old).await;
    let mut tx = begin(&mut *new).await;
    enter(&mut tx, &account.of, Exclusive, at(2)).await.unwrap();
    guard(&mut tx, &account.of, Exclusive, at(2)).await.unwrap();
    assert_eq!(account.balance(&mut *new).await, read);
    account.set(&mut *new, read - 10).await;
    run(&mut *new, "COMMIT").await;
    // And after it.
    refused(&account, &mut *old).await;
    assert_eq!(account.balance(&mut *new).await, 90);
}

/// The holder of token 1 wakes up and goes on writing.
async fn refused(account: &Account, old: &mut dyn leasehold_sql::Connection) {
    let mut tx = begin(old).await;
    let refused = enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap_err();
    let stale = refused.stale_mark().expect("refused as stale");
    assert_eq!(refused.kind(), ErrorKind::Stale(stale));
    assert_eq!((stale.offered, stale.newest), (at(1), at(2)));
    assert_eq!(refused.applied(), Applied::No);
    let text = refused.to_string();
    assert!(
        text.ends_with(": stale token 1 refused: a holder with token 2 has been here"),
        "{text}"
    );
    assert!(
        guard(&mut tx, &account.of, Exclusive, at(1)).await.unwrap_err().stale_mark().is_some()
    );
    run(old, "ROLLBACK").await;
}

async fn an_old_holders_transaction_keeps_the_new_one_out(driver: &Driver) {
    let account = driver.account("follow").await;
    let (mut old, mut new) = (driver.open().await, driver.open().await);
    let mut tx = begin(&mut *old).await;
    enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap();
    run(&mut *new, "BEGIN").await;
    let mut late = leasehold_sql::Begun::on(&mut *new).await.unwrap();
    let busy = enter(&mut late, &account.of, Exclusive, at(2)).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy:?}");
    account.set(&mut *old, 90).await;
    run(&mut *old, "COMMIT").await;
    // A read before the entry, and somebody writes: what was read has changed.
    run(&mut *new, "ROLLBACK").await;
    run(&mut *new, "BEGIN").await;
    assert_eq!(account.balance(&mut *new).await, 90);
    account.set(&mut *old, 80).await;
    let mut late = leasehold_sql::Begun::on(&mut *new).await.unwrap();
    let error = enter(&mut late, &account.of, Exclusive, at(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Restart, "{error:?}");
    run(&mut *new, "ROLLBACK").await;
}

async fn old_and_new_follow_one_another(driver: &Driver) {
    let account = driver.account("follow").await;
    let (mut old, mut new) = (driver.open().await, driver.open().await);
    // The old one first: the new one waits for its commit, and sees what it wrote.
    let mut tx = begin(&mut *old).await;
    enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap();
    let mut waits = begin(&mut *new).await;
    let ((), entered) = tokio::join!(
        async {
            driver.somebody_waits().await;
            account.set(&mut *old, 90).await;
            run(&mut *old, "COMMIT").await;
        },
        enter(&mut waits, &account.of, Exclusive, at(2))
    );
    entered.unwrap();
    assert_eq!(account.balance(&mut *new).await, 90);
    // And the other way round: the old one waits, and is refused.
    let mut late = begin(&mut *old).await;
    let ((), refused) = tokio::join!(
        async {
            driver.somebody_waits().await;
            account.set(&mut *new, 80).await;
            run(&mut *new, "COMMIT").await;
        },
        enter(&mut late, &account.of, Exclusive, at(1))
    );
    assert_eq!(refused.unwrap_err().stale_mark().unwrap().newest, at(2));
    run(&mut *old, "ROLLBACK").await;
    assert_eq!(account.balance(&mut *old).await, 80);
}

/// The wrong way: two holders take 10 each, one after the other by the lock's word, and one of the
/// two is lost, since the first gave its lock back before it had committed.
async fn a_release_before_the_commit_loses_a_write(driver: &Driver) {
    let account = driver.account("wrong").await;
    let (mut old, mut new) = (driver.open().await, driver.open().await);
    run(&mut *old, "BEGIN").await;
    let read = account.balance(&mut *old).await;
    account.set(&mut *old, read - 10).await;
    // Here it releases the lock, and the next holder is granted before its COMMIT arrives.
    run(&mut *new, "BEGIN").await;
    let read = account.balance(&mut *new).await;
    run(&mut *old, "COMMIT").await;
    account.set(&mut *new, read - 10).await;
    run(&mut *new, "COMMIT").await;
    assert_eq!(account.balance(&mut *new).await, 90, "twice 10 were taken from 100");
}

/// The same schedule, each entering with its token.
async fn and_with_the_fence_it_loses_none(driver: &Driver) {
    let account = driver.account("fenced").await;
    let (mut old, mut new) = (driver.open().await, driver.open().await);
    let mut tx = begin(&mut *old).await;
    enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap();
    let read = account.balance(&mut *old).await;
    account.set(&mut *old, read - 10).await;
    // Here it releases the lock, and the next holder is granted before its COMMIT arrives.
    let mut next = begin(&mut *new).await;
    let ((), entered) = tokio::join!(
        async {
            driver.somebody_waits().await;
            run(&mut *old, "COMMIT").await;
        },
        enter(&mut next, &account.of, Exclusive, at(2))
    );
    entered.unwrap();
    let read = account.balance(&mut *new).await;
    account.set(&mut *new, read - 10).await;
    run(&mut *new, "COMMIT").await;
    assert_eq!(account.balance(&mut *new).await, 80);
}

/// Nobody has a row to wait for yet. Whoever comes second waits, or is to begin again.
async fn first_entries_at_the_same_moment(driver: &Driver) {
    for round in 0..20 {
        let of = leasehold_fence::Resource::new(&format!("first/{round}")).unwrap();
        let (mut one, mut other) = (driver.open().await, driver.open().await);
        let (a, b) = tokio::join!(first(&mut *one, &of, 1), first(&mut *other, &of, 2));
        for answer in [&a, &b] {
            if let Err(error) = answer {
                assert!(
                    matches!(error.kind(), ErrorKind::Restart | ErrorKind::Stale(_)),
                    "{error:?}"
                );
            }
        }
        assert!(a.is_ok() || b.is_ok());
    }
}

async fn first(
    db: &mut dyn leasehold_sql::Connection,
    of: &leasehold_fence::Resource,
    token: u64,
) -> leasehold_fence::Result<()> {
    let mut tx = begin(db).await;
    let answer = enter(&mut tx, of, Exclusive, at(token)).await;
    run(db, if answer.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
    answer
}
