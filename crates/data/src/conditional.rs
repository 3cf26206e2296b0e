//! Amounts that cannot go below zero: stock, balances, seats. No lock, no version: the update carries its condition.
//!
//! Two that want the last piece meet in the row: the second waits for the first to commit, and its condition then
//! looks at what is left. Several rows are taken in one order everywhere, so that no two wait for each other, and
//! all or none. A `CHECK (amount >= 0)` on the table keeps out those that do without this.
//!
//! ```
//! use leasehold_data::conditional::{Amounts, Taken};
//! use leasehold_sql::Transaction;
//!
//! async fn sell<T: Transaction>(tx: &mut T) -> leasehold_data::Result<bool> {
//!     let stock = Amounts::new("stock", "sku", "pieces")?;
//!     match stock.take(tx, &[("pen".into(), 2), ("ink".into(), 1)]).await? {
//!         Taken::All(_left) => Ok(true),
//!         Taken::Short(short) => {
//!             println!("only {:?} of {:?}", short.left, short.id);
//!             Ok(false) // nothing was taken
//!         }
//!     }
//! }
//! ```
//!
//! *When not:* where one row is taken from by everybody all the time, its takers stand in line: split it into some
//! rows and take from one at random.

use leasehold_sql::{Engine, Transaction, Value};

use crate::name::{Name, Statement};
use crate::{Error, Param, Result, Table};

/// The most rows in one call: each is locked until the transaction ends.
const MOST: usize = 1000;

/// A table with a row for each thing, and an amount in each row.
#[derive(Clone, Debug)]
pub struct Amounts {
    table: Table,
    id: Name,
    amount: Name,
    most: i64,
}

/// What became of a wish for some of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// All of it is taken; what is left of each, in the order of the ids.
    All(Vec<(Param, i64)>),
    /// Nothing is taken, since of this one there is not enough.
    Short(Short),
}

/// What there is not enough of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Short {
    /// Which row.
    pub id: Param,
    /// How many were wanted of it.
    pub wanted: i64,
    /// How many there are; `None` if there is no such row, or no amount in it.
    pub left: Option<i64>,
}

/// What became of an addition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Added {
    /// All is added; what there is of each now, in the order of the ids.
    All(Vec<(Param, i64)>),
    /// Nothing is added: this row is missing, or would hold more than the most.
    Refused(Short),
}

impl Amounts {
    /// A table by its name, with its key column and its column of amounts.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn new(table: &str, id: &str, amount: &str) -> Result<Amounts> {
        Amounts::of(Table::new(table)?, id, amount)
    }

    /// As [`Amounts::new`], of a table that may be in a schema.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn of(table: Table, id: &str, amount: &str) -> Result<Amounts> {
        Ok(Amounts { table, id: Name::new(id)?, amount: Name::new(amount)?, most: i64::MAX })
    }

    /// The most that a row may hold, when something is added to it.
    #[must_use]
    pub fn at_most(self, most: i64) -> Amounts {
        Amounts { most, ..self }
    }

    /// Takes so much of each, all or none. An id that is named twice is taken once, with the sum.
    ///
    /// Answered [`Taken::Short`], nothing is changed and the transaction may go on.
    ///
    /// # Errors
    ///
    /// [`Error::Amount`] for one below 1 or a sum that is too large, [`Error::TooMany`]; what the database says.
    pub async fn take<T>(&self, tx: &mut T, wanted: &[(Param, i64)]) -> Result<Taken>
    where
        T: Transaction + ?Sized,
    {
        Ok(match self.all_or_none(tx, wanted, Way::Take).await? {
            Ok(left) => Taken::All(left),
            Err(short) => Taken::Short(short),
        })
    }

    /// Adds so much to each, all or none: what is returned, or comes in.
    ///
    /// # Errors
    ///
    /// As [`Amounts::take`].
    pub async fn add<T>(&self, tx: &mut T, amounts: &[(Param, i64)]) -> Result<Added>
    where
        T: Transaction + ?Sized,
    {
        Ok(match self.all_or_none(tx, amounts, Way::Add).await? {
            Ok(now) => Added::All(now),
            Err(short) => Added::Refused(short),
        })
    }

    async fn all_or_none<T>(
        &self,
        tx: &mut T,
        wanted: &[(Param, i64)],
        way: Way,
    ) -> Result<Result<Vec<(Param, i64)>, Short>>
    where
        T: Transaction + ?Sized,
    {
        let wanted = in_order(wanted)?;
        let mut done = Vec::with_capacity(wanted.len());
        for (at, (id, amount)) in wanted.iter().enumerate() {
            if let Some(now) = self.change(tx, id, *amount, way).await? {
                done.push((id.clone(), now));
                continue;
            }
            let left = self.left(tx, id).await?;
            // Their rows are this transaction's until it ends: nobody has seen them change.
            for (id, amount) in wanted.iter().take(at) {
                self.undo(tx, id, *amount, way).await?;
            }
            return Ok(Err(Short { id: id.clone(), wanted: *amount, left }));
        }
        Ok(Ok(done))
    }

    /// Changes one row if that leaves it within its bounds, and tells what is in it then.
    async fn change<T>(&self, tx: &mut T, id: &Param, amount: i64, way: Way) -> Result<Option<i64>>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let mut statement = self.update(engine, id, amount, way);
        statement.sql(" AND ").name(&self.amount);
        match way {
            Way::Take => statement.sql(" >= ").value(amount),
            Way::Add => statement.sql(" <= ").value(self.most.saturating_sub(amount)),
        };
        if engine != Engine::Mysql {
            statement.sql(" RETURNING ").integer(&self.amount);
            return self.number(tx, &statement).await;
        }
        if self.execute(tx, &statement).await? == 0 {
            return Ok(None);
        }
        self.left(tx, id).await?.map(Some).ok_or_else(|| self.not_a_number())
    }

    async fn undo<T>(&self, tx: &mut T, id: &Param, amount: i64, way: Way) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        let back = if way == Way::Take { Way::Add } else { Way::Take };
        let statement = self.update(tx.engine(), id, amount, back);
        self.execute(tx, &statement).await.map(|_| ())
    }

    fn update(&self, engine: Engine, id: &Param, amount: i64, way: Way) -> Statement {
        let mut statement = Statement::new(engine);
        statement.sql("UPDATE ").table(&self.table).sql(" SET ").name(&self.amount).sql(" = ");
        statement.name(&self.amount).sql(if way == Way::Take { " - " } else { " + " });
        statement.value(amount).sql(" WHERE ").name(&self.id).sql(" = ").param(id);
        statement
    }

    async fn left<T>(&self, tx: &mut T, id: &Param) -> Result<Option<i64>>
    where
        T: Transaction + ?Sized,
    {
        let mut statement = Statement::new(tx.engine());
        statement.sql("SELECT ").integer(&self.amount).sql(" FROM ").table(&self.table);
        statement.sql(" WHERE ").name(&self.id).sql(" = ").param(id);
        if tx.engine() == Engine::Mysql {
            // At REPEATABLE READ a plain read shows the row as it was, though an update goes by what it is.
            statement.sql(" FOR UPDATE");
        }
        self.number(tx, &statement).await
    }

    async fn number<T>(&self, tx: &mut T, statement: &Statement) -> Result<Option<i64>>
    where
        T: Transaction + ?Sized,
    {
        let rows = tx.rows(&statement.text, &statement.values).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        let Some(row) = rows.first().filter(|row| !row.is_null(0)) else { return Ok(None) };
        row.int(0).map(Some).ok_or_else(|| self.not_a_number())
    }

    async fn execute<T>(&self, tx: &mut T, statement: &Statement) -> Result<u64>
    where
        T: Transaction + ?Sized,
    {
        let changed = tx.execute(&statement.text, &statement.values).await;
        changed.map_err(|error| self.failed(error))
    }

    fn not_a_number(&self) -> Error {
        Error::Corrupt { table: self.table.to_string(), what: "an amount is no integer" }
    }

    fn failed(&self, error: leasehold_sql::Error) -> Error {
        let columns = format!("{}, {}", self.id.as_str(), self.amount.as_str());
        Error::on(&self.table.to_string(), &columns, error)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Take,
    Add,
}

