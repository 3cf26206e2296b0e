//! The exit codes.

use std::os::unix::process::ExitStatusExt;

use crate::world::World;

#[test]
fn the_commands_own_code_is_passed_on() {
    let world = World::new();
    for code in [0, 1, 7, 64, 75, 76, 255] {
        world.run("run n --", &["sh", "-c", &format!("exit {code}")]).ended(code);
    }
}

#[test]
fn a_command_ended_by_a_signal_gives_128_and_its_number() {
    let world = World::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR1", 138), ("ABRT", 134)] {
        let ran = world.run("run n --", &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ran.status.code(), Some(code), "{signal}: an exit code, not a signal");
    }
}

#[test]
fn int_and_quit_end_leasehold_by_the_same_signal() {
    let world = World::new();
    for (signal, number) in [("INT", 2), ("QUIT", 3)] {
        let ran = world.run("run n --", &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ran.status.signal(), Some(number), "{ran:?}");
    }
}

#[test]
fn what_cannot_be_executed_is_126_and_what_is_not_there_127_and_neither_waits() {
    let world = World::new();
    let holder = world.start("run n --", &["sleep", "1000"]);
    world.held("n");
    std::fs::write(world.path("plain"), "no program").unwrap();
    let ran = world.run("run n -- ./plain", &[]).ended(126);
    assert!(ran.err.contains("./plain"), "{ran:?}");
    let ran = world.run("run n -- no-such-program-here", &[]).ended(127);
    assert!(ran.err.contains("no-such-program-here"), "{ran:?}");
    assert!(holder.finish_by_term().err.is_empty());
}

impl crate::world::Started {
    fn finish_by_term(self) -> crate::world::Ran {
        self.signal(rustix::process::Signal::TERM);
        self.finish().ended(143)
    }
}

#[test]
fn busy_is_75_or_what_was_asked_for() {
    let world = World::new();
    let holder = world.start("run n --holder", &["the other", "--", "sleep", "1000"]);
    world.held("n");
    let ran = world.run("run n --no-wait -- true", &[]).ended(75);
    assert!(ran.err.contains("\"n\" is busy, held by the other for"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    let ran = world.run("run n --wait 50ms -- true", &[]).ended(75);
    assert!(ran.err.contains("of waiting"), "{ran:?}");
    for code in [0, 3, 255] {
        let asked = format!("run n --no-wait --busy-exit-code {code} -- true");
        world.run(&asked, &[]).ended(code);
    }
    world.run("acquire n --no-wait", &[]).ended(75);
    world.run("hold n --no-wait", &[]).ended(75);
    drop(holder);
}

#[test]
fn a_store_that_cannot_be_used_now_is_69_within_the_timeout() {
    let world = World::new();
    world.run("run n -- true", &[]).ended(0);
    let other = rusqlite::Connection::open(world.path("locks.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for asked in ["run n -- true", "run n --no-wait -- true", "run n --wait 300ms -- true"] {
        let ran = world.run(&format!("--timeout 300ms {asked}"), &[]).ended(69);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    other.execute_batch("ROLLBACK").unwrap();
    world.run("run n -- true", &[]).ended(0);
}

#[test]
fn a_limit_on_the_size_of_files_is_told_and_is_the_commands_own() {
    let world = World::new();
    let ran = world.sh("ulimit -f 1; exec $L run n -- true").ended(69);
    assert!(ran.err.contains("ulimit -f") && ran.err.lines().count() == 1, "{ran:?}");
    // What the command writes beyond the limit ends it as it would without leasehold.
    world.run("run n -- true", &[]).ended(0);
    let script = "ulimit -f 64; exec $L run n -- head -c 100000 /dev/zero >big";
    world.sh(script).ended(128 + 25);
}
