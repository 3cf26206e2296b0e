//! The processes that come from one process, and ending them all.
//!
//! The root is a subreaper: whatever a command leaves behind in whatever session and group
//! becomes the root's child, so that "no children" is the proof that the tree is gone. What is in
//! it is read from `/proc`, parents before children.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use crate::sys;

/// The most passes over the tree that stop what forks before it is killed.
const STOP_PASSES: usize = 8;

/// One process of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    pid: i32,
    /// What `/proc` says; `None` where it hides other users' processes.
    stat: Option<Stat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    group: i32,
    /// When it began, in ticks: with the number it names one process for ever.
    began: u64,
}

/// The tree under one process.
#[derive(Debug)]
pub(crate) struct Tree {
    root: i32,
    /// Children of the root that it had before: they and theirs are not of the tree.
    spared: HashSet<i32>,
    /// The group that the command may share with processes outside of the tree.
    shared_group: i32,
    rounds: u32,
}

impl Tree {
    /// The tree under this process, without the children it has now.
    pub(crate) fn under_this_process(shared_group: i32, spared: HashSet<i32>) -> Self {
        Self { root: sys::getpid(), spared, shared_group, rounds: 0 }
    }

    /// Asks everything in the tree to end: TERM, then CONT for what is stopped.
    pub(crate) fn term(&self) {
        for member in self.members() {
            let _ = signal(&member, &[libc::SIGTERM, libc::SIGCONT]);
        }
    }

    /// Sends one signal to everything in the tree.
    pub(crate) fn signal(&self, number: i32) {
        for member in self.members() {
            let _ = signal(&member, &[number]);
        }
    }

    /// One round of killing, to be repeated, with reaping in between, until there are no children.
    pub(crate) fn kill(&mut self) -> Round {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds == 1 {
            sys::raise_priority();
        } else {
            // Something was born while the first round went by: whole groups at once first, in
            // which nothing can be born meanwhile, then stop the rest until nothing new is seen.
            self.kill_groups();
            self.stop();
        }
        let members = self.members();
        let mut refused = Vec::new();
        let mut others = false;
        for member in &members {
            match signal(member, &[libc::SIGKILL]) {
                Err(Refused) => refused.push(member.pid),
                Ok(()) => others |= member.stat.is_none_or(|stat| stat.state != b'Z'),
            }
        }
        match members.is_empty() {
            true => Round::Empty,
            false if others || refused.is_empty() => Round::Going,
            false => Round::Stuck(refused),
        }
    }

    fn kill_groups(&self) {
        let own = sys::own_group();
        let groups: HashSet<i32> =
            self.members().iter().filter_map(|m| m.stat.map(|s| s.group)).collect();
        for group in groups {
            if group > 1 && group != own && group != self.shared_group {
                let _ = sys::kill_group(group, libc::SIGKILL);
            }
        }
    }

    fn stop(&self) {
        let mut stopped = HashSet::new();
        for _ in 0..STOP_PASSES {
            let before = stopped.len();
            for member in self.members() {
                if stopped.insert(member.pid) {
                    let _ = signal(&member, &[libc::SIGSTOP]);
                }
            }
            if stopped.len() == before {
                break;
            }
        }
    }

    /// Everything under the root, parents before children.
    fn members(&self) -> Vec<Member> {
        let children = Children::look(self.root);
        let mut seen = HashSet::from([self.root]);
        let mut found: Vec<Member> = Vec::new();
        let mut next = 0;
        let mut parent = self.root;
        loop {
            for pid in children.of(parent) {
                if !self.spared.contains(&pid) && seen.insert(pid) {
                    found.push(Member { pid, stat: stat(pid) });
                }
            }
            let Some(member) = found.get(next) else { return found };
            parent = member.pid;
            next += 1;
        }
    }
}

/// The children that this process, with its one thread, has now.
pub(crate) fn children_now() -> HashSet<i32> {
    match std::fs::read_to_string("/proc/thread-self/children") {
        Ok(text) => parse_children(&text).collect(),
        Err(_) => {
            let pid = sys::getpid();
            Children::look(pid).of(pid).into_iter().collect()
        }
    }
}

