//! A put that is killed before and after each of its system calls, one after the other.
//!
//! After each kill the file is whole, no older token is accepted once the newer one could have
//! been seen, and the next put works and leaves nothing lying about. A second test holds the order
//! in which things are made durable, which no kill can show: the page cache outlives the process.
#![allow(clippy::unwrap_used)] // Also in the helpers of tests.

mod trace;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use leasehold_fence::file::{FileFence, Gate};
use leasehold_fence::{Access, ErrorKind, Mark, Token};
use trace::{Call, Traced};

const OLD: &[u8] = b"old content\n";

/// Where a put starts from.
#[derive(Debug, Clone, Copy, Default)]
struct Start {
    name: &'static str,
    /// There is a file, written before there was any fence.
    file: bool,
    /// A put with token 5 has gone before.
    put: bool,
    link: bool,
    gate: bool,
    /// More than is kept in memory.
    long: bool,
}

const STARTS: [Start; 6] = [
    Start { name: "a file put before", file: true, put: true, ..NOTHING },
    Start { name: "a file never put", file: true, ..NOTHING },
    Start { name: "no file", ..NOTHING },
    Start { name: "no file, in a gate", gate: true, ..NOTHING },
    Start { name: "a long one, behind a link", file: true, link: true, long: true, ..NOTHING },
    Start { name: "put before, in a gate", file: true, put: true, gate: true, ..NOTHING },
];
const NOTHING: Start =
    Start { name: "", file: false, put: false, link: false, gate: false, long: false };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().map(String::as_str) == Some("child") {
        return child(Path::new(&args[1]), args[2] == "true", args[3].parse().unwrap());
    }
    for start in STARTS {
        let points = kill_everywhere(start);
        println!("killed put, from {}: {points} points, each survived", start.name);
        order(start);
        println!("order of a put, from {}: held", start.name);
    }
}

fn child(root: &Path, gate: bool, len: usize) {
    let fence = fence(root, gate);
    let data = new_content(len);
    trace::trace_me();
    fence.put(&data[..], Access::Exclusive, at(7)).unwrap();
}

fn fence(root: &Path, gate: bool) -> FileFence {
    let path = root.join("work/target");
    if gate {
        FileFence::in_gate(path, Gate::open(root.join("gate")).unwrap())
    } else {
        FileFence::new(path)
    }
}

fn new_content(len: usize) -> Vec<u8> {
    b"new content\n".iter().copied().cycle().take(len).collect()
}

fn at(n: u64) -> Mark {
    Mark::from(Token::new(n).unwrap())
}

struct Scene {
    root: tempfile::TempDir,
    start: Start,
    len: usize,
}

impl Scene {
    fn new(start: Start) -> Scene {
        let root = tempfile::tempdir().unwrap();
        let work = root.path().join("work");
        fs::create_dir(&work).unwrap();
        if start.link {
            std::os::unix::fs::symlink("real", work.join("target")).unwrap();
        }
        let scene = Scene { root, start, len: if start.long { (1 << 20) + 77 } else { 36 } };
        if start.file {
            fs::write(scene.path(), OLD).unwrap();
        }
        if start.put {
            scene.fence().put(OLD, Access::Exclusive, at(5)).unwrap();
        }
        scene
    }

    fn fence(&self) -> FileFence {
        fence(self.root.path(), self.start.gate)
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("work/target")
    }

    fn spawn(&self) -> Traced {
        let root = self.root.path().to_str().unwrap();
        Traced::start(&["child", root, &self.start.gate.to_string(), &self.len.to_string()])
    }

    fn content(&self) -> Option<Vec<u8>> {
        fs::read(self.path()).ok()
    }

    fn before(&self) -> Option<Vec<u8>> {
        self.start.file.then(|| OLD.to_vec())
    }

