//! A wall clock that a test steps under a running server.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::find;

const SOURCE: &str = include_str!("fake_time.c");

/// The wall clock of one or more servers, in seconds away from the real one.
///
/// It takes effect at once, without a restart. Only the wall clock is faked: what a server measures
/// on CLOCK_MONOTONIC or CLOCK_BOOTTIME runs on. It works for programs that are linked with the C
/// library dynamically; of those in Go, on x86-64, for such as use C at all, as both etcds here do.
///
/// A small library is compiled and preloaded, which no allocator of a server is in the way of, as
/// jemalloc is in that of libfaketime.
#[derive(Debug)]
pub struct FakeTime {
    folder: TempDir,
    file: File,
}

impl FakeTime {
    /// One that shows the real time.
    ///
    /// # Panics
    ///
    /// If there is no C compiler.
    pub fn new() -> FakeTime {
        let folder = tempfile::Builder::new().prefix("leasehold-clock-").tempdir();
        let folder = folder.expect("a temporary folder");
        // Servers that run as another user read it too.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("its mode");
        let source = folder.path().join("fake_time.c");
        fs::write(&source, SOURCE).expect("the library's source");
        let mut compiler = Command::new(find(&["cc", "gcc", "clang"]));
        compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]);
        compiler.arg(folder.path().join("fake_time.so")).arg(source);
        let output = compiler.output().expect("the C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let file = File::create(folder.path().join("nanoseconds")).expect("the server's time");
        let time = FakeTime { folder, file };
        time.step(0);
        time
    }

    /// Shows the real time and this many seconds from now on.
    ///
    /// # Panics
    ///
    /// If that cannot be written down.
    pub fn step(&self, seconds: i64) {
        let bytes = seconds.saturating_mul(1_000_000_000).to_ne_bytes();
        self.file.write_all_at(&bytes, 0).expect("the server's time");
    }

    pub(super) fn envs(&self) -> [(&'static str, OsString); 2] {
        let path = |name: &str| -> PathBuf { self.folder.path().join(name) };
        [
            ("LD_PRELOAD", path("fake_time.so").into()),
            ("LEASEHOLD_FAKE_TIME", path("nanoseconds").into()),
        ]
    }
}

impl Default for FakeTime {
    fn default() -> FakeTime {
        FakeTime::new()
    }
}
