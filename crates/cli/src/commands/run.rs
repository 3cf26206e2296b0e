//! `run`: acquires, runs a command under a keeper, releases.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Client, Lease, Release, State};
use leasehold_core::{ClockKind, Holder, Loss, Moment, Reentry};
use leasehold_supervise::{
    self as supervise, Deadline, DeadlineSender, Ended, Event, Front, How, Lookup, OnDeadline,
    Plan, Reason, Start,
};

use crate::acquiring::{self, NoLease, Report, Watch};
use crate::args::{Common, OnLost, Run};
use crate::asked::Asked;
use crate::claims_env::{self, Ancestors};
use crate::context::Context;
use crate::durations::{millis, rfc3339};
use crate::exit::{Code, End, usage};
use crate::names::Named;
use crate::output::{self, Voice};
use crate::patience::{Ears, until_done};
use crate::records::{self, Status};
use crate::status_fd;
use crate::store::Opened;

/// Runs the command; how leasehold ends.
pub(crate) fn run(common: &Common, args: &Run) -> Result<End, End> {
    let context = Context::new(common)?;
    let named = context.names.full(&args.name)?;
    let asked = Asked::new(&args.ask)?;
    let ancestors = Ancestors::from_env()?;
    let sink = args.status_fd.map(status_fd::open).transpose()?;
    let mut status = Status {
        name: named.given.clone(),
        store: output::redacted(&context.choice.url),
        namespace: context.names.namespace().to_string(),
        ..Status::default()
    };
    let job = Job { context: &context, named: &named, asked: &asked, args, ancestors: &ancestors };
    let end = job.run(&mut status).unwrap_or_else(|end| end);
    if let Some(mut sink) = sink {
        status.conclude(&end);
        // Whoever asked for it may be gone, which is no reason to end otherwise.
        let _ = records::line(&status).map(|line| sink.write_all(line.as_bytes()));
    }
    Ok(end)
}

/// What is to be done.
struct Job<'a> {
    context: &'a Context,
    named: &'a Named,
    asked: &'a Asked,
    args: &'a Run,
    ancestors: &'a Ancestors,
}

