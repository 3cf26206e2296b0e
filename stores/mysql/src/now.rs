//! The clocks: the server's, which judges terms, and ours, on which belief is measured.

use std::sync::Arc;

use leasehold_core::{Clock, Moment};
use leasehold_net::BootClock;

/// The server's time in microseconds since 1970, read where it stands in a statement: after the
/// locks that the statement has waited for. `NOW(6)` would be from before.
pub(crate) const SERVER_NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";

/// The clocks that a store goes by.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Clocks {
    /// Ours.
    pub local: Arc<dyn Clock>,
    /// An expression for the server's, for tests.
    pub server: String,
}

impl Default for Clocks {
    fn default() -> Clocks {
        Clocks { local: Arc::new(BootClock), server: SERVER_NOW.to_owned() }
    }
}

impl Clocks {
    pub(crate) fn now(&self) -> Moment {
        self.local.now()
    }

    /// A statement with the server's clock in it.
    pub(crate) fn timed(&self, sql: &str) -> String {
        sql.replace(SERVER_NOW, &self.server)
    }
}
