//! To make the table, and to keep it small.

use leasehold_sql::{Engine, Transaction, Value};

use super::text::printed;
use super::{Keys, table::timed};
use crate::Result;

/// A step of cleaning locks no more rows than this.
const LARGEST_STEP: u32 = 1000;

impl Keys {
    /// Makes the table, where it is not there yet.
    ///
    /// On MySQL this commits the transaction, as every change of a table does there.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn create_table<T>(&self, tx: &mut T) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        for text in &self.texts(tx.engine()).tables {
            if text.starts_with("SELECT") {
                self.rows(tx, text, &[]).await?;
            } else {
                self.execute(tx, text, &[]).await?;
            }
        }
        Ok(())
    }

    /// The table as text for this engine's shell, for who keeps migrations of their own.
    pub fn table_text(&self, engine: Engine) -> String {
        printed(engine, self.names.as_ref())
    }

    /// Removes up to so many keys whose time is up, 1 to 1000 in one step, and tells how many there were. Call it
    /// in a transaction of its own, until it removes fewer than asked.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn clean<T>(&self, tx: &mut T, at_most: u32) -> Result<u64>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let at_most = Value::Int(i64::from(at_most.clamp(1, LARGEST_STEP)));
        if engine != Engine::Mysql {
            let mut values = vec![at_most];
            timed(engine, &mut values);
            return self.execute(tx, &self.texts(engine).clean, &values).await;
        }
        // One by one, by their keys: a DELETE over a range locks what is between, and inserts there.
        let mut removed = 0;
        for row in self.rows(tx, &self.texts(engine).expired, &[at_most]).await? {
            let values: Vec<Value> = (0..3).filter_map(|at| row.get(at).cloned()).collect();
            removed += self.execute(tx, &self.texts(engine).clean, &values).await?;
        }
        Ok(removed)
    }
}
