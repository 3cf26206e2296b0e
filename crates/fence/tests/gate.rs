//! The gate: real processes, real locks.
#![allow(clippy::unwrap_used)] // Also in the helpers of tests.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use common::{Holder, at, ready};
use leasehold_fence::file::{Gate, MarkStore, StoreError};
use leasehold_fence::{Access, ErrorKind, Mark, Marks, Resource, Stale, Token};
use proptest::prelude::*;
use rustix::process::Signal;

use Access::{Exclusive, Shared};

/// No test waits as long as this unless it fails.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(60);

fn tape() -> Resource {
    Resource::new("tape/1").unwrap()
}

fn gate() -> (tempfile::TempDir, Gate) {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::open(dir.path().join("gate")).unwrap();
    (dir, gate)
}

/// Not a test by itself: what the children of the others do.
#[test]
#[allow(clippy::zombie_processes)] // An heir is to outlive this process.
fn child() {
    let Some((role, place)) = common::role() else { return };
    let gate = Gate::open(&place).unwrap();
    match role.as_str() {
        "exclusive 1" => {
            let _passage = gate.enter(&tape(), Exclusive, at(1), LONG).unwrap();
            ready();
        }
        "shared 10" => {
            let _passage = gate.enter(&tape(), Shared, at(10), LONG).unwrap();
            ready();
        }
        "bequeath 1" => {
            let passage = gate.enter(&tape(), Exclusive, at(1), LONG).unwrap();
            rustix::io::fcntl_setfd(&passage, rustix::io::FdFlags::empty()).unwrap();
            // It reads what this process was to read, and so ends when the test says so.
            let _heir = Command::new("cat").stdout(Stdio::null()).spawn().unwrap();
            println!("READY");
            loop {
                std::thread::park();
            }
        }
        "count" => count(&gate, &place),
        role => panic!("unknown role {role}"),
    }
}

#[test]
fn no_newer_token_is_accepted_until_the_passage_ends() {
    let (_dir, gate) = gate();
    let holder = Holder::start("exclusive 1", gate.dir());
    for access in [Exclusive, Shared] {
        let busy = gate.enter(&tape(), access, at(2), SHORT).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
    }
    let marks = gate.check(&tape(), Exclusive, at(1), LONG).unwrap();
    assert_eq!(marks, Marks { exclusive: Some(at(1)), shared: None }, "who waits raises nothing");
    assert!(holder.finish().success());

    let passage = gate.enter(&tape(), Exclusive, at(2), LONG).unwrap();
    assert_eq!(passage.marks().exclusive, Some(at(2)));
    let started = Instant::now();
    let refused = gate.enter(&tape(), Exclusive, at(1), LONG).unwrap_err();
    assert_eq!(refused.stale_mark(), Some(Stale { offered: at(1), newest: at(2) }));
    assert!(started.elapsed() < LONG, "a stale token does not wait for anyone");
    assert!(gate.check(&tape(), Exclusive, at(1), LONG).unwrap_err().stale_mark().is_some());
}

#[test]
fn a_killed_holder_lets_the_next_in() {
    let (_dir, gate) = gate();
    let holder = Holder::start("exclusive 1", gate.dir());
    holder.signal(Signal::KILL);
    let _passage = gate.enter(&tape(), Exclusive, at(2), LONG).unwrap();
    assert!(!holder.finish().success());
}

#[test]
fn a_child_that_has_the_descriptor_keeps_newer_tokens_out_after_its_parent_was_killed() {
    let (_dir, gate) = gate();
    let mut holder = Holder::start("bequeath 1", gate.dir());
    holder.signal(Signal::KILL);
    holder.child.wait().unwrap();
    let busy = gate.enter(&tape(), Exclusive, at(2), SHORT).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    drop(holder.stdin.take());
    let _passage = gate.enter(&tape(), Exclusive, at(2), LONG).unwrap();
}

#[test]
fn readers_go_together_whatever_their_tokens_and_a_writer_waits_for_all() {
    let (_dir, gate) = gate();
    let older = Holder::start("shared 10", gate.dir());
    let newer = gate.enter(&tape(), Shared, at(11), LONG).unwrap();
    let again = gate.enter(&tape(), Shared, at(10), LONG).expect("a live reader is not refused");
    drop(again);
    let stale = gate.enter(&tape(), Exclusive, at(9), LONG).unwrap_err();
    assert!(stale.stale_mark().is_some(), "a writer from before them is late");
    let busy = || gate.enter(&tape(), Exclusive, at(12), SHORT).unwrap_err().kind();
    assert_eq!(busy(), ErrorKind::Busy);
    drop(newer);
    assert_eq!(busy(), ErrorKind::Busy, "the other reader is still inside");
    assert!(older.finish().success());
    drop(gate.enter(&tape(), Exclusive, at(12), LONG).unwrap());
    assert!(gate.enter(&tape(), Shared, at(11), LONG).unwrap_err().stale_mark().is_some());
}

