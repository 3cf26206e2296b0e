//! Processes that sell the last of a stock while they are killed: what is sold is what was there.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::agent::{self, Agent, say};
use common::{Conn, Db};
use leasehold_core::Noise;
use leasehold_data::Error;
use leasehold_data::conditional::{Amounts, Taken};
use leasehold_data::retry::{Retry, Retryable as _};
use leasehold_sql::Engine;

/// So much of each of three things; each sale takes one of `a` and one of another.
const PIECES: i64 = 300;
const PROCESSES: usize = 6;

on_each!(what_is_sold_is_what_was_there_whoever_is_killed);

/// Not a test of its own: the sellers of the test below.
#[test]
fn agent() {
    agent::serve(serve);
}

/// Sells at each request: `sold`, or `short` when there is no more.
async fn serve(db: Db, known: String, next: &mut dyn FnMut() -> Option<String>) {
    let stock = Amounts::new("stock", "sku", "pieces").unwrap();
    let mut conn = db.connect().await;
    let mut noise = Noise::seeded(known.parse().unwrap());
    let mut again = 0;
    while next().is_some() {
        let other = if noise.next_u64().is_multiple_of(2) { "b" } else { "c" };
        // In either order, as shopping carts come.
        let mut cart = [("a".into(), 1), (other.into(), 1)];
        if noise.next_u64().is_multiple_of(2) {
            cart.reverse();
        }
        let sell = async || {
            let sold = sell(&mut conn, &stock, &cart).await;
            if let Err(error) = &sold {
                again += 1;
                assert_eq!(error.verdict(), leasehold_data::retry::Verdict::Again, "{error:?}");
                conn.clear().await;
            }
            sold
        };
        let sold = Retry::new().tries(40).run(tokio::time::sleep, sell).await.unwrap();
        say(&format!("{} {again}", if sold { "sold" } else { "short" }));
    }
}

async fn sell(
    conn: &mut Conn,
    stock: &Amounts,
    cart: &[(leasehold_data::Param, i64)],
) -> Result<bool, Error> {
    conn.try_begin().await?;
    let taken = stock.take(conn, cart).await?;
    let sold = matches!(taken, Taken::All(_));
    if sold {
        conn.put("INSERT INTO sales (n) VALUES (?)", &[1.into()]).await?;
    }
    // Committed also where it is short: then nothing was taken.
    conn.try_sql("COMMIT").await?;
    Ok(sold)
}

async fn what_is_sold_is_what_was_there_whoever_is_killed(engine: Engine) {
    let db = Db::of(engine);
    let mut conn = db.connect().await;
    for table in ["stock", "sales"] {
        conn.sql(&format!("DROP TABLE IF EXISTS {table}")).await;
    }
    conn.sql("CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, pieces BIGINT CHECK (pieces >= 0))")
        .await;
    conn.sql("CREATE TABLE sales (n BIGINT)").await;
    conn.sql(&format!(
        "INSERT INTO stock VALUES ('a', {PIECES}), ('b', {PIECES}), ('c', {PIECES})"
    ))
    .await;
    let over = AtomicBool::new(false);
    let (kills, told) = std::thread::scope(|scope| {
        let sellers: Vec<_> = (0..PROCESSES)
            .map(|process| {
                scope.spawn({
                    let (db, over) = (&db, &over);
                    move || seller(db, process as u64 + 1, over)
                })
            })
            .collect();
        let ended: Vec<(u32, u32)> =
            sellers.into_iter().map(|seller| seller.join().unwrap()).collect();
        (ended.iter().map(|e| e.0).sum::<u32>(), ended.iter().map(|e| e.1).sum::<u32>())
    });
    let left = async |conn: &mut Conn, sku: &str| {
        conn.number(&format!("SELECT pieces FROM stock WHERE sku = '{sku}'")).await
    };
    let sold = conn.number("SELECT COUNT(*) FROM sales").await;
    let (a, b, c) =
        (left(&mut conn, "a").await, left(&mut conn, "b").await, left(&mut conn, "c").await);
    assert_eq!((a, sold), (0, PIECES), "all is sold, and not one more");
    assert_eq!(
        2 * PIECES - b - c,
        PIECES,
        "each sale has taken one of another: {b} and {c} are left"
    );
    assert!(kills > 10, "{kills} were killed");
    assert!(i64::from(told) <= PIECES, "more were told that they have sold than have: {told}");
}

/// Sells until there is no more; kills the process under its hand every now and then. Returns how many it has
/// killed, and how many sales it was told of.
fn seller(db: &Db, seed: u64, over: &AtomicBool) -> (u32, u32) {
    let mut noise = Noise::seeded(seed);
    let mut agent = Agent::start(db, &seed.to_string());
    let (mut kills, mut told) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        assert!(agent.tell("sell"));
        if noise.next_u64().is_multiple_of(12) {
            // Somewhere in it, or just before, or just after.
            std::thread::sleep(noise.between(Duration::ZERO, Duration::from_millis(4)));
            agent.kill();
            kills += 1;
            agent = Agent::start(db, &noise.next_u64().to_string());
            continue;
        }
        let answer = agent.answer().expect("a seller that nobody killed");
        let (what, again) = answer.split_once(' ').unwrap();
        if matches!(db, Db::Postgres(_)) {
            assert_eq!(again, "0", "rows are locked in one order, and nobody waits for another");
        }
        match what {
            "sold" => told += 1,
            _ => over.store(true, Ordering::Relaxed),
        }
    }
    (kills, told)
}
