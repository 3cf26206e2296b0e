//! Bad input: one line that says what is wrong and what would be right, the documented code, and
//! nothing half-done.

use std::fs;

use crate::world::{World, exists, finish};

/// Refused before the store is touched.
#[test]
fn a_command_line_that_cannot_be_meant_is_64_and_touches_nothing() {
    let world = World::new();
    let long = "x".repeat(513);
    let table: &[(&str, &[&str], &str)] = &[
        ("", &[], "leasehold --help"),
        ("frobnicate", &[], "frobnicate"),
        ("--frob run n -- true", &[], "--frob"),
        ("run n --frob -- true", &[], "--frob"),
        ("run", &[], "`--`"),
        ("run n true", &[], "`--`"),
        ("run n", &[], "`--`"),
        ("run n --", &[], "CMD"),
        ("run n --", &[""], "empty"),
        ("run -- true", &[], "NAME"),
        ("run", &["", "--", "true"], "1 to 512"),
        ("run", &["a\nb", "--", "true"], "control character"),
        ("run", &[&long, "--", "true"], "1 to 512"),
        ("run n --ttl 30 -- true", &[], "30s"),
        ("run n --ttl x -- true", &[], "30s"),
        ("run n --ttl 0s -- true", &[], "at least 1s"),
        ("run n --ttl 999ms -- true", &[], "at least 1s"),
        ("run n --wait", &["", "--", "true"], "--wait"),
        ("run n --wait -5s -- true", &[], "-5"),
        ("run n --wait 1s --no-wait -- true", &[], "--no-wait"),
        ("run n --grace soon -- true", &[], "--grace"),
        ("--timeout 0s run n -- true", &[], "at least 1ms"),
        ("--timeout 0s ls", &[], "--timeout"),
        ("run n --permits 0 --limit 3 -- true", &[], "want 1 to the limit, 3"),
        ("run n --permits 4 --limit 3 -- true", &[], "want 1 to the limit, 3"),
        ("run n --permits 1 --limit 0 -- true", &[], "want 1 to 1024"),
        ("run n --permits 1 --limit 1025 -- true", &[], "want 1 to 1024"),
        ("run n --permits 1 -- true", &[], "--limit"),
        ("run n --limit 3 -- true", &[], "--permits"),
        ("run n --shared --permits 1 --limit 2 -- true", &[], "--shared"),
        ("run n --busy-exit-code 256 -- true", &[], "0..=255"),
        ("run n --busy-exit-code -1 -- true", &[], "-1"),
        ("run n --on-lost shrug -- true", &[], "kill, warn"),
        ("run n --status-fd 77 -- true", &[], "--status-fd 77"),
        ("run n --holder", &["", "--", "true"], "--holder"),
        ("-q -v run n -- true", &[], "--verbose"),
        ("hold n --on-lost term", &[], "--pid"),
        ("hold n --pid 2147483647", &[], "no such process"),
        ("acquire n --print xml", &[], "json, env"),
        ("renew n --claim abc", &[], "32 hexadecimal"),
        ("release n", &[], "--claim"),
        ("check n --claim", &["00000000000000000000000000000000x"], "32 hexadecimal"),
        ("renew n --claim 00000000000000000000000000000000 --ttl 10ms", &[], "at least 1s"),
        ("break n", &[], "--yes"),
        ("break n --yes --token 0", &[], "EPOCH:N"),
        ("fence run r --token x -- true", &[], "EPOCH:N"),
        ("fence run r -- true", &[], "--token"),
        ("fence put f --token 9007199254740992", &[], "EPOCH:N"),
        ("fence check r --token 1 --slot -1", &[], "-1"),
        ("gc --unused-for long", &[], "--unused-for"),
        ("completions tcl", &[], "bash"),
    ];
    for (args, more, says) in table {
        let ran = world.run(args, more);
        assert_eq!(ran.code(), 64, "{args} {more:?}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{args} {more:?}: {ran:?}");
        assert!(ran.err.starts_with("leasehold: "), "{ran:?}");
        assert!(ran.err.contains(says), "{args} {more:?}: wanted {says}: {ran:?}");
        assert!(ran.out.is_empty(), "{ran:?}");
        assert!(!exists(&world.path("locks.db")), "{args} {more:?} made a store");
    }
}

#[test]
fn a_name_that_is_not_utf8_is_64() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let mut command = world.leasehold("run", &[]);
    command.arg(std::ffi::OsStr::from_bytes(b"a\xffb")).args(["--", "true"]);
    let ran = finish(command).ended(64);
    assert!(ran.err.contains("UTF-8"), "{ran:?}");
}

#[test]
fn a_term_out_of_the_stores_bounds_is_64_and_names_them() {
    let world = World::new();
    let ran = world.run("run n --ttl 1000d -- true", &[]).ended(64);
    assert!(ran.err.contains("takes 1s to") && ran.err.contains("locks.db"), "{ran:?}");
}

