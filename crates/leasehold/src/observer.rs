//! Being told how an acquisition and a lease go, as it happens.

use leasehold_core::{Error, Loss, Moment, Waiting};

/// Told what happens to one request and its lease.
///
/// Called on the driver's thread, on the thread that acquires, or on the one that first sees by the
/// clock that a lease has ended. An implementation must not block: while it runs, no lease of the
/// client is renewed. Nor should it panic: where that ends the driver, all leases of the client are
/// lost, and it is closed. For most programs [`Lease::lost`](crate::Lease::lost) and
/// [`Lease::state`](crate::Lease::state) are enough.
pub trait Observer: Send + Sync + 'static {
    /// The claim stands in the queue.
    fn waiting(&self, waiting: &Waiting) {
        let _ = waiting;
    }

    /// The store did not answer; it is tried again.
    fn retrying(&self, error: &Error) {
        let _ = error;
    }

    /// The lease was renewed and is believed until this moment, on the clock that
    /// [`Profile::clock`](leasehold_core::Profile::clock) names.
    fn kept(&self, until: Moment) {
        let _ = until;
    }

    /// A renewal is overdue.
    fn at_risk(&self) {}

    /// The lease is lost.
    fn lost(&self, loss: Loss) {
        let _ = loss;
    }
}
