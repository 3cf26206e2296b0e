//! What goes wrong with files: each a clear error, and nothing lost.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::agent::Agent;
use common::{claim, config, enter, granted, leave, name, open, renew, waiting};
use futures_lite::future::block_on;
use leasehold_core::{
    Admission, Applied, Cursor, Ended, Error, ErrorKind, Hint, Left, Page, Renewed, Store,
};
use leasehold_sqlite::{SqliteConfig, SqliteStore};

/// Not a test of its own: the other side of some of the tests below.
#[test]
fn agent() {
    common::agent::serve();
}

fn refused(config: SqliteConfig) -> Error {
    SqliteStore::open(config).expect_err("it was opened")
}

fn edit(dir: &tempfile::TempDir, sql: &str) {
    let db = rusqlite::Connection::open(config(dir).path).unwrap();
    db.execute_batch(sql).unwrap();
}

#[test]
fn a_removed_database_loses_what_it_held_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let held = claim("r");
    granted(&store, &held);
    fs::remove_file(config(&dir).path).unwrap();
    assert!(
        matches!(renew(&store, &held.to_ref()), Renewed::Unknown(e) if e.kind() == ErrorKind::Replaced)
    );
    let error = block_on(store.enter(&claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
    assert_eq!(error.applied(), Applied::No);
    let error = block_on(store.leave(&held.to_ref())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
}

#[test]
fn a_replaced_database_is_noticed_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let held = claim("r");
    granted(&store, &held);
    let aside = dir.path().join("aside");
    fs::create_dir(&aside).unwrap();
    for suffix in ["", "-wal", "-shm", "-live"] {
        let file = format!("locks.db{suffix}");
        fs::rename(dir.path().join(&file), aside.join(&file)).unwrap();
    }
    let other = open(&dir);
    granted(&other, &claim("r"));
    assert!(
        matches!(renew(&store, &held.to_ref()), Renewed::Unknown(e) if e.kind() == ErrorKind::Replaced)
    );
    // Put back what stood there: the first store is itself again.
    drop(other);
    for suffix in ["", "-wal", "-shm", "-live"] {
        let file = format!("locks.db{suffix}");
        fs::rename(aside.join(&file), dir.path().join(&file)).unwrap();
    }
    assert!(matches!(renew(&store, &held.to_ref()), Renewed::Granted(_)));
}

#[test]
fn a_removed_index_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    fs::remove_file(dir.path().join("locks.db-shm")).unwrap();
    let error = block_on(store.enter(&claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
}

#[test]
fn a_removed_liveness_file_proves_nobody_dead() {
    let dir = tempfile::tempdir().unwrap();
    let mut holder = Agent::opened(&config(&dir).path);
    assert!(holder.ask("enter h r").starts_with("granted"));
    fs::remove_file(dir.path().join("locks.db-live")).unwrap();
    let store = open(&dir);
    waiting(&store, &claim("r"));
    let none = Cursor::default();
    let hint = block_on(store.changed(&name("r"), None, none, Duration::from_millis(50))).unwrap();
    assert_eq!(hint, Hint::Moved(none), "nothing has moved");
    holder.kill();
    // Dead, but in a file that nobody can ask any more: only the term ends it.
    let queue = block_on(store.inspect(&name("r"))).unwrap();
    assert_eq!(queue.holders().count(), 1);
    assert!(matches!(renew(&store, &claim("other").to_ref()), Renewed::Gone(Ended::Unknown)));
}

/// What cannot be right in a row, and stays in that row.
#[test]
fn corrupt_rows_are_named_and_stay_alone() {
    let sick = [
        "UPDATE resource SET token = -5 WHERE name = 'sick'",
        "UPDATE resource SET token = 9007199254740992 WHERE name = 'sick'",
        "UPDATE resource SET token = 0 WHERE name = 'sick'",
        "UPDATE resource SET h_claim = x'00' WHERE name = 'sick'",
        "UPDATE resource SET h_holder = NULL WHERE name = 'sick'",
        "UPDATE resource SET h_label = CAST(x'ff41' AS TEXT) WHERE name = 'sick'",
        "UPDATE resource SET h_life = 'eternal' WHERE name = 'sick'",
        "UPDATE resource SET h_previous = 'odd' WHERE name = 'sick'",
        "UPDATE resource SET h_broken = 2 WHERE name = 'sick'",
        "UPDATE resource SET h_until = -1 WHERE name = 'sick'",
        "UPDATE resource SET h_pid = 99999999999 WHERE name = 'sick'",
        "UPDATE resource SET past = x'0102' WHERE name = 'sick'",
        "UPDATE resource SET queued = -3 WHERE name = 'sick'",
        "UPDATE resource SET end_how = 'odd', end_at = 1 WHERE name = 'sick'",
        "UPDATE claim SET mode = 'odd'",
        "UPDATE claim SET stands = 'odd'",
        "UPDATE claim SET mode = 'permits', count = 4, slot_limit = 3",
        "UPDATE claim SET holder = x''",
        "UPDATE claim SET byte = -1",
        "UPDATE claim SET token = 1",
        "UPDATE claim SET term = -1",
    ];
    for sql in sick {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        let (held, well) = (claim("sick"), claim("well"));
        granted(&store, &held);
        waiting(&store, &claim("sick"));
        let grant = granted(&store, &well);
        edit(&dir, sql);
        for error in [
            block_on(store.enter(&claim("sick"))).expect_err(sql),
            block_on(store.leave(&held.to_ref())).expect_err(sql),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{sql}: {error}");
            assert_eq!(error.resource(), Some(&held.resource), "{sql}: {error}");
        }
        let mut named = well.to_ref();
        named.token = Some(grant.token);
        let answers = block_on(store.renew(&[held.to_ref(), named]));
        let is_corrupt = |e: &Error| e.kind() == ErrorKind::Corrupt;
        assert!(matches!(&answers[0], Renewed::Unknown(e) if is_corrupt(e)), "{sql}: {answers:?}");
        assert!(matches!(answers[1], Renewed::Alive { .. }), "{sql}: {answers:?}");
        assert_eq!(leave(&store, &well), Left::Released);
    }
}

#[test]
fn used_up_order_numbers_are_corrupt_and_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let held = claim("sick");
    granted(&store, &held);
    edit(&dir, "UPDATE resource SET ord = 9223372036854775807");
    let error = block_on(store.enter(&claim("sick"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(leave(&store, &held), Left::Released);
}

#[test]
fn slots_beyond_all_limits_are_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut permit = claim("sick");
    permit.mode = leasehold_core::Mode::Permits { count: 1, limit: 3 };
    granted(&store, &permit);
    edit(&dir, "UPDATE claim SET slots = zeroblob(129)");
    let error = block_on(store.enter(&permit)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn what_was_released_stays_dead_over_many_others_and_over_cleaning() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let released = claim("cleaned");
    granted(&store, &released);
    leave(&store, &released);
    let cleaned = block_on(store.clean(Duration::ZERO, &Page::default(), false)).unwrap();
    assert_eq!(cleaned.names.as_slice(), std::slice::from_ref(&released.resource));
    assert_eq!(enter(&store, &released), Admission::Gone(Ended::Released));

    let barred = claim("barred");
    granted(&store, &barred);
    let mut unanswered = barred.to_ref();
    unanswered.enter_unanswered = true;
    assert_eq!(block_on(store.leave(&unanswered)).unwrap(), Left::Released);
    for _ in 0..100 {
        let other = claim("barred");
        granted(&store, &other);
        leave(&store, &other);
    }
    assert_eq!(enter(&store, &barred), Admission::Gone(Ended::Released));
}

#[test]
fn all_files_belong_to_the_owner_of_the_database_also_when_root_made_them() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    let database = config(&dir).path;
    for suffix in ["-live", "-wal", "-shm"] {
        fs::remove_file(dir.path().join(format!("locks.db{suffix}"))).unwrap();
    }
    let own = fs::metadata(&database).unwrap().uid();
    // Only root can meet the database of somebody else; anybody else meets his own.
    let owner = if own == 0 { 65534 } else { own };
    std::os::unix::fs::chown(&database, Some(owner), None).unwrap();
    let store = open(&dir);
    granted(&store, &claim("r"));
    waiting(&store, &claim("r"));
    let wake = dir.path().join("locks.db-wake");
    let fifo = fs::read_dir(&wake).unwrap().next().unwrap().unwrap().path();
    for suffix in ["-live", "-wal", "-shm"] {
        let path = dir.path().join(format!("locks.db{suffix}"));
        assert_eq!(fs::metadata(&path).unwrap().uid(), owner, "{suffix}");
    }
    for path in [wake, fifo] {
        assert_eq!(fs::metadata(&path).unwrap().uid(), owner, "{}", path.display());
    }
}

#[test]
fn a_bad_name_and_a_bad_record_are_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let held = claim("r");
    granted(&store, &held);
    block_on(store.write(&held.to_ref(), b"x", Duration::from_secs(60))).unwrap();
    edit(&dir, "UPDATE record SET token = 0");
    let error = block_on(store.read(&held.resource)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.resource(), Some(&held.resource));
    edit(&dir, "UPDATE resource SET name = 'a' || char(10)");
    let error = block_on(store.list(&Page::default())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_damaged_file_is_corrupt_wherever_the_damage_is() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(config(&dir).path, "this is not a database, whatever its name says\n".repeat(99))
        .unwrap();
    let error = refused(config(&dir));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.advice().is_some());

    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    edit(
        &dir,
        "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA writable_schema = 1;
                UPDATE sqlite_schema SET rootpage = 9999 WHERE name = 'resource'",
    );
    let outcome = SqliteStore::open(config(&dir))
        .map(|store| block_on(store.enter(&claim("r"))).expect_err("it was used"));
    let error = outcome.unwrap_or_else(|error| error);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    edit(&dir, "DROP TABLE claim");
    let store = open(&dir);
    granted(&store, &claim("r"));
    let error = block_on(store.enter(&claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    edit(&dir, "DELETE FROM meta");
    let error = refused(config(&dir));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn what_is_not_ours_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    edit(&dir, "CREATE TABLE mine (x)");
    let before = fs::read(dir.path().join("locks.db")).unwrap();
    let error = refused(config(&dir));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(fs::read(dir.path().join("locks.db")).unwrap() == before, "it was written to");
    let there: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(!there.iter().any(|f| f == "locks.db-live"), "{there:?}");

    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    edit(&dir, "PRAGMA user_version = 2");
    let error = refused(config(&dir));
    assert_eq!(error.kind(), ErrorKind::Version, "{error}");

    let dir = tempfile::tempdir().unwrap();
    let error = refused(SqliteConfig::new(dir.path()));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("is a directory"), "{error}");

    let error = refused(SqliteConfig::new("/dev/null"));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = refused(SqliteConfig::new("/proc/leasehold.db"));
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "{error}");
}

#[test]
fn missing_directories_are_made_only_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = SqliteConfig::new(dir.path().join("a/b/locks.db"));
    let error = refused(config.clone());
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(!dir.path().join("a").exists());
    config.create_parents = true;
    drop(SqliteStore::open(config).unwrap());
    for made in ["a", "a/b"] {
        let mode = fs::metadata(dir.path().join(made)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700, "{made}");
    }
}

fn modes(dir: &Path) -> Vec<(String, u32)> {
    let mut modes: Vec<(String, u32)> = fs::read_dir(dir)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let mode = file.metadata().unwrap().mode() & 0o777;
            (file.file_name().into_string().unwrap(), mode)
        })
        .collect();
    modes.sort();
    modes
}

