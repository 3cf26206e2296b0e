//! A fence without a guard row: a row that carries the mark of its last writer.

use leasehold_core::Mark;
use leasehold_sql::{Engine, Transaction, Value};

use super::check::{NoMark, mark_of};
use super::failed::{failed, name};
use super::names;
use super::texts::{epoch, token, unknown};
use crate::error::{Error, ErrorKind, Result};

/// One conditional UPDATE of one row, which passes if no newer mark has written it.
///
/// The table has two columns for the mark of its last writer, `fence_epoch` and `fence_token`, both
/// BIGINT and NULL at first; the key is an integer, a text or bytes. No other row is read or written, so it is the cheapest fence there is;
/// but it begins with the new holder's first *write* to that very row. Where what is written was
/// computed from what was read, [`enter`](super::enter) first.
///
/// ```
/// use leasehold_fence::{Mark, sql::Update};
/// use leasehold_sql::Transaction;
///
/// async fn ship(
///     tx: &mut (impl Transaction + ?Sized),
///     mine: Mark,
/// ) -> leasehold_fence::Result<()> {
///     Update::of("orders", "id", 7).set("state", "shipped").add("tries", 1).run(tx, mine).await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Update {
    table: String,
    key: (String, Value),
    changes: Vec<(String, Change)>,
    columns: [String; 2],
}

#[derive(Clone, Debug)]
enum Change {
    To(Value),
    By(i64),
}

impl Update {
    /// Of the row of this table (or `schema.table`) that has this value in this column.
    pub fn of(table: &str, column: &str, value: impl Into<Value>) -> Update {
        Update {
            table: table.to_owned(),
            key: (column.to_owned(), value.into()),
            changes: Vec::new(),
            columns: ["fence_epoch".to_owned(), "fence_token".to_owned()],
        }
    }

    /// Sets a column.
    #[must_use]
    pub fn set(mut self, column: &str, value: impl Into<Value>) -> Update {
        self.changes.push((column.to_owned(), Change::To(value.into())));
        self
    }

    /// Adds to a column of integers.
    #[must_use]
    pub fn add(mut self, column: &str, number: i64) -> Update {
        self.changes.push((column.to_owned(), Change::By(number)));
        self
    }

    /// The columns of the mark, where they are not called `fence_epoch` and `fence_token`.
    #[must_use]
    pub fn fenced_by(mut self, epoch: &str, token: &str) -> Update {
        self.columns = [epoch.to_owned(), token.to_owned()];
        self
    }

    /// Changes the row, or says why not; with no change named, it sets the mark alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`] and [`ErrorKind::OtherEpoch`]: a newer holder has written this row.
    /// [`ErrorKind::Missing`]: there is no such row. [`ErrorKind::NoColumn`],
    /// [`ErrorKind::NoTable`], [`ErrorKind::Usage`] for a name that is none; else as
    /// [`enter`](super::enter).
    pub async fn run<T: Transaction + ?Sized>(&self, tx: &mut T, mark: Mark) -> Result<()> {
        let engine = tx.engine();
        let doing = format!("write to a row of {} in {}", self.table, name(engine));
        let (text, values) = self.statement(engine, mark, &doing)?;
        match changed(tx, &text, &values, &doing).await? {
            0 => {}
            1 => return Ok(()),
            n => return Err(too_many(&doing, n)),
        }
        match self.last_writer(tx, &doing).await? {
            None => {
                let text = format!("{doing}: there is no row whose {} is that", self.key.0);
                return Err(Error::new(ErrorKind::Missing, text));
            }
            Some(Some(last)) if last > mark => {
                let stale = leasehold_core::Stale { offered: mark, newest: last };
                return Err(Error::stale(&doing, stale));
            }
            Some(_) => {}
        }
        // It came in between, or MySQL had nothing to change. Now that it is held, once more.
        match changed(tx, &text, &values, &doing).await? {
            1 => Ok(()),
            0 if engine == Engine::Mysql => Ok(()),
            n => Err(too_many(&doing, n)),
        }
    }