impl Job<'_> {
    fn run(&self, status: &mut Status) -> Result<End, End> {
        let plan = self.plan()?;
        let mut front = Front::fork(&plan)?;
        let reach = self.asked.reach(self.context.timeout);
        let opened = self.context.open_within(&mut front, reach)?;
        status.store.clone_from(&opened.client.profile().url);
        if self.args.hold_at_least.is_some() {
            opened.ensure_outlives("--hold-at-least")?;
        }
        let began = Instant::now();
        let (lease, watch) = match self.acquire(&mut front, &opened) {
            Ok(acquired) => acquired,
            Err(no_lease) => {
                status.waited_ms = Some(millis(began.elapsed()));
                return Err(self.not_acquired(no_lease, status));
            }
        };
        let held_since = Instant::now();
        status.waited_ms = Some(millis(held_since - began));
        status.granted(&lease);
        let voice = self.context.voice;
        voice.detail(format_args!("holding {} with token {}", self.named.shown(), lease.mark()));
        let ended = match self.start(&mut front, &opened, &lease) {
            Ok(()) => Watching { job: self, lease: &lease, watch: &watch }.watch(&mut front),
            Err(end) => Err(end),
        };
        let ended = ended.inspect_err(|_| {
            // Nothing may run on when nobody watches; then the lock is free.
            front.end(Reason::Asked);
        });
        match ended {
            Ok(ended) => {
                let end = self.conclude(&ended, lease, held_since, status);
                if watch.has_queued() && !opened.client.profile().remote {
                    // What it was woken by would stay in the store's folder.
                    leasehold::blocking::block_on(opened.client.store().close());
                }
                opened.say_farewell();
                // Nothing else is left to be undone; taking it all down would only take time.
                std::mem::forget((front, opened));
                Ok(end)
            }
            Err(end) => {
                drop(front);
                let _ = leasehold::blocking::release(lease);
                Err(end)
            }
        }
    }

    /// Finds the command before anything is waited for.
    fn plan(&self) -> Result<Plan, End> {
        let command = &self.args.command;
        let program = command.first().map_or(OsStr::new(""), |first| first);
        let found = find(program)?;
        Ok(Plan {
            grace: self.args.grace,
            on_deadline: match self.args.on_lost {
                OnLost::Kill => OnDeadline::Kill,
                OnLost::Warn => OnDeadline::Warn,
            },
            wait_all: self.args.wait_all,
            with_parent: self.args.with_parent,
            ..Plan::new(found, command.clone())
        })
    }

    fn acquire(&self, front: &mut Front, opened: &Opened) -> Result<(Lease, Arc<Watch>), NoLease> {
        let client = &opened.client;
        let holder = self.holder(front, client).map_err(NoLease::End)?;
        let timeout = self.context.timeout;
        let request = self.asked.request(opened, self.named, Some(&holder), timeout);
        let request = request.map_err(NoLease::End)?;
        let keeper = front.deadlines();
        let clock = client.profile().clock;
        let watch = Watch::new(Ears::waker(front), move |until| tell(&keeper, clock, until));
        let report = Report::new(self.context.voice, self.named);
        let lease = acquiring::acquire(front, client, request, &watch, report)?;
        Ok((lease, watch))
    }

    /// Who claims: the holder around this run that is entered again, or a new one.
    fn holder(&self, front: &mut Front, client: &Client) -> Result<Holder, End> {
        let new = || {
            let label = self.asked.label().map_or_else(|| self.label(), str::to_string);
            client.new_holder(Some(&label)).map_err(End::from)
        };
        if self.ancestors.is_empty() {
            return new();
        }
        let queue = until_done(front, client.inspect(self.named.full.as_str()), |_, heard| {
            acquiring::interrupted(&heard)
        })??;
        let (mode, reenter) = (self.asked.mode, self.args.reenter);
        let outer = claims_env::reentry(self.ancestors, &queue, self.named, mode, reenter)?;
        match outer {
            Some(_) if client.profile().reentry == Reentry::Client => Err(usage(format!(
                "{} is held by a run around this one, and {} lets no other process enter it again",
                self.named.shown(),
                client.profile().url
            ))),
            Some(outer) => Ok(outer),
            None if reenter => claims_env::holder_from_env()?.map_or_else(new, Ok),
            None => new(),
        }
    }

    /// Host, process and the command's name, never its arguments.
    fn label(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let program = self.args.command.first().map(Path::new).and_then(Path::file_name);
        let program = program.unwrap_or_default().to_string_lossy();
        format!("{host}:{}:{program}", std::process::id())
    }

    fn not_acquired(&self, no_lease: NoLease, status: &mut Status) -> End {
        status.outcome = match &no_lease {
            NoLease::Busy(_) => "busy",
            NoLease::End(End::Fail(Code::Busy, _)) => "interrupted",
            NoLease::End(End::Fail(Code::Unreachable, _)) => "unreachable",
            NoLease::End(End::Exit(_)) => "interrupted",
            NoLease::End(_) => "failed",
        };
        match (no_lease, self.args.busy_exit_code) {
            (NoLease::Busy(why), Some(code)) => {
                self.context.voice.warn(why);
                End::Exit(code.into())
            }
            (no_lease, _) => no_lease.end(Code::Busy),
        }
    }

    fn start(&self, front: &mut Front, opened: &Opened, lease: &Lease) -> Result<(), End> {
        let url = opened.command_url(&self.context.choice);
        let set = claims_env::variables(self.context, self.named, lease, &url, self.ancestors);
        let mut env_remove = Vec::new();
        if lease.slots().is_empty() {
            env_remove.push("LEASEHOLD_SLOTS".into());
        }
        let clock = opened.client.profile().clock;
        let told = lease.until();
        front.start(&Start {
            env_set: set.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            env_remove,
            deadline: Some(deadline(clock, told)),
            descriptors: opened.liveness().into_iter().collect(),
            release_stdio: true,
        })?;
        // A renewal between the two moments was told to nobody.
        let until = lease.until();
        if until > told {
            tell(&front.deadlines(), clock, until);
        }
        Ok(())
    }

    /// Gives the lock back and says how it all ended.
    fn conclude(
        &self,
        ended: &Ended,
        lease: Lease,
        held_since: Instant,
        status: &mut Status,
    ) -> End {
        let voice = self.context.voice;
        let loss = match lease.state() {
            State::Lost(loss) => Some(loss),
            _ if ended.deadline_passed || ended.forced == Some(Reason::Deadline) => {
                Some(Loss::Expired)
            }
            _ => None,
        };
        status.command(ended);
        let held_for = held_since.elapsed();
        status.held_ms = Some(millis(held_for));
        let loss = match (loss, ended.unkillable.as_slice()) {
            (_, [_, ..]) => {
                // Whoever holds it next must not meet what could not be ended: the term decides.
                let _ = leasehold::blocking::block_on(lease.leave_by_term(Duration::ZERO));
                status.release = Some("kept");
                status.outcome = "lost";
                return End::Fail(Code::Lost, self.unkillable(&ended.unkillable));
            }
            (Some(loss), _) => {
                let _ = leasehold::blocking::release(lease);
                status.release = Some("already_lost");
                Some(loss)
            }
            (None, _) => self.release(lease, held_for, status),
        };
        if let Some(loss) = loss {
            status.outcome = "lost";
            status.lost = Some(loss.word());
            voice.warn(format_args!("lost {}: {}", self.named.shown(), loss_words(loss)));
            return End::code(Code::Lost);
        }
        status.outcome = "done";
        self.own_end(ended)
    }

    /// Releases what is held; the loss, if the store knows of one.
    fn release(&self, lease: Lease, held_for: Duration, status: &mut Status) -> Option<Loss> {
        let stay = self.args.hold_at_least.and_then(|least| least.checked_sub(held_for));
        let release = match stay {
            Some(stay) => leasehold::blocking::block_on(lease.leave_by_term(stay))
                .unwrap_or_else(Release::Unknown),
            None => leasehold::blocking::release(lease),
        };
        let (word, loss) = match release {
            Release::Released if stay.is_some() => ("by_term", None),
            Release::Released => ("released", None),
            // Belief ended in time and so did the command: only the word came late.
            Release::AlreadyLost(Loss::Expired) => ("already_lost", None),
            Release::AlreadyLost(loss) => ("already_lost", Some(loss)),
            Release::Unknown(error) => {
                let text = "could not be released and ends by its term: failed to";
                self.context.voice.warn(format_args!("{} {text} {error}", self.named.shown()));
                ("unknown", None)
            }
        };
        status.release = Some(word);
        loss
    }

    /// The end of a command that was in time.
    fn own_end(&self, ended: &Ended) -> End {
        if ended.forced == Some(Reason::KeeperGone) {
            output::error("the keeper was killed, and so the command was ended");
        }
        match ended.how {
            How::Exited(code) => End::Exit(code),
            How::Signaled(signal) if ended.forced.is_none() && is_from_keyboard(signal) => {
                End::Signal(signal)
            }
            How::Signaled(signal) => End::by_signal(signal),
            How::StartFailed(errno) => not_started(&self.args.command, errno, ended.how),
            How::StillRunning | How::Unknown => {
                End::Fail(Code::Bug, "nobody saw how the command ended".into())
            }
        }
    }

    fn unkillable(&self, pids: &[i32]) -> String {
        let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
        format!(
            "{} has to be given up and these processes of another user cannot be ended: {}; the \
             lock is not released (run `sudo leasehold …`, not `leasehold … sudo`)",
            self.named.shown(),
            pids.join(" ")
        )
    }
}

