//! The file that is guarded: found behind its symbolic links, and looked at before it is replaced.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// As many links as Linux follows.
const LINKS_MAX: u32 = 40;
/// The longest list of attribute names, and the longest value, that Linux allows.
const XATTR_LEN_MAX: usize = 65_536;
const ACL: &str = "system.posix_acl_access";

/// A name in an open directory: what becomes of the path later does not matter.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) dir: File,
    pub(super) dir_path: PathBuf,
    pub(super) name: OsString,
}

/// What a target is now, open for writing.
#[derive(Debug)]
pub(super) struct Old {
    file: File,
    pub(super) stat: Stat,
}

impl Target {
    /// Follows symbolic links to the name that they mean, whether or not a file is there.
    pub(super) fn find(path: &Path) -> Result<Target> {
        let failed = |e: io::Error| {
            let kind = match e.kind() {
                io::ErrorKind::IsADirectory => ErrorKind::Unsupported,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("find the file {}", path.display())).because(e)
        };
        // The kernel first: it refuses loops, and links that strangers laid in /tmp.
        match std::fs::metadata(path) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        let (dir_path, name) = follow(path.to_path_buf()).map_err(failed)?;
        if super::names::is_own(&name) {
            let text = format!("guard {}: it is a file that a fence keeps", path.display());
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let dir = File::open(&dir_path).map_err(failed)?;
        Ok(Target { dir, dir_path, name })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir_path.join(&self.name)
    }

    /// Looks at the file: `None` if there is none; an error if it cannot or must not be replaced.
    pub(super) fn look(&self) -> Result<Option<Old>> {
        let doing = format!("replace {}", self.path().display());
        let io = |e: Errno| Error::new(ErrorKind::Io, doing.clone()).because(io::Error::from(e));
        let stat = match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(io)?,
        };
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            let text = format!("{doing}: it is not a regular file");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if stat.st_nlink > 1 {
            let text = format!(
                "{doing}: it has {} hard links, and the others would keep the old content; use \
                 symbolic links",
                stat.st_nlink
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        // A rename asks only the directory: whoever may not write the file must not replace it.
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            // A program that runs can be replaced, though not be written.
            Err(Errno::TXTBSY) => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())
            }
            other => other,
        };
        let file = File::from(fd.map_err(io)?);
        let stat = rustix::fs::fstat(&file).map_err(io)?;
        Ok(Some(Old { file, stat }))
    }
}

fn follow(mut path: PathBuf) -> io::Result<(PathBuf, OsString)> {
    for _ in 0..LINKS_MAX {
        let text = path.as_os_str().as_bytes();
        let Some(name) = path.file_name().filter(|_| !ends_as_directory(text)) else {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it names a directory"));
        };
        let name = name.to_os_string();
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let dir = parent.canonicalize()?;
        match std::fs::read_link(dir.join(&name)) {
            Ok(link) => path = dir.join(link),
            // No link, or nothing at all.
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok((dir, name));
            }
            Err(e) => return Err(e),
        }
    }
    Err(Errno::LOOP.into())
}

fn ends_as_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.") || path == b"."
}

/// Gives the new file the owner, group, mode and attributes of the old one.
pub(super) fn keep(old: &Old, new: &File) -> io::Result<()> {
    let now = rustix::fs::fstat(new)?;
    if (now.st_uid, now.st_gid) != (old.stat.st_uid, old.stat.st_gid) {
        let (uid, gid) = (Uid::from_raw(old.stat.st_uid), Gid::from_raw(old.stat.st_gid));
        rustix::fs::fchown(new, Some(uid), Some(gid))?;
    }
    let attributes = names(&old.file)?;
    if !attributes.iter().any(|name| name == ACL) {
        // The directory's default list may have given the new file one.
        match rustix::fs::fremovexattr(new, ACL) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // After the owner, whose change clears the set-user-id bit; before the list, which refines it.
    rustix::fs::fchmod(new, Mode::from_raw_mode(old.stat.st_mode & 0o7777))?;
    let mut value = vec![0; XATTR_LEN_MAX];
    for name in &attributes {
        copy(&old.file, new, name, &mut value)?;
    }
    Ok(())
}

fn names(file: &File) -> io::Result<Vec<OsString>> {
    let mut list = vec![0; XATTR_LEN_MAX];
    let len = match rustix::fs::flistxattr(file, &mut list[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(e) => return Err(e.into()),
    };
    let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| OsStr::from_bytes(name).to_os_string()).collect())
}

fn copy(old: &File, new: &File, name: &OsStr, value: &mut [u8]) -> io::Result<()> {
    // Rights and signatures of the old content are not the new content's.
    let of_content = ["security.capability", "security.ima", "security.evm"];
    if of_content.iter().any(|of_content| name == *of_content) {
        return Ok(());
    }
    let copied = rustix::fs::fgetxattr(old, name, &mut *value)
        .and_then(|len| rustix::fs::fsetxattr(new, name, &value[..len], XattrFlags::empty()));
    let label = name.as_bytes().starts_with(b"security.");
    match copied {
        Ok(()) => Ok(()),
        // Gone meanwhile; or a label, which the system's policy sets on new files by itself.
        Err(Errno::NODATA) => Ok(()),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) if label => Ok(()),
        Err(e) => Err(e.into()),
    }
}
