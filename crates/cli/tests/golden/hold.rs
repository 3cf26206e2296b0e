//! `hold`: a lock for something else.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::world::{World, eventually, lives, start};

#[test]
fn it_prints_the_object_and_holds_until_a_signal() {
    let world = World::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        // A background job's stdin is /dev/null, whose end means nothing.
        let holder = world.start("hold n --ttl 1m", &[]);
        world.held("n");
        holder.signal(signal);
        let ran = holder.finish().ended(code);
        let object = ran.json();
        assert_eq!((&object["name"], &object["ttl_ms"]), (&"n".into(), &60_000.into()));
        let shown = world.shown("n");
        assert_eq!((&shown["held"], &shown["last_end"]), (&false.into(), &"released".into()));
    }
}

#[test]
fn it_holds_until_a_piped_stdin_closes() {
    let world = World::new();
    let mut command = world.leasehold("hold n", &[]);
    command.stdin(Stdio::piped());
    let mut holder = start(command);
    world.held("n");
    holder.write("what is written means nothing\n");
    assert!(world.shown("n")["held"].as_bool().unwrap());
    holder.hang_up();
    holder.finish().ended(0);
    assert_eq!(world.shown("n")["last_end"], "released");
}

#[test]
fn a_stdin_that_closes_while_waiting_leaves_the_queue() {
    let world = World::new();
    let _other = world.start("hold n", &[]);
    world.held("n");
    let mut command = world.leasehold("hold n", &[]);
    command.stdin(Stdio::piped());
    let mut waiter = start(command);
    world.waiters("n", 1);
    waiter.hang_up();
    let ran = waiter.finish().ended(75);
    assert!(ran.err.contains("stdin closed"), "{ran:?}");
    world.waiters("n", 0);
}

#[test]
fn it_holds_until_a_process_ends() {
    let world = World::new();
    let mut sleeper = world.program("sleep");
    sleeper.arg("1000");
    let sleeper = start(sleeper);
    let holder = world.start(&format!("hold n --pid {}", sleeper.pid()), &[]);
    world.held("n");
    sleeper.signal(Signal::KILL);
    // Reaped or not, it has ended.
    holder.finish().ended(0);
    assert_eq!(world.shown("n")["held"], false);
    drop(sleeper);
}

#[test]
fn when_it_is_lost_it_is_76_and_the_process_is_told_if_asked_to() {
    let world = World::new();
    for tells in [true, false] {
        let mut sleeper = world.program("sleep");
        sleeper.arg("1000");
        let sleeper = start(sleeper);
        let asked = if tells { " --on-lost term" } else { "" };
        let asked = format!("hold n --ttl 2s --pid {}{asked}", sleeper.pid());
        let holder = world.start(&asked, &[]);
        world.held("n");
        world.run("break n --yes", &[]).ended(0);
        let ran = holder.finish().ended(76);
        assert!(ran.err.contains("lost \"n\": an operator broke it"), "{ran:?}");
        if tells {
            sleeper.finish().ended(143);
        } else {
            assert!(lives(sleeper.pid()));
        }
    }
}

#[test]
fn a_service_manager_is_told_while_waiting_and_when_held() {
    let world = World::new();
    let socket = UnixDatagram::bind(world.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let first = world.start("hold n --holder other", &[]);
    world.held("n");
    let mut command = world.leasehold("hold n", &[]);
    command.env("NOTIFY_SOCKET", world.path("notify"));
    let waiter = start(command);
    let heard = || {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let waiting = heard();
    assert!(waiting.starts_with("STATUS=waiting for \"n\", held by other"), "{waiting}");
    first.signal(Signal::TERM);
    first.finish().ended(143);
    let ready = eventually("READY=1", || Some(heard()).filter(|text| text.contains("READY=1")));
    assert!(ready.contains("STATUS=holding \"n\""), "{ready}");
    assert!(world.shown("n")["held"].as_bool().unwrap(), "ready means held");
    drop(waiter);
}

#[test]
fn an_object_that_cannot_be_written_is_told_and_held_all_the_same() {
    let world = World::new();
    for (out, says) in [(">/dev/full", "holding \"n\" all the same"), (">&-", "")] {
        let mut command = world.program("sh");
        command.args(["-c", &format!("exec $L hold n {out} 2>said")]);
        let holder = start(command);
        world.held("n");
        if !says.is_empty() {
            assert!(world.line("said").contains(says), "{}", world.read("said"));
        }
        holder.signal(Signal::TERM);
        holder.finish().ended(143);
        assert_eq!(world.read("said").lines().count(), usize::from(!says.is_empty()));
    }
}

#[test]
fn a_killed_hold_frees_at_once() {
    let world = World::new();
    let holder = world.start("hold n --ttl 1h", &[]);
    world.held("n");
    holder.signal(Signal::KILL);
    holder.finish().ended(137);
    let next = world.run("acquire n --wait 30s", &[]).ended(0).json();
    assert_eq!(next["previous"], "died");
}
