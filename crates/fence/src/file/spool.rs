//! What is to be put, read to its end before anything is locked or changed: a reader that is slow
//! must keep nobody out, and one that fails must leave no trace.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// Up to this size it is kept in memory; beyond, in a file without a name.
const MEMORY_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub(super) enum Spool {
    Memory(Vec<u8>),
    File(File),
}

/// Which side failed: the caller's reader, or the disk.
#[derive(Debug)]
pub(super) enum Failed {
    Reading(io::Error),
    Writing(io::Error),
}

impl Spool {
    pub(super) fn fill(mut data: impl Read, dir: &File) -> Result<Spool, Failed> {
        let mut start = Vec::new();
        data.by_ref().take(MEMORY_MAX).read_to_end(&mut start).map_err(Failed::Reading)?;
        if (start.len() as u64) < MEMORY_MAX {
            return Ok(Spool::Memory(start));
        }
        let mut file = unnamed(dir).map_err(Failed::Writing)?;
        file.write_all(&start).map_err(Failed::Writing)?;
        loop {
            start.clear();
            data.by_ref().take(MEMORY_MAX).read_to_end(&mut start).map_err(Failed::Reading)?;
            if start.is_empty() {
                return Ok(Spool::File(file));
            }
            file.write_all(&start).map_err(Failed::Writing)?;
        }
    }

    pub(super) fn write_to(&mut self, out: &mut File) -> io::Result<()> {
        match self {
            Spool::Memory(bytes) => out.write_all(bytes),
            Spool::File(file) => {
                file.rewind()?;
                // In the kernel, and without copying where the file system can share blocks.
                io::copy(file, out).map(drop)
            }
        }
    }
}

/// A file without a name in the directory that it will be copied within.
fn unnamed(dir: &File) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => return Ok(fd.into()),
        Err(Errno::NOTSUP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    // Not on this file system: one that loses its name at once.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!(".leasehold-put-spool-{}-{number}", std::process::id());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
    Ok(fd.into())
}
