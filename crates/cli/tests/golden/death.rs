//! What kills, stops or hangs part of a run must not leave a command beside the next holder.

use std::fs;

use rustix::process::Signal;

use crate::world::{World, children, eventually, keeper, kill, kill_group, lives};

/// Writes the time to a file again and again, from a tree of three, and ignores TERM.
const BEATS: &str = "trap '' TERM; echo $$ >pid; \
    (trap '' TERM; while :; do date +%s%N >>beats; done) & \
    while :; do date +%s%N >>beats; done";

fn beats(world: &World) -> Vec<u128> {
    world.read("beats").lines().filter_map(|line| line.parse().ok()).collect()
}

/// The next holder: notes the time first of all.
fn next(world: &World) -> crate::world::Started {
    world.start("run n --", &["sh", "-c", "date +%s%N >next; echo $LEASEHOLD_TOKEN >token"])
}

fn assert_silent_since(world: &World, next_at: u128) {
    let last = beats(world).into_iter().max().unwrap();
    assert!(last < next_at, "a beat {} ns after the next holder began", last - next_at);
}

#[test]
fn leasehold_alone_stopped_past_its_term_loses_its_tree_before_the_next_holder_begins() {
    let world = World::new();
    let script = format!("echo $LEASEHOLD_TOKEN >old; {BEATS}");
    let started = world.start("run n --ttl 2s --", &["sh", "-c", &script]);
    let command: i32 = world.line("pid").parse().unwrap();
    eventually("beats", || (beats(&world).len() > 10).then_some(()));
    let next = next(&world);
    world.waiters("n", 1);
    started.signal(Signal::STOP);
    next.finish().ended(0);
    assert_silent_since(&world, world.line("next").parse().unwrap());
    assert!(!lives(command));

    // The next holder has used the thing; what the old one still has in hand is refused.
    let put = |token: &str| {
        let script = format!("echo by {token} | $L fence put file --token {token}");
        world.sh(&script)
    };
    put(&world.line("token")).ended(0);
    put(&world.line("old")).ended(77);
    assert_eq!(world.read("file"), format!("by {}\n", world.line("token")));

    started.signal(Signal::CONT);
    let ran = started.finish().ended(76);
    assert!(ran.err.contains("lost \"n\""), "{ran:?}");
}

#[test]
fn the_whole_group_stopped_and_continued_writes_nothing_more() {
    let world = World::new();
    let started = world.start("run n --ttl 2s --", &["sh", "-c", BEATS]);
    let command: i32 = world.line("pid").parse().unwrap();
    eventually("beats", || (beats(&world).len() > 10).then_some(()));
    let next = next(&world);
    world.waiters("n", 1);
    kill_group(started.pid(), Signal::STOP);
    kill_group(command, Signal::STOP);
    next.finish().ended(0);
    let _ = rustix::process::kill_process_group(
        rustix::process::Pid::from_raw(command).unwrap(),
        Signal::CONT,
    );
    kill_group(started.pid(), Signal::CONT);
    started.finish().ended(76);
    assert_silent_since(&world, world.line("next").parse().unwrap());
}

#[test]
fn kill_9_of_leasehold_kills_the_tree_and_frees_the_lock_at_once() {
    let world = World::new();
    let started = world.start("run n --ttl 1h --", &["sh", "-c", BEATS]);
    let command: i32 = world.line("pid").parse().unwrap();
    eventually("beats", || (beats(&world).len() > 10).then_some(()));
    let next = next(&world);
    world.waiters("n", 1);
    started.signal(Signal::KILL);
    // An hour would have been the term.
    next.finish().ended(0);
    assert_silent_since(&world, world.line("next").parse().unwrap());
    assert!(!lives(command));
    started.finish().ended(137);
    let shown = world.shown("n");
    assert_eq!(shown["last_end"], "released", "the next holder's own: {shown}");
}

#[test]
fn the_lock_is_not_free_while_any_of_the_tree_lives_even_without_front_and_keeper() {
    let world = World::new();
    let script = "sh -c 'echo $$ >deep; exec sleep 1000' >/dev/null 2>&1 & echo $$ >pid; wait";
    let started = world.start("run n --ttl 1h --", &["sh", "-c", script]);
    let deep: i32 = world.line("deep").parse().unwrap();
    let keeper = keeper(started.pid());
    // Stopped, it cannot end the orphans of the keeper.
    started.signal(Signal::STOP);
    kill(keeper, Signal::KILL);
    started.signal(Signal::KILL);
    started.finish().ended(137);
    eventually("the keeper is gone", || (!lives(keeper)).then_some(()));
    assert!(lives(deep));
    world.run("run n --no-wait -- true", &[]).ended(75);
    kill(deep, Signal::KILL);
    world.run("run n --wait 1m -- true", &[]).ended(0);
}

#[test]
fn kill_9_of_the_keeper_ends_the_tree_and_then_the_run() {
    let world = World::new();
    let started = world.start("run n --ttl 1h --", &["sh", "-c", BEATS]);
    let command: i32 = world.line("pid").parse().unwrap();
    eventually("beats", || (beats(&world).len() > 10).then_some(()));
    let next = next(&world);
    world.waiters("n", 1);
    kill(keeper(started.pid()), Signal::KILL);
    let ran = started.finish();
    assert!(ran.err.contains("keeper"), "{ran:?}");
    assert_ne!(ran.code(), 0);
    assert!(!lives(command));
    next.finish().ended(0);
    assert_silent_since(&world, world.line("next").parse().unwrap());
}

#[test]
fn kill_9_of_a_waiting_leasehold_leaves_no_place_in_the_queue() {
    let world = World::new();
    let _holder = world.start("run n --", &["sh", "-c", "until test -e go; do sleep 0.01; done"]);
    world.held("n");
    let dead = world.start("run n --", &["touch", "never"]);
    world.waiters("n", 1);
    let live = world.start("run n --", &["true"]);
    world.waiters("n", 2);
    dead.signal(Signal::KILL);
    dead.finish().ended(137);
    fs::write(world.path("go"), "").unwrap();
    live.finish().ended(0);
    assert!(!crate::world::exists(&world.path("never")));
}

#[test]
fn grace_is_the_time_between_term_and_kill() {
    let world = World::new();
    let polite =
        "trap 'echo polite >seen; exit 0' TERM; echo $$ >pid; while :; do sleep 0.01; done";
    let started = world.start("run n --ttl 3s --grace 1s --", &["sh", "-c", polite]);
    world.line("pid");
    world.run("break n --yes", &[]).ended(0);
    started.finish().ended(76);
    assert_eq!(world.read("seen"), "polite\n");
}

#[test]
fn a_tree_is_killed_whole_whatever_its_sessions() {
    let world = World::new();
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ >deep; while :; do sleep 0.01; done' & \
        echo $$ >pid; wait";
    let started = world.start("run n --ttl 1h --", &["sh", "-c", script]);
    let deep: i32 = world.line("deep").parse().unwrap();
    assert!(!children(started.pid()).is_empty());
    started.signal(Signal::KILL);
    started.finish().ended(137);
    eventually("the tree is gone", || (!lives(deep)).then_some(()));
}
