//! What the keeper decides. Pure: the time comes in with each input, and what is to be done comes
//! out as effects, so that every interleaving can be tested without a process or a clock.

use std::collections::VecDeque;

use crate::message::ToFront;
use crate::plan::{Ended, How, OnDeadline, Reason};
use crate::time::Armed;

/// What the keeper learns. Deadlines carry the moment at which they were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// The command runs.
    Started { pid: i32, deadline: Option<u64>, sent_at: u64 },
    /// The command could not be executed.
    StartFailed { errno: i32 },
    /// A new deadline.
    Extend { at: u64, sent_at: u64 },
    /// The front wants the tree ended.
    End(Reason),
    /// The front died.
    FrontGone,
    /// The front's parent ended.
    ParentGone,
    /// The command itself ended; whether nothing else is left.
    CommandEnded { how: How, alone: bool },
    /// No descendant is left.
    TreeGone,
    /// What is left cannot be signalled.
    Stuck(Vec<i32>),
    /// Nothing but time.
    Tick,
}

/// What the keeper is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask the whole tree to end: TERM, and CONT so that what is stopped hears it.
    Term,
    /// Tell the front.
    Report(ToFront),
    /// End the keeper.
    Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The command has yet to be started.
    Idle,
    /// It runs, or with `wait_all` something of it does.
    Running,
    /// TERM was sent; final.
    Asked { reason: Reason, kill_at: Option<u64> },
    /// KILL is being sent; final.
    Killing { reason: Reason },
    /// The end was reported; something that cannot be signalled is left, and the keeper's
    /// descriptors stay open until it is gone or the right has ended.
    Lingering,
    /// The keeper has nothing left to do.
    Done,
}

/// The keeper's decisions.
#[derive(Debug)]
pub(crate) struct Machine {
    grace_ns: u64,
    on_deadline: OnDeadline,
    wait_all: bool,
    phase: Phase,
    armed: Option<Armed>,
    warned: bool,
    how: Option<How>,
    effects: VecDeque<Effect>,
}

