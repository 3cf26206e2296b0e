//! `leasehold run NAME -- true`, beside `flock FILE true` and `true` alone.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::figures::Figure;
use crate::stats::{median, quantile};
use crate::{Result, sys};

const BLOCKS: usize = 30;
const RUNS: usize = 20;

pub(crate) fn run() -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("flock");
    std::fs::write(&file, b"")?;
    let leasehold = leasehold_binary()?;
    let (bare, flock) = (installed("true")?, installed("flock")?);
    let home = folder.path();
    let mut subjects = [
        Subject::new(home, &bare, &[]),
        Subject::new(home, &flock, &[file.as_os_str(), OsStr::new("true")]),
        Subject::new(home, &leasehold, &["run", "bench", "--", "true"].map(OsStr::new)),
    ];
    for subject in &mut subjects {
        subject.run()?;
        subject.times.clear();
    }
    let mut ratios = Vec::new();
    for _ in 0..BLOCKS {
        for run in 0..RUNS {
            for turn in 0..subjects.len() {
                let at = (run + turn) % subjects.len();
                subjects[at].run()?;
            }
        }
        let [bare, flock, leasehold] = subjects.each_mut().map(Subject::take_median);
        ratios.push((leasehold - bare) / (flock - bare));
    }
    let peak = |at: usize| median(&subjects[at].peaks) / 1024.0;
    Ok(vec![
        Figure::at_most("(leasehold run - bare) / (flock - bare)", median(&ratios), 2.5),
        Figure::told("  first and last tenth of the blocks", quantile(&ratios, 0.1)).unit("x"),
        Figure::told("", quantile(&ratios, 0.9)).unit("x"),
        Figure::at_most("peak memory of leasehold run", peak(2), 12.0).unit("MiB"),
        Figure::told("  told of `true`: this harness", peak(0)).unit("MiB"),
    ])
}

/// A command that is measured.
struct Subject {
    command: Command,
    times: Vec<f64>,
    peaks: Vec<f64>,
}

impl Subject {
    /// In the environment that cron gives: the embedded store is where it is by default.
    fn new(home: &Path, program: &Path, arguments: &[&OsStr]) -> Subject {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
        command.env("HOME", home).env("XDG_STATE_HOME", home);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Subject { command, times: Vec::new(), peaks: Vec::new() }
    }

    fn run(&mut self) -> Result<()> {
        let started = Instant::now();
        let child = self.command.spawn()?;
        let reaped = sys::reap(child.id())?;
        self.times.push(started.elapsed().as_secs_f64());
        self.peaks.push(reaped.peak_kib);
        if reaped.succeeded { Ok(()) } else { Err(format!("{:?} failed", self.command).into()) }
    }

    fn take_median(&mut self) -> f64 {
        median(&std::mem::take(&mut self.times))
    }
}

/// The release build that stands beside this program.
fn leasehold_binary() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("leasehold");
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("{} is missing: `cargo build --release -p leasehold-cli`", path.display()).into())
}

fn installed(program: &str) -> Result<PathBuf> {
    let folders = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(program));
    let found = folders.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| format!("{program} is not installed").into())
}
