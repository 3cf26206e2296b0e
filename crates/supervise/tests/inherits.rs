//! The command finds what this program found: arguments, descriptors, signals, environment.

#![allow(unsafe_code, reason = "a process is set up by hand between fork and exec")]

mod common;

use common::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;

/// The value of a line of `/proc/PID/status` that the command copied to `status`.
fn status_bits(run: &Run, name: &str) -> u64 {
    let text = run.text("status");
    let line = text.lines().find(|line| line.starts_with(name)).expect("a line");
    u64::from_str_radix(line.rsplit('\t').next().expect("a value"), 16).expect("a number")
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Runs `cat /proc/self/status` with `prepare` done before; no shell comes in between.
fn status_after(prepare: fn()) -> Run {
    let mut setup = Setup::new("--term 600000");
    setup.command.args(["cat", "/proc/self/status"]);
    let status = std::fs::File::create(setup.dir.path().join("status")).expect("created");
    setup.command.stdout(status);
    // SAFETY: `prepare` makes only system calls.
    unsafe {
        setup.command.pre_exec(move || {
            prepare();
            Ok(())
        });
    }
    let mut run = setup.go();
    assert_eq!(run.code(), Some(0));
    run
}

fn ignore(signal: i32, how: libc::sighandler_t) {
    // SAFETY: a disposition of the system's own.
    unsafe { libc::signal(signal, how) };
}

#[test]
fn sigpipe_is_as_it_was_found() {
    let ends = status_after(|| ignore(libc::SIGPIPE, libc::SIG_DFL));
    assert_eq!(status_bits(&ends, "SigIgn") & bit(libc::SIGPIPE), 0);
    let ignored = status_after(|| ignore(libc::SIGPIPE, libc::SIG_IGN));
    assert_ne!(status_bits(&ignored, "SigIgn") & bit(libc::SIGPIPE), 0);
}

#[test]
fn ignored_signals_stay_ignored_also_child() {
    let run = status_after(|| {
        ignore(libc::SIGHUP, libc::SIG_IGN);
        ignore(libc::SIGCHLD, libc::SIG_IGN);
    });
    let ignored = status_bits(&run, "SigIgn");
    assert_ne!(ignored & bit(libc::SIGHUP), 0);
    assert_ne!(ignored & bit(libc::SIGCHLD), 0);
    assert_eq!(ignored & bit(libc::SIGTERM), 0);
}

#[test]
fn the_signal_mask_passes() {
    let run = status_after(|| {
        // SAFETY: the set is this function's own.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        }
    });
    assert_eq!(status_bits(&run, "SigBlk"), bit(libc::SIGUSR2));
    let run = status_after(|| {
        // SAFETY: the set is this function's own.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        }
    });
    assert_eq!(status_bits(&run, "SigBlk"), 0);
}

/// Waits until the descriptors of a command that opens none, with `prepare` done before, are such
/// as `right` wants: those that close when it is executed do so a moment after it is said to run,
/// and its loader opens some.
fn descriptors(options: &str, prepare: fn(), right: impl Fn(&[String]) -> bool) {
    let mut setup = Setup::new(options);
    setup.command.args(["sleep", "600"]);
    quiet(&mut setup.command);
    // SAFETY: only system calls.
    unsafe {
        setup.command.pre_exec(move || {
            // Whatever the tests themselves were started with.
            let flag = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
            libc::close_range(3, u32::MAX, flag);
            prepare();
            Ok(())
        });
    }
    let run = setup.go();
    let pid: i32 = run
        .logged("Started(")
        .rsplit_once("Started(")
        .and_then(|(_, rest)| rest.trim_end_matches(')').parse().ok())
        .expect("a number");
    let open = || -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().expect("a number")).collect();
        names.sort();
        names
    };
    until("the right descriptors", || right(&open()).then_some(()));
}

#[test]
fn closed_descriptors_stay_closed_and_others_pass() {
    descriptors("--term 600000", || {}, |open| open == ["0", "1", "2"]);
    let close = || {
        // SAFETY: numbers that nothing in this child uses after it.
        unsafe {
            libc::close(0);
            libc::close(2);
        }
    };
    descriptors("--term 600000", close, |open| open == ["1"]);
    let more = || {
        // SAFETY: copies of a descriptor to free numbers.
        unsafe {
            libc::dup2(1, 7);
            libc::dup2(1, 42);
        }
    };
    descriptors("--term 600000", more, |open| open == ["0", "1", "2", "42", "7"]);
}

