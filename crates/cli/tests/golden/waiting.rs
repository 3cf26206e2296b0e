//! Waiting for a lock.

use std::fs;
use std::time::Instant;

use rustix::process::Signal;

use crate::world::{World, exists, start_as_it_is};

fn holder(world: &World) -> crate::world::Started {
    let script = "until test -e go; do sleep 0.01; done";
    let holder = world.start("run n --holder someone --", &["sh", "-c", script]);
    world.held("n");
    holder
}

#[test]
fn a_signal_while_waiting_leaves_the_queue_and_exits_with_128_and_its_number() {
    let world = World::new();
    let _holder = holder(&world);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        for command in ["run n -- touch never", "acquire n", "hold n"] {
            let waiter = world.start(command, &[]);
            world.waiters("n", 1);
            waiter.signal(signal);
            let ran = waiter.finish();
            assert_eq!(ran.status.code(), Some(code), "{command}: {ran:?}");
            world.waiters("n", 0);
        }
    }
    assert!(!exists(&world.path("never")));
}

#[test]
fn a_second_signal_exits_at_once() {
    let world = World::new();
    let _holder = holder(&world);
    let waiter = world.start("run n -- true", &[]);
    world.waiters("n", 1);
    // Nobody can leave the queue while another program writes.
    let other = rusqlite::Connection::open(world.path("locks.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    waiter.signal(Signal::TERM);
    let keeper = crate::world::keeper(waiter.pid());
    crate::world::eventually("the first signal is taken", || {
        let status = fs::read_to_string(format!("/proc/{}/status", waiter.pid())).ok()?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        let blocked = u64::from_str_radix(blocked.trim(), 16).ok()?;
        (blocked & (1 << 14) == 0).then_some(())
    });
    let began = Instant::now();
    waiter.signal(Signal::INT);
    waiter.finish().ended(130);
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
    crate::world::eventually("the keeper is gone", || (!crate::world::lives(keeper)).then_some(()));
}

#[test]
fn waiters_are_served_in_the_order_of_their_coming() {
    let world = World::new();
    let _holder = holder(&world);
    let waiters: Vec<_> = (0..5)
        .map(|i| {
            let waiter = world.start("run n --", &["sh", "-c", &format!("echo {i} >>order")]);
            world.waiters("n", i + 1);
            waiter
        })
        .collect();
    fs::write(world.path("go"), "").unwrap();
    for waiter in waiters {
        waiter.finish().ended(0);
    }
    assert_eq!(world.read("order"), "0\n1\n2\n3\n4\n");
}

#[test]
fn off_a_terminal_it_is_silent_and_with_v_says_a_line_every_half_minute() {
    let world = World::new();
    let _holder = holder(&world);
    let silent = world.start("run n -- true", &[]);
    let verbose = world.start("-v run n --wait 32s -- true", &[]);
    let ran = verbose.finish().ended(75);
    let lines: Vec<&str> = ran.err.lines().filter(|line| line.contains("waiting for")).collect();
    assert_eq!(lines.len(), 1, "{ran:?}");
    assert!(lines[0].contains("held by someone for") && lines[0].contains("since 2"), "{ran:?}");
    silent.signal(Signal::TERM);
    assert_eq!(silent.finish().ended(143).err, "");
}

#[test]
fn a_store_lost_while_waiting_is_told_and_tried_on() {
    let world = World::new();
    let holder = holder(&world);
    let mut command = world.leasehold("--timeout 200ms run n -- true", &[]);
    let said = fs::File::create(world.path("said")).unwrap();
    command.stderr(said);
    let waiter = start_as_it_is(command);
    world.waiters("n", 1);
    let other = rusqlite::Connection::open(world.path("locks.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let line = world.line("said");
    assert!(line.contains("going on trying") && line.lines().count() == 1, "{line}");
    assert!(line.contains("\"n\"") && line.contains("locks.db"), "what and where: {line}");
    other.execute_batch("ROLLBACK").unwrap();
    fs::write(world.path("go"), "").unwrap();
    holder.finish().ended(0);
    waiter.finish().ended(0);
}

#[test]
fn a_run_that_has_waited_leaves_nothing_in_the_folder_of_the_store() {
    let world = World::new();
    let holder = holder(&world);
    let waiter = world.start("run n -- true", &[]);
    world.waiters("n", 1);
    let woken_by = || fs::read_dir(world.path("locks.db-wake")).map_or(0, Iterator::count);
    assert_eq!(woken_by(), 1);
    fs::write(world.path("go"), "").unwrap();
    holder.finish().ended(0);
    waiter.finish().ended(0);
    assert_eq!(woken_by(), 0);
}
