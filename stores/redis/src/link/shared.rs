//! What all parts of a link share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Clock, Error, ErrorKind, Result};
use leasehold_net::Io;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Sleep;

use super::dial::{Dialer, Facts};
use super::disturbance::Disturbances;
use super::refusal::DOING;

/// On which of the two runtimes something runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Side {
    /// The one in which the store was connected.
    Front,
    /// The store's own.
    Back,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dialer: Dialer,
    /// The URL without its secret, for errors.
    pub(crate) shown: String,
    pub(crate) io: Io,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) disturbances: Disturbances,
    /// That the servers should be looked for anew: a node is lost or has moved.
    pub(crate) look_again: Notify,
    facts: Mutex<Facts>,
    closing: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(dialer: Dialer, shown: String, io: Io, clock: Arc<dyn Clock>) -> Shared {
        Shared {
            dialer,
            shown,
            io,
            clock,
            disturbances: Disturbances::new(),
            look_again: Notify::new(),
            facts: Mutex::default(),
            closing: watch::Sender::new(false),
        }
    }

    /// Where the caller is. A front that stands still would answer nobody outside of it.
    pub(crate) fn side(&self) -> Side {
        let inside = self.io.has_front()
            && Handle::try_current().is_ok_and(|here| here.id() == self.io.front().id());
        if inside { Side::Front } else { Side::Back }
    }

    pub(crate) fn home(&self, side: Side) -> &Handle {
        match side {
            Side::Front => self.io.front(),
            Side::Back => self.io.back(),
        }
    }

    /// Runs something on the store's own thread until it ends or the link is closed.
    pub(crate) fn at_back(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(Side::Back, task);
    }

    /// Runs something until it ends or the link is closed.
    pub(crate) fn spawn(&self, side: Side, task: impl Future<Output = ()> + Send + 'static) {
        let mut closing = self.closing.subscribe();
        self.home(side).spawn(async move {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => {}
                () = task => {}
            }
        });
    }

    /// A wait on the store's own clock, to be polled anywhere.
    pub(crate) fn sleep(&self, span: Duration) -> Sleep {
        let _inside = self.io.back().enter();
        tokio::time::sleep(span)
    }

    pub(crate) fn facts(&self) -> Facts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_facts(&self, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    /// A number to start a backoff from, so that processes do not march together.
    pub(crate) fn seed(&self) -> u64 {
        getrandom::u64().unwrap_or_else(|_| self.clock.now().as_nanos())
    }

    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// # Errors
    ///
    /// `Closed` if it was.
    pub(crate) fn open(&self) -> Result<()> {
        if *self.closing.borrow() {
            let detail = "the store was closed";
            return Err(Error::new(ErrorKind::Closed, DOING, detail).at(&*self.shown));
        }
        Ok(())
    }
}
