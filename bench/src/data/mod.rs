//! Idempotency keys in the caller's own transaction, beside the same transaction without one, on servers of this
//! run's own.

mod mysql;
mod postgres;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys, Outcome};
use leasehold_data::retry::{Retryable, Verdict};
use leasehold_sql::{Transaction, Value};

use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

/// That many connections work at once.
const CONNECTIONS: usize = 16;

/// Each way is measured for so long, so often, one after the other.
const BLOCK: Duration = Duration::from_millis(700);
const ROUNDS: usize = 11;

pub(crate) fn run() -> Result<Vec<Figure>> {
    let mut figures = postgres::run()?;
    figures.extend(mysql::run()?);
    Ok(figures)
}

/// How an order is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Without a key.
    Bare,
    /// Key, order and answer in one transaction, by one call.
    Once,
    /// The same by claim and finish, for who needs them apart.
    ClaimAndFinish,
    /// The key is claimed in a transaction before that of the order and its answer.
    ClaimThenFinish,
    /// The answer is there already.
    Replay,
}

const WAYS: [Way; 5] =
    [Way::Bare, Way::Once, Way::ClaimAndFinish, Way::ClaimThenFinish, Way::Replay];

/// A connection of some driver.
trait Orders {
    type Tx<'a>: Transaction
    where
        Self: 'a;

    /// Read a price, take from a stock, insert an order.
    const STATEMENTS: [&'static str; 3];

    async fn begin(&mut self) -> Result<Self::Tx<'_>>;

    async fn commit(tx: Self::Tx<'_>) -> Result<()>;
}

/// The order itself: three statements, on rows that no other connection touches.
async fn order<T: Transaction>(tx: &mut T, statements: &[&str; 3], sku: i64) -> Result<Answer> {
    let [price, take, insert] = *statements;
    let rows = tx.rows(price, &[sku.into()]).await?;
    let price = rows.first().and_then(|row| row.int(0)).ok_or("no price")?;
    tx.execute(take, &[sku.into()]).await?;
    tx.execute(insert, &[sku.into(), price.into(), Value::from("one of them, please")]).await?;
    Ok(Answer::new(201, format!("{{\"order\":\"{sku}\",\"price\":{price},\"status\":\"taken\"}}")))
}

/// What a connection goes by.
struct Client<'a, C> {
    conn: C,
    keys: &'a Keys,
    sku: i64,
    taken: u64,
}

impl<C: Orders> Client<'_, C> {
    fn key(&self, number: u64) -> Result<Key> {
        Ok(Key::new("tenant-7", format!("{:08x}-0000-4000-8000-{number:012x}", self.sku))?)
    }

    async fn one(&mut self, way: Way) -> Result<()> {
        self.taken += 1;
        let (sku, keys) = (self.sku, self.keys);
        let number = if way == Way::Replay { 0 } else { self.taken };
        let key = self.key(number)?;
        let payload = Fingerprint::of(["POST", "/orders", "{\"sku\":7,\"pieces\":1}"]);
        let mut tx = self.conn.begin().await?;
        if way == Way::Bare {
            order(&mut tx, &C::STATEMENTS, sku).await?;
            return C::commit(tx).await;
        }
        if way == Way::Once {
            let work = async |tx: &mut C::Tx<'_>| order(tx, &C::STATEMENTS, sku).await;
            let done = keys.once(&mut tx, &key, &payload, work).await?;
            return match done {
                Outcome::Done(_) => C::commit(tx).await,
                other => Err(format!("{other:?}").into()),
            };
        }
        let run = match (keys.claim(&mut tx, &key, &payload).await?, way) {
            (Claimed::Replay(_), Way::Replay) => return C::commit(tx).await,
            (Claimed::Run(run), _) => run,
            (other, _) => return Err(format!("{other:?}").into()),
        };
        if way == Way::ClaimThenFinish {
            C::commit(tx).await?;
            tx = self.conn.begin().await?;
        }
        let answer = order(&mut tx, &C::STATEMENTS, sku).await?;
        keys.finish(&mut tx, &run, &answer).await?;
        C::commit(tx).await
    }

    async fn until(&mut self, way: Way, end: Instant) -> Result<u64> {
        let mut done = 0;
        while Instant::now() < end {
            match self.one(way).await {
                Ok(()) => done += 1,
                Err(error) => match error.downcast_ref::<leasehold_data::Error>() {
                    Some(told) if told.verdict() == Verdict::Again => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(done)
    }
}

/// Transactions a second, of all connections together.
async fn rate<C: Orders>(clients: &mut [Client<'_, C>], way: Way) -> Result<f64> {
    let began = Instant::now();
    let end = began + BLOCK;
    let all = join_all(clients.iter_mut().map(|client| client.until(way, end))).await;
    let done: u64 = all.into_iter().sum::<Result<u64>>()?;
    #[allow(clippy::cast_precision_loss)]
    let done = done as f64;
    Ok(done / began.elapsed().as_secs_f64())
}

async fn measure<C: Orders>(engine: &str, conns: Vec<C>, keys: &Keys) -> Result<Vec<Figure>> {
    let numbered = (0..).zip(conns);
    let mut clients: Vec<_> =
        numbered.map(|(sku, conn)| Client { conn, keys, sku, taken: 0 }).collect();
    for client in &mut clients {
        // The answer that is replayed; its number is 0.
        let key = client.key(0)?;
        let payload = Fingerprint::of(["POST", "/orders", "{\"sku\":7,\"pieces\":1}"]);
        let mut tx = client.conn.begin().await?;
        if let Claimed::Run(run) = keys.claim(&mut tx, &key, &payload).await? {
            keys.finish(&mut tx, &run, &Answer::new(201, [b'x'; 60])).await?;
        }
        C::commit(tx).await?;
    }
    for way in WAYS {
        rate(&mut clients, way).await?;
    }
    let mut ratios = [const { Vec::new() }; WAYS.len()];
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        let mut rates = [0.0; WAYS.len()];
        for (rate_of, way) in rates.iter_mut().zip(WAYS) {
            *rate_of = rate(&mut clients, way).await?;
        }
        bare.push(rates[0]);
        for (all, rate) in ratios.iter_mut().zip(rates) {
            all.push(rate / rates[0]);
        }
    }
    let [_, once, both, two, replay] = ratios.map(|all| median(&all));
    let orders = format!("{engine}: orders a second of {CONNECTIONS} connections, without a key");
    Ok(vec![
        Figure::told(orders, median(&bare)).unit("/s"),
        Figure::at_least(format!("{engine}: key, order and answer in one transaction"), once, 0.7),
        Figure::told(format!("{engine}: the same by claim and finish"), both).unit("x"),
        Figure::at_least(format!("{engine}: claim, then order and answer"), two, 0.4),
        Figure::told(format!("{engine}: an answer replayed"), replay).unit("x"),
    ])
}
