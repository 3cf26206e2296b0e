//! What a handler finds of its run.

use bytes::Bytes;
use http::Response;
use leasehold_data::Error;
use leasehold_data::idempotency::{Answer, Keys, Run};
use leasehold_sql::Transaction;

use super::answer::stored;
use crate::body::{Body, whole};

/// The run under which a handler works: in the extensions of every request that has a key.
///
/// A handler that does nothing with it is run once, and its answer is stored after it, in a
/// transaction of its own. If the process dies between the handler's commit and that one, the next
/// try runs the handler *again*. A handler whose work is in the same database stores the answer
/// itself, with the work:
///
/// ```
/// use http::Response;
/// use leasehold_data::idempotency::Keys;
/// use leasehold_http::{Body, idempotency::Keyed};
/// use leasehold_sql::Transaction;
///
/// async fn order<T: Transaction>(tx: &mut T, keys: &Keys, keyed: &Keyed)
///     -> Result<Response<Body>, leasehold_data::Error>
/// {
///     tx.execute("INSERT INTO orders (what) VALUES ('tea')", &[]).await?;
///     let answer = Response::builder().status(201).body("ordered").unwrap();
///     keyed.finish(tx, keys, answer).await // commit, then return it
/// }
/// ```
///
/// Work, key and answer then commit or vanish together, and a run that was taken over cannot commit.
#[derive(Clone, Debug)]
pub struct Keyed {
    run: Run,
}

/// Marks a response whose answer is stored already.
#[derive(Clone, Debug)]
pub(crate) struct Stored(pub(crate) Answer);

impl Keyed {
    pub(crate) fn new(run: Run) -> Keyed {
        Keyed { run }
    }

    /// The run: its token, which try it is, where an earlier one had come to, and the keys to pass on
    /// with calls to others ([`Run::step`]).
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Stores the answer in the handler's own transaction.
    ///
    /// Commit, and return what this returns; it is not stored a second time. On an error, or if the
    /// commit fails, roll back and return an answer of 500 and above: a later try runs again.
    ///
    /// # Errors
    ///
    /// As [`Keys::finish`].
    pub async fn finish<T>(
        &self,
        transaction: &mut T,
        keys: &Keys,
        answer: Response<impl Into<Bytes>>,
    ) -> Result<Response<Body>, Error>
    where
        T: Transaction + ?Sized,
    {
        let (mut head, body) = answer.into_parts();
        let body = body.into();
        let answer = stored(&head, &body);
        keys.finish(transaction, &self.run, &answer).await?;
        head.extensions.insert(Stored(answer));
        Ok(Response::from_parts(head, whole(body)))
    }
}