    /// The mark of the last writer, if there is a row, in a row that is held to COMMIT.
    async fn last_writer<T: Transaction + ?Sized>(
        &self,
        tx: &mut T,
        doing: &str,
    ) -> Result<Option<Option<Mark>>> {
        let engine = tx.engine();
        let [epoch, token] = self.quoted_columns(engine)?;
        let table = names::table(engine, &self.table)?;
        let key = names::column(engine, &self.key.0)?;
        let (place, hold) = match engine {
            Engine::Postgres => ("$1", " FOR UPDATE"),
            Engine::Mysql => ("?", " FOR UPDATE"),
            _ => ("?1", ""),
        };
        let text = format!("SELECT {epoch}, {token} FROM {table} WHERE {key} = {place}{hold}");
        let rows = tx.rows(&text, std::slice::from_ref(&self.key.1)).await;
        let rows = rows.map_err(|error| failed(doing, error))?;
        match rows.first().map(|row| mark_of(row, 0)) {
            None => Ok(None),
            Some(Ok(last)) => Ok(Some(last)),
            Some(Err(NoMark)) => {
                let text = format!(
                    "{doing}: its columns {epoch} and {token} hold no mark; set both to the newest \
                     one given out, or both to NULL"
                );
                Err(Error::new(ErrorKind::Corrupt, text))
            }
        }
    }

    fn quoted_columns(&self, engine: Engine) -> Result<[String; 2]> {
        let [epoch, token] = &self.columns;
        Ok([names::column(engine, epoch)?, names::column(engine, token)?])
    }

    fn statement(&self, engine: Engine, mark: Mark, doing: &str) -> Result<(String, Vec<Value>)> {
        let mut values = Vec::with_capacity(self.changes.len() + 5);
        let mut place = |value: Value| {
            values.push(value);
            match engine {
                Engine::Postgres => format!("${}", values.len()),
                Engine::Mysql => "?".to_owned(),
                _ => format!("?{}", values.len()),
            }
        };
        let table = names::table(engine, &self.table)?;
        let [epoch_column, token_column] = self.quoted_columns(engine)?;
        let mut set = Vec::with_capacity(self.changes.len() + 2);
        for (column, change) in &self.changes {
            let column = names::column(engine, column)?;
            set.push(match change {
                Change::To(value) => format!("{column} = {}", place(value.clone())),
                Change::By(number) => format!("{column} = {column} + {}", place((*number).into())),
            });
        }
        set.push(format!("{epoch_column} = {}", place(epoch(mark).into())));
        set.push(format!("{token_column} = {}", place(token(mark).into())));
        let set = set.join(", ");
        let key = names::column(engine, &self.key.0)?;
        let key = format!("{key} = {}", place(self.key.1.clone()));
        let (e, t) = (place(epoch(mark).into()), place(token(mark).into()));
        let passes = format!(
            "({epoch_column} IS NULL AND {token_column} IS NULL \
             OR {token_column} > 0 AND ({epoch_column}, {token_column}) <= ({e}, {t}))"
        );
        let text = match engine {
            // Bounded as the other waits are, and the transaction's own bound put back.
            Engine::Postgres => format!(
                "WITH bound AS MATERIALIZED (SELECT current_setting('lock_timeout') AS leasehold_was, \
                 set_config('lock_timeout', '5s', true) AS leasehold_now), changed AS (\
                 UPDATE {table} SET {set} FROM bound \
                 WHERE leasehold_now IS NOT NULL AND {key} AND {passes} RETURNING 1 AS one), \
                 counted AS (SELECT count(*) AS n FROM changed) \
                 SELECT counted.n, set_config('lock_timeout', leasehold_was, true) \
                 FROM bound LEFT JOIN counted ON true"
            ),
            Engine::Mysql => format!(
                "/*M!100102 SET STATEMENT innodb_lock_wait_timeout = 5 FOR */ \
                 UPDATE {table} SET {set} WHERE {key} AND {passes}"
            ),
            Engine::Sqlite => format!("UPDATE {table} SET {set} WHERE {key} AND {passes}"),
            other => return Err(unknown(other, doing)),
        };
        Ok((text, values))
    }
}

fn too_many(doing: &str, rows: u64) -> Error {
    let text = format!("{doing}: it has {rows} rows of that key, which should name one; roll back");
    Error::new(ErrorKind::Usage, text)
}

/// How many rows the UPDATE changed.
async fn changed<T: Transaction + ?Sized>(
    tx: &mut T,
    text: &str,
    values: &[Value],
    doing: &str,
) -> Result<u64> {
    if tx.engine() != Engine::Postgres {
        return tx.execute(text, values).await.map_err(|error| failed(doing, error));
    }
    let rows = tx.rows(text, values).await.map_err(|error| failed(doing, error))?;
    Ok(rows.first().and_then(|row| row.int(0)).map_or(0, i64::unsigned_abs))
}
