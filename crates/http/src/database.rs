//! The service's own connections, as the layers use them.

use async_trait::async_trait;
use leasehold_sql::Transaction;

use crate::body::BoxError;

/// The service's own pool, or whatever else gives it a transaction.
///
/// A few lines for any pool. With `deadpool-postgres`:
///
/// ```no_run
/// use async_trait::async_trait;
/// use leasehold_http::{BoxError, Database, Step};
///
/// struct Pool(deadpool_postgres::Pool);
///
/// #[async_trait]
/// impl Database for Pool {
///     async fn within(&self, step: &mut dyn Step) -> Result<(), BoxError> {
///         let mut connection = self.0.get().await?;
///         let mut transaction = connection.transaction().await?;
///         step.run(&mut *transaction).await?; // rolled back when it is dropped
///         Ok(transaction.commit().await?)
///     }
/// }
/// ```
///
/// # Behavior
///
/// - What `step` did is committed if and only if `Ok` is returned. An error of the commit itself is
///   passed on: the layers take it for unknown.
/// - A transaction that the database ended for another's sake (a deadlock, a serialization
///   failure) may be begun anew with the same step.
/// - The wait for a connection is bounded, and so is each statement.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// Runs one step in one transaction of its own.
    async fn within(&self, step: &mut dyn Step) -> Result<(), BoxError>;
}

/// What a layer does in one transaction.
#[async_trait]
pub trait Step: Send {
    /// Does it, from the start, however often it is called.
    async fn run(&mut self, transaction: &mut (dyn Transaction + Send)) -> Result<(), BoxError>;
}
