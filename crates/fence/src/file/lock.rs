//! One lock file: opened, locked, and made sure to be the one that its name still means.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use leasehold_core::Access;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::sys;

/// Locked while the marks are read and raised: for milliseconds.
pub(super) const MARKS: u8 = 0;
/// Locked while an access goes on: for as long as that takes.
pub(super) const PASSAGE: u8 = 1;

/// How often a lock file may be found replaced before it is called an error.
const TRIES_MAX: u32 = 32;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The place of a lock file.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) dir: File,
    pub(super) name: OsString,
    pub(super) access: Permits,
}

/// What a lock file that is made here is filled with, before it gets its name.
pub(super) type Content<'a> = &'a dyn Fn(&File) -> io::Result<()>;

/// Who may use a lock file that is made here.
#[derive(Debug, Clone, Copy)]
pub(super) enum Permits {
    /// As the umask has it.
    Umask,
    /// Exactly this mode.
    Mode(u32),
    /// Those who may use the file that is guarded.
    Like { mode: u32, uid: u32, gid: u32 },
}

/// A lock file with its marks byte locked until it is dropped.
#[derive(Debug)]
pub(super) struct Door(File);

impl Drop for Door {
    fn drop(&mut self) {
        // Explicitly: a child that is just being started may share the descriptor for a moment.
        // Failing that, closing it unlocks as well.
        let _ = sys::unlock(&self.0, MARKS);
    }
}

impl Door {
    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Gives up the marks byte and keeps the descriptor, with what else it has locked.
    pub(super) fn into_file(self) -> io::Result<File> {
        // The clone shares the open file description, so its locks stay when this one is closed.
        self.0.try_clone()
    }
}

/// A wait with an end, in short pauses that grow.
pub(super) struct Wait {
    until: Option<Instant>,
    pause: Duration,
}

impl Wait {
    /// A wait that is too long to be reckoned never ends.
    pub(super) fn at_most(span: Duration) -> Wait {
        Wait { until: Instant::now().checked_add(span), pause: PAUSE_MIN }
    }

    /// Sleeps a little, or says that the wait is over.
    pub(super) fn pause(&mut self) -> bool {
        let left = match self.until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => PAUSE_MAX,
        };
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.jittered().min(left));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }

    /// Between half of the pause and the whole, so that contenders do not keep in step.
    fn jittered(&self) -> Duration {
        let noise = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8);
        self.pause * (128 + u32::from(noise.to_le_bytes()[0] / 2)) / 256
    }
}

impl Site {
    /// Opens the lock file and locks its marks byte; makes it with `content` if it is not there.
    ///
    /// `None`: the wait is over and someone still had it locked.
    pub(super) fn open(
        &self,
        wait: &mut Wait,
        content: Option<Content<'_>>,
    ) -> io::Result<Option<Door>> {
        for _ in 0..TRIES_MAX {
            let door = match self.open_old(wait)? {
                Opened::Door(door) => door,
                Opened::Busy => return Ok(None),
                Opened::Gone => match self.make(wait, content)? {
                    Opened::Door(door) => door,
                    Opened::Busy => return Ok(None),
                    Opened::Gone => continue,
                },
            };
            return Ok(Some(door));
        }
        Err(io::Error::other("it is replaced again and again"))
    }

    fn open_old(&self, wait: &mut Wait) -> io::Result<Opened> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(fd) => self.lock(File::from(fd), &self.name, wait),
            Err(Errno::NOENT) => Ok(Opened::Gone),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes the file whole under another name, and renames it into place.
    ///
    /// All who do so lock that other file first and then make sure that there is no lock file
    /// yet, so the rename never replaces one.
    fn make(&self, wait: &mut Wait, content: Option<Content<'_>>) -> io::Result<Opened> {
        let new = self.new_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = match self.access {
            Permits::Umask => 0o666,
            Permits::Mode(mode) | Permits::Like { mode, .. } => mode,
        };
        let fd = rustix::fs::openat(&self.dir, &new, flags, Mode::from_raw_mode(mode))?;
        let door = match self.lock(File::from(fd), &new, wait)? {
            Opened::Door(door) => door,
            other => return Ok(other),
        };
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Ok(_) => {
                remove(&self.dir, &new)?;
                return Ok(Opened::Gone);
            }
            Err(e) => return Err(e.into()),
        }
        let filled = self.permit(door.file()).and_then(|()| match content {
            Some(fill) => fill(door.file()),
            None => Ok(()),
        });
        if let Err(e) = filled {
            let _ = remove(&self.dir, &new);
            return Err(e);
        }
        rustix::fs::renameat(&self.dir, &new, &self.dir, &self.name)?;
        Ok(Opened::Door(door))
    }

    fn permit(&self, file: &File) -> io::Result<()> {
        let mode = match self.access {
            Permits::Umask => return Ok(()),
            Permits::Mode(mode) => mode,
            Permits::Like { mode, uid, gid } => {
                // As far as this user may: the file's owner can make up for the rest.
                let _ =
                    rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                mode
            }
        };
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }

    fn lock(&self, file: File, name: &OsStr, wait: &mut Wait) -> io::Result<Opened> {
        if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        while !sys::try_lock(&file, MARKS, Access::Exclusive)? {
            if !wait.pause() {
                return Ok(Opened::Busy);
            }
        }
        let door = Door(file);
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if same(&there, &rustix::fs::fstat(door.file())?) => Ok(Opened::Door(door)),
            Ok(_) | Err(Errno::NOENT) => Ok(Opened::Gone),
            Err(e) => Err(e.into()),
        }
    }

    /// Opens the lock file to read it, with the marks byte locked shared; `Gone` if there is none.
    pub(super) fn peek(&self, wait: &mut Wait) -> io::Result<Peeked> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(Peeked::Absent),
            Err(e) => return Err(e.into()),
        };
        while !sys::try_lock(&file, MARKS, Access::Shared)? {
            if !wait.pause() {
                return Ok(Peeked::Busy);
            }
        }
        Ok(Peeked::Door(Door(file)))
    }

    /// Removes what a process that was killed while making the lock file has left.
    ///
    /// Only while the lock file itself is open: then whoever still has the other one will not
    /// rename it.
    pub(super) fn tidy(&self) -> io::Result<()> {
        remove(&self.dir, &self.new_name())
    }

    fn new_name(&self) -> OsString {
        let mut name = self.name.clone();
        name.push(".new");
        name
    }
}

enum Opened {
    Door(Door),
    Busy,
    Gone,
}

/// What was found of a lock file that is only read.
pub(super) enum Peeked {
    Door(Door),
    Busy,
    Absent,
}

pub(super) fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Removes a name, if it is there.
pub(super) fn remove(dir: &File, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