/// Each id once, in one order for all: whoever locks several rows locks them in that order.
fn in_order(wanted: &[(Param, i64)]) -> Result<Vec<(Param, i64)>> {
    if wanted.is_empty() || wanted.len() > MOST {
        return Err(Error::TooMany { what: "rows", count: wanted.len(), most: MOST });
    }
    if let Some((_, amount)) = wanted.iter().find(|(_, amount)| *amount < 1) {
        return Err(Error::Amount { amount: *amount });
    }
    let mut sorted: Vec<(Param, i64)> = wanted.to_vec();
    sorted.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)));
    let mut each: Vec<(Param, i64)> = Vec::with_capacity(sorted.len());
    for (id, amount) in sorted {
        match each.last_mut() {
            Some((last, sum)) if *last == id => {
                *sum = sum.checked_add(amount).ok_or(Error::Amount { amount: i64::MAX })?;
            }
            _ => each.push((id, amount)),
        }
    }
    Ok(each)
}

fn rank(param: &Param) -> (i64, &[u8], Option<&str>) {
    let (number, bytes): (i64, &[u8]) = match &param.value {
        Value::Int(number) => (*number, &[]),
        Value::Text(text) => (i64::MAX, text.as_bytes()),
        Value::Bytes(bytes) => (i64::MAX, bytes),
        _ => (i64::MIN, &[]),
    };
    (number, bytes, param.cast.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_caller_locks_in_one_order_and_each_id_once(
            mut wanted in prop::collection::vec(("[a-d]{1,2}", 1_i64..9), 1..20), turn in 0_usize..20
        ) {
            let params = |wanted: &[(String, i64)]| {
                wanted.iter().map(|(id, n)| (id.clone().into(), *n)).collect::<Vec<(Param, i64)>>()
            };
            let one = in_order(&params(&wanted)).unwrap();
            let turn = turn % wanted.len();
            wanted.rotate_left(turn);
            prop_assert_eq!(&one, &in_order(&params(&wanted)).unwrap());
            for pair in one.windows(2) {
                prop_assert!(rank(&pair[0].0) < rank(&pair[1].0));
            }
            let sum = |of: &[(Param, i64)]| of.iter().map(|(_, n)| n).sum::<i64>();
            prop_assert_eq!(sum(&one), sum(&params(&wanted)));
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        assert!(matches!(in_order(&[]), Err(Error::TooMany { count: 0, .. })));
        let many = vec![(Param::from(1), 1); MOST + 1];
        assert!(matches!(in_order(&many), Err(Error::TooMany { count: 1001, .. })));
        for amount in [0, -1, i64::MIN] {
            assert!(matches!(in_order(&[(1.into(), amount)]), Err(Error::Amount { .. })));
        }
        let sum = [(Param::from("a"), i64::MAX), (Param::from("a"), 1)];
        assert!(matches!(in_order(&sum), Err(Error::Amount { .. })));
    }
}
