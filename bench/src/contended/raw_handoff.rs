//! The raw steps of a hand-over between two processes: one write, one FIFO, one wake-up.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::raw::Raw;
use crate::{Result, sys};

/// Nanoseconds from before the write until the other process runs, for each hand-over.
pub(super) fn measure(handoffs: usize, hold: Duration) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let raw = Raw::open(&folder.path().join("raw.db"))?;
    raw.write(0, 0)?;
    let path = folder.path().join("fifo");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)?;
    let mut woken = Command::new(std::env::current_exe()?);
    let woken = woken.arg("woken").arg(&path).stdout(Stdio::piped()).spawn()?;
    // Waits for the other side to open it too.
    let mut fifo = File::options().write(true).open(&path)?;
    for n in 0..handoffs {
        sleep(hold);
        let releasing = sys::now_ns();
        raw.write(n as u128, 30)?;
        fifo.write_all(&releasing.to_ne_bytes())?;
    }
    drop(fifo);
    let output = woken.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// The other side: blocked in a read until there is a word.
pub(crate) fn woken(fifo: &str) -> Result<()> {
    let mut fifo = File::open(fifo)?;
    let mut spans = String::new();
    let mut stamp = [0; 8];
    while fifo.read_exact(&mut stamp).is_ok() {
        let span = sys::now_ns().saturating_sub(u64::from_ne_bytes(stamp));
        spans += &format!("{span}\n");
    }
    print!("{spans}");
    Ok(())
}
