//! The raw steps of a hand-over between two processes: one write, one word through a FIFO, one
//! wake-up. They take turns, so that each finds in the database what the other wrote.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::raw::Raw;
use crate::{Result, sys};

/// Nanoseconds from before the write until the other process runs, for each hand-over.
pub(super) fn measure(handoffs: usize, hold: Duration) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let raw = Raw::open(&folder.path().join("raw.db"))?;
    let fifos = ["there", "back"].map(|name| folder.path().join(name));
    for fifo in &fifos {
        mkfifoat(CWD, fifo, Mode::RUSR | Mode::WUSR)?;
    }
    let mut partner = Command::new(std::env::current_exe()?);
    let hold_ns = hold.as_nanos().to_string();
    let mut partner = partner.arg("partner").arg(folder.path()).arg(hold_ns).spawn()?;
    // Each open waits for the other side.
    let mut there = File::options().write(true).open(&fifos[0])?;
    let mut back = File::open(&fifos[1])?;
    let mut spans = Vec::with_capacity(handoffs);
    for _ in 0..handoffs {
        pass_on(&raw, hold, &mut there)?;
        spans.extend(await_word(&mut back)?);
    }
    drop(there);
    if !partner.wait()?.success() {
        return Err("the partner of the raw hand-over failed".into());
    }
    Ok(spans)
}

/// The other side, until the pipe is closed.
pub(crate) fn partner(folder: &str, hold_ns: u64) -> Result<()> {
    let folder = Path::new(folder);
    let raw = Raw::open(&folder.join("raw.db"))?;
    let mut there = File::open(folder.join("there"))?;
    let mut back = File::options().write(true).open(folder.join("back"))?;
    while await_word(&mut there)?.is_some() {
        pass_on(&raw, Duration::from_nanos(hold_ns), &mut back)?;
    }
    Ok(())
}

fn pass_on(raw: &Raw, hold: Duration, fifo: &mut File) -> Result<()> {
    sleep(hold);
    let releasing = sys::now_ns();
    raw.write(releasing.into(), 30)?;
    fifo.write_all(&releasing.to_ne_bytes())?;
    Ok(())
}

/// How long the word was under way; `None` once there are no more.
fn await_word(fifo: &mut File) -> Result<Option<f64>> {
    let mut releasing = [0; 8];
    if fifo.read(&mut releasing)? != releasing.len() {
        return Ok(None);
    }
    Ok(Some(sys::now_ns().saturating_sub(u64::from_ne_bytes(releasing)) as f64))
}