/// A command that runs, and what is told about its lease.
struct Watching<'a> {
    job: &'a Job<'a>,
    lease: &'a Lease,
    watch: &'a Watch,
}

impl Watching<'_> {
    fn watch(&self, front: &mut Front) -> Result<Ended, End> {
        let voice = self.job.context.voice;
        let named = self.job.named.shown();
        loop {
            #[cfg(debug_assertions)]
            crate::panics::if_asked();
            match front.wait(None)? {
                Event::Ended(ended) => return Ok(ended),
                Event::Woken => self.look(front, voice),
                Event::DeadlinePassed => {
                    voice.warn(format_args!(
                        "the right to {named} has ended, and the command goes on"
                    ));
                }
                Event::Ending(Reason::Deadline) => {
                    voice.warn(format_args!("{named} was not renewed in time: ending the command"));
                }
                Event::Ending(Reason::ParentEnded) => {
                    voice.detail("leasehold's parent ended: ending the command");
                }
                _ => {}
            }
        }
    }

    /// Acts on what the observer was told.
    fn look(&self, front: &mut Front, voice: Voice) {
        let told = self.watch.take();
        let named = self.job.named.shown();
        if told.at_risk {
            voice.detail(format_args!("a renewal of {named} is overdue"));
        }
        if let Some(error) = told.error {
            voice.detail(format_args!("failed to {error}; going on trying"));
        }
        let Some(loss) = told.loss else { return };
        let why = loss_words(loss);
        match self.job.args.on_lost {
            OnLost::Kill => {
                voice.warn(format_args!("{named} is lost ({why}): ending the command"));
                front.end(Reason::Lost);
            }
            OnLost::Warn => {
                voice.warn(format_args!("{named} is lost ({why}), and the command goes on"));
            }
        }
        debug_assert!(matches!(self.lease.state(), State::Lost(_)));
    }
}

