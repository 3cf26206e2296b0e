//! Many processes that want one lock: is it counted exactly, does everyone get as much, who is
//! woken, and how long is a hand-over beside its raw steps.

mod contender;
mod counted;
mod raw_handoff;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::figures::Figure;
use crate::stats::{median, quantile};
use crate::{Result, sys};

pub(crate) use contender::contender;
pub(crate) use raw_handoff::partner;

const PROCESSES: usize = 64;
const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(2);
/// How long each holds it: without a pause the releaser would get it back before any other ran.
const HOLD: Duration = Duration::from_millis(1);
const RAW_HANDOFFS: usize = 200;

/// One grant, on the clock that all processes share.
#[derive(Debug, Clone, Copy)]
struct Grant {
    process: usize,
    asked: u64,
    acquired: u64,
    releasing: u64,
    released: u64,
    token: u64,
}

/// What a contender has to tell.
#[derive(Debug, Default)]
struct Told {
    grants: Vec<Grant>,
    /// Words that reached a waiting claim.
    hints: u64,
    /// Looks at the queue without being told to.
    looks: u64,
    sleeps: u64,
}

pub(crate) fn run() -> Result<Vec<Figure>> {
    let mut sums = Sums::default();
    for _ in 0..ROUNDS {
        sums.raw.push(median(&raw_handoff::measure(RAW_HANDOFFS, HOLD)?));
        sums.round()?;
    }
    sums.raw.push(median(&raw_handoff::measure(RAW_HANDOFFS, HOLD)?));
    Ok(sums.figures())
}

#[derive(Debug, Default)]
struct Sums {
    /// Medians of raw hand-overs.
    raw: Vec<f64>,
    /// Hand-overs of each round, in nanoseconds.
    handoffs: Vec<Vec<f64>>,
    /// How much of each is gone when the call to release returns.
    shares: Vec<f64>,
    grants: u64,
    miscounted: u64,
    tokens_fell: u64,
    overlaps: u64,
    per_process: Vec<u64>,
    hints: u64,
    looks: u64,
    sleeps: u64,
}

impl Sums {
    fn round(&mut self) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let counter = folder.path().join("counter");
        std::fs::write(&counter, 0_u64.to_ne_bytes())?;
        let told = contend(folder.path())?;
        let counted = std::fs::read(&counter)?;
        let counted = u64::from_ne_bytes(counted.try_into().map_err(|_| "no count")?);
        self.per_process.resize(PROCESSES, 0);
        let mut grants = Vec::new();
        for one in told {
            self.hints += one.hints;
            self.looks += one.looks;
            self.sleeps += one.sleeps;
            grants.extend(one.grants);
        }
        for grant in &grants {
            self.per_process[grant.process] += 1;
        }
        grants.sort_by_key(|grant| grant.acquired);
        self.grants += grants.len() as u64;
        self.miscounted += counted.abs_diff(grants.len() as u64);
        let mut handoffs = Vec::new();
        for pair in grants.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            self.tokens_fell += u64::from(after.token <= before.token);
            self.overlaps += u64::from(after.acquired < before.releasing);
            // Only who waited was handed it.
            if after.process != before.process && after.asked < before.releasing {
                let handoff = after.acquired.saturating_sub(before.releasing) as f64;
                handoffs.push(handoff);
                self.shares.push((before.released - before.releasing) as f64 / handoff);
            }
        }
        self.handoffs.push(handoffs);
        Ok(())
    }

    fn figures(&self) -> Vec<Figure> {
        let ratios = |share: f64| -> Vec<f64> {
            let raw = self.raw.windows(2).map(|pair| f64::midpoint(pair[0], pair[1]));
            let ours = self.handoffs.iter().map(|round| quantile(round, share));
            ours.zip(raw).map(|(ours, raw)| ours / raw).collect()
        };
        let most = self.per_process.iter().max().copied().unwrap_or(0) as f64;
        let least = self.per_process.iter().min().copied().unwrap_or(0) as f64;
        let grants = self.grants as f64;
        vec![
            Figure::told("processes", PROCESSES as f64),
            Figure::told("acquisitions", grants),
            Figure::exactly("counted too many or too few", self.miscounted as f64, 0.0),
            Figure::exactly("held at once", self.overlaps as f64, 0.0),
            Figure::exactly("tokens that did not rise", self.tokens_fell as f64, 0.0),
            Figure::at_most("acquisitions a process, most / least", most / least, 1.2),
            Figure::at_most("waiters told a release", self.hints as f64 / grants, 1.1).unit(""),
            Figure::told("  looks untold", self.looks as f64 / grants),
            Figure::told("  sleeps of threads, that of the hold too", self.sleeps as f64 / grants),
            Figure::at_most(
                "hand-over / (raw write + FIFO wake-up), median",
                median(&ratios(0.5)),
                4.0,
            ),
            Figure::told("  at the 90th of 100", median(&ratios(0.9))).unit("x"),
            Figure::told("  gone when the release returns", median(&self.shares)),
        ]
    }
}

/// A contender under way.
struct Contender {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn contend(folder: &Path) -> Result<Vec<Told>> {
    let mut contenders = Vec::new();
    for _ in 0..PROCESSES {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("contender").arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let input = input.ok_or("no pipe")?;
        let output = BufReader::new(output.ok_or("no pipe")?);
        contenders.push(Contender { child, input, output });
    }
    for contender in &mut contenders {
        let mut line = String::new();
        contender.output.read_line(&mut line)?;
        if line != "ready\n" {
            return Err("a contender did not start".into());
        }
    }
    let begin = sys::now_ns() + 20_000_000;
    let span = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let end = begin + span(ROUND);
    for contender in &mut contenders {
        writeln!(contender.input, "{begin} {end} {}", span(HOLD))?;
    }
    let mut told = Vec::new();
    for (process, contender) in contenders.iter_mut().enumerate() {
        let mut text = String::new();
        contender.output.read_to_string(&mut text)?;
        told.push(read_told(process, &text)?);
    }
    Ok(told)
}

fn read_told(process: usize, text: &str) -> Result<Told> {
    let mut lines = text.lines();
    let numbers = |line: &str| -> Result<Vec<u64>> {
        Ok(line.split(' ').map(str::parse).collect::<Result<_, _>>()?)
    };
    let first = numbers(lines.next().ok_or("a contender died")?)?;
    let [hints, looks, sleeps] = first[..] else { return Err("a contender lies".into()) };
    let mut grants = Vec::new();
    for line in lines {
        let [asked, acquired, releasing, released, token] = numbers(line)?[..] else {
            return Err("a contender lies".into());
        };
        grants.push(Grant { process, asked, acquired, releasing, released, token });
    }
    Ok(Told { grants, hints, looks, sleeps })
}
