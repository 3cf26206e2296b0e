//! What a run does besides running.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::world::{World, eventually, exists, finish, keeper, kill, lives, start};

#[test]
fn four_hundred_increments_under_sixteen_at_a_time_are_four_hundred() {
    let world = World::new();
    fs::write(world.path("n"), "0\n").unwrap();
    let ran =
        world.sh("seq 400 | xargs -P 16 -I{} $L run ctr -- sh -c 'n=$(cat n); echo $((n+1)) > n'");
    assert_eq!(ran.ended(0).err, "");
    assert_eq!(world.read("n"), "400\n");
}

#[test]
fn tokens_rise_from_run_to_run() {
    let world = World::new();
    let token = || -> u64 {
        let ran = world.run("run n --", &["sh", "-c", "echo $LEASEHOLD_TOKEN"]).ended(0);
        ran.out.trim_end().parse().unwrap()
    };
    let tokens: Vec<u64> = (0..5).map(|_| token()).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    assert!(tokens[4] < 1 << 53);
}

#[test]
fn a_run_is_renewed_for_as_long_as_its_command_takes() {
    let world = World::new();
    let script = "until test -e go; do sleep 0.01; done";
    let began = Instant::now();
    let started = world.start("run n --ttl 3s --", &["sh", "-c", script]);
    world.held("n");
    while began.elapsed() < Duration::from_secs(8) {
        world.run("run n --no-wait -- true", &[]).ended(75);
        std::thread::sleep(Duration::from_millis(200));
    }
    fs::write(world.path("go"), "").unwrap();
    assert_eq!(started.finish().ended(0).err, "");
}

#[test]
fn what_the_command_left_running_is_left_alone_and_holds_nothing() {
    let world = World::new();
    let script = "sh -c 'echo $$ >pid; exec sleep 1000' >/dev/null 2>&1 & \
        until test -s pid; do sleep 0.01; done";
    world.run("run n --", &["sh", "-c", script]).ended(0);
    let pid: i32 = world.line("pid").parse().unwrap();
    assert!(lives(pid));
    world.run("run n --no-wait -- true", &[]).ended(0);
    kill(pid, Signal::KILL);
}

#[test]
fn wait_all_releases_when_the_whole_tree_is_gone() {
    let world = World::new();
    let script = "(until test -e go; do sleep 0.01; done) >/dev/null 2>&1 & exit 3";
    let started = world.start("run n --wait-all --", &["sh", "-c", script]);
    world.held("n");
    world.run("run n --no-wait -- true", &[]).ended(75);
    assert!(lives(started.pid()));
    fs::write(world.path("go"), "").unwrap();
    started.finish().ended(3);
    world.run("run n --no-wait -- true", &[]).ended(0);
}

#[test]
fn hold_at_least_ends_with_the_command_and_keeps_the_lock() {
    let world = World::new();
    world.run("run n --ttl 2s --hold-at-least 5m --", &["sh", "-c", "exit 4"]).ended(4);
    let shown = world.shown("n");
    assert_eq!(shown["held"], true);
    let left = shown["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!((200_000..=300_000).contains(&left), "{shown}");
    world.run("run n --no-wait -- true", &[]).ended(75);
    // A command that took longer has held it long enough.
    world.run("run m --hold-at-least 1ms -- sleep 0.1", &[]).ended(0);
    assert_eq!(world.shown("m")["held"], false);
}

#[test]
fn after_loss_stays_away_after_an_unclean_end_alone() {
    let world = World::new();
    world.run("run n --no-wait --after-loss 5m -- true", &[]).ended(0);
    let started = world.start("run n --", &["sleep", "1000"]);
    world.held("n");
    started.signal(Signal::KILL);
    started.finish().ended(137);
    eventually("the lock is free", || (world.shown("n")["held"] == false).then_some(()));
    world.run("run n --no-wait --after-loss 5m -- true", &[]).ended(75);
    world.run("run n --no-wait -- true", &[]).ended(0);
}

#[test]
fn shared_runs_go_together_and_not_beside_an_exclusive_one() {
    let world = World::new();
    let first = world.start("run n --shared --", &["sleep", "1000"]);
    world.held("n");
    world.run("run n --shared --no-wait -- true", &[]).ended(0);
    world.run("run n --no-wait -- true", &[]).ended(75);
    drop(first);
}

#[test]
fn permits_are_numbered_slots_and_there_are_no_more_than_the_limit() {
    let world = World::new();
    let hold = "echo $LEASEHOLD_SLOTS >$0; exec sleep 1000";
    let run = "run n --permits 1 --limit 2 --no-wait --";
    let _first = world.start(run, &["sh", "-c", hold, "first"]);
    let first = world.line("first");
    let _second = world.start(run, &["sh", "-c", hold, "second"]);
    let mut slots = [first, world.line("second")];
    slots.sort();
    assert_eq!(slots, ["0", "1"]);
    world.run(run, &["true"]).ended(75);
}

#[test]
fn signals_reach_a_command_that_is_not_on_a_terminal() {
    let world = World::new();
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
    ] {
        let script =
            format!("trap 'exit 9' {name}; echo ready >ready; while :; do sleep 0.01; done");
        let started = world.start("run n --", &["sh", "-c", &script]);
        world.line("ready");
        started.signal(signal);
        assert_eq!(started.finish().code(), 9, "{name}");
        fs::remove_file(world.path("ready")).unwrap();
    }
}