impl Machine {
    pub(crate) fn new(grace_ns: u64, on_deadline: OnDeadline, wait_all: bool) -> Self {
        Self {
            grace_ns,
            on_deadline,
            wait_all,
            phase: Phase::Idle,
            armed: None,
            warned: false,
            how: None,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to come back with a `Tick`, if nothing else happens.
    pub(crate) fn timer(&self) -> Option<u64> {
        match (self.phase, self.armed) {
            (Phase::Running, Some(armed)) => match self.on_deadline {
                OnDeadline::Kill => Some(armed.term_at),
                OnDeadline::Warn => (!self.warned).then_some(armed.at),
            },
            (Phase::Asked { kill_at, .. }, _) => kill_at,
            (Phase::Lingering, armed) => armed.map(|armed| armed.at),
            _ => None,
        }
    }

    /// Whether the tree is to be killed, again and again until `TreeGone` or `Stuck`.
    pub(crate) fn is_killing(&self) -> bool {
        matches!(self.phase, Phase::Killing { .. })
    }

    /// Whether the command was started and its end has yet to be reported.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Asked { .. } | Phase::Killing { .. })
    }

    /// Takes what was learned at `now` into account.
    pub(crate) fn handle(&mut self, now: u64, input: Input) {
        match input {
            Input::Started { pid, deadline, sent_at } => self.started(pid, deadline, sent_at),
            Input::StartFailed { errno } => {
                self.how = Some(How::StartFailed(errno));
                self.report_end(now, None, true, Vec::new());
                self.exit();
            }
            Input::Extend { at, sent_at } => self.extend(at, sent_at),
            Input::End(reason) => self.ask(now, reason),
            Input::FrontGone => self.front_gone(),
            Input::ParentGone => {
                if matches!(self.phase, Phase::Idle | Phase::Running) {
                    self.report(ToFront::ParentEnded);
                }
                self.ask(now, Reason::ParentEnded);
            }
            Input::CommandEnded { how, alone } => self.command_ended(now, how, alone),
            Input::TreeGone => self.tree_gone(now),
            Input::Stuck(pids) => self.stuck(now, pids),
            Input::Tick => {}
        }
        self.tick(now);
    }

    fn started(&mut self, pid: i32, deadline: Option<u64>, sent_at: u64) {
        debug_assert_eq!(self.phase, Phase::Idle);
        self.phase = Phase::Running;
        self.armed = deadline.map(|at| Armed::new(at, sent_at, self.grace_ns));
        self.report(ToFront::Started(pid));
    }

    /// A deadline that was sent once the one before it was due comes too late, however soon or
    /// late the keeper reads it: what it decides must not hang on when it was scheduled.
    fn extend(&mut self, at: u64, sent_at: u64) {
        if self.phase != Phase::Running {
            return;
        }
        let too_late = self.armed.is_some_and(|armed| match self.on_deadline {
            OnDeadline::Kill => sent_at >= armed.term_at,
            OnDeadline::Warn => self.warned || sent_at >= armed.at,
        });
        if !too_late {
            self.armed = Some(Armed::new(at, sent_at, self.grace_ns));
        }
    }

    /// Ends the tree now, with the grace that the deadline leaves.
    fn ask(&mut self, now: u64, reason: Reason) {
        let soonest = now.saturating_add(self.grace_ns);
        match &mut self.phase {
            Phase::Running => {
                let latest = match self.on_deadline {
                    OnDeadline::Kill => self.armed.map(|armed| armed.kill_at),
                    OnDeadline::Warn => None,
                };
                let kill_at = Some(latest.map_or(soonest, |latest| latest.min(soonest)));
                self.begin(reason, kill_at);
            }
            Phase::Asked { kill_at, .. } => {
                *kill_at = Some(kill_at.map_or(soonest, |at| at.min(soonest)));
            }
            _ => {}
        }
    }

    fn begin(&mut self, reason: Reason, kill_at: Option<u64>) {
        self.phase = Phase::Asked { reason, kill_at };
        self.report(ToFront::Ending(reason));
        self.effects.push_back(Effect::Term);
    }

    fn kill(&mut self, reason: Reason) {
        if matches!(self.phase, Phase::Idle | Phase::Running) {
            self.report(ToFront::Ending(reason));
        }
        self.phase = Phase::Killing { reason };
    }

    fn front_gone(&mut self) {
        match self.phase {
            Phase::Idle => self.exit(),
            Phase::Running => self.kill(Reason::FrontGone),
            Phase::Asked { reason, .. } => self.kill(reason),
            Phase::Killing { .. } | Phase::Lingering | Phase::Done => {}
        }
    }

    fn command_ended(&mut self, now: u64, how: How, alone: bool) {
        self.how = Some(how);
        if self.phase != Phase::Running {
            return;
        }
        // Seen only after its right had ended: what it left running has no right either.
        if self.on_deadline == OnDeadline::Kill && self.deadline_passed(now) {
            self.kill(Reason::Deadline);
        } else if !self.wait_all {
            self.report_end(now, None, alone, Vec::new());
            self.exit();
        }
    }

    fn tree_gone(&mut self, now: u64) {
        match self.phase {
            // With `wait_all`.
            Phase::Running => self.report_end(now, None, true, Vec::new()),
            Phase::Asked { reason, .. } | Phase::Killing { reason } => {
                self.report_end(now, Some(reason), true, Vec::new());
            }
            Phase::Lingering => {}
            Phase::Idle | Phase::Done => return,
        }
        self.exit();
    }

    fn stuck(&mut self, now: u64, pids: Vec<i32>) {
        if let Phase::Killing { reason } = self.phase {
            self.report_end(now, Some(reason), false, pids);
            self.phase = Phase::Lingering;
        }
    }

    fn tick(&mut self, now: u64) {
        match (self.phase, self.armed) {
            (Phase::Running, Some(armed)) => match self.on_deadline {
                OnDeadline::Kill if now >= armed.kill_at => self.kill(Reason::Deadline),
                OnDeadline::Kill if now >= armed.term_at => {
                    self.begin(Reason::Deadline, Some(armed.kill_at));
                }
                OnDeadline::Warn if now >= armed.at && !self.warned => {
                    self.warned = true;
                    self.report(ToFront::DeadlinePassed);
                }
                _ => {}
            },
            (Phase::Asked { reason, kill_at: Some(kill_at) }, _) if now >= kill_at => {
                self.kill(reason);
            }
            (Phase::Lingering, Some(armed)) if now >= armed.at => self.exit(),
            _ => {}
        }
    }

    fn deadline_passed(&self, now: u64) -> bool {
        self.warned || self.armed.is_some_and(|armed| now >= armed.at)
    }

    fn report_end(
        &mut self,
        now: u64,
        forced: Option<Reason>,
        tree_gone: bool,
        unkillable: Vec<i32>,
    ) {
        let how = self.how.unwrap_or(How::StillRunning);
        let deadline_passed = self.deadline_passed(now);
        let ended = Ended { how, forced, deadline_passed, tree_gone, unkillable };
        self.report(ToFront::Ended(ended));
    }

    fn report(&mut self, message: ToFront) {
        self.effects.push_back(Effect::Report(message));
    }

    fn exit(&mut self) {
        self.phase = Phase::Done;
        self.effects.push_back(Effect::Exit);
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
