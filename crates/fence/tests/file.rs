//! The fence for files: what a put keeps, what it refuses, and what it leaves when it fails.
#![allow(clippy::unwrap_used)] // Also in the helpers of tests.

mod common;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Holder, at};
use leasehold_fence::file::{FileFence, Gate};
use leasehold_fence::{Access, Applied, Epoch, Error, ErrorKind, Mark, Marks, Token};
use rustix::fs::XattrFlags;
use rustix::process::Signal;

use Access::{Exclusive, Shared};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(60);

fn scene() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("target");
    (dir, path)
}

fn put(path: &Path, data: &str, n: u64) -> Result<(), Error> {
    FileFence::new(path).with_wait(LONG).put(data.as_bytes(), Exclusive, at(n))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Ends with the code of the command line: 77 for stale.
fn end(result: Result<(), Error>) -> ! {
    std::process::exit(match result {
        Ok(()) => 0,
        Err(error) if error.stale_mark().is_some() => 77,
        Err(error) => panic!("{error:?}"),
    })
}

/// Not a test by itself: what the children of the others do.
#[test]
fn child() {
    let Some((role, path)) = common::role() else { return };
    match role.as_str() {
        // Its data come late: it has passed the first check by then.
        "slow put 1" => {
            struct Slow(bool);
            impl Read for Slow {
                fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                    if std::mem::replace(&mut self.0, false) {
                        println!("READY");
                    }
                    io::stdin().read(buffer)
                }
            }
            end(FileFence::new(path).with_wait(LONG).put(Slow(true), Exclusive, at(1)))
        }
        "enter 1" => {
            let inside = FileFence::new(path).enter(Exclusive, at(1)).unwrap();
            common::ready();
            end(inside.put(&b"by 1, from inside"[..]))
        }
        "many puts" => {
            for n in 1..=40 {
                let data = format!("{n:<60000}");
                match put(&path, &data, n) {
                    Ok(()) => {}
                    Err(error) => assert!(error.stale_mark().is_some(), "{error:?}"),
                }
            }
        }
        "no room" => {
            let data = vec![b'x'; 200_000];
            let error = FileFence::new(path).put(&data[..], Exclusive, at(2)).unwrap_err();
            assert_eq!((error.kind(), error.applied()), (ErrorKind::Io, Applied::No));
            assert!(error.to_string().ends_with("write the new content"), "{error}");
            std::process::exit(0);
        }
        role => panic!("unknown role {role}"),
    }
}

#[test]
fn a_stopped_holders_late_put_is_refused() {
    let (_dir, path) = scene();
    let holder = Holder::start("slow put 1", &path);
    holder.signal(Signal::STOP);
    put(&path, "by 2", 2).expect("who is stopped while reading its data is in nobody's way");
    holder.signal(Signal::CONT);
    assert_eq!(holder.finish().code(), Some(77));
    assert_eq!(fs::read_to_string(&path).unwrap(), "by 2");
}

#[test]
fn a_stale_put_reads_nothing() {
    struct Untouched;
    impl Read for Untouched {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("its data were read")
        }
    }
    let (_dir, path) = scene();
    put(&path, "by 2", 2).unwrap();
    let error = FileFence::new(&path).put(Untouched, Exclusive, at(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "enter {}: stale token 1 refused: a holder with token 2 has been here",
            path.display()
        )
    );
}

/// The newer holder reads, then writes what it computed: no old write may land between.
#[test]
fn nothing_lands_between_a_newer_holders_first_read_and_its_write() {
    let (_dir, path) = scene();
    put(&path, "100", 1).unwrap();
    let fence = FileFence::new(&path).with_wait(LONG);
    drop(fence.enter(Exclusive, at(2)).unwrap());
    let read: u32 = fs::read_to_string(&path).unwrap().parse().unwrap();
    assert!(put(&path, "50", 1).unwrap_err().stale_mark().is_some());
    put(&path, &(read - 10).to_string(), 2).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "90");
}

#[test]
fn who_is_inside_keeps_newer_ones_out_until_it_ends() {
    let (_dir, path) = scene();
    let holder = Holder::start("enter 1", &path);
    let busy = FileFence::new(&path).with_wait(SHORT);
    let error = busy.put(&b"by 2"[..], Exclusive, at(2)).unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Busy, Applied::No));
    assert_eq!(holder.finish().code(), Some(0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "by 1, from inside");
    put(&path, "by 2", 2).unwrap();
}

#[test]
fn a_live_reader_is_not_refused_because_a_newer_one_came_by() {
    let (_dir, path) = scene();
    let fence = FileFence::new(&path).with_wait(LONG);
    let newer = fence.enter(Shared, at(11)).unwrap();
    let older = fence.enter(Shared, at(10)).expect("an older reader is still a reader");
    let error = older.put(&b"x"[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    drop((newer, older));
    assert!(put(&path, "x", 10).unwrap_err().stale_mark().is_some());
    put(&path, "x", 11).unwrap();
}

#[test]
fn puts_of_many_processes_leave_one_of_them_whole() {
    let (dir, path) = scene();
    let start = || common::command("many puts", &path).spawn().unwrap();
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let mut newest = 0;
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        if let Ok(text) = fs::read_to_string(&path) {
            assert_eq!(text.len(), 60_000, "a reader saw a part");
            let n: u32 = text.trim_end().parse().unwrap();
            assert!(n >= newest, "{n} came over {newest}");
            newest = n;
        }
    }
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), "40");
    assert_eq!(names(dir.path()), [".target.leasehold-fence", "target"]);
}