    fn names(&self) -> BTreeSet<String> {
        let work = fs::read_dir(self.root.path().join("work")).unwrap();
        work.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn names_wanted(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::from(["target".to_string()]);
        let real = if self.start.link { "real" } else { "target" };
        names.insert(real.to_string());
        if !self.start.gate {
            names.insert(format!(".{real}.leasehold-fence"));
        }
        names
    }
}

/// Kills a put at its n-th stop, for each n until it ends before; returns how many there were.
fn kill_everywhere(start: Start) -> u32 {
    let mut seen = [0_u32; 2];
    for point in 1.. {
        let scene = Scene::new(start);
        let child = scene.spawn();
        for _ in 0..point {
            if child.step().is_none() {
                assert!(seen.iter().all(|&times| times > 3), "both contents were seen: {seen:?}");
                return point - 1;
            }
        }
        child.kill();
        seen[usize::from(survived(&scene, point))] += 1;
    }
    unreachable!()
}

/// Checks what a kill has left, and says whether the new content was in place.
fn survived(scene: &Scene, point: u32) -> bool {
    let here = format!("from {}, killed at stop {point}", scene.start.name);
    let (found, new) = (scene.content(), new_content(scene.len));
    let done = found.as_deref() == Some(&new[..]);
    assert!(done || found == scene.before(), "{here}: the file is whole");

    let fence = scene.fence();
    let marks = fence.check(Access::Exclusive, at(1000)).expect(&here);
    let raised = marks.exclusive == Some(at(7));
    assert!(raised || !done, "{here}: the mark is raised before the content is in place");
    assert!(raised || marks.exclusive == scene.start.put.then(|| at(5)), "{here}: {marks:?}");

    if scene.start.put || raised {
        let refused = fence.put(&b"four"[..], Access::Exclusive, at(4)).expect_err(&here);
        assert!(matches!(refused.kind(), ErrorKind::Stale(_)), "{here}: {refused:?}");
    }
    match fence.put(&b"six"[..], Access::Exclusive, at(6)) {
        Ok(()) => {
            assert!(!raised, "{here}: an older token was accepted");
            assert_eq!(scene.content().as_deref(), Some(&b"six"[..]), "{here}");
        }
        Err(error) => {
            assert!(raised && matches!(error.kind(), ErrorKind::Stale(_)), "{here}: {error:?}");
            assert_eq!(scene.content(), found, "{here}: what is refused changes nothing");
        }
    }
    fence.put(&b"eight"[..], Access::Exclusive, at(8)).expect(&here);
    assert_eq!(scene.content().as_deref(), Some(&b"eight"[..]), "{here}");
    assert_eq!(scene.names(), scene.names_wanted(), "{here}: nothing is left lying about");
    done
}

/// Everything that the new content in place must not outlive is durable before the rename.
fn order(start: Start) {
    let scene = Scene::new(start);
    let child = scene.spawn();
    let mut calls = Vec::new();
    while let Some(stop) = child.step() {
        if stop.is_ok() {
            calls.extend(child.call().filter(|call| *call != Call::Other));
        }
    }
    let target = if start.link { "real" } else { "target" };
    let is_put = |call: &Call| matches!(call, Call::Rename(_, to) if to == target);
    let put = calls.iter().position(is_put).expect("the content is renamed into place");
    let (before, after) = calls.split_at(put);

    let open = unsynced(before);
    assert!(open.is_empty(), "from {}: not durable before the rename: {open:?}", start.name);
    let work = scene.root.path().join("work").canonicalize().unwrap();
    assert!(after.contains(&Call::Sync(work)), "from {}: the rename is durable", start.name);

    let raised = |call: &Call| matches!(call, Call::Sync(path) if is_marks(path));
    assert!(before.iter().any(raised), "from {}: a mark was raised: {before:?}", start.name);
    let written = |call: &Call| matches!(call, Call::Write(path) if is_temp(path));
    assert!(before.iter().any(written), "from {}: the content was written", start.name);
}

fn is_marks(path: &Path) -> bool {
    let text = path.to_str().unwrap();
    text.ends_with(".leasehold-fence") || text.contains("/gate/file%3A")
}

fn is_temp(path: &Path) -> bool {
    path.to_str().unwrap().contains(".leasehold-put")
}

/// What was written or renamed and not made durable after it, by path. The last write to marks only
/// says that the ones before it are durable, and may be lost itself.
fn unsynced(calls: &[Call]) -> BTreeSet<PathBuf> {
    let is_note = |call: &Call| matches!(call, Call::Write(path) if is_marks(path));
    let note = calls.iter().rposition(is_note);
    let calls = calls.iter().enumerate().filter(|(at, _)| Some(*at) != note);
    let mut open = BTreeSet::new();
    for (_, call) in calls {
        match call {
            // What has no name cannot outlive anything.
            Call::Write(path) if !path.to_str().unwrap().ends_with(" (deleted)") => {
                open.insert(path.clone());
            }
            Call::Sync(path) => {
                open.retain(|written| written != path && !is_renamed_in(written, path));
            }
            Call::Rename(_, to) => {
                open.insert(PathBuf::from("renamed").join(to));
            }
            Call::Write(_) | Call::Other => {}
        }
    }
    open
}

/// Whether `path` stands for a rename in the directory `dir`; the names in use tell which it is.
fn is_renamed_in(path: &Path, dir: &Path) -> bool {
    let Ok(name) = path.strip_prefix("renamed") else { return false };
    let gate = name.to_str().unwrap().starts_with("file%3A");
    dir.is_dir() && dir.ends_with("gate") == gate
}
