//! A process with all that came from it, through `/proc`.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait_until;

/// How long the kernel may take to stop or end processes.
const SOON: Duration = Duration::from_secs(20);

/// What `/proc` tells of a process.
#[derive(Clone, Copy)]
struct Stat {
    pid: i32,
    parent: i32,
    state: char,
}

/// Stops it and all its descendants, also those that are made meanwhile.
pub(super) fn stop(root: Pid) -> Vec<Pid> {
    let root = root.as_raw_nonzero().get();
    let mut stopped = Vec::new();
    loop {
        let all = list();
        let new: Vec<i32> =
            descendants(&all, root).into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            return stopped.into_iter().filter_map(Pid::from_raw).collect();
        }
        for pid in new {
            signal(pid, Signal::STOP);
            stand_still(pid);
            stopped.push(pid);
        }
    }
}

/// Lets it and all its descendants go on, the youngest first.
pub(super) fn cont(root: Pid) {
    let found = descendants(&list(), root.as_raw_nonzero().get());
    found.into_iter().rev().for_each(|pid| signal(pid, Signal::CONT));
}

/// Kills it and all its descendants, and waits until all have ended.
pub(super) fn kill(root: Pid) {
    // Stopped first: none makes another while they are killed.
    let found = stop(root);
    for pid in &found {
        signal(pid.as_raw_nonzero().get(), Signal::KILL);
    }
    for pid in found {
        let pid = pid.as_raw_nonzero().get();
        wait_until("ended", SOON, || match stat(pid) {
            Some(stat) if !is_dead(stat.state) => Err(format!("{pid} is in state {}", stat.state)),
            _ => Ok(()),
        });
    }
}

fn stand_still(pid: i32) {
    wait_until("stopped", SOON, || match stat(pid) {
        Some(stat) if !is_dead(stat.state) && !matches!(stat.state, 'T' | 't') => {
            Err(format!("{pid} is in state {}", stat.state))
        }
        _ => Ok(()),
    });
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// The root and what came from it, parents before children, without the dead.
fn descendants(all: &[Stat], root: i32) -> Vec<i32> {
    let mut found: Vec<i32> = all.iter().map(|s| s.pid).filter(|pid| *pid == root).collect();
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(all.iter().filter(|s| s.parent == parent).map(|s| s.pid));
        at += 1;
    }
    found
}

/// All processes that live.
fn list() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(stat).filter(|stat| !is_dead(stat.state)).collect()
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets, and may have brackets and spaces of its own.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { pid, parent, state })
}