#[test]
fn owner_mode_and_attributes_are_kept() {
    let (_dir, path) = scene();
    fs::write(&path, "old").unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6740)).unwrap();
    let flags = XattrFlags::empty();
    let attributes = rustix::fs::setxattr(&path, "user.origin", b"here", flags).is_ok();
    // The access list `u::rwx, u:1234:r, g::r, mask::r, o::-`, as the kernel has it.
    let acl = [
        [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 4, 0].as_slice(),
        &[210, 4, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4, 0],
        &[255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    let listed = rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, flags).is_ok();
    let before = fs::metadata(&path).unwrap();

    put(&path, "new", 1).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_ne!(after.ino(), before.ino(), "it is another file");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    let value = |name: &str| {
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
        value[..len].to_vec()
    };
    // Both are there on the file systems of every Linux that this is tested on but few.
    if attributes {
        assert_eq!(value("user.origin"), b"here");
    }
    if listed {
        assert_eq!(value("system.posix_acl_access"), acl);
    }
    let marks = fs::metadata(path.with_file_name(".target.leasehold-fence")).unwrap();
    assert_eq!((marks.uid(), marks.gid()), (before.uid(), before.gid()), "its users share it");
    // With the list, the group's bits of the mode are the list's mask.
    assert_eq!(marks.mode() & 0o777, before.mode() & 0o666 | 0o600);
}

#[test]
fn a_directorys_default_list_is_not_forced_on_a_file_that_had_none() {
    let (dir, path) = scene();
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let default = [
        [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0].as_slice(),
        &[210, 4, 0, 0, 4, 0, 7, 0, 255, 255, 255, 255, 16, 0, 7, 0],
        &[255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    let flags = XattrFlags::empty();
    let set = rustix::fs::setxattr(dir.path(), "system.posix_acl_default", &default, flags);
    put(&path, "new", 1).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    if set.is_ok() {
        let mut value = [0; 256];
        let list = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut value[..]);
        assert_eq!(list, Err(rustix::io::Errno::NODATA));
    }
}

/// Two who make the marks at once, one of them killed: its file is in nobody's way any more.
#[test]
fn what_killed_processes_left_is_removed_by_the_next_put() {
    let (dir, path) = scene();
    put(&path, "old", 1).unwrap();
    fs::write(path.with_file_name(".target.leasehold-fence.new"), "").unwrap();
    fs::write(path.with_file_name(".target.leasehold-put"), "half of the ne").unwrap();
    put(&path, "new", 1).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(names(dir.path()), [".target.leasehold-fence", "target"]);
}

#[test]
fn a_new_file_has_the_mode_the_umask_gives() {
    let (_dir, path) = scene();
    put(&path, "new", 1).unwrap();
    let plain = path.with_file_name("plain");
    fs::write(&plain, "").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), fs::metadata(&plain).unwrap().mode());
}

#[test]
fn links_stay_and_what_they_mean_is_replaced() {
    let (dir, real) = scene();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    symlink(&real, work.join("absolute")).unwrap();
    symlink("../work/absolute", work.join("relative")).unwrap();
    put(&work.join("relative"), "first", 1).expect("a dangling link gets its file made");
    assert_eq!(fs::read_to_string(&real).unwrap(), "first");
    put(&work.join("relative"), "second", 2).unwrap();
    assert_eq!(fs::read_to_string(&real).unwrap(), "second");
    assert!(work.join("relative").is_symlink() && work.join("absolute").is_symlink());
    assert_eq!(names(&work), ["absolute", "relative"]);
    // All names of a file share its marks, in a gate as well.
    assert!(put(&real, "late", 1).unwrap_err().stale_mark().is_some());
    let gate = Gate::open(dir.path().join("gate")).unwrap();
    let fence = |path: &Path| FileFence::in_gate(path, gate.clone());
    fence(&work.join("absolute")).put(&b"third"[..], Exclusive, at(3)).unwrap();
    assert!(fence(&real).put(&b"x"[..], Exclusive, at(2)).unwrap_err().stale_mark().is_some());
}

