//! The fence for files, and the gate under it.
//!
//! [`FileFence::put`] replaces a file whole, under a token: a holder that slept through the end of
//! its lease cannot put its old content over a newer holder's. [`Gate`] is the building block: it
//! keeps the marks of any resource of this machine and keeps newer tokens out while an access goes
//! on. Linux only.

mod gate;
mod lock;
mod names;
mod slots;
mod spool;
mod sys;
mod target;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Access, Mark, Marks};
use rustix::fs::{Mode, OFlags};

use self::gate::Seat;
pub use self::gate::{Gate, MarkStore, Passage, StoreError};
use self::lock::Permits;
use self::spool::{Failed, Spool};
use self::target::{Old, Target};
use crate::error::{Error, ErrorKind, Result};

/// Replaces one file whole, for holders of a token that is not stale.
///
/// What it means: when [`put`](FileFence::put) returns, the content is in place and on the disk,
/// and no conflicting older token will be accepted. Whenever it is killed, or the machine stops,
/// the file is whole: the old content or the new, never a mixture; and the newest token was made
/// durable before the new content came into place. Owner, group, mode, access list and other
/// extended attributes of the file are kept. Through symbolic links it replaces the file they mean
/// (a dangling one gets its file made), and the link stays. What holds the old file open goes on
/// reading the old content.
///
/// Where the marks are: beside the file, in `.NAME.leasehold-fence`, for everyone who uses the
/// file on this machine ([`FileFence::new`]); or in a [`Gate`] ([`FileFence::in_gate`]), under
/// the file's path, for those who use the same gate and the same path. All who put a file must
/// agree on one of them.
///
/// Fairness: none, see [`Gate`].
///
/// When not to use it: for a file that someone writes by other means, who is not refused; for a
/// file with hard links, which is refused, as replacing it would part them; for many files that
/// must change together; in a directory on a network file system; in a directory that someone
/// untrusted can write.
///
/// ```
/// use leasehold_fence::{Access, Mark, Token, file::FileFence};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("routes.json");
/// let fence = FileFence::new(&path);
/// let mine = Mark::from(Token::new(42).unwrap());
/// fence.put(&b"{}"[..], Access::Exclusive, mine)?;
///
/// let late = Mark::from(Token::new(41).unwrap());
/// let refused = fence.put(&b"old"[..], Access::Exclusive, late).unwrap_err();
/// assert!(refused.stale_mark().is_some());
/// assert_eq!(std::fs::read(&path)?, b"{}");
///
/// // Read, change, write: the mark is raised before the read, and nobody comes between.
/// let inside = fence.enter(Access::Exclusive, mine)?;
/// let text = std::fs::read_to_string(&path)?.replace("{}", "{\"a\":1}");
/// inside.put(text.as_bytes())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct FileFence {
    path: PathBuf,
    gate: Option<Gate>,
    wait: Duration,
}

impl FileFence {
    /// The fence of this file, with its marks in a file beside it. Nothing is opened or made yet.
    pub fn new(path: impl Into<PathBuf>) -> FileFence {
        FileFence { path: path.into(), gate: None, wait: Duration::from_secs(10) }
    }

    /// The fence of this file, with its marks in a gate, under the file's path behind all links.
    pub fn in_gate(path: impl Into<PathBuf>, gate: Gate) -> FileFence {
        FileFence { gate: Some(gate), ..FileFence::new(path) }
    }

    /// The same fence, which waits at most this long for others to leave; 10 s without it.
    #[must_use]
    pub fn with_wait(self, wait: Duration) -> FileFence {
        FileFence { wait, ..self }
    }

    /// Replaces the content of the file by what `data` holds, or makes the file.
    ///
    /// The mark is checked and raised first, then `data` is read to its end while nobody is kept
    /// out, then the mark is checked again and the file replaced. So a stale token is refused
    /// before anything is read, and a pipe that hangs keeps no successor waiting. A shared access
    /// differs only in what the fence compares; puts go one after the other in any case. For
    /// content that was computed from the file itself, use [`FileFence::enter`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: stop, the lease has ended. [`ErrorKind::Busy`] at the end of the
    /// wait. [`ErrorKind::Unsupported`] for what is not a regular file or has hard links.
    /// [`ErrorKind::Corrupt`] for marks that cannot be read. [`ErrorKind::Io`]: `data` failed, or
    /// the disk is full or read-only, or the directory is missing, or the file's owner or
    /// attributes cannot be kept, or it may not be written. In each case the file is as it was
    /// (a raised mark stays raised), except where [`Error::applied`] says `Maybe`: then the new
    /// content is in place, and may yet be lost in a power cut.
    pub fn put(&self, data: impl Read, access: Access, mark: Mark) -> Result<()> {
        let place = self.place(Look::First)?;
        drop(place.seat.enter(access, mark, Access::Exclusive, self.wait)?);
        let data = place.spool(data)?;
        let _passage = place.seat.enter(access, mark, Access::Exclusive, self.wait)?;
        place.replace(data)
    }

