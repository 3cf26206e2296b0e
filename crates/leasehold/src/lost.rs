//! The future that is done when a lease is lost.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use event_listener::EventListener;
use leasehold_core::Loss;

use crate::cell::{LeaseCell, State};

/// Done when the lease is lost, with the reason; never, if it is released.
///
/// Cloneable, `Send`, `'static`, and bound to no runtime: hand it to whatever must stop. It is done
/// before the lease can be another's, and final: a lease that was lost stays lost.
///
/// # Cancel safety
///
/// It can be dropped and polled at any time.
#[derive(Debug)]
pub struct Lost {
    cell: Arc<LeaseCell>,
    listener: Option<EventListener>,
}

impl Lost {
    pub(crate) fn new(cell: Arc<LeaseCell>) -> Lost {
        Lost { cell, listener: None }
    }

    /// The reason, if it is lost by now.
    pub fn now(&self) -> Option<Loss> {
        match self.cell.state() {
            State::Lost(loss) => Some(loss),
            _ => None,
        }
    }
}

impl Clone for Lost {
    fn clone(&self) -> Lost {
        Lost::new(Arc::clone(&self.cell))
    }
}

impl Future for Lost {
    type Output = Loss;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Loss> {
        loop {
            if let Some(loss) = self.now() {
                return Poll::Ready(loss);
            }
            let cell = Arc::clone(&self.cell);
            let listener = self.listener.get_or_insert_with(|| cell.changed().listen());
            // The state is read again after listening, so that no change is missed between.
            if let State::Lost(loss) = cell.state() {
                return Poll::Ready(loss);
            }
            match Pin::new(listener).poll(cx) {
                Poll::Ready(()) => self.listener = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
