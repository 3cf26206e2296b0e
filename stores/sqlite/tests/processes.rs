//! Real processes that contend, die, stop and inherit.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::agent::Agent;
use rustix::process::{Pid, Signal, kill_process};

/// Not a test of its own: the other side of the tests below.
#[test]
fn agent() {
    common::agent::serve();
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    fn agent(&self) -> Agent {
        Agent::opened(&self.path())
    }

    fn agents(&self, count: usize) -> Vec<Agent> {
        let mut agents: Vec<Agent> = (0..count).map(|_| Agent::start(&self.path())).collect();
        agents.iter_mut().for_each(|agent| agent.tell("open"));
        for agent in &mut agents {
            assert_eq!(agent.answer(), "opened");
        }
        agents
    }

    /// A file beside the database with this content.
    fn file(&self, name: &str, content: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn token(answer: &str) -> u64 {
    let mut words = answer.split_whitespace();
    assert_eq!(words.next(), Some("granted"), "{answer}");
    words.next().unwrap().parse().unwrap()
}

#[test]
fn sixteen_processes_count_exactly() {
    let place = Place::new();
    let counter = place.file("counter", "0");
    let mut agents = place.agents(16);
    agents.iter_mut().for_each(|agent| agent.tell(&format!("count ctr {counter} 25")));
    for agent in &mut agents {
        assert_eq!(agent.answer(), "counted");
    }
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "400");
}

#[test]
fn processes_are_served_in_the_order_of_their_coming_with_one_word_each() {
    let place = Place::new();
    let log = place.file("log", "");
    let mut holder = place.agent();
    let mut waiters = place.agents(48);
    let mut newest = token(&holder.ask("enter h r"));
    for (n, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(waiter.ask("enter w r"), format!("waiting {}", n + 1));
        waiter.tell(&format!("log w {log} {n}"));
    }
    assert_eq!(holder.ask("leave h"), "released");
    for waiter in &mut waiters {
        let answer = waiter.answer();
        assert!(answer.contains("after 1 words"), "{answer}");
        assert!(token(&answer) > newest, "tokens rise in the order of service");
        newest = token(&answer);
    }
    let order: Vec<String> = (0..waiters.len()).map(|n| n.to_string()).collect();
    let served = std::fs::read_to_string(&log).unwrap();
    assert_eq!(served.lines().collect::<Vec<_>>(), order);
}

#[test]
fn three_hundred_waiters_of_one_user_are_all_served() {
    let place = Place::new();
    let log = place.file("log", "");
    let mut holder = place.agent();
    token(&holder.ask("enter h r 300000"));
    let mut waiters = place.agents(300);
    for (n, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(waiter.ask("enter w r"), format!("waiting {}", n + 1));
        waiter.tell(&format!("log w {log} {n}"));
    }
    assert_eq!(holder.ask("leave h"), "released");
    for waiter in &mut waiters {
        token(&waiter.answer());
    }
    let order: Vec<String> = (0..waiters.len()).map(|n| n.to_string()).collect();
    let served = std::fs::read_to_string(&log).unwrap();
    assert_eq!(served.lines().collect::<Vec<_>>(), order);
}

#[test]
fn a_killed_holder_frees_at_once_and_wakes_only_the_next() {
    let place = Place::new();
    let (mut holder, mut next, mut last) = (place.agent(), place.agent(), place.agent());
    let old = token(&holder.ask("enter h r"));
    assert_eq!(next.ask("enter w r"), "waiting 1");
    assert_eq!(last.ask("enter w r"), "waiting 2");
    next.tell("hint w"); // waits for nothing but word
    holder.kill();
    assert_eq!(next.answer(), "moved");
    let granted = next.ask("renew w");
    assert!(token(&granted) > old);
    assert!(granted.ends_with("died"), "{granted}");
    assert_eq!(last.ask("renew w"), "waiting 1");
    last.tell("hint w");
    assert_eq!(next.ask("leave w"), "released");
    assert!(token(&last.answer()) > token(&granted));
}

#[test]
fn a_killed_waiter_is_passed() {
    let place = Place::new();
    let (mut holder, mut dead, mut next) = (place.agent(), place.agent(), place.agent());
    token(&holder.ask("enter h r"));
    assert_eq!(dead.ask("enter w r"), "waiting 1");
    assert_eq!(next.ask("enter w r"), "waiting 2");
    dead.kill();
    next.tell("hint w");
    assert_eq!(next.answer(), "moved", "its neighbour is gone");
    assert_eq!(next.ask("renew w"), "waiting 1");
    next.tell("hint w");
    assert_eq!(holder.ask("leave h"), "released");
    token(&next.answer());
    let fifos = std::fs::read_dir(place.directory.path().join("locks.db-wake")).unwrap();
    assert_eq!(fifos.count(), 1, "what the dead one left is removed");
}

#[test]
fn a_waiter_killed_in_the_middle_wakes_the_one_behind_it_once() {
    let place = Place::new();
    let mut agents = place.agents(4);
    let [holder, first, dead, next] = agents.as_mut_slice() else { unreachable!() };
    token(&holder.ask("enter h r"));
    assert_eq!(first.ask("enter w r"), "waiting 1");
    assert_eq!(dead.ask("enter w r"), "waiting 2");
    assert_eq!(next.ask("enter w r"), "waiting 3");
    next.tell("hint w");
    dead.kill();
    assert_eq!(next.answer(), "moved", "its neighbour is gone");
    assert_eq!(next.ask("renew w"), "waiting 2");
    next.tell("hint w");
    assert!(next.is_silent(Duration::from_millis(300)), "it is woken by the dead again");
    first.kill();
    assert_eq!(next.answer(), "moved", "it watches the one before the dead now");
    assert_eq!(next.ask("renew w"), "waiting 1");
    next.tell("hint w");
    assert_eq!(holder.ask("leave h"), "released");
    token(&next.answer());
}

#[test]
fn a_reader_behind_a_dead_writer_is_admitted() {
    let place = Place::new();
    let (mut reader, mut writer, mut next) = (place.agent(), place.agent(), place.agent());
    token(&reader.ask("enter h r shared"));
    assert_eq!(writer.ask("enter w r"), "waiting 1");
    assert_eq!(next.ask("enter w r shared"), "waiting 2");
    next.tell("hint w");
    writer.kill();
    assert_eq!(next.answer(), "moved");
    token(&next.ask("renew w"));
}

#[test]
fn the_last_of_several_readers_frees_however_they_end() {
    let place = Place::new();
    let mut readers = place.agents(3);
    for reader in &mut readers {
        token(&reader.ask("enter h r shared"));
    }
    let mut writer = place.agent();
    assert_eq!(writer.ask("enter w r"), "waiting 3");
    // The neighbour leaves and lives on: another one has to be watched now.
    writer.tell("hint w");
    assert_eq!(readers[2].ask("leave h"), "released");
    assert_eq!(writer.answer(), "moved");
    assert_eq!(writer.ask("renew w"), "waiting 2");
    writer.tell("hint w");
    readers[0].kill();
    readers[1].kill();
    assert_eq!(writer.answer(), "moved");
    token(&writer.ask("renew w"));
}

#[test]
fn a_withdrawal_tells_the_one_behind_whom_to_watch() {
    let place = Place::new();
    let (mut holder, mut between, mut next) = (place.agent(), place.agent(), place.agent());
    token(&holder.ask("enter h r"));
    assert_eq!(between.ask("enter w r"), "waiting 1");
    assert_eq!(next.ask("enter w r"), "waiting 2");
    next.tell("hint w");
    assert_eq!(between.ask("leave w"), "released");
    assert_eq!(next.answer(), "moved");
    assert_eq!(next.ask("renew w"), "waiting 1");
    next.tell("hint w");
    holder.kill();
    assert_eq!(next.answer(), "moved", "it watches the holder now");
    token(&next.ask("renew w"));
}

#[test]
fn a_stopped_holder_loses_its_lock_at_its_term_and_is_told() {
    let place = Place::new();
    let (mut holder, mut next) = (place.agent(), place.agent());
    let old = token(&holder.ask("enter h r 500"));
    holder.signal(Signal::STOP);
    assert_eq!(next.ask("enter w r"), "waiting 1");
    assert!(token(&next.ask("await w")) > old);
    holder.signal(Signal::CONT);
    assert_eq!(holder.ask("renew h"), "gone expired");
    assert_eq!(holder.ask("leave h"), "gone expired");
}

#[test]
fn a_stopped_waiter_that_is_granted_holds_up_the_others_only_for_its_first_term() {
    let place = Place::new();
    let (mut holder, mut stopped, mut next) = (place.agent(), place.agent(), place.agent());
    token(&holder.ask("enter h r 600000"));
    assert_eq!(stopped.ask("enter w r 600000"), "waiting 1");
    assert_eq!(next.ask("enter w r 600000"), "waiting 2");
    stopped.signal(Signal::STOP);
    assert_eq!(holder.ask("leave h"), "released");
    token(&next.ask("await w")); // its term is ten minutes; the test would not end
    stopped.signal(Signal::CONT);
    assert_eq!(stopped.ask("renew w"), "gone expired");
}

#[test]
fn what_inherits_the_liveness_lock_keeps_the_claim_until_it_ends() {
    let place = Place::new();
    let (mut holder, mut next) = (place.agent(), place.agent());
    token(&holder.ask("enter h r"));
    let heir: i32 = holder.ask("heir").parse().unwrap();
    assert_eq!(next.ask("enter w r"), "waiting 1");
    next.tell("hint w");
    holder.kill();
    assert!(next.is_silent(Duration::from_millis(300)), "its tree lives");
    let mut third = place.agent();
    assert_eq!(third.ask("enter t r try"), "busy", "its tree lives");
    kill_process(Pid::from_raw(heir).unwrap(), Signal::KILL).unwrap();
    assert_eq!(next.answer(), "moved");
    token(&next.ask("renew w"));
}

#[test]
fn a_claim_of_term_life_outlives_its_process() {
    let place = Place::new();
    let (mut holder, mut next) = (place.agent(), place.agent());
    token(&holder.ask("enter h r 1000 term-life"));
    holder.kill();
    assert_eq!(next.ask("enter t r try"), "busy");
    assert_eq!(next.ask("enter w r"), "waiting 1");
    token(&next.ask("await w"));
}

#[test]
fn a_forked_child_holds_nothing_and_says_so() {
    let place = Place::new();
    let mut agent = place.agent();
    token(&agent.ask("enter h r"));
    assert_eq!(agent.ask("fork other"), "child Some(17)");
    assert_eq!(agent.ask("leave h"), "released");
}