const ROUNDS: u32 = 25;

/// Adds to a number in a file that nothing but the gate protects, with ever newer tokens.
fn count(gate: &Gate, place: &Path) {
    let mut done = 0;
    while done < ROUNDS {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        let mark = Mark::from(Token::new(now.try_into().unwrap()).unwrap());
        match gate.enter(&tape(), Exclusive, mark, LONG) {
            Ok(_passage) => {
                let path = place.join("number.txt");
                let n: u32 = fs::read_to_string(&path).unwrap().parse().unwrap();
                fs::write(&path, (n + 1).to_string()).unwrap();
                done += 1;
            }
            Err(error) => assert!(error.stale_mark().is_some(), "{error:?}"),
        }
    }
}

#[test]
fn contenders_never_meet_inside() {
    let (_dir, gate) = gate();
    let number = gate.dir().join("number.txt");
    fs::write(&number, "0").unwrap();
    let start = || common::command("count", gate.dir()).spawn().unwrap();
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    for child in children {
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }
    assert_eq!(fs::read_to_string(&number).unwrap(), (4 * ROUNDS).to_string());
}

/// Threads of one process exclude each other too: the locks are not the process's.
#[test]
fn two_passages_of_one_process_exclude_each_other() {
    let (_dir, gate) = gate();
    let passage = gate.enter(&tape(), Exclusive, at(1), LONG).unwrap();
    let same = gate.enter(&tape(), Exclusive, at(1), SHORT).unwrap_err();
    assert_eq!(same.kind(), ErrorKind::Busy);
    assert_eq!(
        same.to_string(),
        "enter `tape/1`: someone is inside, and was still at the end of the wait"
    );
    drop(passage);
    drop(gate.enter(&tape(), Exclusive, at(1), LONG).unwrap());
}

#[test]
fn slots_and_long_names_have_marks_of_their_own() {
    let (_dir, gate) = gate();
    let long = "x/".repeat(255);
    let all = [
        Resource::new("pool").unwrap(),
        Resource::slot("pool", 0).unwrap(),
        Resource::slot("pool", 1).unwrap(),
        Resource::new("pool@1").unwrap(),
        Resource::new("../pool").unwrap(),
        Resource::new(&format!("{long}a")).unwrap(),
        Resource::new(&format!("{long}b")).unwrap(),
        Resource::slot(&long, 4_294_967_295).unwrap(),
    ];
    for (n, resource) in (1..).zip(&all) {
        drop(gate.enter(resource, Exclusive, at(n), LONG).unwrap());
    }
    for (n, resource) in (1..).zip(&all) {
        let marks = gate.check(resource, Exclusive, at(100), LONG).unwrap();
        assert_eq!(marks.exclusive, Some(at(n)), "{resource}");
    }
    assert_eq!(fs::read_dir(gate.dir()).unwrap().count(), all.len());
}

#[test]
fn what_cannot_be_read_is_named_and_never_taken_for_nothing() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm, ErrorKind); 6] = [
        ("emptied", |path| fs::write(path, "").unwrap(), ErrorKind::Corrupt),
        ("zeroed", |path| fs::write(path, [0; 8192]).unwrap(), ErrorKind::Corrupt),
        (
            "cut",
            |path| fs::write(path, &fs::read(path).unwrap()[..4096]).unwrap(),
            ErrorKind::Corrupt,
        ),
        (
            "longer",
            |path| {
                fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap();
            },
            ErrorKind::Corrupt,
        ),
        (
            "another's",
            |path| {
                fs::copy(path.with_file_name("other"), path).unwrap();
            },
            ErrorKind::Corrupt,
        ),
        (
            "a link",
            |path| {
                fs::rename(path, path.with_extension("moved")).unwrap();
                std::os::unix::fs::symlink(path.with_extension("moved"), path).unwrap();
            },
            ErrorKind::Unsupported,
        ),
    ];
    for (name, harm, kind) in harms {
        let (_dir, gate) = gate();
        drop(gate.enter(&tape(), Exclusive, at(5), LONG).unwrap());
        drop(gate.enter(&Resource::new("other").unwrap(), Exclusive, at(9), LONG).unwrap());
        let path = gate.dir().join("tape%2F1");
        assert!(path.is_file());
        harm(&path);
        let errors = [
            gate.enter(&tape(), Exclusive, at(6), LONG).unwrap_err(),
            gate.check(&tape(), Exclusive, at(6), LONG).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), kind, "{name}: {error:?}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{name}: {error}");
        }
    }
}

#[test]
fn a_check_makes_nothing_and_needs_no_right_to_write() {
    let (_dir, gate) = gate();
    assert_eq!(gate.check(&tape(), Exclusive, at(1), LONG).unwrap(), Marks::default());
    assert_eq!(fs::read_dir(gate.dir()).unwrap().count(), 0);
}

