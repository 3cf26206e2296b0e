//! Twenty buyers want one each of the five that are left.

use std::sync::Arc;

use leasehold_data::conditional::{Amounts, Taken};
use tokio::sync::Barrier;

use crate::Result;
use crate::db::{Db, Pool};
use crate::way::{Way, beyond, together};

const BUYERS: usize = 20;
const PIECES: i64 = 5;

/// Both ways.
///
/// # Errors
///
/// What the database says.
pub async fn run(db: &Db) -> Result<Vec<Way>> {
    let wrong = {
        prepare(&db.pool).await?;
        let all_have_read = Arc::new(Barrier::new(BUYERS));
        let buyer = |_| buy_wrong(db.pool.clone(), Arc::clone(&all_have_read));
        together((0..BUYERS).map(buyer)).await?;
        let (saw, failures) = seen(&db.pool).await?;
        Way::wrong("read how many are left, then write one less", saw, failures)
    };
    let right = {
        prepare(&db.pool).await?;
        together((0..BUYERS).map(|_| buy_right(db.pool.clone()))).await?;
        let (saw, failures) = seen(&db.pool).await?;
        Way::right("one UPDATE that cannot go below zero, and no lock", saw, failures)
    };
    Ok(vec![wrong, right])
}

async fn prepare(pool: &Pool) -> Result<()> {
    pool.run(&format!(
        "DROP TABLE IF EXISTS stock, sold;
         CREATE TABLE stock (sku text PRIMARY KEY, pieces bigint NOT NULL CHECK (pieces >= 0));
         CREATE TABLE sold (sku text NOT NULL);
         INSERT INTO stock VALUES ('tea', {PIECES})"
    ))
    .await
}

/// All read five before any writes: each sees enough, and each writes four.
async fn buy_wrong(pool: Pool, all_have_read: Arc<Barrier>) -> Result<()> {
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    let row = tx.query_one("SELECT pieces FROM stock WHERE sku = 'tea'", &[]).await?;
    let left: i64 = row.try_get(0)?;
    all_have_read.wait().await;
    if left >= 1 {
        let less = left - 1;
        tx.execute("UPDATE stock SET pieces = $1 WHERE sku = 'tea'", &[&less]).await?;
        tx.execute("INSERT INTO sold VALUES ('tea')", &[]).await?;
    }
    Ok(tx.commit().await?)
}

/// The condition stands in the UPDATE: a second one waits for the first, and looks again.
async fn buy_right(pool: Pool) -> Result<()> {
    let stock = Amounts::new("stock", "sku", "pieces")?;
    let mut connection = pool.get().await?;
    let mut tx = connection.transaction().await?;
    match stock.take(&mut *tx, &[("tea".into(), 1)]).await? {
        Taken::All(_left) => {
            tx.execute("INSERT INTO sold VALUES ('tea')", &[]).await?;
            Ok(tx.commit().await?)
        }
        Taken::Short(_) => Ok(()), // sold out: rolled back, with nothing to undo
    }
}

async fn seen(pool: &Pool) -> Result<(String, u64)> {
    let sold = pool.number("SELECT count(*) FROM sold").await?;
    let left = pool.number("SELECT pieces FROM stock").await?;
    let saw = format!("{BUYERS} buyers, {PIECES} pieces, {sold} sold, {left} left");
    Ok((saw, beyond(sold + left.min(0), PIECES)))
}
