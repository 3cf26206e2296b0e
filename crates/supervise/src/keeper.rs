//! The keeper process: one loop around the machine. It is forked with what the front had in
//! memory, has one thread, and never returns.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::environ;
use crate::machine::{Effect, Input, Machine};
use crate::message::{MESSAGE_MOST, ToFront, ToKeeper};
use crate::plan::How;
use crate::sys::{self, Received, Waited};
use crate::time::ClockKind;
use crate::tree::{Round, Tree};

/// How long to wait between two rounds of killing, at first and at most.
const KILL_PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// How often to continue a front that was told that the command stopped.
const RESUME_PAUSE: Duration = Duration::from_millis(20);
/// How many times, when the keeper is about to end.
const RESUMES_MOST: u32 = 250;
/// The most messages taken at one wake-up, so that no flood holds off the deadline.
const MESSAGES_A_WAKE: usize = 64;
/// Rounds of killing after which children that `/proc` does not show are given up.
const BLIND_ROUNDS: u32 = 200;

/// What the keeper is forked with.
pub(crate) struct Setup {
    pub(crate) socket: OwnedFd,
    pub(crate) parent: Option<OwnedFd>,
    pub(crate) front: i32,
    pub(crate) front_group: i32,
    pub(crate) program: CString,
    pub(crate) args: Vec<CString>,
    pub(crate) machine: Machine,
}

struct Keeper {
    setup: Setup,
    children: OwnedFd,
    timer: Option<(ClockKind, OwnedFd)>,
    timer_at: Option<u64>,
    clock: ClockKind,
    tree: Tree,
    kept: Vec<OwnedFd>,
    /// The command, until it has been reaped, and whether it leads a group of its own.
    command: Option<i32>,
    leads_group: bool,
    stop: Stop,
    front_gone: bool,
    /// Signals for the command, kept until the deadline has been looked at.
    to_forward: Vec<i32>,
    kill_pause: Duration,
    blind_rounds: u32,
    buffer: Vec<u8>,
}

/// Whether the front was told that the command stopped, and must be continued with it.
#[derive(PartialEq, Eq)]
enum Stop {
    No,
    Told,
    Continuing,
}

/// Runs the keeper in the child of the fork.
pub(crate) fn run(setup: Setup) -> ! {
    sys::set_group();
    sys::block(&sys::SigSet::all());
    sys::set_name(c"leasehold-keep");
    let front_group = setup.front_group;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let children = sys::signal_fd(&sys::SigSet::of([libc::SIGCHLD]));
        if let (Ok(()), Ok(children)) = (sys::be_subreaper(), children) {
            Keeper::new(setup, children).run();
        }
    }));
    if ran.is_err() {
        // A bug: at least nothing runs on without a keeper.
        let mut tree = Tree::under_this_process(front_group, HashSet::new());
        while sys::wait_any() != Waited::NoChildren && !matches!(tree.kill(), Round::Stuck(_)) {
            std::thread::sleep(KILL_PAUSE[0]);
        }
        sys::process_exit(70);
    }
    sys::process_exit(0)
}

impl Keeper {
    fn new(setup: Setup, children: OwnedFd) -> Self {
        let tree = Tree::under_this_process(setup.front_group, HashSet::new());
        Self {
            setup,
            children,
            timer: None,
            timer_at: None,
            clock: ClockKind::Monotonic,
            tree,
            kept: Vec::new(),
            command: None,
            leads_group: true,
            stop: Stop::No,
            front_gone: false,
            to_forward: Vec::new(),
            kill_pause: KILL_PAUSE[0],
            blind_rounds: 0,
            buffer: vec![0; MESSAGE_MOST],
        }
    }

    fn run(&mut self) {
        loop {
            self.set_timer();
            self.sleep();
            // New deadlines carry the moment at which they were sent: one that was sent too late
            // changes nothing, whenever it is heard.
            self.hear();
            // The start is told before a stop that came right after it.
            if self.effects() {
                return;
            }
            let now = self.clock.now_ns();
            self.reap(now);
            self.handle(now, Input::Tick);
            // Only now: a CONT from a front that woke first must not let run what is overdue.
            for signal in std::mem::take(&mut self.to_forward) {
                if !self.setup.machine.is_killing() {
                    self.forward(signal);
                }
            }
            if self.act(now) {
                return;
            }
        }
    }

