//! The files of a store: where they may stand, how they are made, whether they are still the same.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use leasehold_core::{Error, ErrorKind};
use rustix::fs::{
    Access, AtFlags, CWD, Gid, Mode, StatVfsMountFlags, StatxFlags, Uid, access, chmod, chown,
    fstat, stat, statfs, statvfs, statx,
};
use rustix::process::geteuid;

use crate::config::SqliteConfig;
use crate::error::{DOING, from_io, replaced};

/// `PATH-live` and the like.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Which file a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    dev: u64,
    ino: u64,
}

impl FileId {
    /// Which file a descriptor names.
    pub(crate) fn of_open(file: impl AsFd) -> io::Result<FileId> {
        let found = fstat(file)?;
        Ok(FileId { dev: found.st_dev, ino: found.st_ino })
    }
}

/// The files that must stay what they are while a store is open. SQLite in WAL mode does not
/// notice when they are removed or replaced, and two worlds would arise.
#[derive(Debug)]
pub(crate) struct Watched {
    files: [(PathBuf, FileId); 2],
}

impl Watched {
    /// `path` is what the user named, perhaps a symbolic link.
    pub(crate) fn new(path: &Path, prepared: &Prepared) -> Result<Watched, Error> {
        let index = beside(&prepared.path, "-shm");
        let index_id = id_of(&index)
            .map_err(|e| from_io(ErrorKind::Replaced, "its index file is not there", e))?;
        Ok(Watched { files: [(path.to_owned(), prepared.id), (index, index_id)] })
    }

    /// Two system calls.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (path, id) in &self.files {
            match id_of(path) {
                Ok(found) if found == *id => {}
                Ok(_) => return Err(replaced("another file stands in its place")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(replaced("its file was removed"));
                }
                Err(error) => {
                    return Err(from_io(ErrorKind::Unreachable, "its file is out of reach", error));
                }
            }
        }
        Ok(())
    }
}

fn id_of(path: &Path) -> io::Result<FileId> {
    let found = stat(path)?;
    Ok(FileId { dev: found.st_dev, ino: found.st_ino })
}

/// What kind of file system a path is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// Seen by one kernel only.
    Local,
    /// Perhaps seen by others.
    Unknown,
    /// Seen by other kernels, whose locks this one does not see.
    Remote(&'static str),
}

/// By the magic numbers of statfs(2).
pub(crate) fn classify(magic: u64) -> FileSystem {
    use FileSystem::{Local, Remote, Unknown};
    match magic {
        0x6969 => Remote("NFS"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => Remote("SMB"),
        0x0102_1997 => Remote("9p"),
        0x6573_5546 | 0x6573_5543 => Remote("a FUSE or virtiofs"),
        0x5346_414f | 0x6b41_4653 => Remote("AFS"),
        0x00c3_6400 => Remote("Ceph"),
        0x7375_7245 => Remote("Coda"),
        0x564c => Remote("NCP"),
        0x0116_1970 => Remote("GFS2"),
        0x7461_636f => Remote("OCFS2"),
        0x0bd0_0bd0 => Remote("Lustre"),
        0x4750_4653 => Remote("GPFS"),
        0x786f_4256 => Remote("a VirtualBox shared"),
        0xbacb_acbc => Remote("a VMware shared"),
        // ext2 to 4, XFS, Btrfs, tmpfs, ZFS, F2FS, overlay, bcachefs, ramfs, JFS, Reiser, NILFS,
        // eCryptfs.
        0xef53 | 0x5846_5342 | 0x9123_683e | 0x0102_1994 | 0x2fc1_2fc1 | 0xf2f5_2010
        | 0x794c_7630 | 0xca45_1a4e | 0x8584_58f6 | 0x3153_464a | 0x5265_4973 | 0x3434 | 0xf15f => {
            Local
        }
        _ => Unknown,
    }
}

/// The file system of an existing path; refuses those that other kernels see too.
pub(crate) fn local_only(path: &Path) -> Result<FileSystem, Error> {
    let found = statfs(path)
        .map_err(|e| from_io(ErrorKind::Config, "its file system cannot be told", e.into()))?;
    // The field's type differs between platforms.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    let magic = found.f_type as u64 & 0xffff_ffff;
    match classify(magic) {
        FileSystem::Remote(name) => {
            let detail = format!(
                "it is on {name} file system, whose other machines would not see its locks"
            );
            Err(Error::new(ErrorKind::Config, "open the store", detail)
                .advise("use a local path, such as /var/lib/leasehold"))
        }
        system => Ok(system),
    }
}

/// What stands at the path of a database after [`prepare`].
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Where it is, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) id: FileId,
    pub(crate) system: FileSystem,
    pub(crate) share: Share,
}

