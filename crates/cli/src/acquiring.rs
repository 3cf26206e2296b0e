//! Acquiring with someone watching: says who is waited for, and leaves the queue when asked to.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use leasehold::{AcquireError, Client, Lease, Observer, Request};
use leasehold_core::{Busy, Error, Loss, Moment, Occupant, Waiting, shown};

use crate::durations::{brief, rfc3339_ago};
use crate::exit::{Code, End};
use crate::names::Named;
use crate::output::{self, Voice};
use crate::patience::{Ears, Heard, until_done};

/// When a terminal is first told that it waits: most locks are free before anyone can read it.
const TELL_AFTER: Duration = Duration::from_millis(300);
/// How often a terminal is told anew.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often a log is told, with `-v`.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// How long a claim that is being withdrawn is waited for at the end.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// The same where a deadline has passed already, which bounds all of it.
const LEAVE_LATE_WITHIN: Duration = Duration::from_millis(250);

/// Why there is no lease.
#[derive(Debug)]
pub(crate) enum NoLease {
    /// Others hold it.
    Busy(String),
    /// Anything else.
    End(End),
}

impl NoLease {
    /// How the program ends, where busy has this code.
    pub(crate) fn end(self, busy: Code) -> End {
        match self {
            NoLease::Busy(why) => End::Fail(busy, why),
            NoLease::End(end) => end,
        }
    }
}

/// What the driver has told, for the thread that waits and then watches.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) waiting: Option<Waiting>,
    pub(crate) error: Option<Error>,
    pub(crate) at_risk: bool,
    pub(crate) loss: Option<Loss>,
}

/// The observer of one request: notes what it is told, and wakes whoever must act on it.
pub(crate) struct Watch {
    told: Mutex<Told>,
    has_queued: AtomicBool,
    waker: Waker,
    /// Is given each new deadline, on the driver's thread.
    kept: Box<dyn Fn(Moment) + Send + Sync>,
}

impl Watch {
    pub(crate) fn new(waker: Waker, kept: impl Fn(Moment) + Send + Sync + 'static) -> Arc<Watch> {
        let has_queued = AtomicBool::new(false);
        Arc::new(Watch { told: Mutex::default(), has_queued, waker, kept: Box::new(kept) })
    }

    /// Whether the request has stood in the store's queue.
    pub(crate) fn has_queued(&self) -> bool {
        self.has_queued.load(Ordering::Relaxed)
    }

    /// What was told since it was last asked.
    pub(crate) fn take(&self) -> Told {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, note: impl FnOnce(&mut Told)) {
        note(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
        self.waker.wake_by_ref();
    }
}

impl Observer for Watch {
    fn waiting(&self, waiting: &Waiting) {
        self.has_queued.store(true, Ordering::Relaxed);
        self.note(|told| told.waiting = Some(waiting.clone()));
    }

    fn retrying(&self, error: &Error) {
        self.note(|told| told.error = Some(error.clone()));
    }

    fn kept(&self, until: Moment) {
        (self.kept)(until);
    }

    fn at_risk(&self) {
        self.note(|told| told.at_risk = true);
    }

    fn lost(&self, loss: Loss) {
        self.note(|told| told.loss = Some(loss));
    }
}

/// Acquires. INT, TERM, HUP and QUIT leave the queue; a second one ends the process at once.
///
/// `also` is asked about what is heard besides signals, and told what is said while waiting.
pub(crate) fn acquire<E: Ears>(
    ears: &mut E,
    client: &Client,
    request: Request,
    watch: &Arc<Watch>,
    mut report: Report<'_>,
) -> Result<Lease, NoLease> {
    let request = request.observe(Arc::clone(watch) as Arc<dyn Observer>);
    let acquired = until_done(ears, request.acquire(), |ears, heard| match heard {
        Heard::Signal(signal) if signal.asks_to_end() => {
            ears.end_at_once();
            Err(End::by_signal(signal.number))
        }
        Heard::ParentEnded => Err(parent_ended()),
        Heard::Ready(at) => report.ready(at),
        _ => Ok(report.tick(watch)),
    });
    report.done();
    let within = if acquired.is_err() { LEAVE_WITHIN } else { LEAVE_LATE_WITHIN };
    let lost = match acquired {
        Ok(Ok(lease)) => return Ok(lease),
        Ok(Err(AcquireError::Failed(error))) => NoLease::End(error.into()),
        Ok(Err(AcquireError::Busy(busy))) => NoLease::Busy(busy_line(report.named, &busy, None)),
        Ok(Err(AcquireError::TimedOut(busy))) => {
            let waited = Some(report.began.elapsed());
            NoLease::Busy(busy_line(report.named, &busy, waited))
        }
        Err(end) => NoLease::End(end),
    };
    // What the request left behind goes on leaving on the client's thread.
    let _ = leasehold::blocking::close(client.clone(), within);
    Err(lost)
}

/// What ends a call that waits for the store alone.
pub(crate) fn interrupted(heard: &Heard) -> Result<Option<Duration>, End> {
    match heard {
        Heard::Signal(signal) if signal.asks_to_end() => Err(End::by_signal(signal.number)),
        Heard::ParentEnded => Err(parent_ended()),
        _ => Ok(None),
    }
}

fn parent_ended() -> End {
    End::Fail(Code::Busy, "leasehold's parent ended before the lock was free".into())
}

fn busy_line(named: &Named, busy: &Busy, waited: Option<Duration>) -> String {
    let mut line = format!("{} is busy", named.shown());
    if let Some(holder) = &busy.holder {
        line += &format!(", {}", held_by(holder));
    }
    if let Some(waited) = waited {
        line += &format!(", after {} of waiting", brief(waited));
    }
    line
}

fn held_by(holder: &Occupant) -> String {
    let label = shown(&holder.label, 200);
    match holder.held_for {
        Some(span) => format!("held by {label} for {} (since {})", brief(span), rfc3339_ago(span)),
        None => format!("held by {label}"),
    }
}

/// Says what is waited for, as far as anyone wants to hear it.
pub(crate) struct Report<'a> {
    voice: Voice,
    named: &'a Named,
    began: Instant,
    terminal: bool,
    next: Duration,
    /// A line stands on the terminal that is to be taken away.
    shows: bool,
    waiting: Option<(Waiting, Instant)>,
    unreached: bool,
    ready: Option<Ready<'a>>,
    status: Option<Status<'a>>,
}

