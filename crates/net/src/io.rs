//! Where a store's tasks run.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Two places for a store's tasks.
///
/// The *back* is a thread of the store's own, with a runtime of its own: renewals, subscribers and
/// whatever must go on when a caller blocks its runtime. The *front* is the runtime in which the
/// store was connected, if there was one: what a caller waits for is answered there without a hop
/// between threads. Where there was none, the front is the back.
///
/// Futures that only wait for tasks of an `Io` may be polled anywhere, also outside of any runtime.
/// The thread ends when the last clone is dropped; its tasks are dropped with it.
#[derive(Clone, Debug)]
pub struct Io {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    back: Handle,
    front: Option<Handle>,
    stop: Arc<Notify>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

impl Io {
    /// Starts the back thread under this name, and takes the runtime of the caller, if there is
    /// one, as the front.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the thread or its runtime cannot be started.
    pub fn start(name: &str) -> Result<Io> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let back = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let (ready, is_ready) = mpsc::sync_channel::<()>(1);
        let run = move || {
            // The handle spawns from any thread; this one turns the runtime until it is told to stop.
            runtime.block_on(async {
                drop(ready);
                stopped.notified().await;
            });
            runtime.shutdown_background();
        };
        thread::Builder::new().name(name.into()).spawn(run).map_err(no_thread)?;
        // Disconnected is the sign that it runs.
        let _ = is_ready.recv();
        let front = Handle::try_current().ok();
        Ok(Io { inner: Arc::new(Inner { back, front, stop }) })
    }

    /// The store's own thread.
    pub fn back(&self) -> &Handle {
        &self.inner.back
    }

    /// The runtime in which the store was connected, or else the store's own thread.
    pub fn front(&self) -> &Handle {
        self.inner.front.as_ref().unwrap_or(&self.inner.back)
    }

    /// Whether the front is another runtime than the back. It may end before the store does: then
    /// its tasks are cancelled, and the store goes on at the back.
    pub fn has_front(&self) -> bool {
        self.inner.front.is_some()
    }

    /// Runs a future on the store's own thread and waits for it, wherever the caller is polled.
    /// Dropped half-way, the future is dropped too.
    ///
    /// # Errors
    ///
    /// `Closed` if the thread has ended, `Bug` if the future panics.
    pub async fn on_back<T: Send + 'static>(
        &self,
        doing: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        run(self.back(), doing, future).await
    }

    /// As [`Io::on_back`], on the front.
    ///
    /// # Errors
    ///
    /// `Closed` if that runtime has ended, `Bug` if the future panics.
    pub async fn on_front<T: Send + 'static>(
        &self,
        doing: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        run(self.front(), doing, future).await
    }
}

async fn run<T: Send + 'static>(
    handle: &Handle,
    doing: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let mut task = AbortOnDrop(handle.spawn(future));
    (&mut task.0).await.map_err(|error| {
        let (kind, detail) = if error.is_cancelled() {
            (ErrorKind::Closed, "the runtime of the store's connection has ended")
        } else {
            (ErrorKind::Bug, "a task of the store panicked")
        };
        Error::new(kind, doing, detail).maybe_applied()
    })
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "start the store's thread", error.to_string())
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    #[test]
    fn what_runs_at_the_back_is_awaited_from_anywhere() {
        let io = Io::start("test-io").unwrap();
        assert!(!io.has_front());
        let name = io.on_back("test", async { thread::current().name().map(str::to_owned) });
        assert_eq!(block_on(name).unwrap().as_deref(), Some("test-io"));
    }

    #[test]
    fn the_front_is_the_callers_runtime_and_its_end_is_told() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let io = runtime.block_on(async { Io::start("test-io").unwrap() });
        assert!(io.has_front());
        let at = block_on(io.on_front("test", async { thread::current().id() })).unwrap();
        let back = block_on(io.on_back("test", async { thread::current().id() })).unwrap();
        assert_ne!(at, back);
        runtime.shutdown_background();
        let error = block_on(io.on_front("test", async {})).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        block_on(io.on_back("test", async {})).unwrap();
    }

    #[test]
    fn a_dropped_wait_drops_its_task() {
        let io = Io::start("test-io").unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let mut wait = Box::pin(io.on_back("test", async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        }));
        assert!(block_on(futures_lite::future::poll_once(&mut wait)).is_none());
        drop(wait);
        // Its sender goes with it, so this ends.
        assert!(block_on(receiver).is_err());
    }

    #[test]
    fn a_panic_is_told_and_the_thread_goes_on() {
        let io = Io::start("test-io").unwrap();
        let error = block_on(io.on_back("test", async { panic!("planted") })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
        block_on(io.on_back("test", async {})).unwrap();
    }

    #[test]
    fn the_thread_ends_with_the_last_clone() {
        let io = Io::start("test-io").unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        io.back().spawn(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        drop(io.clone());
        block_on(io.on_back("test", async {})).unwrap();
        drop(io);
        assert!(block_on(receiver).is_err());
    }
}
