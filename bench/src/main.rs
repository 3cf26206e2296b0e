//! What leasehold costs beside the raw steps it is made of: ratios within one run, never times.
//!
//! `leasehold-bench uncontended|cli|contended|data|etcd|fence|mysql|postgres|redis|redlock|zookeeper|all [--check]`. See the README beside this.

mod cli;
mod contended;
mod data;
mod etcd;
mod fence;
mod figures;
mod lease;
mod many;
mod memory;
mod mysql;
mod postgres;
mod raw;
mod redis;
mod redlock;
mod stats;
mod sys;
mod uncontended;
mod zookeeper;

use std::process::{Command, ExitCode};

/// Whatever goes wrong here is told in one line, and ends the run.
pub(crate) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const USAGE: &str = "want `leasehold-bench uncontended|cli|contended|data|etcd|fence|mysql|postgres|redis|redlock|zookeeper|all [--check]`";
const ALL: [&str; 11] = [
    "uncontended",
    "cli",
    "contended",
    "data",
    "etcd",
    "fence",
    "mysql",
    "postgres",
    "redis",
    "redlock",
    "zookeeper",
];

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("leasehold-bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let before = arguments.len();
    arguments.retain(|argument| argument != "--check");
    let check = arguments.len() < before;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let figures = match words[..] {
        ["uncontended"] => uncontended::run()?,
        ["cli"] => cli::run()?,
        ["contended"] => contended::run()?,
        ["data"] => data::run()?,
        ["etcd"] => etcd::run()?,
        ["fence"] => fence::run()?,
        ["mysql"] => mysql::run()?,
        ["postgres"] => postgres::run()?,
        ["redis"] => redis::run()?,
        ["redlock"] => redlock::run()?,
        ["zookeeper"] => zookeeper::run()?,
        ["all"] => return all(check),
        // What this program starts of itself.
        ["contender", folder] => return contended::contender(folder).map(|()| ExitCode::SUCCESS),
        ["partner", folder, hold] => {
            return contended::partner(folder, hold.parse()?).map(|()| ExitCode::SUCCESS);
        }
        ["holder", folder, locks] => {
            return memory::holder(folder, locks.parse()?).map(|()| ExitCode::SUCCESS);
        }
        _ => return Err(USAGE.into()),
    };
    figures::print(&figures);
    let over = figures.iter().any(|figure| !figure.is_met());
    Ok(if check && over { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Each in a process of its own: the memory of a program that this one starts is told as no less
/// than this one's own peak.
fn all(check: bool) -> Result<ExitCode> {
    let mut worst = ExitCode::SUCCESS;
    for part in ALL {
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.arg(part).args(check.then_some("--check")).status()?;
        match status.code() {
            Some(0) => {}
            Some(1) => worst = ExitCode::from(1),
            _ => return Err(format!("{part} did not end well").into()),
        }
    }
    Ok(worst)
}
