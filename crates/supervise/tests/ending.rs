//! The whole tree is dead before the deadline, whatever happens to front and keeper.

mod common;

use common::*;

/// Three processes that do not want to end, each in its own way: the command ignores TERM, one
/// child leads a session of its own (a daemon whose parents are gone), one is stopped.
const STUBBORN: &str = "trap '' TERM
    (setsid sh -c 'echo $$ > daemon; exec \"$SUPERVISED\" beat beat.daemon' &)
    sh -c 'trap - TERM; echo $$ > stopped; kill -STOP $$; exec \"$SUPERVISED\" beat beat.stopped' &
    echo $$ > command
    exec \"$SUPERVISED\" beat beat.command";

struct Stubborn {
    command: i32,
    daemon: i32,
    stopped: i32,
}

impl Stubborn {
    fn of(run: &Run) -> Self {
        let all = Self {
            command: run.number("command"),
            daemon: run.number("daemon"),
            stopped: run.number("stopped"),
        };
        run.beat("beat.command");
        run.beat("beat.daemon");
        run.logged("deadline ");
        until("the stopped one to be stopped", || (state(all.stopped) == Some('T')).then_some(()));
        all
    }

    fn dead(&self) {
        for pid in [self.command, self.daemon, self.stopped] {
            dead(pid);
        }
    }
}

fn dead_before_the_deadline(run: &Run) {
    let deadline = run.deadline();
    for beat in ["beat.command", "beat.daemon"] {
        let last = run.beat(beat);
        assert!(last < deadline, "{beat} went on {} ns past the deadline", last - deadline);
    }
}

#[test]
fn a_deadline_that_comes_ends_the_whole_tree_before_it() {
    let mut run = shell("--term 3000 --grace 500", STUBBORN);
    let all = Stubborn::of(&run);
    assert_eq!(run.code(), Some(76), "{}", run.log());
    // Told as gone only when it is gone: nothing to wait for here.
    for pid in [all.command, all.daemon, all.stopped] {
        assert!(!alive(pid), "{pid} outlived the run");
    }
    dead_before_the_deadline(&run);
    let log = run.log();
    assert!(log.contains("Ending(Deadline)"), "{log}");
    assert!(log.contains("forced: Some(Deadline), deadline_passed: false, tree_gone: true"));
}

#[test]
fn what_listens_to_term_has_its_grace() {
    let script = "trap 'date +%s%N > asked; exit 0' TERM; while :; do sleep 0.01; done";
    let mut run = shell("--term 2000 --grace 600", script);
    assert_eq!(run.code(), Some(76));
    assert!(run.log().contains("how: Exited(0), forced: Some(Deadline)"), "{}", run.log());
    run.text("asked");
}

#[test]
fn renewals_keep_it_and_their_end_ends_it() {
    let mut run = shell("--boot --term 1500 --renew 100 --renewals 20", "echo $$ > pid; sleep 600");
    assert_eq!(run.code(), Some(76));
    let log = run.log();
    let deadlines: Vec<&str> = log.lines().filter(|line| line.starts_with("deadline ")).collect();
    assert_eq!(deadlines.len(), 21, "it ended before its renewals did: {log}");
    dead(run.number("pid"));
}

#[test]
fn a_stopped_front_does_not_delay_the_end() {
    let mut run = shell("--term 3000 --renew 100 --grace 300", STUBBORN);
    let all = Stubborn::of(&run);
    run.kill(libc::SIGSTOP);
    all.dead();
    assert!(now_ns() < run.deadline(), "dead, but late");
    dead_before_the_deadline(&run);
    run.kill(libc::SIGCONT);
    assert_eq!(run.code(), Some(76), "{}", run.log());
}

#[test]
fn a_killed_front_takes_the_tree_along_at_once() {
    let mut run = shell("--term 600000", STUBBORN);
    let all = Stubborn::of(&run);
    let keeper = run.keeper();
    run.kill(libc::SIGKILL);
    all.dead();
    dead(keeper);
    assert_eq!(run.signal(), Some(libc::SIGKILL));
}