    fn handle(&mut self, now: u64, input: Input) {
        self.setup.machine.handle(now, input);
    }

    fn set_timer(&mut self) {
        let at = self.setup.machine.timer();
        if at == self.timer_at {
            return;
        }
        if let Some((_, timer)) = &self.timer
            && sys::timer_arm(timer.as_fd(), at).is_ok()
        {
            self.timer_at = at;
        }
    }

    fn sleep(&mut self) {
        let mut pause = self.setup.machine.is_killing().then_some(self.kill_pause);
        if self.stop == Stop::Continuing {
            pause = Some(pause.map_or(RESUME_PAUSE, |pause| pause.min(RESUME_PAUSE)));
        }
        let timer = self.timer.as_ref().map(|(_, timer)| timer.as_fd());
        let parent = self.setup.parent.as_ref().map(AsFd::as_fd);
        let socket = (!self.front_gone).then_some(self.setup.socket.as_fd());
        let children = Some(self.children.as_fd());
        // A poll that fails (no memory) is a wake-up like any other: everything is looked at.
        let ready = sys::poll_readable([socket, children, timer, parent], pause);
        let [_, _, timer_rang, parent_ended] = ready.unwrap_or([false; 4]);
        if let Some((_, timer)) = self.timer.as_ref().filter(|_| timer_rang) {
            sys::timer_clear(timer.as_fd());
            self.timer_at = None;
        }
        if parent_ended {
            self.setup.parent = None;
            let now = self.clock.now_ns();
            self.handle(now, Input::ParentGone);
        }
        while sys::signal_read(self.children.as_fd()).is_some() {}
    }

    /// Takes the front's messages.
    fn hear(&mut self) {
        for _ in 0..MESSAGES_A_WAKE {
            if self.front_gone {
                return;
            }
            let now = self.clock.now_ns();
            match sys::receive(self.setup.socket.as_fd(), &mut self.buffer) {
                Received::Nothing => return,
                Received::Closed => {
                    self.front_gone = true;
                    self.handle(now, Input::FrontGone);
                }
                Received::Message(length, descriptors) => {
                    let bytes = self.buffer.get(..length).unwrap_or_default();
                    if let Some(message) = ToKeeper::decode(bytes) {
                        self.obey(now, message, descriptors);
                    }
                }
            }
        }
    }

    fn obey(&mut self, now: u64, message: ToKeeper, descriptors: Vec<OwnedFd>) {
        match message {
            ToKeeper::Start { deadline, sent_at, group, env_set, env_remove } => {
                if self.setup.machine.is_live() {
                    return;
                }
                self.kept = descriptors.into_iter().map(sys::place_high).collect();
                self.start(deadline, sent_at, group, &env_set, &env_remove);
            }
            ToKeeper::Extend { at, sent_at } => self.handle(now, Input::Extend { at, sent_at }),
            ToKeeper::End(reason) => self.handle(now, Input::End(reason)),
            ToKeeper::Forward(signal) => self.to_forward.push(signal),
            ToKeeper::Resumed => self.stop = Stop::No,
        }
    }