impl Status {
    /// Notes how the command ended.
    fn command(&mut self, ended: &Ended) {
        match ended.how {
            How::Exited(code) => self.command_exit_code = Some(code),
            How::Signaled(signal) => self.command_signal = Some(signal),
            How::StartFailed(_) | How::StillRunning | How::Unknown => {}
        }
        self.ended_by = ended.forced.map(|reason| match reason {
            Reason::Deadline => "deadline",
            Reason::Lost => "lost",
            Reason::Asked => "asked",
            Reason::ParentEnded => "parent_ended",
            Reason::FrontGone => "front_gone",
            Reason::KeeperGone => "keeper_gone",
        });
    }

    /// Notes how leasehold ends.
    fn conclude(&mut self, end: &End) {
        self.exit_code = match end {
            End::Exit(code) => *code,
            End::Signal(signal) => 128 + signal,
            End::Fail(code, _) => code.number(),
        };
        if self.outcome.is_empty() {
            self.outcome = "failed";
        }
        self.ended_at = rfc3339(SystemTime::now());
    }
}

/// Tells the keeper a new deadline. One that cannot be told leaves the old one standing.
fn tell(keeper: &DeadlineSender, clock: ClockKind, until: Moment) {
    let _ = keeper.extend(deadline(clock, until));
}

fn deadline(clock: ClockKind, until: Moment) -> Deadline {
    let clock = match clock {
        ClockKind::Boot => supervise::ClockKind::Boot,
        ClockKind::Monotonic => supervise::ClockKind::Monotonic,
    };
    Deadline::at(clock, until.as_nanos())
}

/// Finds a command along PATH.
pub(crate) fn find(program: &OsStr) -> Result<std::path::PathBuf, End> {
    let shown = program.to_string_lossy();
    if program.is_empty() {
        return Err(usage("the command is empty: want the name of a program after `--`"));
    }
    match supervise::lookup(program, std::env::var_os("PATH").as_deref()) {
        Lookup::Found(path) => Ok(path),
        Lookup::NotExecutable(path) => {
            let why = format!("{} cannot be executed", path.display());
            Err(End::Fail(Code::NotExecutable, why))
        }
        Lookup::NotFound => Err(End::Fail(Code::NotFound, format!("{shown}: command not found"))),
    }
}

/// A command that was found and then could not be executed.
pub(crate) fn not_started(command: &[std::ffi::OsString], errno: i32, how: How) -> End {
    let program = command.first().map(|first| first.to_string_lossy()).unwrap_or_default();
    let code = match how.code() {
        Some(127) => Code::NotFound,
        _ => Code::NotExecutable,
    };
    let why = std::io::Error::from_raw_os_error(errno);
    End::Fail(code, format!("cannot execute {program}: {why}"))
}

/// INT and QUIT, by which a terminal ends a command, and a shell its script with it.
pub(crate) fn is_from_keyboard(signal: i32) -> bool {
    use rustix::process::Signal;
    signal == Signal::INT.as_raw() || signal == Signal::QUIT.as_raw()
}

/// Why a lease was lost, in words.
pub(crate) fn loss_words(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "its term ran out",
        Loss::Stolen => "another has it",
        Loss::Broken => "an operator broke it",
        Loss::Evicted => "the store dropped it",
        Loss::Failover => "the store lost it when another member took over",
        Loss::Clock => "the store's clock moved",
        Loss::Unreachable => "the store was not reached in time",
        Loss::StoreReplaced => "the store was replaced",
        _ => loss.word(),
    }
}
