//! One FIFO a waiting process, named after its byte, in the directory beside the database.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, fstat, mkfifoat, open};

use crate::files::{Share, dir_mode};
use crate::live::{Alive, Home, Liveness};
use crate::message::{MESSAGE_LEN, Message};

/// This process's own FIFO; removed with it.
#[derive(Debug)]
pub(crate) struct Fifo {
    file: OwnedFd,
    path: PathBuf,
    maker: u32,
}

fn path_of(directory: &Path, byte: u64) -> PathBuf {
    directory.join(format!("{byte:016x}"))
}

impl Fifo {
    /// Makes it, and the directory if that is missing.
    pub(crate) fn create(directory: &Path, share: Share, byte: u64) -> io::Result<Fifo> {
        let wanted = dir_mode(share.mode);
        match fs::DirBuilder::new().mode(wanted).create(directory) {
            // The umask may have taken bits away.
            Ok(()) => {
                share.give(directory);
                fs::set_permissions(directory, fs::Permissions::from_mode(wanted))?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let path = path_of(directory, byte);
        let bits = Mode::from_raw_mode(share.mode);
        mkfifoat(CWD, &path, bits)?;
        share.give(&path);
        chmod(&path, bits)?;
        // Open for both: then it never reports an end while nobody writes.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(&path, flags, Mode::empty())?;
        Ok(Fifo { file, path, maker: std::process::id() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes to the process that has this byte, without waiting.
    pub(crate) fn write(directory: &Path, byte: u64, message: &Message) -> io::Result<()> {
        let file = open_of_another(directory, byte)?;
        rustix::io::write(&file, &message.encode())?;
        Ok(())
    }

    /// Reads all that has been written; false if some of it was no message.
    pub(crate) fn read_all(&self, into: &mut Vec<Message>) -> bool {
        let mut buffer = [0_u8; MESSAGE_LEN * 16];
        let mut understood = true;
        while let Ok(read) = rustix::io::read(&self.file, &mut buffer) {
            if read == 0 {
                break;
            }
            let (whole, rest) = buffer[..read].as_chunks::<MESSAGE_LEN>();
            understood &= rest.is_empty();
            for bytes in whole {
                match Message::decode(bytes) {
                    Some(message) => into.push(message),
                    None => understood = false,
                }
            }
        }
        understood
    }

    /// Removes what a dead process left.
    pub(crate) fn remove(directory: &Path, byte: u64) {
        // Missing is as good as removed.
        let _ = fs::remove_file(path_of(directory, byte));
    }

    /// Removes some of what dead processes left in this one's directory.
    pub(crate) fn sweep(&self, live: &Liveness) {
        if let Some(directory) = self.path.parent() {
            Fifo::sweep_all(directory, live, 8);
        }
    }

    /// Removes what dead processes left, no more than this many.
    pub(crate) fn sweep_all(directory: &Path, live: &Liveness, at_most: usize) {
        let Ok(names) = fs::read_dir(directory) else { return };
        let mut removed = 0;
        for name in names.flatten() {
            if removed >= at_most {
                return;
            }
            let byte = name.file_name().to_str().and_then(|n| u64::from_str_radix(n, 16).ok());
            let Some(byte) = byte else { continue };
            let home = Home { byte, ..live.home() };
            if live.probe(&home) == Alive::No {
                Fifo::remove(directory, byte);
                removed += 1;
            }
        }
    }
}

/// Open for both: with a reader of our own, a write to one whose process has just ended raises no
/// SIGPIPE, which would end a program that has not ignored it.
fn open_of_another(directory: &Path, byte: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path_of(directory, byte), flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Fifo {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(file)
}

impl Drop for Fifo {
    fn drop(&mut self) {
        if self.maker == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_to_one_that_has_just_ended_is_no_broken_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share { mode: 0o600, owner: 0, group: 0 };
        let directory = dir.path().join("wake");
        let fifo = Fifo::create(&directory, share, 7).unwrap();
        let word = Message::Moved { claim: leasehold_core::ClaimId::from_bits(1) };
        Fifo::write(&directory, 7, &word).unwrap();
        let to = open_of_another(&directory, 7).unwrap();
        drop(fifo);
        rustix::io::write(&to, &word.encode()).unwrap();
        assert!(Fifo::write(&directory, 7, &word).is_err(), "it is gone by now");
    }
}