    fn start(
        &mut self,
        deadline: Option<(ClockKind, u64)>,
        sent_at: u64,
        group: i32,
        env_set: &[Vec<u8>],
        env_remove: &[Vec<u8>],
    ) {
        let clock = deadline.map_or(ClockKind::Monotonic, |(clock, _)| clock);
        self.clock = clock;
        let failed = |errno| Input::StartFailed { errno };
        let timer = match sys::timer_new(clock) {
            Ok(timer) => timer,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
                return self.handle(clock.now_ns(), failed(errno));
            }
        };
        self.timer = Some((clock, timer));
        let env = environ::build(env_set, env_remove, self.setup.front);
        let program = self.setup.program.clone();
        let args = std::mem::take(&mut self.setup.args);
        let image = sys::Image::new(program, args, env.entries, env.own_pid);
        let spawn = sys::Spawn { group, found: sys::inherited(), keep: &self.kept };
        match sys::spawn(&image, &spawn) {
            Ok(pid) => {
                self.command = Some(pid);
                self.leads_group = group == 0;
                sys::null_over(&[0, 1, 2]);
                let deadline = deadline.map(|(_, at)| at);
                self.handle(clock.now_ns(), Input::Started { pid, deadline, sent_at });
            }
            Err(errno) => self.handle(clock.now_ns(), failed(errno)),
        }
    }

    /// Passes a signal on: to the command's own group, to the command alone where the group is the
    /// front's too, and to all that is left once the command itself has ended.
    fn forward(&self, signal: i32) {
        match self.command {
            Some(pid) if self.leads_group => {
                let _ = sys::kill_group(pid, signal);
            }
            Some(pid) => {
                let _ = sys::kill(pid, signal);
            }
            None if self.setup.machine.is_live() => self.tree.signal(signal),
            None => {}
        }
    }

    /// Takes what happened to children, the command's own end among it.
    fn reap(&mut self, now: u64) {
        let mut command_ended = None;
        let alone = loop {
            let (pid, how) = match sys::wait_any() {
                Waited::Exited { pid, code } => (pid, How::Exited(code)),
                Waited::Signaled { pid, signal } => (pid, How::Signaled(signal)),
                Waited::Stopped { pid, signal } if Some(pid) == self.command => {
                    self.stop = Stop::Told;
                    self.tell(&ToFront::Stopped(signal), false);
                    continue;
                }
                Waited::Continued { pid } if Some(pid) == self.command => {
                    self.continue_front();
                    continue;
                }
                Waited::Stopped { .. } | Waited::Continued { .. } => continue,
                Waited::Nothing => break false,
                Waited::NoChildren => break true,
            };
            if Some(pid) == self.command {
                self.command = None;
                self.continue_front();
                command_ended = Some(how);
            }
        };
        if let Some(how) = command_ended {
            self.handle(now, Input::CommandEnded { how, alone });
        }
        if alone {
            self.handle(now, Input::TreeGone);
        }
    }

    /// The command goes on or has ended: a front that stopped with it must go on too.
    fn continue_front(&mut self) {
        if self.stop == Stop::Told {
            self.stop = Stop::Continuing;
            self.tell(&ToFront::Continued, false);
        }
    }

    /// Does what the machine wants; whether the keeper is to end.
    fn act(&mut self, now: u64) -> bool {
        if self.effects() {
            return true;
        }
        if self.setup.machine.is_killing() {
            self.kill(now);
            return self.effects();
        }
        false
    }

    fn effects(&mut self) -> bool {
        while let Some(effect) = self.setup.machine.poll_effect() {
            match effect {
                Effect::Term => self.tree.term(),
                Effect::Report(message) => {
                    let last = matches!(message, ToFront::Ended(_));
                    self.tell(&message, last);
                }
                Effect::Exit => {
                    self.settle_front();
                    return true;
                }
            }
        }
        self.wake_front();
        false
    }

    fn wake_front(&self) {
        if self.stop == Stop::Continuing && !self.front_gone {
            let _ = sys::kill(self.setup.front, libc::SIGCONT);
        }
    }

    /// Continues a front that may be about to stop with a command that is gone by now.
    fn settle_front(&mut self) {
        for _ in 0..RESUMES_MOST {
            if self.stop == Stop::No || self.front_gone {
                return;
            }
            self.wake_front();
            let socket = Some(self.setup.socket.as_fd());
            let _ = sys::poll_readable([socket], Some(RESUME_PAUSE));
            self.hear();
        }
    }

    fn kill(&mut self, now: u64) {
        let round = self.tree.kill();
        self.kill_pause = (self.kill_pause * 2).min(KILL_PAUSE[1]);
        self.reap(now);
        match round {
            Round::Going => {}
            Round::Stuck(pids) => self.handle(now, Input::Stuck(pids)),
            Round::Empty => {
                // `/proc` shows nothing, and yet there are children: what is known must do.
                self.forward(libc::SIGKILL);
                self.blind_rounds += 1;
                if self.blind_rounds > BLIND_ROUNDS {
                    self.handle(now, Input::Stuck(Vec::new()));
                }
            }
        }
    }

    /// Tells the front. Only the end is waited with: all else may be lost to a front that does not
    /// read.
    fn tell(&self, message: &ToFront, wait: bool) {
        if !self.front_gone {
            let _ = sys::send(self.setup.socket.as_fd(), &message.encode(), &[], wait);
        }
    }
}
