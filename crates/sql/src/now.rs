//! For callers without a runtime.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a future answers that waits for nothing: everything here over a driver that blocks.
///
/// ```
/// assert_eq!(leasehold_sql::now(async { 1 + 1 }), 2);
/// ```
///
/// # Panics
///
/// If it has to wait, which nothing does over `rusqlite`: over any other driver, `.await` it.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("this driver answers in time: await it instead"),
    }
}
