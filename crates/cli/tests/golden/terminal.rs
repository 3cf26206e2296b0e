//! Behaviour on a terminal: a pty whose other side the test reads and types at.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::world::{PATIENCE, World, code, eventually, exists, kill_group, lives};

/// A program in a session of its own, with a terminal.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    child: Child,
}

impl Terminal {
    /// Starts `script` in a shell with this terminal.
    fn start(world: &World, script: &str) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let side = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        let mut command: Command = world.program("setsid");
        command.env("TERM", "xterm").args(["-c", "sh", "-c", script]);
        command.stdin(Stdio::from(side())).stdout(Stdio::from(side())).stderr(Stdio::from(side()));
        let child = command.spawn().unwrap();
        drop(command);
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                written.lock().unwrap().push_str(&text);
            }
        });
        Terminal { keyboard, screen, child }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    fn shows(&self, text: &str) {
        let began = Instant::now();
        while !self.screen().contains(text) {
            assert!(
                began.elapsed() < PATIENCE,
                "never {text:?} on the screen: {:?}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ended(mut self, want: i32) {
        let status = eventually("the end of the session", || self.child.try_wait().unwrap());
        assert_eq!(code(status), want, "{}", self.screen());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

#[test]
fn ctrl_c_reaches_the_command_once_and_leasehold_ends_as_it_did() {
    let world = World::new();
    let script = "trap 'echo got-int >>ints; exit 4' INT; echo ready >ready; \
        while :; do sleep 0.01; done";
    fs::write(world.path("job.sh"), script).unwrap();
    let mut terminal = Terminal::start(&world, "trap '' INT; (trap - INT; $L run n -- sh job.sh)");
    world.line("ready");
    terminal.press(CTRL_C);
    terminal.ended(4);
    assert_eq!(world.read("ints"), "got-int\n");
}

#[test]
fn a_command_that_ctrl_c_ends_stops_the_loop_around_it() {
    let world = World::new();
    let job = "echo turn >>turns; echo ready >ready; exec sleep 1000";
    fs::write(world.path("job.sh"), job).unwrap();
    for (keys, code) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
        let _ = fs::remove_file(world.path("ready"));
        let _ = fs::remove_file(world.path("turns"));
        // Bash goes on with its loop unless it sees its child end by the signal itself.
        let script = "ulimit -c 0; exec bash -c 'for i in 1 2 3; do $L run n -- sh job.sh; \
            test $? = 131 && exit 131; done; exit 9'";
        let mut terminal = Terminal::start(&world, script);
        world.line("ready");
        terminal.press(keys);
        terminal.ended(code);
        assert_eq!(world.read("turns"), "turn\n");
    }
}

#[test]
fn while_waiting_it_says_who_holds_and_ctrl_c_leaves_the_queue() {
    let world = World::new();
    let _holder = world.start("hold n --holder the-other", &[]);
    world.held("n");
    let mut terminal = Terminal::start(&world, "exec $L run n -- touch never");
    terminal.shows("waiting for \"n\", held by the-other for");
    terminal.shows("(since 2");
    terminal.shows("waited 1s");
    world.waiters("n", 1);
    terminal.press(CTRL_C);
    terminal.ended(130);
    world.waiters("n", 0);
    assert!(!exists(&world.path("never")));
}

#[test]
fn what_it_said_while_waiting_is_taken_off_the_screen() {
    let world = World::new();
    let holder = world.start("hold n", &[]);
    world.held("n");
    let terminal = Terminal::start(&world, "exec $L run n -- echo begun");
    terminal.shows("waiting for");
    holder.signal(Signal::TERM);
    terminal.shows("\r\u{1b}[Kbegun");
    terminal.ended(0);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on() {
    let world = World::new();
    let job = "echo $$ >pid; until test -e go; do sleep 0.01; done; exit 3";
    fs::write(world.path("job.sh"), job).unwrap();
    // Not dash: while it starts a program it cannot be seen to stop.
    let script = "set -m; $L run n -- bash job.sh; echo stopped=$?; touch go; fg; echo ended=$?";
    let mut terminal = Terminal::start(&world, script);
    world.line("pid");
    terminal.press(CTRL_Z);
    terminal.shows("stopped=148");
    terminal.shows("ended=3");
    terminal.ended(0);
}

#[test]
fn a_job_left_stopped_past_its_term_is_lost() {
    let world = World::new();
    let job = "echo $$ >pid; while :; do date +%s%N >>beats; done";
    fs::write(world.path("job.sh"), job).unwrap();
    let script = "set -m; $L run n --ttl 2s -- bash job.sh; echo stopped=$?; \
        until test -e next; do sleep 0.01; done; fg; echo ended=$?";
    let mut terminal = Terminal::start(&world, script);
    let pid: i32 = world.line("pid").parse().unwrap();
    eventually("a beat", || world.read("beats").ends_with('\n').then_some(()));
    terminal.press(CTRL_Z);
    terminal.shows("stopped=148");
    let next = world.run("run n --", &["sh", "-c", "date +%s%N >next"]).ended(0);
    assert_eq!(next.err, "");
    terminal.shows("ended=76");
    assert!(!lives(pid));
    let beats = world.read("beats");
    let last: u128 = beats.lines().filter_map(|line| line.parse().ok()).max().unwrap();
    assert!(last < world.line("next").parse().unwrap());
    terminal.ended(0);
}

#[test]
fn the_whole_group_of_a_terminal_stopped_and_continued_writes_nothing_more() {
    let world = World::new();
    let job = "echo $$ >pid; while :; do date +%s%N >>beats; done";
    fs::write(world.path("job.sh"), job).unwrap();
    let script = "set -m; $L run n --ttl 2s -- sh job.sh; echo stopped=$?; \
        until test -e over; do sleep 0.01; done; fg; echo ended=$?";
    let terminal = Terminal::start(&world, script);
    let pid: i32 = world.line("pid").parse().unwrap();
    eventually("a beat", || world.read("beats").ends_with('\n').then_some(()));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let group = stat.rsplit(") ").next().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
    assert_ne!(group, pid, "on a terminal the command stays in leasehold's group");
    kill_group(group, Signal::STOP);
    world.run("run n --", &["sh", "-c", "date +%s%N >next"]).ended(0);
    let _ = rustix::process::kill_process_group(
        rustix::process::Pid::from_raw(group).unwrap(),
        Signal::CONT,
    );
    fs::write(world.path("over"), "").unwrap();
    terminal.shows("ended=76");
    let beats = world.read("beats");
    let last: u128 = beats.lines().filter_map(|line| line.parse().ok()).max().unwrap();
    assert!(last < world.line("next").parse().unwrap());
    terminal.ended(0);
}

#[test]
fn break_asks_on_a_terminal() {
    let world = World::new();
    world.run("acquire n --ttl 1h --holder someone", &[]).ended(0);
    let mut terminal = Terminal::start(&world, "exec $L break n --now");
    terminal.shows("held by someone");
    terminal.shows("[y/N]");
    terminal.press("n\n");
    terminal.shows("nothing was done");
    terminal.ended(0);
    assert_eq!(world.shown("n")["held"], true);
    let mut terminal = Terminal::start(&world, "exec $L break n --now");
    terminal.shows("[y/N]");
    terminal.press("y\n");
    terminal.ended(0);
    assert_eq!(world.shown("n")["held"], false);
}

#[test]
fn help_has_colours_on_a_terminal_unless_no_color_is_set() {
    let world = World::new();
    let terminal = Terminal::start(&world, "exec $L --help");
    terminal.shows("128+N");
    assert!(terminal.screen().contains('\u{1b}'));
    let terminal = Terminal::start(&world, "NO_COLOR=1 exec $L --help");
    terminal.shows("128+N");
    assert!(!terminal.screen().contains('\u{1b}'));
}
