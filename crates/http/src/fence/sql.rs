//! Marks in the service's own database.

use async_trait::async_trait;
use http::Response;
use leasehold_fence::{Access, Error, ErrorKind, Mark, Resource, sql};
use leasehold_sql::Transaction;

use super::layer::{Entered, refusal};
use super::marks::{FenceMarks, Passage, Refused};
use crate::body::{Body, BoxError};
use crate::database::{Database, Step};

/// Marks in the service's own database, by [`leasehold_fence::sql`]: right for any number of
/// instances, and kept as long as the data.
///
/// The layer raises the mark in a transaction of its own, before the handler reads. A newer holder can
/// come between that and the handler's write, so a handler that writes to the same database enters
/// again in its own transaction: [`Entered::enter`].
#[derive(Debug)]
pub struct SqlFence<D> {
    database: D,
}

impl<D: Database> SqlFence<D> {
    /// Keeps the marks there. The table must exist: [`leasehold_fence::sql::create_table`].
    pub fn new(database: D) -> SqlFence<D> {
        SqlFence { database }
    }
}

#[async_trait]
impl<D: Database> FenceMarks for SqlFence<D> {
    async fn enter(
        &self,
        resource: &Resource,
        access: Access,
        mark: Mark,
    ) -> Result<Passage, Refused> {
        let mut step = Enter { resource, access, mark };
        match self.database.within(&mut step).await {
            Ok(()) => Ok(Passage::open()),
            Err(error) => Err(refused(error)),
        }
    }
}

struct Enter<'a> {
    resource: &'a Resource,
    access: Access,
    mark: Mark,
}

#[async_trait]
impl Step for Enter<'_> {
    async fn run(&mut self, tx: &mut (dyn Transaction + Send)) -> Result<(), BoxError> {
        sql::enter(tx, self.resource, self.access, self.mark).await?;
        Ok(())
    }
}

fn refused(error: BoxError) -> Refused {
    let fenced = error.downcast_ref::<Error>();
    if let Some(stale) = fenced.and_then(Error::stale_mark) {
        return Refused::Stale(stale);
    }
    match fenced.map(Error::kind) {
        Some(ErrorKind::Busy) => Refused::Busy,
        _ => Refused::Failed(error),
    }
}

impl Entered {
    /// Enters the fence within the handler's own transaction, before its first read there: from here
    /// to its end no newer holder comes in, and none has come since the layer looked.
    ///
    /// Answers the refusal to send, 412, if one has: roll back.
    ///
    /// ```
    /// use http::Response;
    /// use leasehold_http::{Body, fence::Entered};
    /// use leasehold_sql::Transaction;
    ///
    /// async fn put<T: Transaction>(tx: &mut T, entered: &Entered)
    ///     -> Result<Response<Body>, leasehold_fence::Error>
    /// {
    ///     if let Some(refusal) = entered.enter(tx).await? {
    ///         return Ok(refusal);
    ///     }
    ///     // read and write, and let the caller commit
    /// #   Ok(Response::new(Body::new(String::new())))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn enter<T>(&self, transaction: &mut T) -> Result<Option<Response<Body>>, Error>
    where
        T: Transaction + ?Sized,
    {
        match sql::enter(transaction, &self.resource, self.access, self.mark).await {
            Ok(()) => Ok(None),
            Err(error) => match error.stale_mark() {
                Some(stale) => Ok(Some(refusal(&self.resource, Refused::Stale(stale)).response())),
                None => Err(error),
            },
        }
    }
}