/// Marks kept elsewhere; before they are read, what `before` says is done.
#[derive(Default)]
struct Elsewhere {
    marks: Mutex<BTreeMap<String, Marks>>,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    broken: bool,
}

impl std::fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Elsewhere")
    }
}

impl MarkStore for Elsewhere {
    fn marks(&self, of: &Resource) -> Result<Marks, StoreError> {
        if let Some(before) = self.before.lock().unwrap().take() {
            before();
        }
        Ok(self.marks.lock().unwrap().get(&of.to_string()).copied().unwrap_or_default())
    }

    fn update(
        &self,
        of: &Resource,
        change: &mut dyn FnMut(Marks) -> Result<Marks, Stale>,
    ) -> Result<Result<Marks, Stale>, StoreError> {
        if self.broken {
            return Err("the disk is full".into());
        }
        let mut all = self.marks.lock().unwrap();
        let marks = all.entry(of.to_string()).or_default();
        let changed = change(*marks);
        *marks = changed.unwrap_or(*marks);
        Ok(changed)
    }
}

#[test]
fn marks_can_be_kept_elsewhere() {
    let (_dir, gate) = gate();
    let store = Arc::new(Elsewhere::default());
    let gate = gate.with_marks(store.clone());
    drop(gate.enter(&tape(), Exclusive, at(5), LONG).unwrap());
    assert_eq!(store.marks(&tape()).unwrap().exclusive, Some(at(5)));
    assert!(gate.enter(&tape(), Exclusive, at(4), LONG).unwrap_err().stale_mark().is_some());
    // Raised by someone who does not use the gate.
    store.update(&tape(), &mut |marks| marks.admit(Shared, at(8))).unwrap().unwrap();
    assert!(gate.enter(&tape(), Exclusive, at(7), LONG).unwrap_err().stale_mark().is_some());
    assert!(gate.check(&tape(), Exclusive, at(7), LONG).unwrap_err().stale_mark().is_some());
}

#[test]
fn nothing_passes_when_the_marks_cannot_be_raised() {
    let (_dir, gate) = gate();
    let broken = Elsewhere { broken: true, ..Elsewhere::default() };
    let gate = gate.with_marks(Arc::new(broken));
    let error = gate.enter(&tape(), Exclusive, at(5), LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is full");
    let again = gate.enter(&tape(), Exclusive, at(5), LONG).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Io, "and nothing stays locked");
}

/// A lock that someone waits for on a file that its name no longer means protects nothing.
#[test]
fn a_lock_file_replaced_during_the_wait_is_noticed() {
    let (_dir, gate) = gate();
    let store = Arc::new(Elsewhere::default());
    let gate = gate.with_marks(store.clone());
    store.update(&tape(), &mut |marks| marks.admit(Exclusive, at(2))).unwrap().unwrap();
    let path = gate.dir().join("tape%2F1");
    let (waiter, file) = (gate.clone(), path.clone());
    let (send, waiting) = std::sync::mpsc::channel();
    // Done while the lock is held: the other thread opens the file, and then it is replaced.
    *store.before.lock().unwrap() = Some(Box::new(move || {
        let thread =
            std::thread::spawn(move || waiter.enter(&tape(), Exclusive, at(3), LONG).unwrap());
        let opened = || {
            let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
            fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|open| open == file)).count()
        };
        while opened() < 2 {
            std::thread::yield_now();
        }
        fs::remove_file(&file).unwrap();
        fs::write(&file, "").unwrap();
        send.send(thread).unwrap();
    }));
    // Refused, so that nothing of the old file stays locked and only its name gives it away.
    let refused = gate.enter(&tape(), Exclusive, at(1), LONG).unwrap_err();
    assert!(refused.stale_mark().is_some(), "{refused:?}");
    let passage = waiting.recv().unwrap().join().unwrap();
    let inode = rustix::fs::fstat(&passage).unwrap().st_ino;
    assert_eq!(inode, rustix::fs::stat(&path).unwrap().st_ino);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_answers_as_the_marks_of_core_do(
        accesses in proptest::collection::vec((any::<bool>(), 1..9_u64), 1..15),
    ) {
        let (_dir, gate) = gate();
        let mut model = Marks::default();
        for (exclusive, n) in accesses {
            let access = if exclusive { Exclusive } else { Shared };
            let checked = gate.check(&tape(), access, at(n), LONG);
            prop_assert_eq!(checked.is_ok(), model.admit(access, at(n)).is_ok());
            let answer = gate.enter(&tape(), access, at(n), LONG);
            let wanted = model.admit(access, at(n));
            let marks = answer.as_ref().ok().map(|passage| passage.marks());
            prop_assert_eq!(marks, wanted.ok());
            prop_assert_eq!(answer.err().and_then(|e| e.stale_mark()), wanted.err());
            model = wanted.unwrap_or(model);
        }
    }
}
