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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file(dir: &Path, name: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, "").expect("written");
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
        path
    }

    #[test]
    fn looks_along_the_path_as_execvp_does() {
        let (a, b) = (tempfile::tempdir().expect("a"), tempfile::tempdir().expect("b"));
        let path = std::env::join_paths([a.path(), b.path()]).expect("joined");
        let find = |name: &str| lookup(name.as_ref(), Some(&path));
        assert_eq!(find("tool"), Lookup::NotFound);
        let refused = file(a.path(), "tool", 0o644);
        assert_eq!(find("tool"), Lookup::NotExecutable(refused));
        // One further on that can be executed is found past it.
        let found = file(b.path(), "tool", 0o755);
        assert_eq!(find("tool"), Lookup::Found(found));
        fs::create_dir(a.path().join("folder")).expect("made");
        assert_eq!(find("folder"), Lookup::NotExecutable(a.path().join("folder")));
        assert_eq!(find(""), Lookup::NotFound);
    }

    #[test]
    fn a_name_with_a_slash_is_itself_and_no_path_is_the_systems() {
        let dir = tempfile::tempdir().expect("a folder");
        let tool = file(dir.path(), "tool", 0o755);
        assert_eq!(lookup(tool.as_os_str(), Some("".as_ref())), Lookup::Found(tool.clone()));
        let under_a_file = tool.join("more");
        assert_eq!(lookup(under_a_file.as_os_str(), None), Lookup::NotFound);
        assert!(matches!(lookup("sh".as_ref(), None), Lookup::Found(_)));
        // An empty element is the current directory.
        assert_eq!(lookup("no-such".as_ref(), Some(":".as_ref())), Lookup::NotFound);
    }
}
