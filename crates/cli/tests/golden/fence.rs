//! `fence`: the refusing side for scripts.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::Signal;

use crate::world::{Ran, World, eventually, lives};

fn put(world: &World, token: &str, text: &str) -> Ran {
    world.sh(&format!("echo {text} | $L fence put file --token {token}"))
}

#[test]
fn put_takes_data_from_stdin_and_refuses_an_older_token_naming_the_newest() {
    let world = World::new();
    put(&world, "7", "seven").ended(0);
    put(&world, "7", "again").ended(0);
    let ran = put(&world, "6", "six").ended(77);
    assert!(ran.err.contains('7') && ran.err.lines().count() == 1, "{ran:?}");
    assert_eq!(world.read("file"), "again\n");
    put(&world, "1:1", "epoch").ended(0);
    put(&world, "999", "old epoch").ended(77);
    assert_eq!(world.read("file"), "epoch\n");
}

#[test]
fn run_lets_no_newer_token_in_until_the_command_ends() {
    let world = World::new();
    let script = "echo ready >ready; until test -e go; do sleep 0.01; done; exit 6";
    let inside = world.start("fence run r --token 5 --", &["sh", "-c", script]);
    world.line("ready");
    let ran = world.run("--timeout 100ms fence run r --token 6 -- touch never", &[]).ended(75);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    let next = world.start("fence run r --token 6 -- true", &[]);
    assert!(lives(next.pid()));
    fs::write(world.path("go"), "").unwrap();
    inside.finish().ended(6);
    next.finish().ended(0);
    world.run("fence run r --token 5 -- touch never", &[]).ended(77);
    assert!(!crate::world::exists(&world.path("never")));
}

#[test]
fn run_passes_codes_signals_and_a_missing_command_on() {
    let world = World::new();
    world.run("fence run r --token 1 --", &["sh", "-c", "exit 75"]).ended(75);
    world.run("fence run r --token 1 --", &["sh", "-c", "kill -9 $$"]).ended(137);
    world.run("fence run r --token 2 -- no-such-program", &[]).ended(127);
    world.run("fence run r --token 1 -- true", &[]).ended(0);
    let script = "trap 'exit 9' TERM; echo >ready; while :; do sleep 0.01; done";
    let inside = world.start("fence run r --token 3 --", &["sh", "-c", script]);
    eventually("it runs", || crate::world::exists(&world.path("ready")).then_some(()));
    inside.signal(Signal::TERM);
    inside.finish().ended(9);
}

#[test]
fn shared_accesses_go_together_and_slots_are_fenced_apart() {
    let world = World::new();
    let script = "echo >ready; until test -e go; do sleep 0.01; done";
    let inside = world.start("fence run r --shared --token 5 --", &["sh", "-c", script]);
    eventually("it runs", || crate::world::exists(&world.path("ready")).then_some(()));
    world.run("fence run r --shared --token 4 -- true", &[]).ended(0);
    world.run("fence run r --shared --token 6 -- true", &[]).ended(0);
    world.run("--timeout 50ms fence run r --token 7 -- true", &[]).ended(75);
    fs::write(world.path("go"), "").unwrap();
    inside.finish().ended(0);
    world.run("fence run r --token 5 -- true", &[]).ended(77);
    world.run("fence run r --token 6 -- true", &[]).ended(0);
    world.run("fence run r --slot 0 --token 1 -- true", &[]).ended(0);
    world.run("fence run r --slot 1 --token 9 -- true", &[]).ended(0);
    world.run("fence run r --slot 0 --token 2 -- true", &[]).ended(0);
    world.run("fence run r --slot 1 --token 8 -- true", &[]).ended(77);
}

#[test]
fn check_accepts_or_refuses_raises_nothing_and_says_that_it_is_a_race() {
    let world = World::new();
    let ran = world.run("fence check r --token 9", &[]).ended(0);
    assert!(ran.err.contains("race"), "{ran:?}");
    world.run("fence run r --token 5 -- true", &[]).ended(0);
    let ran = world.run("fence check r --token 4", &[]).ended(77);
    assert!(ran.err.contains('5'), "{ran:?}");
    assert_eq!(world.run("-q fence check r --token 5", &[]).ended(0).err, "");
}

#[test]
fn a_namespace_keeps_fenced_resources_apart() {
    let world = World::new();
    world.run("--namespace a fence run r --token 9 -- true", &[]).ended(0);
    world.run("--namespace b fence run r --token 1 -- true", &[]).ended(0);
    world.run("fence run a/r --token 8 -- true", &[]).ended(77);
}

#[test]
fn marks_are_kept_in_the_embedded_store() {
    let world = World::new();
    world.run("fence run r --token 7 -- true", &[]).ended(0);
    let db = rusqlite::Connection::open(world.path("locks.db")).unwrap();
    let token: i64 = db
        .query_row("SELECT exclusive_token FROM leasehold_fence WHERE resource = 'r'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(token, 7);
    // The locks beside them remember nothing.
    fs::remove_dir_all(world.path("locks.db-fence")).unwrap();
    world.run("fence run r --token 6 -- true", &[]).ended(77);
    world.run("run n -- true", &[]).ended(0);
}

#[test]
fn a_shared_store_has_a_shared_fence() {
    let world = World::new();
    let store = format!("{}?mode=0660", world.store());
    world.run("--store", &[&store, "fence", "run", "r", "--token", "1", "--", "true"]).ended(0);
    let mode = |name| fs::metadata(world.path(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("locks.db"), 0o660);
    assert_eq!(mode("locks.db-fence"), 0o770);
}

#[test]
fn put_keeps_mode_and_link_and_refuses_what_is_no_file() {
    let world = World::new();
    world.sh("echo old >real; chmod 640 real; ln -s real file").ended(0);
    put(&world, "1", "new").ended(0);
    assert_eq!(world.read("real"), "new\n");
    assert!(fs::symlink_metadata(world.path("file")).unwrap().is_symlink());
    assert_eq!(fs::metadata(world.path("real")).unwrap().mode() & 0o777, 0o640);
    fs::create_dir(world.path("folder")).unwrap();
    let ran = world.sh("echo x | $L fence put folder --token 1").ended(78);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[test]
fn put_without_a_stdin_leaves_the_file_as_it_is() {
    let world = World::new();
    put(&world, "1", "new").ended(0);
    let ran = world.sh("$L fence put file --token 2 <&-").ended(64);
    assert!(ran.err.contains("stdin is closed"), "{ran:?}");
    assert_eq!(world.read("file"), "new\n");
    put(&world, "1", "newer").ended(0);
}

#[test]
fn a_missing_command_of_run_names_its_own_form() {
    let world = World::new();
    let ran = world.run("fence run r --token 1", &[]).ended(64);
    assert!(ran.err.contains("`leasehold fence run RESOURCE --token N -- CMD"), "{ran:?}");
    let ran = world.run("run --frob n -- true", &[]).ended(64);
    assert!(ran.err.trim_end().ends_with("'--frob' found"), "{ran:?}");
}