#[test]
fn a_killed_keeper_is_made_up_for_by_the_front() {
    let mut run = shell("--term 600000", STUBBORN);
    let all = Stubborn::of(&run);
    kill(run.keeper(), libc::SIGKILL);
    assert_eq!(run.code(), Some(76));
    for pid in [all.command, all.daemon, all.stopped] {
        assert!(!alive(pid), "{pid} outlived the run");
    }
    let log = run.log();
    assert!(log.contains("how: Signaled(9), forced: Some(KeeperGone)"), "{log}");
}

#[test]
fn a_keeper_that_hangs_is_killed_when_the_lease_is_lost() {
    let mut run = shell("--term 600000 --grace 200 --end-after 1000", STUBBORN);
    let all = Stubborn::of(&run);
    kill(run.keeper(), libc::SIGSTOP);
    assert_eq!(run.code(), Some(76));
    all.dead();
}

#[test]
fn a_panic_in_the_front_takes_the_tree_along() {
    let mut setup = Setup::new("--term 600000 --panic-after 1500");
    setup.command.stderr(std::process::Stdio::null());
    let mut run = setup.shell(STUBBORN);
    let all = Stubborn::of(&run);
    assert_eq!(run.code(), Some(101));
    for pid in [all.command, all.daemon, all.stopped] {
        assert!(!alive(pid), "{pid} outlived the run");
    }
}

#[test]
fn a_lost_lease_ends_it_at_once_with_grace() {
    let mut run = shell("--term 600000 --grace 300 --end-after 500", STUBBORN);
    let all = Stubborn::of(&run);
    assert_eq!(run.code(), Some(76));
    assert!(!alive(all.daemon));
    assert!(run.log().contains("Ending(Lost)"), "{}", run.log());
}

#[test]
fn processes_that_are_born_while_they_are_killed_are_killed() {
    // Each lives a moment and is another by then, half of them in ever new sessions.
    let script = "trap '' TERM
        c() { sleep 0.002; c & }
        echo 'sleep 0.002; setsid sh ./d &' > d
        for i in 1 2 3 4 5 6; do c & setsid sh ./d & done
        echo ready > ready; sleep 600";
    let mut run = shell("--term 600000 --grace 100 --end-after 1500", script);
    run.text("ready");
    assert_eq!(run.code(), Some(76));
    assert!(run.log().contains("tree_gone: true"), "{}", run.log());
    dead(run.keeper());
    assert_eq!(run.dir.inhabitants(), []);
}

#[test]
fn warn_leaves_it_running_and_says_so_once() {
    let script = "sleep 600 & echo $! > sleeper; wait";
    let mut run = shell("--warn --term 300 --renew 50 --renewals 3", script);
    run.logged("DeadlinePassed");
    let sleeper = run.number("sleeper");
    assert!(alive(sleeper));
    kill(sleeper, libc::SIGTERM);
    assert_eq!(run.code(), Some(76));
    let log = run.log();
    assert_eq!(log.matches("DeadlinePassed").count(), 1, "{log}");
    assert!(log.contains("forced: None, deadline_passed: true"), "{log}");
}

#[test]
fn wait_all_waits_for_what_the_command_left() {
    let script = "(setsid sh -c 'echo $$ > daemon; while ! [ -e go ]; do sleep 0.01; done' &)
        exit 7";
    let mut run = shell("--wait-all --term 600000", script);
    let daemon = run.number("daemon");
    // The command itself has ended: the daemon is the keeper's by now.
    until("the daemon to be the keeper's", || {
        let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).ok()?;
        status.contains(&format!("PPid:\t{}", run.keeper())).then_some(())
    });
    assert!(!run.log().contains("Ended("), "{}", run.log());
    std::fs::write(run.path("go"), "").expect("written");
    assert_eq!(run.code(), Some(7));
    assert!(run.log().contains("forced: None, deadline_passed: false, tree_gone: true"));
}

#[test]
fn wait_all_is_held_to_the_deadline() {
    let script = "(setsid sh -c 'echo $$ > daemon; sleep 600' &); exit 0";
    let mut run = shell("--wait-all --term 1200 --grace 200", script);
    let daemon = run.number("daemon");
    assert_eq!(run.code(), Some(76));
    assert!(!alive(daemon));
}