    /// Waits until nothing is in the way, raises the mark durably, and keeps newer tokens out of
    /// the file until what it returns is dropped. To be called before the first read.
    ///
    /// # Errors
    ///
    /// As [`Gate::enter`]; and as [`FileFence::put`] for a file that could not be replaced.
    pub fn enter(&self, access: Access, mark: Mark) -> Result<FilePassage> {
        let place = self.place(Look::First)?;
        let passage = place.seat.enter(access, mark, access, self.wait)?;
        Ok(FilePassage { place, passage })
    }

    /// Whether a mark would be let through, and the marks as they are. This alone is a race, see
    /// [`Gate::check`].
    ///
    /// # Errors
    ///
    /// As [`Gate::check`].
    pub fn check(&self, access: Access, mark: Mark) -> Result<Marks> {
        self.place(Look::Not)?.seat.check(access, mark, self.wait)
    }

    fn place(&self, look: Look) -> Result<Place> {
        let target = Target::find(&self.path)?;
        let old = match look {
            Look::First => target.look()?,
            Look::Not => None,
        };
        let (seat, keeper) = match &self.gate {
            None => (seat_beside(&target, old.as_ref())?, None),
            Some(gate) => (gate.seat(&names::of_path(&target.path())?)?, Some(gate.dir())),
        };
        let temp = names::put(&target.name, keeper);
        Ok(Place { target, seat, temp })
    }
}

/// Whether the file must be one that can be replaced, before anything is made for it.
enum Look {
    First,
    Not,
}

/// The marks of a target in a file beside it, which those who may write the target may write.
fn seat_beside(target: &Target, old: Option<&Old>) -> Result<Seat> {
    let (name, text) = names::beside(&target.name);
    let access = match old {
        None => Permits::Umask,
        Some(Old { stat, .. }) => {
            Permits::Like { mode: stat.st_mode & 0o666 | 0o600, uid: stat.st_uid, gid: stat.st_gid }
        }
    };
    Seat::new(&target.dir_path, name, text, target.path().display().to_string(), access, None)
}

/// An access to one file that is going on; it ends when this is dropped. See [`Passage`].
#[derive(Debug)]
#[must_use = "the passage ends when this is dropped"]
pub struct FilePassage {
    place: Place,
    passage: Passage,
}

impl FilePassage {
    /// Replaces the content of the file, as [`FileFence::put`] does, without leaving in between.
    ///
    /// # Errors
    ///
    /// As [`FileFence::put`]; [`ErrorKind::Usage`] if the passage is a shared one.
    pub fn put(&self, data: impl Read) -> Result<()> {
        if self.passage.access() == Access::Shared {
            let path = self.place.target.path();
            let text = format!("replace {}: it was entered shared", path.display());
            return Err(Error::new(ErrorKind::Usage, text));
        }
        let data = self.place.spool(data)?;
        self.place.replace(data)
    }

    /// The marks when it entered, its own included.
    pub fn marks(&self) -> Marks {
        self.passage.marks()
    }
}

impl AsFd for FilePassage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.passage.as_fd()
    }
}

/// A file, its marks, and the name its new content has before it is renamed into place.
#[derive(Debug)]
struct Place {
    target: Target,
    seat: Seat,
    temp: OsString,
}

impl Place {
    fn spool(&self, data: impl Read) -> Result<Spool> {
        Spool::fill(data, &self.target.dir).map_err(|failed| match failed {
            Failed::Reading(e) => self.failed("read the data").because(e),
            Failed::Writing(e) => self.failed("keep the data meanwhile").because(e),
        })
    }

    /// Replaces the file. Only within an exclusively locked passage.
    fn replace(&self, mut data: Spool) -> Result<()> {
        let old = self.target.look()?;
        let dir = &self.target.dir;
        // Whatever is there was left by someone who was killed: nobody else is inside.
        let tidied = self.seat.tidy().and_then(|()| lock::remove(dir, &self.temp));
        tidied.map_err(|e| self.failed("remove what a killed process left").because(e))?;
        let renamed = self.write(&mut data, old.as_ref()).and_then(|()| {
            rustix::fs::renameat(dir, &self.temp, dir, &self.target.name)
                .map_err(|e| self.failed("rename the new content into place").because(io(e)))
        });
        if let Err(error) = renamed {
            // If this fails, the next put does it.
            let _ = lock::remove(dir, &self.temp);
            return Err(error);
        }
        dir.sync_all()
            .map_err(|e| self.failed("make the rename durable").because(e).maybe_applied())
    }

    /// Makes the temporary file whole and durable.
    fn write(&self, data: &mut Spool, old: Option<&Old>) -> Result<()> {
        // A file that is there may be secret until its mode is set.
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.target.dir, &self.temp, flags, mode)
            .map_err(|e| self.failed("create the temporary file").because(io(e)))?;
        let mut new = File::from(fd);
        data.write_to(&mut new).map_err(|e| self.failed("write the new content").because(e))?;
        if let Some(old) = old {
            target::keep(old, &new)
                .map_err(|e| self.failed("keep its owner, mode and attributes").because(e))?;
        }
        new.sync_all().map_err(|e| self.failed("make the new content durable").because(e))
    }

    fn failed(&self, step: &str) -> Error {
        let path = self.target.path();
        Error::new(ErrorKind::Io, format!("replace {}: {step}", path.display()))
    }
}

fn io(error: rustix::io::Errno) -> io::Error {
    error.into()
}
