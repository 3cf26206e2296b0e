//! On a terminal it is as if this program were not there; off one it passes signals on.

#![allow(unsafe_code, reason = "a terminal is made and taken by hand")]

mod common;

use common::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

/// A shell with job control on a terminal of its own.
struct Terminal {
    dir: Folder,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    shell: Child,
}

impl Terminal {
    /// Runs `script` by a shell that gives each command a group of its own, as at a prompt.
    fn run(script: &str) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut::<libc::c_char>();
        // SAFETY: two numbers of ours are written; the descriptors are ours.
        let (master, slave) = unsafe {
            let (tio, size) = (std::ptr::null_mut(), std::ptr::null_mut());
            assert_eq!(libc::openpty(&raw mut master, &raw mut slave, none, tio, size), 0);
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        let dir = Folder::new();
        let copy = || slave.try_clone().expect("a copy");
        let mut command = Command::new("/bin/sh");
        command.args(["-mc", script]).env("SUPERVISED", program()).current_dir(dir.path());
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: two system calls.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let shell = command.spawn().expect("sh");
        drop((command, slave));
        assert!(master.as_raw_fd() > 2);
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().expect("a copy");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                shown.lock().expect("whole").extend_from_slice(&buffer[..n]);
            }
        });
        Self { dir, keyboard, screen, shell }
    }

    fn press(&mut self, key: u8) {
        self.keyboard.write_all(&[key]).expect("a key");
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("whole")).into_owned()
    }

    fn shows(&self, what: &str) {
        let shown = || self.shown();
        until(&format!("`{what}` on the screen, where is: {}", shown()), || {
            shown().contains(what).then_some(())
        });
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn ends(&mut self) -> ExitStatus {
        until("the shell to end", || self.shell.try_wait().expect("waitable"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if matches!(self.shell.try_wait(), Ok(None)) {
            // A test that failed: without its keeper the front ends all there is.
            let log = self.log();
            let keeper = log.strip_prefix("keeper ").and_then(|rest| rest.lines().next());
            if let Some(keeper) = keeper.and_then(|pid| pid.parse().ok()) {
                kill(keeper, libc::SIGKILL);
            }
            let _ = self.shell.kill();
            let _ = self.shell.wait();
        }
    }
}

const CTRL_C: u8 = 3;
const CTRL_BACKSLASH: u8 = 28;
const CTRL_Z: u8 = 26;

fn supervised(options: &str, command: &str) -> String {
    format!("\"$SUPERVISED\" --log log {options} -- sh -c '{command}'")
}

#[test]
fn the_command_is_in_the_foreground_group_and_reads_the_terminal() {
    let run = supervised("--term 600000", "echo up; read line; echo \"got $line\"; exit 4");
    let mut terminal = Terminal::run(&format!("{run}; echo code=$?"));
    terminal.shows("up");
    terminal.keyboard.write_all(b"hello\n").expect("typed");
    terminal.shows("got hello");
    terminal.shows("code=4");
    terminal.ends();
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let run = "\"$SUPERVISED\" --log log --term 600000 -- \"$SUPERVISED\" count";
    let mut terminal = Terminal::run(&format!("{run}; echo code=$?"));
    terminal.shows("up");
    for n in 1..=3 {
        terminal.press(CTRL_C);
        terminal.shows(&format!("interrupt {n}"));
        // What this program would have passed on, it has passed on by then.
        until("the front to see it", || {
            (terminal.log().matches("number: 2").count() == n).then_some(())
        });
    }
    let log = terminal.log();
    assert!(log.contains("number: 2, from_terminal: true, sender: 0"), "{log}");
    let (_, pid) = log.split_once("Started(").expect("started");
    kill(pid.split(')').next().and_then(|pid| pid.parse().ok()).expect("a pid"), libc::SIGUSR1);
    terminal.shows("had 3 in all");
    terminal.shows("code=0");
    terminal.ends();
}

#[test]
fn what_ctrl_c_and_ctrl_backslash_end_ends_the_same_way() {
    let run = supervised("--term 600000", "echo up; exec sleep 600");
    let script = format!("{run}; echo code=$?");
    let mut terminal = Terminal::run(&script);
    terminal.shows("up");
    terminal.press(CTRL_C);
    // A shell whose command was interrupted ends its script by the interrupt.
    assert_eq!(terminal.ends().signal(), Some(libc::SIGINT), "{}", terminal.shown());
    assert!(terminal.log().contains("how: Signaled(2), forced: None"), "{}", terminal.log());

    let mut terminal = Terminal::run(&script);
    terminal.shows("up");
    terminal.press(CTRL_BACKSLASH);
    terminal.shows("code=131");
    assert!(terminal.log().contains("how: Signaled(3), forced: None"), "{}", terminal.log());
    terminal.ends();
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let run = supervised("--term 600000", "echo up; read line; echo \"got $line\"");
    let mut terminal = Terminal::run(&format!("{run}; echo code=$?; fg; echo then=$?"));
    terminal.shows("up");
    terminal.press(CTRL_Z);
    terminal.shows(&format!("code={}", 128 + libc::SIGTSTP));
    terminal.keyboard.write_all(b"hello\n").expect("typed");
    terminal.shows("got hello");
    terminal.shows("then=0");
    assert!(terminal.log().contains("Resumed"), "{}", terminal.log());
    terminal.ends();
}

#[test]
fn a_background_job_that_wants_the_terminal_stops_and_gets_it_by_fg() {
    let run = supervised("--term 600000", "read line; echo \"got $line\"; exit 6");
    let script = format!(
        "{run} & while :; do jobs > j; grep -q -i stopped j && break; sleep 0.05; done
        echo stopped; fg; echo then=$?"
    );
    let mut terminal = Terminal::run(&script);
    terminal.shows("stopped");
    terminal.keyboard.write_all(b"hello\n").expect("typed");
    terminal.shows("got hello");
    terminal.shows("then=6");
    terminal.ends();
}

#[test]
fn a_job_left_stopped_past_its_term_loses_it() {
    let run =
        supervised("--term 2500 --renew 100 --grace 300", "echo $$ > pid; echo up; read line");
    // Nobody continues it, and the shell stays, whose end would hang up the terminal.
    let script = format!("{run}; echo code=$?; until grep -q Ended log; do sleep 0.05; done");
    let mut terminal = Terminal::run(&script);
    terminal.shows("up");
    terminal.press(CTRL_Z);
    terminal.shows(&format!("code={}", 128 + libc::SIGTSTP));
    let pid = std::fs::read_to_string(terminal.dir.path().join("pid")).expect("a pid");
    dead(pid.trim().parse().expect("a number"));
    until("the end to be told", || terminal.log().contains("Some(Deadline)").then_some(()));
    terminal.ends();
}

/// A command that writes each signal it gets to a file of its name.
const TRAPS: &str = "for s in HUP INT QUIT TERM USR1 USR2 WINCH; do
        trap \"echo >> $s\" $s
    done
    echo $$ > up
    while :; do sleep 0.02; done";

#[test]
fn off_a_terminal_signals_are_passed_on() {
    let run = shell("--term 600000", TRAPS);
    let pid = run.number("up");
    let signals = [
        (libc::SIGHUP, "HUP"),
        (libc::SIGINT, "INT"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGTERM, "TERM"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGWINCH, "WINCH"),
    ];
    for (number, name) in signals {
        run.kill(number);
        run.text(name);
    }
    assert!(alive(pid));
}

#[test]
fn off_a_terminal_it_is_stopped_and_continued() {
    // Not by a shell that starts programs: one that waits for its child to execute cannot stop.
    let run = shell("--term 600000", "echo $$ > up; exec sleep 600");
    let pid = run.number("up");
    for _ in 0..3 {
        run.kill(libc::SIGTSTP);
        until("it to be stopped", || (state(pid) == Some('T')).then_some(()));
        run.kill(libc::SIGCONT);
        until("it to go on", || (state(pid) != Some('T')).then_some(()));
    }
}

#[test]
fn a_front_that_stopped_with_its_command_goes_on_with_it_whoever_continues_or_ends_that() {
    for signal in [libc::SIGCONT, libc::SIGKILL] {
        let setup = Setup::in_this_session("--term 600000");
        let run = setup.shell("echo $$ > up; exec sleep 600");
        let pid = run.number("up");
        run.kill(libc::SIGTSTP);
        for pid in [pid, run.pid()] {
            until("it to be stopped", || (state(pid) == Some('T')).then_some(()));
        }
        kill(pid, signal);
        run.logged("Resumed");
        assert_ne!(state(run.pid()), Some('T'));
    }
}

#[test]
fn off_a_terminal_the_whole_group_gets_it() {
    let script = "trap 'echo > own' TERM
        sh -c 'trap \"echo > child\" TERM; echo > up; while :; do sleep 0.02; done' &
        wait; wait";
    let run = shell("--term 600000", script);
    run.text("up");
    run.kill(libc::SIGTERM);
    run.text("child");
    run.text("own");
}

#[test]
fn signals_while_waiting_are_the_callers_and_a_second_one_ends_at_once() {
    let mut run = shell("--wait-before 600000", "echo never > started");
    let keeper = run.keeper();
    run.kill(libc::SIGTERM);
    run.logged("left Signal { number: 15");
    // The caller sleeps in a call that hangs.
    run.kill(libc::SIGINT);
    assert_eq!(run.code(), Some(128 + libc::SIGINT));
    dead(keeper);
    assert!(!run.path("started").exists());
}

#[test]
fn a_keeper_whose_front_dies_while_waiting_goes_too() {
    let mut run = shell("--wait-before 600000", "echo never > started");
    let keeper = run.keeper();
    run.kill(libc::SIGKILL);
    run.wait();
    dead(keeper);
    assert!(!run.path("started").exists());
}
