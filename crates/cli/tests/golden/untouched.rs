//! What a run leaves as it found it.

use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::world::{World, start};

#[test]
fn arguments_are_bytes_and_no_shell_sees_them() {
    let world = World::new();
    let mut command = world.leasehold("run n -- printf %s", &[]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff$(x) 'y' *"));
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(output.stdout, b"\xff$(x) 'y' *");
}

#[test]
fn what_the_command_is_started_with_is_what_leasehold_was_started_with() {
    let world = World::new();
    // Signals, mask, limits, umask, folder: as the kernel tells them of each.
    let look = "grep -E '^(Sig(Blk|Ign|Cgt)|Shd?Pnd)' /proc/self/status; umask; ulimit -n; pwd";
    std::fs::write(world.path("look.sh"), look).unwrap();
    for before in ["", "trap '' PIPE;", "trap '' INT; trap '' HUP;", "umask 0013; ulimit -n 123;"] {
        let bare = world.sh(&format!("{before} exec sh ./look.sh")).ended(0).out;
        let under = world.sh(&format!("{before} exec $L run n -- sh ./look.sh")).ended(0).out;
        assert_eq!(bare, under, "after `{before}`");
    }
}

#[test]
fn descriptors_are_passed_through_and_one_is_added_at_a_high_number() {
    let world = World::new();
    let list = "ls /proc/self/fd | tr '\\n' ' '";
    std::fs::write(world.path("list.sh"), list).unwrap();
    let ran = world.sh("exec 7>seven; sh ./list.sh; echo; $L run n -- sh ./list.sh").ended(0);
    let sets: Vec<Vec<u32>> = ran
        .out
        .lines()
        .map(|line| line.split_whitespace().map(|fd| fd.parse().unwrap()).collect())
        .collect();
    let added: Vec<&u32> = sets[1].iter().filter(|fd| !sets[0].contains(fd)).collect();
    assert!(sets[0].iter().all(|fd| sets[1].contains(fd)), "{ran:?}");
    assert!(matches!(added.as_slice(), [fd] if **fd >= 100), "{ran:?}");
}

#[test]
fn closed_standard_descriptors_stay_closed() {
    let world = World::new();
    for (closed, fd) in [("<&-", 0), (">&-", 1), ("2>&-", 2)] {
        let script = format!("test -e /proc/self/fd/{fd} && echo open >>seen; exit 7");
        std::fs::write(world.path("look.sh"), script).unwrap();
        world.sh(&format!("exec $L run n -- sh ./look.sh {closed}")).ended(7);
        assert_eq!(world.read("seen"), "", "{closed}");
    }
}

#[test]
fn stdin_is_the_commands_own() {
    let world = World::new();
    let mut command = world.leasehold("run n -- sort", &[]);
    command.stdin(Stdio::piped());
    let mut started = start(command);
    started.write("b\na\n");
    started.hang_up();
    assert_eq!(started.finish().ended(0).out, "a\nb\n");
}

#[test]
fn a_pipe_ends_when_the_command_closes_it() {
    let world = World::new();
    // The reader must see the end while the command, and leasehold with it, still runs.
    let ran = world
        .sh("$L run n -- sh -c 'echo data; exec >&-; until test -e go; do sleep 0.01; done' | \
         { cat; touch go; }");
    assert_eq!(ran.ended(0).out, "data\n");
}

#[test]
fn closed_outputs_never_end_a_run() {
    let world = World::new();
    world.sh("exec $L -v run n -- sh -c 'exit 5' >&- 2>&-").ended(5);
    world.sh("mkfifo p; exec 9<>p; $L -v run n -- sh -c 'exit 5' 2>&1 >/dev/full").ended(5);
    // A reader that is gone: every line that leasehold says goes nowhere.
    let ran = world.sh("{ $L -v run n -- sh -c 'sleep 0.2; exit 5'; echo $? >code; } 2>&1 | true");
    ran.ended(0);
    assert_eq!(world.line("code"), "5");
}