#[test]
fn all_files_have_the_mode_that_was_asked_for_whatever_the_umask() {
    let expected = |file: u32, dir: u32| {
        let with = |suffix: &str, mode| (format!("locks.db{suffix}"), mode);
        vec![
            with("", file),
            with("-live", file),
            with("-shm", file),
            with("-wake", dir),
            with("-wal", file),
        ]
    };
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let mut agent = Agent::start_by(&config(&dir).path, shell);
    assert_eq!(agent.ask("open 0660"), "opened");
    agent.ask("enter h r");
    assert_eq!(agent.ask("enter w r"), "waiting 1");
    assert_eq!(modes(dir.path()), expected(0o660, 0o770));
    let fifo = fs::read_dir(dir.path().join("locks.db-wake")).unwrap().next().unwrap().unwrap();
    assert_eq!(fifo.metadata().unwrap().mode() & 0o777, 0o660);

    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    granted(&store, &claim("r"));
    waiting(&store, &claim("r"));
    assert_eq!(modes(dir.path()), expected(0o600, 0o700));
    // Opened again with a mode, all that is there gets it.
    let wider = SqliteConfig::from_url(&format!("{}?mode=0666", config(&dir).url())).unwrap();
    let _wider = SqliteStore::open(wider).unwrap();
    assert_eq!(modes(dir.path()), expected(0o666, 0o777));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An agent as somebody who is not root, with this group besides.
fn nobody(dir: &tempfile::TempDir, group: u32) -> Agent {
    use std::os::unix::process::CommandExt as _;
    let path = config(dir).path;
    if !is_root() {
        return Agent::start(&path);
    }
    // Where the test was built may be closed to others.
    let program = dir.path().join("agent");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.uid(65534).gid(group);
    Agent::start_by(&path, command)
}

#[test]
fn files_that_may_not_be_used_are_a_matter_of_permission_or_read_only() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(open(&dir));
    fs::set_permissions(config(&dir).path, fs::Permissions::from_mode(0o400)).unwrap();
    let answer = nobody(&dir, 65534).ask("open");
    // Who owns it is told that it is read-only, everybody else that it is not theirs.
    let kind = if is_root() { "error Permission" } else { "error Unavailable" };
    assert!(answer.starts_with(kind), "{answer}");
    assert!(answer.contains(if is_root() { "mode=0660" } else { "read-only" }), "{answer}");
}