/// To whom the files of a store are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// The permission bits of the database.
    pub(crate) mode: u32,
    /// Its owner.
    pub(crate) owner: u32,
    /// Its group.
    pub(crate) group: u32,
}

impl Share {
    /// Gives a file of this process's making to those who have the database, as far as that is
    /// allowed: root, who uses another's database, must not lock its owner out.
    pub(crate) fn give(self, path: &Path) {
        let owner = Some(Uid::from_raw(self.owner)).filter(|_| geteuid().is_root());
        if owner.is_some() || self.mode & 0o060 != 0 {
            let _ = chown(path, owner, Some(Gid::from_raw(self.group)));
        }
    }
}

/// Makes sure that a usable file stands at the path.
pub(crate) fn prepare(config: &SqliteConfig) -> Result<Prepared, Error> {
    let path = &config.path;
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(config)?;
            fs::metadata(path).map_err(|e| unreachable_path(path, &e))?
        }
        Err(error) => return Err(unreachable_path(path, &error)),
    };
    if found.is_dir() {
        return Err(Error::new(ErrorKind::Config, "open the store", "its path is a directory")
            .advise("name a file in it"));
    }
    if !found.is_file() {
        let detail = "its path names something that is not a file";
        return Err(Error::new(ErrorKind::Config, "open the store", detail));
    }
    let system = local_only(path)?;
    let path = &fs::canonicalize(path).map_err(|e| unreachable_path(path, &e))?;
    not_mounted_alone(path)?;
    usable(path, &found)?;
    let mut mode = found.mode() & 0o666;
    if let Some(wanted) = config.mode
        && wanted != mode
    {
        mode = widen(path, wanted, mode);
    }
    Ok(Prepared {
        path: path.clone(),
        id: FileId { dev: found.dev(), ino: found.ino() },
        system,
        share: Share { mode, owner: found.uid(), group: found.gid() },
    })
}

/// A file that is mounted without its directory, as containers do, would have another log and
/// other locks beside it in every container.
fn not_mounted_alone(path: &Path) -> Result<(), Error> {
    let mount_of = |path: &Path| {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
    };
    let parent = path.parent().and_then(mount_of);
    match (mount_of(path), parent) {
        (Some(file), Some(directory)) if file != directory => {
            let detail = "its file is mounted by itself, without what stands beside it";
            Err(Error::new(ErrorKind::Config, "open the store", detail)
                .advise("mount its directory instead"))
        }
        _ => Ok(()),
    }
}

/// Gives an existing database and what stands beside it another mode, where its owner does so.
fn widen(path: &Path, wanted: u32, found: u32) -> u32 {
    let bits = Mode::from_raw_mode(wanted);
    if chmod(path, bits).is_err() {
        return found; // not ours: whether it is usable has been seen already
    }
    for suffix in ["-wal", "-shm", "-live"] {
        // Each may be missing, and is then made with the database's mode.
        let _ = chmod(beside(path, suffix), bits);
    }
    let _ = chmod(beside(path, "-wake"), Mode::from_raw_mode(dir_mode(wanted)));
    wanted
}

/// The mode of a directory whose files have this mode.
pub(crate) fn dir_mode(mode: u32) -> u32 {
    0o700 | mode | ((mode & 0o444) >> 2)
}

