//! Liveness held by the kernel: one file beside the database, one locked byte a process.
//!
//! A process locks a random byte for as long as any descriptor of its open file lives, in itself
//! or in what inherited it. Others ask the kernel whether the byte is locked. A free byte means
//! death only in the very file in which it was locked, so a claim names the file too, by a key made
//! of random content and the file's own number: a copy or a successor has another key.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use leasehold_core::{Error, ErrorKind};

use crate::error::from_io;
use crate::files::{FileId, Share, make, random_u64};
use crate::sys::{is_locked, lock_byte};

/// Where a process can be found: which byte of which liveness file, and its number where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Home {
    /// The key of the liveness file; 0 where there is none to ask.
    pub(crate) live: u64,
    /// The byte of it.
    pub(crate) byte: u64,
    /// The process.
    pub(crate) pid: u32,
    /// The process namespace in which that number counts.
    pub(crate) pid_ns: u64,
}

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alive {
    Yes,
    No,
    /// Its byte is in another file.
    Unknown,
}

/// This process's own byte, and the eye on those of others.
#[derive(Debug)]
pub(crate) struct Liveness {
    file: OwnedFd,
    id: FileId,
    home: Home,
}

/// Descriptors from here up are not in the way of what programs expect at low numbers.
const HIGH: i32 = 200;
const CONTENT: usize = 16;

impl Liveness {
    /// Opens the file, makes it if it is missing, and locks a byte of it.
    pub(crate) fn open(path: &Path, share: Share) -> Result<Liveness, Error> {
        Liveness::try_open(path, share).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                from_io(ErrorKind::Permission, "its liveness file may not be used", e)
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                from_io(ErrorKind::Unavailable, "its file system is read-only", e)
            }
            _ => from_io(ErrorKind::Unavailable, "its liveness file cannot be used", e),
        })
    }

    fn try_open(path: &Path, share: Share) -> io::Result<Liveness> {
        let (file, key) = open_keyed(path, share)?;
        let high = rustix::io::fcntl_dupfd_cloexec(&file, HIGH).or_else(|_| {
            // A low limit on descriptors: any number will do then.
            rustix::io::fcntl_dupfd_cloexec(&file, 3)
        })?;
        let id = FileId::of_open(&file)?;
        drop(file);
        let byte = loop {
            let byte = random_u64()? >> 2;
            if lock_byte(high.as_fd(), byte)? {
                break byte;
            }
        };
        let pid_ns = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
        let home = Home { live: key, byte, pid: std::process::id(), pid_ns };
        Ok(Liveness { file: high, id, home })
    }

    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// The descriptor whose inheritance prolongs this process's life.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether the process that has this home lives, or what inherited from it.
    pub(crate) fn probe(&self, home: &Home) -> Alive {
        if home.live != self.home.live {
            return Alive::Unknown;
        }
        if home.byte == self.home.byte {
            return Alive::Yes;
        }
        // Some programs close all descriptors: then this number may name another file by now, in
        // which nobody has a byte.
        if FileId::of_open(&self.file).ok() != Some(self.id) {
            return Alive::Unknown;
        }
        match is_locked(self.file.as_fd(), home.byte) {
            Ok(true) => Alive::Yes,
            Ok(false) => Alive::No,
            Err(_) => Alive::Unknown,
        }
    }
}

/// The liveness file and its key.
fn open_keyed(path: &Path, share: Share) -> io::Result<(File, u64)> {
    for _ in 0..8 {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => {
                if let Some(key) = key_of(&file)? {
                    return Ok((file, key));
                }
                // Somebody has emptied it: nothing in it can be trusted. Those who have it open
                // keep their bytes; to newcomers they are unknown, and their terms end them.
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut content = [0_u8; CONTENT];
                content[..8].copy_from_slice(b"leashold");
                content[8..].copy_from_slice(&random_u64()?.to_ne_bytes());
                make(path, share.mode, Some(share), &content)?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("the liveness file changes all the time"))
}

fn key_of(file: &File) -> io::Result<Option<u64>> {
    let mut content = [0_u8; CONTENT];
    match file.read_exact_at(&mut content, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let Some(random) = content.strip_prefix(b"leashold") else { return Ok(None) };
    let mut key = 0_u64;
    for &byte in random {
        key = key << 8 | u64::from(byte);
    }
    let found = file.metadata()?;
    for part in [found.ino(), found.dev()] {
        key = (key ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key ^= key >> 29;
    }
    Ok(Some(key.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Share = Share { mode: 0o600, owner: 0, group: 0 };

    #[test]
    fn the_byte_lives_as_long_as_any_copy_of_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x-live");
        let a = Liveness::open(&path, SHARE).unwrap();
        let b = Liveness::open(&path, SHARE).unwrap();
        assert_eq!(b.probe(&a.home()), Alive::Yes);
        let copy = a.fd().try_clone_to_owned().unwrap();
        let home = a.home();
        drop(a);
        assert_eq!(b.probe(&home), Alive::Yes, "a copy keeps it");
        drop(copy);
        assert_eq!(b.probe(&home), Alive::No);
    }

    #[test]
    fn another_file_under_its_number_proves_nobody_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x-live");
        let a = Liveness::open(&path, SHARE).unwrap();
        let mut b = Liveness::open(&path, SHARE).unwrap();
        let other = File::create(dir.path().join("other")).unwrap();
        rustix::io::dup2(&other, &mut b.file).unwrap();
        assert_eq!(b.probe(&a.home()), Alive::Unknown);
    }

    #[test]
    fn a_successor_or_a_copy_of_the_file_proves_nobody_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x-live");
        let a = Liveness::open(&path, SHARE).unwrap();
        std::fs::copy(&path, dir.path().join("copy")).unwrap();
        std::fs::rename(dir.path().join("copy"), &path).unwrap();
        let b = Liveness::open(&path, SHARE).unwrap();
        assert_eq!(b.probe(&a.home()), Alive::Unknown);
        std::fs::write(&path, b"").unwrap();
        let c = Liveness::open(&path, SHARE).unwrap();
        assert_eq!(c.probe(&b.home()), Alive::Unknown);
    }
}
