//! Where a server runs: a folder and ports of its own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::guard::FolderGuard;
use super::{Port, Program};

/// How many lines of a log are shown on a failure.
const TAIL: usize = 60;

/// How much of a line of a log is shown.
const WIDTH: usize = 400;

/// A folder, removed at the end, and ports that nobody else uses.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    // After the folder: until that is removed.
    _guard: FolderGuard,
    ports: Vec<Port>,
}

impl Place {
    pub(super) fn new(name: &str, ports: usize) -> Place {
        let folder = tempfile::Builder::new().prefix(&format!("leasehold-{name}-")).tempdir();
        let folder = folder.expect("a temporary folder");
        let guard = FolderGuard::start(folder.path()).expect("a guard of the folder");
        let ports = (0..ports).map(|_| Port::reserve()).collect();
        Place { folder, _guard: guard, ports }
    }

    /// The folder, in which the server also starts. It keeps a file `log` in it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A folder for the server's data. It is not made here: what prepares it does.
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// A file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Writes a file in the folder, and tells its path.
    ///
    /// # Panics
    ///
    /// If that cannot be done.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
        path
    }

    /// The first port.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn port(&self) -> u16 {
        self.port_at(0)
    }

    /// The port of this number, from 0.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    pub fn port_at(&self, index: usize) -> u16 {
        self.ports[index].number()
    }

    /// The first port on the loopback address.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// Runs a program here to its end, and returns what it printed on standard output.
    ///
    /// # Panics
    ///
    /// If it fails: with all that it printed.
    pub fn run(&self, program: &Program) -> String {
        program.prepare(self);
        let output = program.command().current_dir(self.folder()).output();
        let output = output.unwrap_or_else(|e| panic!("run {program:?}: {e}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program:?}: {}\n{text}\n{errors}", output.status);
        text
    }

    /// All that the server has printed.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.file("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<String> =
            log.lines().map(|line| line.chars().take(WIDTH).collect()).collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Removes all that is in the folder but the log.
    pub(super) fn empty(&self) {
        let entries = fs::read_dir(self.folder()).expect("the server's folder");
        for entry in entries.filter_map(Result::ok).filter(|e| e.file_name() != "log") {
            let path = entry.path();
            let removed = match entry.file_type() {
                Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
                _ => fs::remove_file(&path),
            };
            removed.unwrap_or_else(|e| panic!("remove {}: {e}", path.display()));
        }
    }
}
