//! One order, and a customer who clicks five times, and once more ten seconds later.

use std::sync::Arc;

use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys};
use tokio::sync::Barrier;

use crate::Result;
use crate::db::{Db, Pool};
use crate::way::{Way, beyond, together};

const CLICKS: usize = 5;
const BODY: &str = "1 tea";

/// Two wrong ways and the right one.
///
/// # Errors
///
/// What the database says.
pub async fn run(db: &Db) -> Result<Vec<Way>> {
    Ok(vec![without_a_lock(db).await?, with_a_lock(db).await?, with_a_key(db).await?])
}

async fn prepare(pool: &Pool) -> Result<()> {
    pool.run(
        "DROP TABLE IF EXISTS orders;
         CREATE TABLE orders (id bigserial PRIMARY KEY, cart text NOT NULL, what text NOT NULL)",
    )
    .await
}

async fn orders(pool: &Pool) -> Result<i64> {
    pool.number("SELECT count(*) FROM orders").await
}

/// "Is it ordered already?" is asked by all before any orders.
async fn without_a_lock(db: &Db) -> Result<Way> {
    prepare(&db.pool).await?;
    let all_have_looked = Arc::new(Barrier::new(CLICKS));
    let click = |pool: Pool, all_have_looked: Arc<Barrier>| async move {
        let mut connection = pool.get().await?;
        let tx = connection.transaction().await?;
        let ordered = tx.query("SELECT 1 FROM orders WHERE cart = 'cart-7'", &[]).await?;
        all_have_looked.wait().await;
        if ordered.is_empty() {
            tx.execute("INSERT INTO orders (cart, what) VALUES ('cart-7', $1)", &[&BODY]).await?;
        }
        Ok(tx.commit().await?)
    };
    together((0..CLICKS).map(|_| click(db.pool.clone(), Arc::clone(&all_have_looked)))).await?;
    let orders = orders(&db.pool).await?;
    let saw = format!("{CLICKS} clicks at once, {orders} orders");
    Ok(Way::wrong("look whether it is ordered, then order", saw, beyond(orders, 1)))
}

/// A lock keeps out who comes meanwhile. Ten seconds later it is free, and remembers nothing.
async fn with_a_lock(db: &Db) -> Result<Way> {
    prepare(&db.pool).await?;
    let locks = db.locks().await?;
    let order = |pool: Pool| async move {
        pool.run(&format!("INSERT INTO orders (cart, what) VALUES ('cart-7', '{BODY}')")).await
    };
    let mut refused = 0;
    let lease = locks.lock("order/cart-7").acquire().await?;
    for _ in 1..CLICKS {
        // The clicks of the same moment find it held, and are sent away.
        refused += i64::from(locks.lock("order/cart-7").try_acquire().await?.is_none());
    }
    lease.run(order(db.pool.clone())).await??;
    let _ = lease.release().await;
    // Ten seconds later: how much later makes no difference, so the example does not wait.
    if let Some(lease) = locks.lock("order/cart-7").try_acquire().await? {
        lease.run(order(db.pool.clone())).await??;
        let _ = lease.release().await;
    }
    let orders = orders(&db.pool).await?;
    let saw = format!("{refused} clicks refused, one more ten seconds later, {orders} orders");
    Ok(Way::wrong("order under a lock on the cart", saw, beyond(orders, 1)))
}

/// A key, made with the page that has the button, comes with every click. Claim, order and answer
/// are one transaction.
async fn with_a_key(db: &Db) -> Result<Way> {
    prepare(&db.pool).await?;
    let keys = Keys::new();
    let mut connection = db.pool.get().await?;
    let mut tx = connection.transaction().await?;
    keys.create_table(&mut *tx).await?;
    tx.commit().await?;
    drop(connection);

    let at_once = (0..CLICKS).map(|_| click(db.pool.clone(), keys.clone(), BODY));
    let mut told = together(at_once).await?;
    told.push(click(db.pool.clone(), keys.clone(), BODY).await?); // ten seconds later
    let mut answers: Vec<Vec<u8>> = told.iter().filter_map(answer).collect();
    let told = answers.len();
    answers.dedup();
    let other = click(db.pool.clone(), keys, "2 tea").await?;
    let orders = orders(&db.pool).await?;
    let saw = format!(
        "{told} clicks, {} answer, {orders} order, another basket under the same key {}",
        answers.len(),
        if other == Clicked::Refused { "refused" } else { "taken" },
    );
    let unequal = beyond(i64::try_from(answers.len())?, 1);
    let lost = beyond(i64::try_from(told)?, i64::try_from(CLICKS + 1)?);
    let taken = u64::from(other != Clicked::Refused);
    let failures = beyond(orders, 1) + unequal + lost + taken;
    Ok(Way::right("an idempotency key in the transaction of the order", saw, failures))
}

/// What a click was told.
#[derive(PartialEq, Eq, Debug)]
enum Clicked {
    Answered(Vec<u8>),
    Refused,
    Later,
}

async fn click(pool: Pool, keys: Keys, body: &'static str) -> Result<Clicked> {
    let key = Key::new("customer-41", "2f1c9f9a")?;
    let payload = Fingerprint::of(["POST", "/orders", body]);
    let mut connection = pool.get().await?;
    let mut tx = connection.transaction().await?;
    let run = match keys.claim(&mut *tx, &key, &payload).await? {
        Claimed::Run(run) => run,
        Claimed::Replay(answer) => return Ok(Clicked::Answered(answer.body)),
        Claimed::Busy { .. } => return Ok(Clicked::Later),
        Claimed::Mismatch => return Ok(Clicked::Refused),
    };
    let insert = "INSERT INTO orders (cart, what) VALUES ('cart-7', $1) RETURNING id";
    let id: i64 = tx.query_one(insert, &[&body]).await?.try_get(0)?;
    let answer = Answer::new(201, format!("order {id}"));
    keys.finish(&mut *tx, &run, &answer).await?;
    tx.commit().await?;
    Ok(Clicked::Answered(answer.body))
}

fn answer(clicked: &Clicked) -> Option<Vec<u8>> {
    match clicked {
        Clicked::Answered(answer) => Some(answer.clone()),
        Clicked::Refused | Clicked::Later => None,
    }
}
