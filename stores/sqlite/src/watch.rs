//! The eye on one neighbour: its process, and after its end the byte that its tree keeps locked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::live::{Alive, Home, Liveness};

/// How long the first wait is after a process has ended whose tree still keeps its byte.
const STEP_FIRST: Duration = Duration::from_millis(1);
const STEP_MAX: Duration = Duration::from_millis(50);
/// How long a process that cannot be watched is left unprobed at most.
const BLIND_MAX: Duration = Duration::from_millis(250);

/// A watched neighbour.
#[derive(Debug)]
pub(crate) struct Watch {
    home: Home,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its process runs.
    Process(Arc<OwnedFd>),
    /// It is asked for from time to time.
    Probing { at: Instant, step: Duration, step_max: Duration },
    /// It is dead, or nothing can be found out: only its term ends it.
    Over,
}

impl Watch {
    /// Watches the neighbour with this home and term.
    pub(crate) fn on(home: Home, term: Duration, live: &Liveness) -> Watch {
        let state = match open(&home, live) {
            Some(process) => State::Process(Arc::new(process)),
            None => {
                let step = (term / 40).clamp(STEP_FIRST, BLIND_MAX);
                State::Probing { at: Instant::now(), step, step_max: step }
            }
        };
        let mut watch = Watch { home, state };
        // Alive after its process was opened: the number belongs to it and to no successor.
        match live.probe(&home) {
            Alive::Yes => {}
            Alive::No | Alive::Unknown => watch.state = State::Over,
        }
        watch
    }

    /// Whether there is nothing more to see.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// When it has to be looked at.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Probing { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The process whose end is waited for.
    pub(crate) fn process(&self) -> Option<Arc<OwnedFd>> {
        match &self.state {
            State::Process(process) => Some(Arc::clone(process)),
            _ => None,
        }
    }

    /// One of these processes has ended; perhaps what it started lives on.
    pub(crate) fn process_ended(&mut self, ended: &[Arc<OwnedFd>]) {
        if let State::Process(process) = &self.state
            && ended.iter().any(|fd| Arc::ptr_eq(fd, process))
        {
            let at = Instant::now();
            self.state = State::Probing { at, step: STEP_FIRST, step_max: STEP_MAX };
        }
    }

    /// Probes if it is time.
    pub(crate) fn look(&mut self, now: Instant, live: &Liveness) {
        let State::Probing { at, step, step_max } = &mut self.state else { return };
        if *at > now {
            return;
        }
        if live.probe(&self.home) == Alive::Yes {
            *at = now + *step;
            *step = (*step * 2).min(*step_max);
        } else {
            self.state = State::Over;
        }
    }
}

fn open(home: &Home, live: &Liveness) -> Option<OwnedFd> {
    let own = live.home();
    if home.pid_ns != own.pid_ns || home.pid_ns == 0 {
        return None; // its number means nothing here
    }
    if home.pid == own.pid {
        return None; // another store of this very process, which may be closed before that ends
    }
    let pid = Pid::from_raw(i32::try_from(home.pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
