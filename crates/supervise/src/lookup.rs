//! Finding the program before anything is waited for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What [`lookup`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The file to execute.
    Found(PathBuf),
    /// There is a file, but it cannot be executed: exit code 126.
    NotExecutable(PathBuf),
    /// There is no such file: exit code 127.
    NotFound,
}

/// Where programs are looked for when PATH is not set, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Finds `program` as `execvp` would: a name with a slash as it is, any other along `path`
/// (the value of PATH), where an empty element is the current directory.
///
/// A file may change between this and its execution: the start then says so.
#[must_use]
pub fn lookup(program: &OsStr, path: Option<&OsStr>) -> Lookup {
    if program.is_empty() {
        return Lookup::NotFound;
    }
    if program.as_bytes().contains(&b'/') {
        let file = Path::new(program);
        return match examine(file) {
            Examined::Executable => Lookup::Found(file.into()),
            Examined::Other => Lookup::NotExecutable(file.into()),
            Examined::Missing => Lookup::NotFound,
        };
    }
    let path = path.unwrap_or_else(|| OsStr::new(DEFAULT_PATH));
    let mut refused = None;
    for dir in path.as_bytes().split(|b| *b == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        let file = Path::new(OsStr::from_bytes(dir)).join(program);
        match examine(&file) {
            Examined::Executable => return Lookup::Found(file),
            Examined::Other => refused = refused.or(Some(file)),
            Examined::Missing => {}
        }
    }
    refused.map_or(Lookup::NotFound, Lookup::NotExecutable)
}

enum Examined {
    Executable,
    Other,
    Missing,
}

fn examine(file: &Path) -> Examined {
    match std::fs::metadata(file) {
        Ok(meta) if meta.is_file() && crate::sys::may_execute(file) => Examined::Executable,
        Ok(_) => Examined::Other,
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Examined::Missing,
            _ => Examined::Other,
        },
    }
}