#[test]
fn an_end_by_itself_is_told_at_once_and_leaves_the_rest_alone() {
    let script = "(setsid sh -c 'echo $$ > daemon; exec sleep 600' > /dev/null &)
        while ! [ -s daemon ]; do sleep 0.01; done; exit 5";
    let mut run = shell("--term 600000", script);
    assert_eq!(run.code(), Some(5));
    let daemon = run.number("daemon");
    assert!(alive(daemon), "it was none of the keeper's business");
    assert!(run.log().contains("tree_gone: false"), "{}", run.log());
    kill(daemon, libc::SIGKILL);
}

#[test]
fn with_parent_ends_it_when_the_parent_ends() {
    let dir = Folder::new();
    let script = "\"$SUPERVISED\" --log log --with-parent --term 600000 --grace 200 -- \
        sh -c 'echo $$ > pid; exec sleep 600' & echo ready; wait";
    let mut parent = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .env("SUPERVISED", program())
        .current_dir(dir.path())
        .spawn()
        .expect("sh");
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    let pid: i32 = until("the command's pid", || read("pid").trim().parse().ok());
    assert!(alive(pid));
    parent.kill().expect("killed");
    parent.wait().expect("reaped");
    dead(pid);
    until("the front to be told", || read("log").contains("Some(ParentEnded)").then_some(()));
    assert!(read("log").contains(" ParentEnded\n"), "{}", read("log"));
}

#[test]
fn what_was_frozen_as_a_whole_is_told_on_waking_before_any_renewal() {
    let script = "echo $$ > command; exec \"$SUPERVISED\" beat beat.command";
    let mut run = shell("--term 2000 --renew 50 --grace 200", script);
    let command = run.number("command");
    run.beat("beat.command");
    run.logged("deadline ");
    let all = [command, run.keeper(), run.pid()];
    for pid in all {
        kill(pid, libc::SIGSTOP);
    }
    let deadline = run.deadline();
    until("the deadline to pass", || (now_ns() > deadline).then_some(()));
    let last = run.beat("beat.command");
    assert!(last < deadline);
    // The front first, with a renewal on its lips; then the keeper; the command cannot run before.
    let renewals = run.log().matches("deadline ").count();
    kill(run.pid(), libc::SIGCONT);
    until("a renewal after waking", || {
        (run.log().matches("deadline ").count() > renewals + 2).then_some(())
    });
    kill(run.keeper(), libc::SIGCONT);
    assert_eq!(run.code(), Some(76), "{}", run.log());
    dead(command);
    assert_eq!(run.beat("beat.command"), last, "it wrote after its right had ended");
    assert!(run.log().contains("deadline_passed: true"), "{}", run.log());
}

#[test]
fn as_process_1_it_reaps_and_ends_with_128_plus_the_signal() {
    // A namespace of its own, as in a container; where none may be made, this process's own.
    let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    let allowed = std::process::Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("true")
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let script = "(setsid sh -c 'exit 0' &) ; sleep 0.2; kill -INT $$";
    let dir = Folder::new();
    let words = if allowed { &unshare[..] } else { &["env"] };
    let status = std::process::Command::new(words[0])
        .args(&words[1..])
        .arg(program())
        .args(["--term", "600000", "--", "sh", "-c", script])
        .current_dir(dir.path())
        .status()
        .expect("it runs");
    use std::os::unix::process::ExitStatusExt;
    if allowed {
        assert_eq!(status.code(), Some(128 + libc::SIGINT));
    } else {
        assert_eq!(status.signal(), Some(libc::SIGINT));
    }
}

#[test]
fn what_is_stopped_hears_that_it_is_to_end() {
    let script =
        "sh -c 'trap \"echo > heard; exit\" TERM; echo $$ > stopped; kill -STOP $$' & wait";
    let mut run = shell("--term 600000 --grace 20000 --end-after 700", script);
    let stopped = run.number("stopped");
    until("it to be stopped", || (state(stopped) == Some('T')).then_some(()));
    assert_eq!(run.code(), Some(76));
    run.text("heard");
}
