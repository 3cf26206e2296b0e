//! What runs as another user cannot be ended, and is named.

#![allow(unsafe_code, reason = "asks who this process is")]

mod common;

use common::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: no memory is touched.
    unsafe { libc::geteuid() == 0 }
}

/// A run whose front and keeper are another user's than the command. Root makes it with a setuid
/// copy of the example.
fn run_of_another_user(options: &str) -> Run {
    let mut setup = Setup::new(options);
    let folder = setup.dir.path().to_owned();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    };
    for (name, bits) in [("plain", 0o755), ("rooted", 0o4755)] {
        let copy = folder.join(name);
        std::fs::copy(program(), &copy).expect("copied");
        mode(&copy, bits);
    }
    mode(&folder, 0o777);
    let args: Vec<_> = setup.command.get_args().map(ToOwned::to_owned).collect();
    let mut command = std::process::Command::new(folder.join("plain"));
    command.uid(NOBODY).args(args);
    command.args(["./rooted", "as-root", "sleep", "600"]).current_dir(&folder);
    command.process_group(0);
    setup.command = command;
    setup.go()
}

#[test]
fn what_cannot_be_signalled_is_named_and_the_keeper_stays_with_it() {
    let options = "--term 600000 --grace 100 --end-after 500";
    if !is_root() {
        // Nobody else's process can be made: at least one's own tree names nothing.
        let mut run = shell(options, "exec sleep 600");
        assert_eq!(run.code(), Some(76));
        assert!(run.log().contains("tree_gone: true, unkillable: []"), "{}", run.log());
        return;
    }
    let mut run = run_of_another_user(options);
    let started = run.logged("Started(");
    let pid = started.split(['(', ')']).nth(1).expect("a pid").to_owned();
    assert_eq!(run.code(), Some(76), "{}", run.log());
    let named = format!(
        "how: StillRunning, forced: Some(Lost), deadline_passed: false, \
        tree_gone: false, unkillable: [{pid}]"
    );
    assert!(run.log().contains(&named), "{}", run.log());
    let (pid, keeper) = (pid.parse().expect("a number"), run.keeper());
    assert!(alive(pid));
    // It keeps what proves the holder alive for as long as the right lasts or the process does.
    assert!(alive(keeper));
    kill(pid, libc::SIGKILL);
    dead(keeper);
}
