//! What a held lock costs in the client's memory, measured from outside of any allocator.

use std::process::Command;
use std::time::Duration;

use leasehold::blocking;

use crate::Result;

/// Bytes a lock, with so many of them held by a process of its own.
pub(crate) fn per_lock(locks: u32) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let mut holder = Command::new(std::env::current_exe()?);
    let output = holder.arg("holder").arg(folder.path()).arg(locks.to_string()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Holds so many locks, and prints what each of them takes.
pub(crate) fn holder(folder: &str, locks: u32) -> Result<()> {
    let client = blocking::connect(&format!("sqlite:{folder}/store.db"))?;
    let request = |n: u32| client.lock(&format!("held/{n}"));
    // The store's own caches are as full afterwards as they will be.
    for n in 0..locks {
        let _ = blocking::release(blocking::acquire(request(n))?);
    }
    let mut leases = Vec::with_capacity(usize::try_from(locks)?);
    leases.push(blocking::acquire(request(0))?);
    let before = resident_bytes()?;
    for n in 1..locks {
        leases.push(blocking::acquire(request(n))?);
    }
    let grown = resident_bytes()? - before;
    println!("{}", grown / f64::from(locks - 1));
    let _ = blocking::close(client, Duration::from_secs(10));
    Ok(())
}

fn resident_bytes() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let line = line.ok_or("no resident size in smaps_rollup")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024.0)
}
