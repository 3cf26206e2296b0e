//! A statement of PostgreSQL that may be refused, without costing the caller's transaction.

use leasehold_sql::Transaction;

use super::{Error, Result};

const NAME: &str = "leasehold_lock";

/// Sets a savepoint; that fails where there is no transaction.
pub(super) async fn set<T: Transaction + Send + ?Sized>(tx: &mut T) -> Result<()> {
    tx.execute(&format!("SAVEPOINT {NAME}"), &[]).await?;
    Ok(())
}

/// Undoes what was done since it was set, and frees what was locked. It stays set.
pub(super) async fn back<T: Transaction + Send + ?Sized>(tx: &mut T) -> Result<()> {
    tx.execute(&format!("ROLLBACK TO SAVEPOINT {NAME}"), &[]).await?;
    Ok(())
}

/// Keeps what was done since it was set, or undoes it if that went wrong, and removes it.
pub(super) async fn end<T: Transaction + Send + ?Sized, R>(
    tx: &mut T,
    done: Result<R>,
) -> Result<R> {
    match &done {
        Err(Error::ConnectionLost(_)) => return done,
        Err(_) => back(tx).await?,
        Ok(_) => {}
    }
    tx.execute(&format!("RELEASE SAVEPOINT {NAME}"), &[]).await?;
    done
}