#[test]
fn a_shared_mode_lets_the_group_contend() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o770)).unwrap();
    let shared = SqliteConfig::from_url(&format!("{}?mode=0660", config(&dir).url())).unwrap();
    let store = SqliteStore::open(shared).unwrap();
    let held = claim("r");
    granted(&store, &held);
    let mut agent = nobody(&dir, rustix::process::getegid().as_raw());
    assert_eq!(agent.ask("open"), "opened");
    assert_eq!(agent.ask("enter w r"), "waiting 1");
    agent.tell("hint w");
    assert_eq!(leave(&store, &held), Left::Released);
    assert!(agent.answer().starts_with("granted"));
    waiting(&store, &claim("r"));
}

#[test]
fn a_full_disk_is_told_and_forgotten_once_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    let mut ignoring = Command::new("env");
    ignoring.arg("--ignore-signal=XFSZ").arg(std::env::current_exe().unwrap());
    let mut agent = Agent::start_by(&config(&dir).path, ignoring);
    assert_eq!(agent.ask("open"), "opened");
    assert!(agent.ask("enter a r").starts_with("granted"));
    let log = fs::metadata(dir.path().join("locks.db-wal")).unwrap().len();
    agent.ask(&format!("limit {}", log + 100));
    let answer = agent.ask("enter b s");
    assert!(answer.starts_with("error Unavailable"), "{answer}");
    let answer = agent.ask("renew a");
    assert!(answer.starts_with("error Unavailable"), "{answer}");
    agent.ask("limit none");
    assert!(agent.ask("renew a").starts_with("granted"));
    assert!(agent.ask("enter b s").starts_with("granted"));
    assert_eq!(agent.ask("leave a"), "released");
}