#[test]
fn one_descriptor_is_added_at_a_high_number() {
    let high = |fd: &String| fd.parse().is_ok_and(|fd: i32| fd > 63);
    descriptors(
        "--descriptor /dev/null --term 600000",
        || {},
        |open| open.len() == 4 && open.iter().filter(|fd| high(fd)).count() == 1,
    );
}

#[test]
fn arguments_are_bytes() {
    let mut setup = Setup::new("--term 600000");
    setup.command.args(["printf", "%s|"]);
    setup.command.args([OsStr::from_bytes(b"\xff\xfe"), "".as_ref(), "a b $c".as_ref()]);
    let out = std::fs::File::create(setup.dir.path().join("out")).expect("created");
    setup.command.stdout(out);
    let mut run = setup.go();
    assert_eq!(run.code(), Some(0));
    assert_eq!(std::fs::read(run.path("out")).expect("out"), b"\xff\xfe||a b $c|");
}

#[test]
fn the_environment_gains_and_what_named_the_front_names_the_command() {
    // The shell knows its own pid, and becomes the example by exec.
    let dir = Folder::new();
    let script = "export LISTEN_PID=$$ WATCHDOG_PID=1 LEASEHOLD_NAME=older
        exec \"$SUPERVISED\" --log log --term 600000 --env LEASEHOLD_NAME a=b -- \
        sh -c 'echo \"$$ $LISTEN_PID $WATCHDOG_PID $LEASEHOLD_NAME\"'";
    let out = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .env("SUPERVISED", program())
        .current_dir(dir.path())
        .output()
        .expect("sh");
    let text = String::from_utf8(out.stdout).expect("text");
    let words: Vec<&str> = text.split_whitespace().collect();
    let [pid, listen, watchdog, name] = words[..] else { panic!("{text}") };
    assert_eq!((pid, watchdog, name), (listen, "1", "a=b"));
    assert!(pid.parse::<i32>().is_ok());
}

#[test]
fn folder_umask_and_limits_pass() {
    let mut setup = Setup::new("--term 600000");
    // SAFETY: system calls with a limit of this function's own.
    unsafe {
        setup.command.pre_exec(|| {
            libc::umask(0o027);
            let limit = libc::rlimit { rlim_cur: 100, rlim_max: 200 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            Ok(())
        });
    }
    let mut run = setup.shell("umask > out; ulimit -Sn >> out; ulimit -Hn >> out; pwd -P >> out");
    assert_eq!(run.code(), Some(0));
    let folder = run.dir.path().canonicalize().expect("there");
    assert_eq!(run.text("out"), format!("0027\n100\n200\n{}\n", folder.display()));
}

#[test]
fn codes_and_signals_come_back() {
    assert_eq!(shell("--term 600000", "exit 0").code(), Some(0));
    assert_eq!(shell("--term 600000", "exit 203").code(), Some(203));
    assert_eq!(shell("", "exit 9").code(), Some(9));
    assert_eq!(shell("--term 600000", "kill -TERM $$").code(), Some(128 + libc::SIGTERM));
    assert_eq!(shell("--term 600000", "kill -KILL $$").code(), Some(128 + libc::SIGKILL));
    assert_eq!(shell("--term 600000", "kill -INT $$").signal(), Some(libc::SIGINT));
    assert_eq!(shell("--term 600000", "kill -QUIT $$").signal(), Some(libc::SIGQUIT));
}

#[test]
fn what_cannot_run_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let run = |program: &str, mode: Option<u32>, text: &str| {
        let mut setup = Setup::new("--term 600000");
        if let Some(mode) = mode {
            let file = setup.dir.path().join("file");
            std::fs::write(&file, text).expect("written");
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("set");
        }
        setup.command.arg(program);
        setup.go().code()
    };
    assert_eq!(run("no-such-program-anywhere", None, ""), Some(127));
    assert_eq!(run("./no-such-file", None, ""), Some(127));
    assert_eq!(run("/", None, ""), Some(126));
    assert_eq!(run("./file", Some(0o644), "exit 3"), Some(126));
    // A script without an interpreter is the shell's, one with a missing one cannot be started.
    assert_eq!(run("./file", Some(0o755), "exit 3\n"), Some(3));
    assert_eq!(run("./file", Some(0o755), "#!/no/such/interpreter\n"), Some(127));
}