#[test]
fn what_is_not_a_file_of_its_own_is_refused_and_untouched() {
    let (dir, path) = scene();
    fs::write(&path, "old").unwrap();
    fs::hard_link(&path, path.with_file_name("hard")).unwrap();
    fs::create_dir(path.with_file_name("dir")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path.with_file_name("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    symlink("loop", path.with_file_name("loop")).unwrap();
    let before = names(dir.path());
    let refused = |path: &Path, kind, says: &str| {
        let error = put(path, "new", 1).unwrap_err();
        assert_eq!((error.kind(), error.applied()), (kind, Applied::No), "{error:?}");
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            text = format!("{text}: {source}");
        }
        assert!(text.contains(says), "{text}");
    };
    let unsupported = ErrorKind::Unsupported;
    refused(&path, unsupported, "2 hard links");
    refused(&path.with_file_name("dir"), unsupported, "not a regular file");
    refused(&path.with_file_name("fifo"), unsupported, "not a regular file");
    refused(Path::new("/dev/null"), unsupported, "not a regular file");
    refused(&path.join(""), ErrorKind::Io, "Not a directory");
    refused(&path.with_file_name("new").join(""), unsupported, "a directory");
    refused(Path::new("."), unsupported, "a directory");
    refused(Path::new(""), unsupported, "a directory");
    refused(&path.with_file_name("loop"), ErrorKind::Io, "symbolic links");
    refused(&path.with_file_name(".x.leasehold-fence"), unsupported, "a fence keeps");
    refused(&path.with_file_name("no").join("target"), ErrorKind::Io, "No such file");
    assert_eq!(names(dir.path()), before);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn data_that_fail_midway_change_nothing() {
    struct Fails(usize);
    impl Read for Fails {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.0.min(buffer.len());
            self.0 -= n;
            buffer[..n].fill(b'x');
            if n == 0 { Err(io::Error::other("the pipe broke")) } else { Ok(n) }
        }
    }
    let (dir, path) = scene();
    put(&path, "old", 1).unwrap();
    for len in [0, 1000, 3 << 20] {
        let error = FileFence::new(&path).put(Fails(len), Exclusive, at(2)).unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Io, Applied::No));
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the pipe broke");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(dir.path()), [".target.leasehold-fence", "target"]);
    }
}

#[test]
fn a_disk_without_room_changes_nothing() {
    let (dir, path) = scene();
    put(&path, "old", 1).unwrap();
    // The limit on a file's size fails a write midway as a full disk does, without being root.
    let command = common::command("no room", &path);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = limited.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(names(dir.path()), [".target.leasehold-fence", "target"]);
    put(&path, "new", 2).unwrap();
}

/// Root may do everything: on a thread whose file accesses are nobody's, it may not.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    #[allow(unsafe_code)]
    fn become_nobody() {
        // SAFETY: touches no memory, and changes this thread only.
        unsafe { libc::syscall(libc::SYS_setfsuid, 65_534) };
    }
    let run = || {
        if rustix::process::geteuid().is_root() {
            become_nobody();
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn where_nothing_may_be_written_nothing_is() {
    let (dir, path) = scene();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let error = as_nobody(|| put(&path, "new", 1).unwrap_err());
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Io, Applied::No));
    assert_eq!(names(dir.path()), [""; 0]);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();

    // The directory would allow it, but the file is not to be written.
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let error = as_nobody(|| put(&path, "new", 1).unwrap_err());
    assert!(format!("{error:?}").contains("PermissionDenied"), "{error:?}");
    assert_eq!(names(dir.path()), ["target"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn an_owner_that_cannot_be_kept_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make such a file; others cannot meet the case in a directory of their own.
        return;
    }
    let (dir, path) = scene();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(&path, "root's").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let error = as_nobody(|| put(&path, "new", 1).unwrap_err());
    assert!(error.to_string().ends_with("keep its owner, mode and attributes"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "root's");
    assert_eq!(names(dir.path()), [".target.leasehold-fence", "target"]);
}

#[test]
fn a_check_needs_no_right_to_write_and_makes_nothing() {
    let (dir, path) = scene();
    let fence = FileFence::new(&path);
    assert_eq!(fence.check(Exclusive, at(1)).unwrap(), Marks::default());
    assert_eq!(names(dir.path()), [""; 0]);
    put(&path, "new", 2).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let marks = path.with_file_name(".target.leasehold-fence");
    fs::set_permissions(&marks, fs::Permissions::from_mode(0o444)).unwrap();
    as_nobody(|| {
        fence.check(Exclusive, at(2)).unwrap();
        assert!(fence.check(Exclusive, at(1)).unwrap_err().stale_mark().is_some());
    });
}

#[test]
fn epochs_outrank_tokens_and_odd_names_work() {
    let (dir, _) = scene();
    let odd: [&[u8]; 4] = [b"a b\n", b"\xff\xfe", b"%2F", &[b'x'; 255]];
    for name in odd {
        let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name);
        let path = dir.path().join(name);
        put(&path, "old", Token::MAX.get()).unwrap();
        let later = Mark { epoch: Epoch(1), ..at(1) };
        FileFence::new(&path).put(&b"new"[..], Exclusive, later).unwrap();
        assert!(put(&path, "late", Token::MAX.get()).unwrap_err().stale_mark().is_some());
        let gate = Gate::open(dir.path().join("gate")).unwrap();
        FileFence::in_gate(&path, gate).put(&b"gated"[..], Exclusive, at(1)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"gated");
    }
}

#[test]
fn corrupt_marks_let_nothing_pass() {
    let (_dir, path) = scene();
    put(&path, "old", 1).unwrap();
    let marks = path.with_file_name(".target.leasehold-fence");
    fs::write(&marks, "").unwrap();
    let error = put(&path, "new", 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(marks.to_str().unwrap()), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}
