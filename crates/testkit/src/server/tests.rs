use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use super::redis::{Options, Redis};
use super::*;

const SOON: Duration = Duration::from_secs(30);

/// A server of two processes, of which one sits below the other.
fn two() -> Server {
    Server::start(
        "two",
        1,
        |_| Program::new("/bin/sh").args(["-c", "sleep 600 & echo child $!; wait"]),
        |place| if place.log().contains("child") { Ok(()) } else { Err("no child".to_owned()) },
    )
}

fn child_of(log: &str) -> String {
    let line = log.lines().rfind(|line| line.starts_with("child ")).unwrap();
    line.trim_start_matches("child ").to_owned()
}

fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim().chars().next()
}

fn lives(pid: &str) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

#[test]
fn stop_and_kill_reach_the_whole_tree() {
    let server = two();
    let (main, child) = (server.pid().unwrap().to_string(), child_of(&server.log()));
    server.stop();
    assert_eq!((state(&main), state(&child)), (Some('T'), Some('T')));
    assert!(server.is_running(), "a stopped server has not ended");
    server.cont();
    wait_until("running", SOON, || match (state(&main), state(&child)) {
        (Some('S' | 'R'), Some('S' | 'R')) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    server.stop();
    server.kill9();
    assert!(!lives(&main) && !lives(&child));
    assert!(!server.is_running());
}

#[test]
fn a_dropped_server_leaves_neither_process_nor_folder() {
    let server = two();
    let (main, child) = (server.pid().unwrap().to_string(), child_of(&server.log()));
    let folder = server.folder().to_owned();
    server.stop();
    drop(server);
    assert!(!lives(&main) && !lives(&child) && !folder.exists());
}

#[test]
fn restarts_keep_port_and_data_or_start_empty() {
    let redis = Redis::with(Options {
        args: ["--appendonly", "yes", "--appendfsync", "always"].map(String::from).to_vec(),
        ..Options::default()
    });
    let (port, pid) = (redis.port(), redis.server().pid());
    redis.cli(&["SET", "k", "v"]);
    redis.server().kill9();
    assert!(redis.try_cli(&["PING"]).is_err());
    redis.server().restart();
    assert_eq!((redis.port(), redis.cli(&["GET", "k"])), (port, "v".to_owned()));
    assert_ne!(redis.server().pid(), pid);
    redis.server().stop();
    redis.server().restart();
    assert_eq!(redis.cli(&["GET", "k"]), "v");
    redis.server().restart_empty();
    assert_eq!((redis.port(), redis.cli(&["EXISTS", "k"])), (port, "0".to_owned()));
}

#[test]
fn a_redis_server_has_a_password_users_tls_and_a_replica() {
    let redis = Redis::with(Options {
        password: Some("s3cret".to_owned()),
        acl: vec!["user ann on >pw ~* &* +@all -@dangerous".to_owned()],
        tls: true,
        ..Options::default()
    });
    assert_eq!(redis.cli(&["ACL", "USERS"]), "ann\ndefault");
    let master = Redis::start();
    let replica = Redis::with(Options { replica_of: Some(master.port()), ..Options::default() });
    master.cli(&["SET", "k", "v"]);
    wait_until("replicated", SOON, || match replica.cli(&["GET", "k"]).as_str() {
        "v" => Ok(()),
        other => Err(other.to_owned()),
    });
}

#[test]
fn several_versions_of_redis_run() {
    let versions = redis::versions();
    let majors: Vec<u32> = versions.iter().map(|binary| binary.version.0).collect();
    assert!([6, 7, 8].iter().all(|major| majors.contains(major)), "{versions:?}");
    for binary in versions {
        let redis = Redis::with(Options { binary: Some(binary.path), ..Options::default() });
        let info = redis.cli(&["INFO", "server"]);
        let (major, minor, patch) = binary.version;
        assert!(info.contains(&format!("redis_version:{major}.{minor}.{patch}")), "{info}");
    }
}

#[test]
fn the_wall_clock_of_a_server_is_stepped_while_it_runs() {
    let time = Arc::new(FakeTime::new());
    let redis = Redis::with(Options { time: Some(Arc::clone(&time)), ..Options::default() });
    let away = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let server: u64 = redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
        i64::try_from(server).unwrap() - i64::try_from(now).unwrap()
    };
    redis.cli(&["SET", "k", "v", "EX", "1800"]);
    assert!(away().abs() < 60);
    time.step(-3600);
    assert!((away() + 3600).abs() < 60, "{}", away());
    assert_eq!(redis.cli(&["EXISTS", "k"]), "1");
    time.step(3600);
    assert!((away() - 3600).abs() < 60, "{}", away());
    assert_eq!(redis.cli(&["EXISTS", "k"]), "0", "its term is over on the server's clock");
    time.step(0);
    assert!(away().abs() < 60);
}

#[test]
fn a_server_that_refuses_root_runs_as_somebody_else() {
    let server = Server::start(
        "id",
        0,
        |_| {
            Program::new("/bin/sh")
                .args(["-c", "id -u; touch mine; sleep 600"])
                .unprivileged("postgres")
        },
        |place| if place.file("mine").exists() { Ok(()) } else { Err("not yet".to_owned()) },
    );
    assert_ne!(server.log().trim(), "0");
    let program = Program::new("/bin/sh").args(["-c", "id -u"]).unprivileged("no such user");
    assert_ne!(server.place().run(&program).trim(), "0");
}

#[test]
fn a_port_that_is_taken_meanwhile_is_changed_for_another() {
    let others: Arc<Mutex<Vec<TcpListener>>> = Arc::default();
    let taken = Arc::clone(&others);
    let server = Server::start(
        "redis",
        1,
        move |place| {
            let mut taken = taken.lock().unwrap();
            if taken.len() < 2 {
                taken.push(TcpListener::bind(place.addr()).unwrap());
            }
            Program::new(find(&["redis-server"])).args(["--port", &place.port().to_string()])
        },
        |place| if place.log().contains("Ready to accept") { Ok(()) } else { Err(String::new()) },
    );
    assert!(server.is_running());
    assert_eq!(others.lock().unwrap().len(), 2);
}

#[test]
fn ports_differ_between_servers() {
    let mut ports: Vec<u16> = Vec::new();
    let held: Vec<Port> = (0..50).map(|_| Port::reserve()).collect();
    ports.extend(held.iter().map(Port::number));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
}

#[test]
#[should_panic(expected = "no such option")]
fn a_server_that_does_not_start_shows_its_log() {
    Server::start(
        "broken",
        1,
        |_| Program::new("/bin/sh").args(["-c", "echo no such option; exit 1"]),
        |_| Err("not yet".to_owned()),
    );
}

/// What the tests below run in a process of its own: a stopped server of two processes.
#[test]
fn holds_a_server_until_it_is_killed() {
    let Some(how) = env::var_os("LEASEHOLD_TEST_HOLDS_A_SERVER") else { return };
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(two);
    server.stop();
    let (main, child) = (server.pid().unwrap(), child_of(&server.log()));
    println!("\nholds {main} {child} {}", server.folder().display());
    if how == "waits" {
        thread::sleep(Duration::from_secs(600));
    } else if how == "kills" {
        server.kill9();
    }
}

fn holder(how: &str) -> (Child, String, String, PathBuf) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "server::tests::holds_a_server_until_it_is_killed"]);
    command.env("LEASEHOLD_TEST_HOLDS_A_SERVER", how);
    let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(holder.stdout.as_mut().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("holds ")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    (holder, words[1].to_owned(), words[2].to_owned(), PathBuf::from(words[3]))
}

fn is_gone(main: &str, child: &str, folder: &std::path::Path) {
    wait_until("gone", SOON, || match (lives(main), lives(child), folder.exists()) {
        (false, false, false) => Ok(()),
        left => Err(format!("(main, child, folder) are there: {left:?}")),
    });
}

#[test]
fn a_killed_test_process_leaves_neither_process_nor_folder() {
    let (mut holder, main, child, folder) = holder("waits");
    assert!(lives(&main) && lives(&child) && folder.exists());
    holder.kill().unwrap();
    holder.wait().unwrap();
    is_gone(&main, &child, &folder);
}

#[test]
fn a_server_in_a_static_ends_with_the_test_process() {
    for how in ["leaves", "kills"] {
        let (mut holder, main, child, folder) = holder(how);
        assert!(holder.wait().unwrap().success());
        is_gone(&main, &child, &folder);
    }
}