/// Whether `pid` comes from `ancestor`.
pub(crate) fn descends(pid: i32, ancestor: i32) -> bool {
    let mut at = pid;
    // Far deeper than any tree; it ends at process 1, whose parent is 0.
    for _ in 0..10_000 {
        match stat(at) {
            Some(stat) if stat.parent == ancestor => return true,
            Some(stat) if stat.parent > 0 => at = stat.parent,
            _ => return false,
        }
    }
    false
}

/// Whether `pid` is stopped.
pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| stat.state == b'T')
}

/// What a round of killing found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Something was signalled, and is about to be gone.
    Going,
    /// Nothing is alive but these, which run as another user.
    Stuck(Vec<i32>),
    /// Nothing was seen.
    Empty,
}

struct Refused;

/// Signals the process that was seen, not one that has its number since.
fn signal(member: &Member, signals: &[i32]) -> Result<(), Refused> {
    // Without a descriptor (it has ended, or there are none left) the number must do.
    let process = sys::pidfd_open(member.pid).ok();
    if let (Some(before), Some(now)) = (member.stat, stat(member.pid))
        && before.began != now.began
    {
        return Ok(());
    }
    for number in signals {
        let sent = match &process {
            Some(process) => sys::pidfd_signal(process.as_fd(), *number),
            None => sys::kill(member.pid, *number),
        };
        if sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
            return Err(Refused);
        }
    }
    Ok(())
}

/// Who has which children.
enum Children {
    /// The kernel lists them for each process.
    Listed,
    /// It does not (it was built without): all parents were read.
    Scanned(HashMap<i32, Vec<i32>>),
}

impl Children {
    fn look(root: i32) -> Self {
        if std::fs::metadata(format!("/proc/{root}/task/{root}/children")).is_ok() {
            return Self::Listed;
        }
        let mut all: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in numbers("/proc") {
            if let Some(stat) = stat(pid) {
                all.entry(stat.parent).or_default().push(pid);
            }
        }
        Self::Scanned(all)
    }

    fn of(&self, pid: i32) -> Vec<i32> {
        let all = match self {
            Self::Listed => return listed(pid),
            Self::Scanned(all) => all,
        };
        all.get(&pid).cloned().unwrap_or_default()
    }
}

/// The children of `pid`, of all its threads.
fn listed(pid: i32) -> Vec<i32> {
    let mut children = Vec::new();
    for thread in numbers(&format!("/proc/{pid}/task")) {
        if let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")) {
            children.extend(parse_children(&text));
        }
    }
    children
}

fn parse_children(text: &str) -> impl Iterator<Item = i32> {
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok())
}

/// The names in a directory that are numbers.
fn numbers(dir: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a line of `/proc/PID/stat`. The name in it may hold anything, also `)` and spaces.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // From the session, field 6, to the start time, field 22.
    let began = fields.nth(16)?.parse().ok()?;
    Some(Stat { state, parent, group, began })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_no_trap() {
        let line = b"77 (a) S 1 (b) T 5 6 7 8 9 0 0 0 0 0 1 2 3 4 20 0 1 0 4242 99 1\n";
        let stat = parse_stat(line).expect("readable");
        assert_eq!(stat, Stat { state: b'T', parent: 5, group: 6, began: 4242 });
        assert_eq!(parse_stat(b"77 (a"), None);
        assert_eq!(parse_stat(b"77 (a) S 1"), None);
    }

    #[test]
    fn this_process_reads_as_itself() {
        let own = stat(sys::getpid()).expect("readable");
        assert_eq!((own.parent, own.group), (sys::getppid(), sys::own_group()));
        assert!(descends(sys::getpid(), sys::getppid()));
        assert!(!descends(sys::getppid(), sys::getpid()));
    }

    #[test]
    fn both_ways_to_find_children_agree() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let (own, pid) = (sys::getpid(), child.id().cast_signed());
        let mut scanned: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in numbers("/proc") {
            if let Some(stat) = stat(pid) {
                scanned.entry(stat.parent).or_default().push(pid);
            }
        }
        assert!(Children::Listed.of(own).contains(&pid));
        assert!(Children::Scanned(scanned).of(own).contains(&pid));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