fn usable(path: &Path, found: &fs::Metadata) -> Result<(), Error> {
    match access(path, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::ROFS) => Err(read_only()),
        Err(_) if statvfs(path).is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::RDONLY)) => {
            Err(read_only())
        }
        Err(_) if found.uid() == geteuid().as_raw() => {
            Err(Error::new(ErrorKind::Permission, "open the store", "its file is read-only")
                .advise("make the file writable, or name another path"))
        }
        Err(error) => Err(not_ours(error.into())),
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::Unavailable, "open the store", "its file system is read-only")
        .advise("name a path that can be written")
}

fn not_ours(error: io::Error) -> Error {
    Error::new(
        ErrorKind::Permission,
        "open the store",
        "its file belongs to another user, who keeps it to himself",
    )
    .caused_by(error)
    .advise(
        "open it as its owner with `?mode=0660` to share it with its group, or name another path",
    )
}

fn unreachable_path(path: &Path, error: &io::Error) -> Error {
    let again = io::Error::from(error.kind());
    match error.kind() {
        io::ErrorKind::PermissionDenied => not_ours(again),
        io::ErrorKind::NotADirectory => {
            let detail = "a part of its path is not a directory";
            from_io(ErrorKind::Config, detail, again)
        }
        _ => {
            let detail = format!("its path {} cannot be looked at", path.display());
            from_io(ErrorKind::Config, detail, again)
        }
    }
}

fn create(config: &SqliteConfig) -> Result<(), Error> {
    let path = &config.path;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.exists() {
        if !config.create_parents {
            let detail = format!("there is no directory {}", parent.display());
            return Err(Error::new(ErrorKind::Config, "open the store", detail)
                .advise("make the directory, or name another path"));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|e| {
            let detail = format!("the directory {} cannot be made", parent.display());
            let kind = match e.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Config,
            };
            from_io(kind, detail, e).advise("make the directory, or name another path")
        })?;
    }
    local_only(parent)?;
    make(path, config.mode.unwrap_or(0o600), None, &[]).map_err(|e| match e.kind() {
        io::ErrorKind::ReadOnlyFilesystem => read_only(),
        io::ErrorKind::PermissionDenied => {
            from_io(ErrorKind::Permission, "its file cannot be made in its directory", e)
                .advise("name a path in a directory that can be written")
        }
        _ => from_io(ErrorKind::Unavailable, "its file cannot be made", e),
    })
}

/// Makes a file with this content and mode, whole or not at all, unless there is one already; given
/// to those who have the database, if there is one, before anybody sees it.
pub(crate) fn make(path: &Path, mode: u32, share: Option<Share>, content: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let draft = beside(path, &format!("-new{:016x}", random_u64()?));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    if let Some(share) = share {
        share.give(&draft);
    }
    let written = rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
        .map_err(io::Error::from)
        .and_then(|()| file.write_all(content));
    let linked = written.and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    fs::remove_file(&draft)?;
    linked
}

pub(crate) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("no randomness: {e}")))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The file still is the one that was prepared.
pub(crate) fn still(path: &Path, id: FileId) -> Result<(), Error> {
    match id_of(path) {
        Ok(found) if found == id => Ok(()),
        _ => Err(Error::new(ErrorKind::Replaced, DOING, "its file changed while it was opened")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_other_kernels_see_are_refused() {
        for (magic, remote) in [(0x6969, true), (0x0102_1997, true), (0xef53, false)] {
            assert_eq!(matches!(classify(magic), FileSystem::Remote(_)), remote, "{magic:x}");
        }
        assert_eq!(classify(0x1234_5678), FileSystem::Unknown);
        assert_eq!(classify(0x0102_1994), FileSystem::Local);
    }

    #[test]
    fn directories_get_the_matching_execute_bits() {
        assert_eq!(dir_mode(0o600), 0o700);
        assert_eq!(dir_mode(0o660), 0o770);
        assert_eq!(dir_mode(0o666), 0o777);
    }
}
