//! The gate: one resource, its marks, and the passages that are going on.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Access, Mark, Marks, Stale};

use super::lock::{self, Peeked, Permits, Site, Wait};
use super::names;
use super::slots::{self, Loaded, OnDisk, Unreadable};
use super::sys;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// What a [`MarkStore`] fails with.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// Where a [`Gate`] keeps its marks, if not in files of its own.
///
/// The gate calls it while it holds the resource's lock, but must not be the only protection:
/// others may use the same store without the gate.
pub trait MarkStore: fmt::Debug + Send + Sync {
    /// The marks of a resource; those of one never seen are empty.
    ///
    /// # Errors
    ///
    /// Whatever the store fails with. What it cannot read is an error, never empty marks.
    fn marks(&self, of: &Resource) -> Result<Marks, StoreError>;

    /// Replaces the marks by what `change` makes of them, in one step that nobody can come
    /// between, and returns only when that is **durable**: it survives a power cut.
    ///
    /// # Errors
    ///
    /// The refusal of `change`, after which the marks are as before; else whatever the store
    /// fails with, after which they may be either.
    fn update(
        &self,
        of: &Resource,
        change: &mut dyn FnMut(Marks) -> Result<Marks, Stale>,
    ) -> Result<Result<Marks, Stale>, StoreError>;
}

/// Lets accesses to resources of this machine through, and keeps newer ones out while one goes on.
///
/// A directory with one small file a resource: its marks, and the kernel's locks on it. An
/// exclusive passage goes alone; shared passages go together, whatever their tokens. A newer token
/// is not accepted until the passages in its way have ended: that is what makes the time between
/// the check and the end of the work safe, and it is also why a passage that hangs keeps its
/// successor out. Bound the work, not only the wait.
///
/// Fairness: none. Whoever waits tries again every few milliseconds, so an exclusive access can
/// be kept waiting by shared ones; the lock that hands out the tokens is where order is made.
///
/// When not to use it: on a network file system, whose locks and renames other machines may see
/// late. Whoever can write the directory can remove the files, and a removed file has forgotten
/// its marks: keep it to those who may be trusted with that, and never clean it by hand.
///
/// ```
/// use std::time::Duration;
/// use leasehold_fence::{Access, Mark, Resource, Token, file::Gate};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().join("fence");
/// let gate = Gate::open(&dir)?;
/// let tape = Resource::new("tape/1")?;
/// let wait = Duration::from_secs(10);
/// let mine = Mark::from(Token::new(42).unwrap());
///
/// let passage = gate.enter(&tape, Access::Exclusive, mine, wait)?; // before the first read
/// // … work; no newer token is accepted meanwhile …
/// drop(passage);
///
/// let late = Mark::from(Token::new(41).unwrap());
/// assert!(gate.enter(&tape, Access::Exclusive, late, wait).unwrap_err().stale_mark().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Gate {
    dir: PathBuf,
    mode: u32,
    store: Option<Arc<dyn MarkStore>>,
}

impl Gate {
    /// The gate in this directory, which is made (mode 0700) if it is not there; its parent must
    /// be.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] or [`ErrorKind::Unsupported`], with the directory's name.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Gate> {
        let dir = std::path::absolute(dir.into())
            .map_err(|e| Error::new(ErrorKind::Io, "find the working directory").because(e))?;
        make_dir(&dir).map_err(|e| {
            Error::new(ErrorKind::Io, format!("make the gate's directory {}", dir.display()))
                .because(e)
        })?;
        Ok(Gate { dir, mode: 0o600, store: None })
    }

    /// The same gate, with its marks kept elsewhere; its files then only carry the locks.
    #[must_use]
    pub fn with_marks(mut self, store: Arc<dyn MarkStore>) -> Gate {
        self.store = Some(store);
        self
    }

    /// The same gate, whose new files get this mode: `0o660` shares it with a group, which must
    /// also be able to write the directory. 0600 without it.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Gate {
        self.mode = mode & 0o666;
        self
    }

    /// Waits until nothing is in the way, raises the mark durably, and lets the access through.
    ///
    /// To be called **before the first read** of what is guarded. The mark is not raised before
    /// the passages in the way have ended. The wait ends after `wait`, give or take the time one
    /// write to the disk takes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: stop, the lease has ended; [`ErrorKind::Busy`] at the end of the
    /// wait; [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`], [`ErrorKind::Io`]. Nothing
    /// passes then; an error of the disk may leave the mark raised.
    pub fn enter(
        &self,
        of: &Resource,
        access: Access,
        mark: Mark,
        wait: Duration,
    ) -> Result<Passage> {
        self.seat(of)?.enter(access, mark, access, wait)
    }

    /// Whether a mark would be let through, and the marks as they are.
    ///
    /// This alone is a race: a newer holder can come the moment after. It raises nothing, makes
    /// nothing and needs no right to write. Use it to stop early, never to decide on a write.
    ///
    /// # Errors
    ///
    /// As [`Gate::enter`]; but it waits for nobody's passage.
    pub fn check(
        &self,
        of: &Resource,
        access: Access,
        mark: Mark,
        wait: Duration,
    ) -> Result<Marks> {
        self.seat(of)?.check(access, mark, wait)
    }

    pub(super) fn seat(&self, of: &Resource) -> Result<Seat> {
        let (name, text) = names::of_resource(of);
        let store = self.store.clone().map(|store| (store, of.clone()));
        Seat::new(&self.dir, name.into(), text, of.to_string(), Permits::Mode(self.mode), store)
    }

    /// The directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => match dir.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        },
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(e) => Err(e),
    }
}