#[test]
fn another_kind_or_limit_than_the_stored_one_is_64() {
    let world = World::new();
    let _holder = world.start("run n --permits 1 --limit 3 --", &["sleep", "1000"]);
    world.held("n");
    for asked in ["--permits 1 --limit 4", "", "--shared"] {
        let ran = world.run(&format!("run n {asked} -- true"), &[]).ended(64);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    world.run("run n --permits 1 --limit 3 -- true", &[]).ended(0);
}

#[test]
fn a_bad_store_is_78_and_says_what_would_be_right() {
    let world = World::new();
    fs::create_dir(world.path("folder")).unwrap();
    fs::write(world.path("text"), "no database, but a text that is long enough").unwrap();
    for (store, says) in [
        ("carrier-pigeon:x", "sqlite:PATH"),
        ("/plain/path", "sqlite:PATH"),
        ("sqlite:", "sqlite:PATH"),
        ("sqlite:x?mdoe=0660", "mode"),
        ("sqlite:x?mode=9", "0660"),
        ("sqlite:x?epoch=-1", "epoch"),
        ("sqlite:folder", "folder"),
        ("sqlite:text", "text"),
        ("sqlite:text/below.db", "below.db"),
    ] {
        let ran = world.run("--store", &[store, "run", "n", "--", "true"]);
        assert_eq!(ran.code(), 78, "{store}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{store}: {ran:?}");
        assert!(ran.err.contains(says), "{store}: wanted {says}: {ran:?}");
    }
}

#[test]
fn an_unknown_store_is_told_which_there_are() {
    let world = World::new();
    let ran = world.run("--store carrier-pigeon://coop ls", &[]).ended(78);
    assert!(ran.err.contains("named by --store"), "{ran:?}");
    for url in leasehold::STORE_URLS {
        assert!(ran.err.contains(url), "{url}: {ran:?}");
    }
}

#[test]
fn a_bad_name_is_all_that_is_said_also_in_a_container() {
    let world = World::new();
    let said = |args: &[&str]| {
        let mut command = world.leasehold("", args);
        command.env_remove("LEASEHOLD_STORE").env("container", "podman");
        finish(command)
    };
    let ran = said(&["run", "", "--", "true"]).ended(64);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert!(!ran.err.contains("container"), "{ran:?}");
    let ran = said(&["run", "n", "--", "true"]).ended(0);
    assert!(ran.err.contains("only this container sees the lock"), "{ran:?}");
}

#[test]
fn a_database_of_ones_own_that_is_read_only_is_78() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let world = World::new();
    world.run("run n -- true", &[]).ended(0);
    fs::set_permissions(world.path("locks.db"), fs::Permissions::from_mode(0o444)).unwrap();
    let mut command = world.leasehold("run n -- true", &[]);
    if rustix::process::geteuid().is_root() {
        // Root writes what is read-only: someone else has the folder and all in it.
        fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        for entry in fs::read_dir(world.path("")).unwrap() {
            std::os::unix::fs::chown(entry.unwrap().path(), Some(65534), Some(65534)).unwrap();
        }
        std::os::unix::fs::chown(world.path(""), Some(65534), Some(65534)).unwrap();
        command.uid(65534).gid(65534);
    }
    let ran = finish(command).ended(78);
    assert!(ran.err.contains("read-only") && ran.err.contains("locks.db"), "{ran:?}");
}

#[test]
fn without_home_there_is_no_place_for_a_store() {
    let world = World::new();
    let mut command = world.leasehold("show n", &[]);
    command.env_remove("LEASEHOLD_STORE").env_remove("HOME").env_remove("XDG_STATE_HOME");
    if rustix::process::geteuid().is_root() {
        // Root's place does not depend on HOME; an orchestrator refuses the default all the same.
        command.env("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    }
    let ran = finish(command).ended(78);
    assert!(ran.err.contains("--store"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[test]
fn under_an_orchestrator_a_store_must_be_named() {
    let world = World::new();
    for name in ["KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4", "NOMAD_ALLOC_ID"] {
        let mut command = world.leasehold("run n -- true", &[]);
        command.env_remove("LEASEHOLD_STORE").env(name, "1");
        let ran = finish(command).ended(78);
        assert!(ran.err.contains("LEASEHOLD_STORE") && ran.err.contains(name), "{ran:?}");
        let mut command = world.leasehold("run n -- true", &[]);
        command.env(name, "1");
        finish(command).ended(0);
    }
}

#[test]
fn a_configuration_file_names_the_store_and_a_bad_one_is_78() {
    let world = World::new();
    let folder = world.path(".config/leasehold");
    fs::create_dir_all(&folder).unwrap();
    let with = |text: String| {
        fs::write(folder.join("config.toml"), text).unwrap();
        let mut command = world.leasehold("run n --", &["sh", "-c", "echo $LEASEHOLD_STORE"]);
        command.env_remove("LEASEHOLD_STORE");
        finish(command)
    };
    let url = format!("sqlite:{}", world.path("other.db").display());
    let ran = with(format!("store = '{url}'\n")).ended(0);
    assert_eq!(ran.out.trim_end(), url);
    let ran = with("store = \n".into()).ended(78);
    assert!(ran.err.contains("config.toml line 1"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[test]
fn the_default_store_is_made_for_its_user_alone() {
    use std::os::unix::fs::MetadataExt;
    let world = World::new();
    let mut command = world.leasehold("run n -- true", &[]);
    command.env_remove("LEASEHOLD_STORE");
    finish(command).ended(0);
    let mode = |name| fs::metadata(world.path(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("state/leasehold"), 0o700);
    assert_eq!(mode("state/leasehold/leasehold.db"), 0o600);
}

#[test]
fn what_leasehold_set_and_someone_damaged_is_64() {
    let world = World::new();
    for (name, args) in
        [("LEASEHOLD_CLAIMS", "run n -- true"), ("LEASEHOLD_HOLDER", "run n --reenter -- true")]
    {
        let mut command = world.leasehold(args, &[]);
        command.env("LEASEHOLD_CLAIMS", "0".repeat(32)).env(name, "damaged");
        let ran = finish(command).ended(64);
        assert!(ran.err.contains(name), "{ran:?}");
    }
}
