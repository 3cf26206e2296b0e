//! The command's environment: what leasehold found, byte for byte, and what the caller adds.

use std::ffi::CString;

use crate::sys;

/// The variables in which systemd names the process that they are for.
const NAMES_A_PID: [&[u8]; 2] = [b"LISTEN_PID", b"WATCHDOG_PID"];

/// An environment to execute with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Env {
    /// `NAME=value`.
    pub(crate) entries: Vec<CString>,
    /// `NAME=`, to be completed with the command's own process id.
    pub(crate) own_pid: Vec<CString>,
}

/// The environment of this process with `set` (`NAME=value`) and without `remove` (`NAME`). What
/// named the process `front` is to name the command.
pub(crate) fn build(set: &[Vec<u8>], remove: &[Vec<u8>], front: i32) -> Env {
    compose(sys::environment(), set, remove, front)
}

fn compose(found: Vec<CString>, set: &[Vec<u8>], remove: &[Vec<u8>], front: i32) -> Env {
    let front = front.to_string();
    let mut env = Env { entries: Vec::with_capacity(found.len() + set.len()), own_pid: Vec::new() };
    for entry in found {
        let (name, value) = split(entry.as_bytes());
        let gone = remove.iter().any(|r| r == name) || set.iter().any(|s| split(s).0 == name);
        if gone {
            continue;
        }
        if NAMES_A_PID.contains(&name) && value == Some(front.as_bytes()) {
            let name: Vec<u8> = [name, b"="].concat();
            // It comes from a C string, so that it holds no zero.
            env.own_pid.extend(CString::new(name));
        } else {
            env.entries.push(entry);
        }
    }
    // The front has refused what holds a zero.
    env.entries.extend(set.iter().filter_map(|entry| CString::new(entry.as_slice()).ok()));
    env
}

fn split(entry: &[u8]) -> (&[u8], Option<&[u8]>) {
    match entry.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let (name, value) = entry.split_at(at);
            (name, value.get(1..))
        }
        None => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(entries: &[&str]) -> Vec<CString> {
        entries.iter().map(|e| CString::new(*e).expect("no zero")).collect()
    }

    #[test]
    fn additions_replace_and_removals_take_all_of_a_name() {
        let found = c(&["A=1", "B=2", "A=3", "ODD", "AB=4"]);
        let env = compose(found, &[b"B=9".to_vec(), b"C=".to_vec()], &[b"A".to_vec()], 7);
        assert_eq!(env.entries, c(&["ODD", "AB=4", "B=9", "C="]));
        assert!(env.own_pid.is_empty());
    }

    #[test]
    fn only_a_pid_that_was_ours_becomes_the_commands() {
        let found = c(&["LISTEN_PID=7", "WATCHDOG_PID=8", "LISTEN_FDS=1", "OTHER=7"]);
        let env = compose(found, &[], &[], 7);
        assert_eq!(env.entries, c(&["WATCHDOG_PID=8", "LISTEN_FDS=1", "OTHER=7"]));
        assert_eq!(env.own_pid, c(&["LISTEN_PID="]));
    }
}
