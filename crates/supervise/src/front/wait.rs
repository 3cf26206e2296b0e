//! The front's loop: what the keeper says, this process's signals, and a keeper that died.

use super::*;

/// How long to wait between two rounds of killing, when the keeper is dead.
const KILL_PAUSE: Duration = Duration::from_millis(5);

impl Front {
    /// Waits for the next event, at most `timeout`.
    ///
    /// While the command runs the caller calls this again and again: here signals are passed on,
    /// this process stops and goes on with its command, orphans are reaped, and the tree is ended
    /// when the keeper has died. Before the start it answers signals and wake-ups while the caller
    /// waits for the lease. After the end it returns [`Event::Ended`] no more, only signals.
    ///
    /// # Errors
    /// The system refused to poll.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Event> {
        // What is too long to be added is for ever.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let now = Instant::now();
            if self.keeper_until.is_some_and(|at| now >= at) && self.state != State::Over {
                // Stopped or hung: its death is what `keeper_gone` acts on.
                self.keeper_until = None;
                let _ = self.keeper.signal(libc::SIGKILL);
            }
            let wake_at = [until, self.keeper_until].into_iter().flatten().min();
            let pause = wake_at.map(|at| at.saturating_duration_since(now));
            let socket = (self.state != State::Over).then_some(self.socket.as_fd());
            let descriptors = [socket, Some(self.signals.as_fd()), Some(self.wake.as_fd())];
            let ready = sys::poll_readable(descriptors, pause);
            let [heard, signal, woken] = ready.context("cannot wait for the command")?;
            if heard {
                self.hear();
            }
            if signal {
                self.take_signals();
            }
            if woken && sys::eventfd_clear(self.wake.as_fd()) {
                self.events.push_back(Event::Woken);
            }
            let over = until.is_some_and(|until| Instant::now() >= until);
            if over && self.events.is_empty() {
                return Ok(Event::TimedOut);
            }
        }
    }

    /// Takes all that the keeper has said.
    fn hear(&mut self) {
        let mut messages = Vec::new();
        let mut gone = false;
        while !gone {
            match sys::receive(self.socket.as_fd(), &mut self.buffer) {
                Received::Message(length, _) => {
                    let bytes = self.buffer.get(..length).unwrap_or_default();
                    messages.extend(ToFront::decode(bytes));
                }
                Received::Nothing => break,
                Received::Closed => gone = true,
            }
        }
        let goes_on = |message: &ToFront| matches!(message, ToFront::Continued | ToFront::Ended(_));
        let stays_stopped = !messages.iter().any(goes_on);
        for message in messages {
            self.obey(message, stays_stopped);
        }
        if gone && self.state != State::Over {
            self.keeper_gone();
        }
    }

    fn obey(&mut self, message: ToFront, stays_stopped: bool) {
        match message {
            ToFront::Started(pid) => {
                self.state = State::Running(pid);
                self.events.push_back(Event::Started(pid));
            }
            ToFront::Stopped(signal) => self.command_stopped(signal, stays_stopped),
            ToFront::Continued => {}
            ToFront::DeadlinePassed => self.events.push_back(Event::DeadlinePassed),
            ToFront::Ending(reason) => self.events.push_back(Event::Ending(reason)),
            ToFront::ParentEnded => self.events.push_back(Event::ParentEnded),
            ToFront::Ended(ended) => self.over(ended),
        }
    }

    fn over(&mut self, ended: Ended) {
        self.state = State::Over;
        self.keeper_until = None;
        self.events.push_back(Event::Ended(ended));
    }

    /// The command stopped. In one group with it this process is the job that the shell waits
    /// for, and stops too; elsewhere only when it was told to, or when the terminal did it.
    fn command_stopped(&mut self, signal: i32, stays_stopped: bool) {
        let by_terminal = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        let stops = stays_stopped && (self.shares_group || self.stop_asked || by_terminal);
        // A stop signal takes a CONT that was not read yet away, and that one came after the stop.
        if stops && !self.take_signals() {
            self.stop_asked = false;
            stop_by(signal);
            self.give_terminal();
            // The CONT that ended this stop has nothing to do with the next.
            self.take_signals();
            self.events.push_back(Event::Resumed);
        }
        // The keeper goes on continuing this process until it hears this.
        let _ = sys::send(self.socket.as_fd(), &ToKeeper::Resumed.encode(), &[], false);
    }

    /// A job that was begun in the background and is in the foreground now: the command, which
    /// leads a group of its own there, is to have the terminal. The shell takes it back itself.
    fn give_terminal(&self) {
        if let State::Running(command) = self.state
            && !self.shares_group
            && sys::terminal_group() == Some(sys::own_group())
        {
            sys::terminal_give(command);
        }
    }

    /// Takes all signals that came; whether a CONT was among them.
    fn take_signals(&mut self) -> bool {
        let mut continued = false;
        while let Some(signal) = self.signals.next() {
            continued |= signal.number == libc::SIGCONT;
            if signal.number == libc::SIGCHLD {
                self.reap();
                continue;
            }
            match self.state {
                State::Waiting => self.signal_while_waiting(signal),
                State::Starting | State::Running(_) => {
                    // A keeper that does not listen cannot pass anything on.
                    self.pass_on(&signal);
                    self.show(signal);
                }
                State::Over => self.events.push_back(Event::Signal(signal)),
            }
        }
        continued
    }

    /// The signals that came before the start and were not waited for.
    pub(super) fn signals_so_far(&mut self) -> Vec<Signal> {
        let mut signals = Vec::new();
        while let Some(signal) = self.signals.next() {
            match signal.number {
                libc::SIGCHLD => {
                    self.reap();
                }
                _ => signals.push(signal),
            }
        }
        signals
    }

    /// Tells the caller of a signal that may mean something to it.
    pub(super) fn show(&mut self, signal: Signal) {
        if !is_for_the_terminal(signal.number) {
            self.events.push_back(Event::Signal(signal));
        }
    }

    fn signal_while_waiting(&mut self, signal: Signal) {
        if signal.number == libc::SIGTSTP {
            stop_by(libc::SIGTSTP);
            self.events.push_back(Event::Resumed);
        } else {
            self.show(signal);
        }
    }

    /// Has the keeper send the command what this process was sent, unless it has it already.
    fn pass_on(&mut self, signal: &Signal) {
        if signal.sender == self.keeper_pid || self.command_has(signal) {
            return;
        }
        self.forward(signal.number);
    }

    /// Has the keeper send the command a signal.
    pub(super) fn forward(&mut self, signal: i32) {
        if signal == libc::SIGTSTP {
            self.stop_asked = true;
        }
        let message = ToKeeper::Forward(signal).encode();
        let _ = sys::send(self.socket.as_fd(), &message, &[], false);
    }

    /// Whether a signal reached the command by itself, as one of this process's group.
    fn command_has(&self, signal: &Signal) -> bool {
        if !self.shares_group {
            return false;
        }
        match self.state {
            // In the moment until it is known to run it may have joined the group, or not: a lost
            // key is pressed again, two interrupts for one are not taken back. A terminal that
            // hung up does it only once.
            State::Starting if signal.from_terminal => signal.number != libc::SIGHUP,
            _ if signal.from_terminal => true,
            // A shell continues a whole job.
            State::Running(command) if signal.number == libc::SIGCONT => !tree::is_stopped(command),
            // One that signals its own group, as editors do to stop.
            _ => signal.sender > 0 && tree::descends(signal.sender, self.keeper_pid),
        }
    }

    /// Reaps whoever ended: the keeper, orphans of a dead keeper, and as process 1 anyone's.
    /// Whether there are no children.
    fn reap(&mut self) -> bool {
        loop {
            let (pid, how) = match sys::wait_any() {
                Waited::Exited { pid, code } => (pid, How::Exited(code)),
                Waited::Signaled { pid, signal } => (pid, How::Signaled(signal)),
                Waited::Stopped { .. } | Waited::Continued { .. } => continue,
                Waited::Nothing => return false,
                Waited::NoChildren => return true,
            };
            if self.state == State::Running(pid) {
                self.command = Some(how);
            }
            self.spared.remove(&pid);
        }
    }

    /// The keeper died: its orphans are this process's now, and are killed.
    fn keeper_gone(&mut self) {
        let unkillable = match self.state {
            State::Starting | State::Running(_) => self.kill_orphans(),
            State::Waiting | State::Over => Vec::new(),
        };
        let how = match self.command {
            Some(how) => how,
            None if unkillable.is_empty() => How::Unknown,
            None => How::StillRunning,
        };
        self.over(Ended {
            how,
            forced: Some(Reason::KeeperGone),
            deadline_passed: self.told.passed(),
            tree_gone: unkillable.is_empty(),
            unkillable,
        });
    }

    /// Kills everything under this process; what cannot be.
    fn kill_orphans(&mut self) -> Vec<i32> {
        let mut tree = Tree::under_this_process(0, self.spared.clone());
        loop {
            let round = tree.kill();
            if self.reap() {
                return Vec::new();
            }
            // The socket closes a little before the orphans arrive: only when the keeper has been
            // reaped, which this kills also if it was hung, is what is seen all there is.
            let all_seen = self.keeper.signal(0).is_err();
            match round {
                Round::Empty if all_seen => return Vec::new(),
                Round::Stuck(pids) if all_seen => return pids,
                _ => std::thread::sleep(KILL_PAUSE),
            }
        }
    }
}

/// Signals that only mean something to what shows itself on a terminal.
const fn is_for_the_terminal(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGCONT | libc::SIGWINCH)
}
