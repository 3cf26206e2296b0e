//! The socket, watched by a task that ends when it does.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;

/// How long a goodbye may take.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// A connection as it passes over its socket. Dropping it closes the socket.
pub(super) struct Wire(Option<JoinHandle<String>>);

impl Wire {
    /// Starts the task that moves the connection's bytes, and tells why it ended.
    pub(super) fn start(moves: impl Future<Output = String> + Send + 'static) -> Wire {
        Wire(Some(tokio::spawn(moves)))
    }

    /// Waits for its end, and tells why.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn ended(&mut self) -> String {
        let Some(task) = &mut self.0 else { return "it was closed".to_owned() };
        let ended = task.await;
        self.0 = None;
        ended.unwrap_or_else(|error| error.to_string())
    }

    /// Lets a goodbye go out, and closes it.
    pub(super) async fn close(mut self) {
        // It is closed either way.
        let _ = tokio::time::timeout(GOODBYE_WITHIN, self.ended()).await;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