/// An access that is going on: a lock that ends when this and every copy of its descriptor are
/// closed, whatever becomes of the process.
///
/// To let a child keep newer tokens out until *it* ends, even if this process is killed, pass it
/// the descriptor ([`AsFd`]) and leave it open in the child. Dropping this early lets the next in
/// only if no child has it.
#[derive(Debug)]
#[must_use = "the passage ends when this is dropped"]
pub struct Passage {
    file: File,
    access: Access,
    marks: Marks,
}

impl Passage {
    /// How it entered.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The marks when it entered, its own included.
    pub fn marks(&self) -> Marks {
        self.marks
    }
}

impl AsFd for Passage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// One resource of a gate, or one file with its marks beside it.
#[derive(Debug)]
pub(super) struct Seat {
    site: Site,
    text: String,
    shown: String,
    path: PathBuf,
    store: Option<(Arc<dyn MarkStore>, Resource)>,
}

impl Seat {
    pub(super) fn new(
        dir: &Path,
        name: std::ffi::OsString,
        text: String,
        shown: String,
        access: Permits,
        store: Option<(Arc<dyn MarkStore>, Resource)>,
    ) -> Result<Seat> {
        let path = dir.join(&name);
        let dir = File::open(dir).map_err(|e| {
            Error::new(ErrorKind::Io, format!("open the directory {}", dir.display())).because(e)
        })?;
        Ok(Seat { site: Site { dir, name, access }, text, shown, path, store })
    }

    /// Enters as `access` says, with the passage locked as `lock` says.
    pub(super) fn enter(
        &self,
        access: Access,
        mark: Mark,
        lock: Access,
        wait: Duration,
    ) -> Result<Passage> {
        let doing = format!("enter {}", self.shown);
        let mut wait = Wait::at_most(wait);
        loop {
            let door = self.open(&mut wait).map_err(|e| self.failed(&doing, e))?;
            let Some(door) = door else {
                return Err(busy(&doing));
            };
            let loaded = self.load(door.file()).map_err(|e| self.unreadable(&doing, e))?;
            let raised =
                loaded.marks.admit(access, mark).map_err(|stale| Error::stale(&doing, stale))?;
            let free = sys::try_lock(door.file(), lock::PASSAGE, lock);
            if free.map_err(|e| self.failed(&doing, e))? {
                let marks = self.raise(door.file(), loaded, raised, access, mark, &doing)?;
                let file = door.into_file().map_err(|e| self.failed(&doing, e))?;
                return Ok(Passage { file, access: lock, marks });
            }
            drop(door);
            if !wait.pause() {
                return Err(busy(&doing));
            }
        }
    }

    pub(super) fn check(&self, access: Access, mark: Mark, wait: Duration) -> Result<Marks> {
        let doing = format!("check {}", self.shown);
        let mut wait = Wait::at_most(wait);
        let marks = match &self.store {
            Some((store, of)) => store.marks(of).map_err(Unreadable::Store),
            None => match self.site.peek(&mut wait).map_err(|e| self.failed(&doing, e))? {
                Peeked::Absent => Ok(Marks::default()),
                Peeked::Busy => return Err(busy(&doing)),
                Peeked::Door(door) => self.load(door.file()).map(|loaded| loaded.marks),
            },
        };
        let marks = marks.map_err(|e| self.unreadable(&doing, e))?;
        marks.admit(access, mark).map_err(|stale| Error::stale(&doing, stale))?;
        Ok(marks)
    }

    /// Removes what a killed process has left of making the lock file.
    pub(super) fn tidy(&self) -> io::Result<()> {
        self.site.tidy()
    }

    fn open(&self, wait: &mut Wait) -> io::Result<Option<lock::Door>> {
        if self.store.is_some() {
            return self.site.open(wait, None);
        }
        let fill = |file: &File| slots::initialise(file, &self.text);
        self.site.open(wait, Some(&fill))
    }

    fn load(&self, file: &File) -> Result<Loaded, Unreadable> {
        match &self.store {
            None => slots::load(&OnDisk { file, dir: &self.site.dir }, &self.text),
            Some((store, of)) => store.marks(of).map(Loaded::elsewhere).map_err(Unreadable::Store),
        }
    }

    fn raise(
        &self,
        file: &File,
        loaded: Loaded,
        raised: Marks,
        access: Access,
        mark: Mark,
        doing: &str,
    ) -> Result<Marks> {
        let Some((store, of)) = &self.store else {
            let medium = OnDisk { file, dir: &self.site.dir };
            slots::save(&medium, &self.text, loaded, raised).map_err(|e| self.failed(doing, e))?;
            return Ok(raised);
        };
        store
            .update(of, &mut |marks| marks.admit(access, mark))
            .map_err(|e| Error::new(ErrorKind::Io, format!("{doing}: raise its mark")).because(e))?
            .map_err(|stale| Error::stale(doing, stale))
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        let kind = match error.raw_os_error() {
            Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL | libc::ELOOP) => {
                ErrorKind::Unsupported
            }
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{doing}: use {}", self.path.display())).because(error)
    }

    fn unreadable(&self, doing: &str, why: Unreadable) -> Error {
        let path = self.path.display();
        match why {
            Unreadable::Io(error) => self.failed(doing, error),
            Unreadable::Store(error) => {
                Error::new(ErrorKind::Io, format!("{doing}: read its marks")).because(error)
            }
            Unreadable::Version(_) => {
                Error::new(ErrorKind::Unsupported, format!("{doing}: read {path}")).because(why)
            }
            why => {
                let text = format!(
                    "{doing}: {path} is corrupt and is not trusted; find out who wrote it, then \
                     remove it and enter once with the newest token given out"
                );
                Error::new(ErrorKind::Corrupt, text).because(why)
            }
        }
    }
}

fn busy(doing: &str) -> Error {
    let text = format!("{doing}: someone is inside, and was still at the end of the wait");
    Error::new(ErrorKind::Busy, text)
}
