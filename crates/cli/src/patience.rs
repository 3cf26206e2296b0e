//! Waiting for a future and for everything else that may happen meanwhile, on one thread.

use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use leasehold_supervise::{Event, Front, Signal, Signals, wait_readable};
use rustix::event::{EventfdFlags, eventfd};

use crate::exit::{Code, End};

/// What came before the future was done.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Something to look at: the future, or what an observer has noted.
    Woken,
    /// The time given is over.
    TimedOut,
    /// A signal of this process.
    Signal(Signal),
    /// The parent of this process ended, and its end was asked about.
    ParentEnded,
    /// One of the descriptors that are watched too.
    Ready(usize),
}

/// What a command waits with.
pub(crate) trait Ears {
    /// Waits for the next thing, at most this long.
    fn hear(&mut self, at_most: Option<Duration>) -> Result<Heard, End>;

    /// A handle that has [`Ears::hear`] return [`Heard::Woken`], from any thread.
    fn waker(&self) -> Waker;

    /// From here on a signal that asks to end ends the process at once.
    fn end_at_once(&self);
}

/// Polls `future` to its end. `interrupted` is asked about all else, and ends the wait by what it
/// returns; it also says how long to wait for more.
pub(crate) fn until_done<F: Future, E: Ears>(
    ears: &mut E,
    future: F,
    mut interrupted: impl FnMut(&E, Heard) -> Result<Option<Duration>, End>,
) -> Result<F::Output, End> {
    let mut future = pin!(future);
    let waker = ears.waker();
    let mut context = Context::from_waker(&waker);
    let mut at_most = None;
    let mut first = true;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        if first {
            // Nothing has come, but what waits may want to say so later.
            first = false;
            at_most = interrupted(ears, Heard::Woken)?;
        }
        let heard = ears.hear(at_most)?;
        at_most = interrupted(ears, heard)?;
    }
}

/// The front's ears: before the command runs.
impl Ears for Front {
    fn hear(&mut self, at_most: Option<Duration>) -> Result<Heard, End> {
        Ok(match self.wait(at_most)? {
            Event::Signal(signal) => Heard::Signal(signal),
            Event::TimedOut => Heard::TimedOut,
            Event::ParentEnded => Heard::ParentEnded,
            Event::Ended(_) => {
                let why = "the keeper died before the command was started".to_string();
                return Err(End::Fail(Code::Bug, why));
            }
            _ => Heard::Woken,
        })
    }

    fn waker(&self) -> Waker {
        struct Bell(leasehold_supervise::Waker);
        impl Wake for Bell {
            fn wake(self: Arc<Self>) {
                self.0.wake();
            }
        }
        Waker::from(Arc::new(Bell(Front::waker(self))))
    }

    fn end_at_once(&self) {
        Front::end_at_once(self);
    }
}

/// The ears of a command without a keeper.
pub(crate) struct Alone {
    signals: Signals,
    bell: Arc<Bell>,
    watched: Vec<OwnedFd>,
}

struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The most descriptors that can be watched beside the signals and the bell.
const WATCHED_MOST: usize = 2;

impl Alone {
    /// Takes this process's signals. Before any thread is made.
    pub(crate) fn new() -> Result<Alone, End> {
        let signals = Signals::take()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| {
            End::Fail(Code::Bug, format!("cannot open an event descriptor: {error}"))
        })?;
        Ok(Alone { signals, bell: Arc::new(Bell(bell)), watched: Vec::new() })
    }

    /// Watches a descriptor too: when it can be read, its number is heard.
    pub(crate) fn watch(&mut self, descriptor: OwnedFd) -> usize {
        debug_assert!(self.watched.len() < WATCHED_MOST);
        self.watched.push(descriptor);
        self.watched.len() - 1
    }

    fn signal(&self) -> Option<Signal> {
        while let Some(signal) = self.signals.next() {
            if signal.asks_to_end() {
                return Some(signal);
            }
            if signal.number == rustix::process::Signal::TSTP.as_raw() {
                // It is blocked here; the stop that it asks for is not.
                let this = rustix::process::getpid();
                let _ = rustix::process::kill_process(this, rustix::process::Signal::STOP);
            }
        }
        None
    }
}

impl Ears for Alone {
    fn hear(&mut self, at_most: Option<Duration>) -> Result<Heard, End> {
        let watched =
            |at: usize| -> Option<BorrowedFd<'_>> { self.watched.get(at).map(AsFd::as_fd) };
        let descriptors =
            [Some(self.signals.as_fd()), Some(self.bell.0.as_fd()), watched(0), watched(1)];
        let ready = wait_readable(descriptors, at_most)
            .map_err(|error| End::Fail(Code::Bug, format!("cannot wait: {error}")))?;
        let [signal, bell, first, second] = ready;
        if signal && let Some(signal) = self.signal() {
            return Ok(Heard::Signal(signal));
        }
        if bell {
            let _ = rustix::io::read(&self.bell.0, &mut [0_u8; 8]);
            return Ok(Heard::Woken);
        }
        Ok(match (first, second, signal) {
            (true, ..) => Heard::Ready(0),
            (_, true, _) => Heard::Ready(1),
            // A signal that only stopped or continued this process: time has passed.
            (_, _, true) => Heard::Woken,
            _ => Heard::TimedOut,
        })
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }

    fn end_at_once(&self) {
        self.signals.end_at_once();
    }
}