/// What to do when a descriptor that is watched too can be read.
type Ready<'a> = Box<dyn FnMut(usize) -> Result<(), End> + 'a>;
/// Who else is told what is waited for.
type Status<'a> = Box<dyn FnMut(&str) + 'a>;

impl<'a> Report<'a> {
    pub(crate) fn new(voice: Voice, named: &'a Named) -> Report<'a> {
        let terminal = !voice.is_quiet() && output::stderr_is_terminal();
        Report {
            voice,
            named,
            began: Instant::now(),
            terminal,
            next: if terminal { TELL_AFTER } else { LOG_EVERY },
            shows: false,
            waiting: None,
            unreached: false,
            ready: None,
            status: None,
        }
    }

    /// Asks this about descriptors that can be read.
    pub(crate) fn on_ready(mut self, ready: impl FnMut(usize) -> Result<(), End> + 'a) -> Self {
        self.ready = Some(Box::new(ready));
        self
    }

    /// Tells this too what is waited for, from the first moment.
    pub(crate) fn on_status(mut self, status: impl FnMut(&str) + 'a) -> Self {
        self.status = Some(Box::new(status));
        self
    }

    fn ready(&mut self, at: usize) -> Result<Option<Duration>, End> {
        if let Some(ready) = &mut self.ready {
            ready(at)?;
        }
        Ok(self.pause())
    }

    /// Takes what was told, says what is due, and returns when the next is.
    fn tick(&mut self, watch: &Watch) -> Option<Duration> {
        let told = watch.take();
        if let Some(waiting) = told.waiting {
            if self.waiting.is_none()
                && let Some(status) = &mut self.status
            {
                status(&wait_line(self.named, &waiting, Duration::ZERO, Duration::ZERO));
            }
            self.waiting = Some((waiting, Instant::now()));
            if self.unreached {
                self.unreached = false;
                self.say_over("the store answers again");
            }
        }
        if let Some(error) = told.error
            && !self.unreached
        {
            self.unreached = true;
            self.say_over(&format!("failed to {error}; going on trying"));
        }
        if self.began.elapsed() >= self.next {
            self.say();
            self.next = self.began.elapsed() + if self.terminal { TELL_EVERY } else { LOG_EVERY };
        }
        self.pause()
    }

    fn pause(&self) -> Option<Duration> {
        let speaks = self.terminal || self.voice.is_verbose() || self.status.is_some();
        speaks.then(|| self.next.saturating_sub(self.began.elapsed()))
    }

    fn say(&mut self) {
        let Some((waiting, seen)) = &self.waiting else { return };
        let line = wait_line(self.named, waiting, seen.elapsed(), self.began.elapsed());
        if let Some(status) = &mut self.status {
            status(&line);
        }
        if self.terminal {
            self.shows = true;
            output::status(Some(&line));
        } else {
            self.voice.detail(line);
        }
    }

    fn say_over(&mut self, line: &str) {
        self.done();
        self.voice.warn(line);
    }

    /// Leaves the terminal as it was.
    fn done(&mut self) {
        if std::mem::take(&mut self.shows) {
            output::status(None);
        }
    }
}

fn wait_line(named: &Named, waiting: &Waiting, seen_ago: Duration, waited: Duration) -> String {
    let mut line = format!("waiting for {}", named.shown());
    if let Some(holder) = &waiting.holder {
        let held_for = holder.held_for.map(|span| span + seen_ago);
        line += &format!(", {}", held_by(&Occupant { held_for, ..holder.clone() }));
    }
    if let Some(ahead) = waiting.ahead.filter(|ahead| *ahead > 1) {
        line += &format!(", {ahead} ahead");
    }
    if waited >= TELL_AFTER {
        line += &format!(", waited {}", brief(waited));
    }
    line
}

/// Whether a question can be asked: someone reads stderr and answers on stdin.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}