#[test]
fn with_parent_ends_the_command_when_the_parent_ends() {
    let world = World::new();
    let script = "$L run n --with-parent -- sh -c 'echo $$ >pid; exec sleep 1000' & \
        until test -s pid; do sleep 0.01; done; echo >ready; kill -9 $$";
    world.sh(script).ended(137);
    let pid: i32 = world.line("pid").parse().unwrap();
    eventually("the command is ended", || (!lives(pid)).then_some(()));
    eventually("the lock is free", || (world.shown("n")["held"] == false).then_some(()));
}

#[test]
fn status_fd_says_how_it_ended() {
    let world = World::new();
    let status = |script: &str| -> serde_json::Value {
        world.sh(script);
        let text = world.read("status");
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let ended = status("$L run n --holder h --status-fd 3 -- sh -c 'exit 75' 3>status");
    assert_eq!(ended["outcome"], "done");
    assert_eq!((&ended["exit_code"], &ended["command_exit_code"]), (&75.into(), &75.into()));
    assert_eq!((&ended["name"], &ended["holder"]), (&"n".into(), &"h".into()));
    assert_eq!((&ended["store"], &ended["release"]), (&world.store().into(), &"released".into()));
    assert!(ended["token"].is_u64() && ended["held_ms"].is_u64() && ended["waited_ms"].is_u64());
    assert!(ended["ended_at"].as_str().unwrap().ends_with('Z'));

    let ended = status("$L run n --status-fd 3 -- sh -c 'kill -9 $$' 3>status");
    assert_eq!((&ended["exit_code"], &ended["command_signal"]), (&137.into(), &9.into()));
    let ended = status("$L run n --status-fd 3 -- no-such-program 3>status");
    assert_eq!((&ended["outcome"], &ended["exit_code"]), (&"failed".into(), &127.into()));
    let ended = status(
        "$L run n -- sh -c '$L run --reenter n -- true; \
         LEASEHOLD_CLAIMS= $L run n --no-wait --busy-exit-code 0 --status-fd 3 -- true 3>status'",
    );
    assert_eq!((&ended["outcome"], &ended["exit_code"]), (&"busy".into(), &0.into()));
    // The command does not get the copy: a pipe ends with leasehold, whatever was left running.
    let ran = world
        .sh("{ $L run n --status-fd 1 -- sh -c 'sleep 1000 >/dev/null 2>&1 & echo $! >pid' \
         >/dev/null; } 2>&1 | cat");
    ran.ended(0);
    kill(world.line("pid").parse().unwrap(), Signal::KILL);
}

#[test]
fn nothing_is_made_for_a_run_but_the_stores_own_files() {
    let world = World::new();
    world.run("run n -- true", &[]).ended(0);
    let files = || {
        let names = fs::read_dir(world.path("")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    for _ in 0..3 {
        world.run("run n -- true", &[]).ended(0);
    }
    assert_eq!(files(), before);
}

#[test]
fn verbose_names_the_store_and_quiet_says_nothing() {
    let world = World::new();
    let ran = world.run("-v run n -- true", &[]).ended(0);
    assert!(ran.err.contains(&format!("store {}", world.store())), "{ran:?}");
    assert_eq!(world.run("run n -- true", &[]).ended(0).err, "");
    let _holder = world.start("run n --", &["sleep", "1000"]);
    world.held("n");
    let ran = world.run("-q run n --no-wait --busy-exit-code 3 -- true", &[]).ended(3);
    assert_eq!(ran.err, "");
}

#[test]
fn an_operator_who_breaks_it_ends_the_command_with_76() {
    let world = World::new();
    let script = "exec $L run n --ttl 6s --status-fd 3 -- sleep 1000 3>status";
    let mut command = world.program("sh");
    command.args(["-c", script]);
    let started = start(command);
    world.held("n");
    world.run("break n --yes", &[]).ended(0);
    let ran = started.finish().ended(76);
    assert!(ran.err.contains("broke it"), "{ran:?}");
    let status: serde_json::Value = serde_json::from_str(&world.read("status")).unwrap();
    assert_eq!((&status["outcome"], &status["lost"]), (&"lost".into(), &"broken".into()));
    assert_eq!(status["ended_by"], "lost", "at the word, not at the deadline: {status}");
}

#[test]
fn on_lost_warn_lets_the_command_end_by_itself_and_76_wins() {
    let world = World::new();
    let script = "until test -e go; do sleep 0.01; done; echo done >done; exit 3";
    let started = world.start("run n --ttl 3s --on-lost warn --", &["sh", "-c", script]);
    world.held("n");
    world.run("break n --yes --now", &[]).ended(0);
    // The next holder comes and goes while the command still runs.
    world.run("run n -- true", &[]).ended(0);
    eventually("the loss is told", || {
        let shown = world.shown("n");
        (shown["held"] == false).then_some(())
    });
    fs::write(world.path("go"), "").unwrap();
    let ran = started.finish().ended(76);
    assert_eq!(world.read("done"), "done\n", "the command was left alone");
    assert!(!ran.err.is_empty());
}

#[test]
fn release_that_fails_is_a_warning_and_the_commands_own_code() {
    let world = World::new();
    let script = "echo ready >ready; until test -e go; do sleep 0.01; done; exit 5";
    let started = world.start("--timeout 300ms run n --", &["sh", "-c", script]);
    world.line("ready");
    let other = rusqlite::Connection::open(world.path("locks.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(world.path("go"), "").unwrap();
    let ran = started.finish().ended(5);
    assert!(ran.err.contains("could not be released"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[test]
fn a_defect_kills_the_tree_and_is_70() {
    // The hook exists in builds with debug assertions, which tests are.
    let world = World::new();
    let script = "echo $$ >pid; exec sleep 1000";
    let mut command = world.leasehold("run n --", &["sh", "-c", script]);
    command.env("LEASEHOLD_TEST_PANIC", world.path("pid"));
    let ran = finish(command).ended(70);
    assert!(ran.err.contains("defect") && ran.err.lines().count() == 1, "{ran:?}");
    let pid: i32 = world.line("pid").parse().unwrap();
    assert!(!lives(pid), "it was dead before leasehold was");
    world.run("run n --no-wait -- true", &[]).ended(0);
}

#[test]
fn the_keeper_bears_its_name_and_goes_with_the_run() {
    let world = World::new();
    let started = world.start("run n --", &["sh", "-c", "until test -e go; do sleep 0.01; done"]);
    world.held("n");
    let keeper = keeper(started.pid());
    let name = fs::read_to_string(format!("/proc/{keeper}/comm")).unwrap();
    assert_eq!(name.trim_end(), "leasehold-keep");
    fs::write(world.path("go"), "").unwrap();
    started.finish().ended(0);
    eventually("the keeper is gone", || (!lives(keeper)).then_some(()));
    assert!(exists(&world.path("locks.db")));
}