#[test]
fn another_programs_long_write_is_waited_for_and_then_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    config.busy_limit = Duration::from_millis(300);
    let store = SqliteStore::open(config.clone()).unwrap();
    let held = claim("r");
    granted(&store, &held);
    let other = rusqlite::Connection::open(&config.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = block_on(store.enter(&claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.applied(), Applied::No);
    assert!(error.to_string().contains("long write transaction"), "{error}");
    assert!(matches!(renew(&store, &held.to_ref()), Renewed::Unknown(_)));
    // Reading goes on, and opening a database that is up to date.
    assert_eq!(block_on(store.inspect(&name("r"))).unwrap().entries.len(), 1);
    drop(SqliteStore::open(config.clone()).unwrap());
    let ended = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        other.execute_batch("ROLLBACK").unwrap();
    });
    assert!(matches!(renew(&store, &held.to_ref()), Renewed::Granted(_)));
    ended.join().unwrap();
}

#[test]
fn a_closed_store_says_so_and_its_claims_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let held = claim("r");
    granted(&store, &held);
    block_on(store.close());
    let error = block_on(store.enter(&claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let other = open(&dir);
    assert_eq!(block_on(other.inspect(&name("r"))).unwrap().entries.len(), 1);
    waiting(&other, &claim("r"));
}

#[test]
fn many_threads_share_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..50 {
                    let claim = claim(&format!("r{thread}"));
                    granted(store, &claim);
                    assert_eq!(leave(store, &claim), Left::Released);
                }
            });
        }
    });
    let _ = enter(&store, &claim("r0"));
}

#[test]
fn a_symbolic_link_names_the_same_store_until_it_names_another() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (config(&dir).path, dir.path().join("link.db"));
    let store = open(&dir);
    let held = claim("r");
    granted(&store, &held);
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let linked = SqliteStore::open(SqliteConfig::new(&link)).unwrap();
    waiting(&linked, &claim("r"));
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(dir.path().join("other.db"), &link).unwrap();
    fs::write(dir.path().join("other.db"), b"").unwrap();
    let error = block_on(linked.enter(&claim("r"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
    assert_eq!(leave(&store, &held), Left::Released);
}
