//! What users and servers may get wrong, each with words of its own.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{claim, config, connect, granted, leaves, root, server, shell, waits};
use leasehold::AcquireError;
use leasehold_core::{
    Admission, Broken, Claim, Error, ErrorKind, Page, QueueState, Renewed, ResourceName, Store as _,
};
use leasehold_net::{Secret, Tls};
use leasehold_testkit::block_on;
use leasehold_testkit::server::wait_until;
use leasehold_testkit::server::zookeeper::{Ensemble, Options, Release, Zookeeper};
use leasehold_zookeeper::{Acl, Naming, ZookeeperConfig, ZookeeperStore};

fn system() -> &'static Zookeeper {
    server(Release::System)
}

fn refused(config: ZookeeperConfig) -> Error {
    block_on(ZookeeperStore::connect(config)).unwrap_err()
}

fn entered(store: &ZookeeperStore, claim: &Claim) -> Error {
    block_on(store.enter(claim)).unwrap_err()
}

#[test]
fn terms_are_bounded_by_the_session_that_the_server_allows() {
    let server = Zookeeper::with(Options {
        lines: vec!["maxSessionTimeout=2500".into()],
        ..Options::default()
    });
    let mut long = config(server.addr(), "bounds");
    long.session = Duration::from_secs(30);
    let store = connect(long);
    assert_eq!(store.profile().term_bounds.1, Duration::from_millis(2500));
    let error = entered(&store, &Claim { term: Duration::from_secs(30), ..claim("r") });
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("100ms to 2.5s, the session timeout"), "{error}");
    let error = entered(&store, &Claim { term: Duration::from_millis(20), ..claim("r") });
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn what_does_not_answer_or_is_no_zookeeper_is_unreachable_in_time() {
    let mut nobody = config("127.0.0.1:1".parse().unwrap(), "x");
    nobody.connect_within = Duration::from_millis(300);
    let error = refused(nobody);
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    // It takes connections, and says nothing that ZooKeeper would.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        drop(listener);
    });
    let mut other = config(addr, "x");
    other.connect_within = Duration::from_secs(2);
    assert_eq!(refused(other).kind(), ErrorKind::Unreachable);
    answering.join().unwrap();
}

#[test]
fn nodes_of_a_user_are_closed_to_others_and_open_to_the_same_user() {
    let root = root();
    let login = |user: &str, password: &str| {
        let mut config = config(system().addr(), &root);
        config.user = Some(user.into());
        config.password = Some(Secret::new(password));
        config.acl = Acl::Creator;
        config
    };
    let ann = connect(login("ann", "s3cret"));
    let held = claim("r");
    granted(&ann, &held);
    let same = connect(login("ann", "s3cret"));
    waits(&same, &claim("r"));
    for other in [login("ann", "wrong"), login("ben", "s3cret"), config(system().addr(), &root)] {
        let error = refused(other);
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        assert!(error.to_string().contains("ACL"), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
}

#[test]
fn a_queue_that_may_only_be_read_is_named() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    shell(system().addr(), &["create", &format!("/{root}/r"), "", "world:anyone:r"]);
    let error = entered(&store, &claim("r"));
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    assert_eq!(error.resource().map(ResourceName::as_str), Some("r"), "{error}");
    granted(&store, &claim("s"));
}

#[test]
fn tls_is_spoken_and_a_stranger_is_refused() {
    let server =
        Zookeeper::with(Options { release: Release::Newest, tls: true, ..Options::default() });
    let made = server.certificates();
    let secure = |ca: std::path::PathBuf, name: Option<&str>| {
        let mut config = config(server.addr(), "tls");
        config.hosts[0].port = Some(server.tls_port());
        let mut tls = Tls::new();
        tls.ca = Some(ca);
        tls.server_name = name.map(str::to_owned);
        config.tls = Some(tls);
        config.connect_within = Duration::from_secs(5);
        config
    };
    let store = connect(secure(made.ca(), Some("localhost")));
    let held = claim("r");
    granted(&store, &held);
    leaves(&store, &held);
    assert!(store.profile().url.starts_with("zookeepers://"));
    for bad in [secure(made.stranger(), None), secure(made.ca(), Some("elsewhere"))] {
        let error = refused(bad);
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    let mut plain = config(server.addr(), "tls");
    plain.hosts[0].port = Some(server.tls_port());
    plain.connect_within = Duration::from_secs(2);
    assert_eq!(refused(plain).kind(), ErrorKind::Unreachable);
}

#[test]
fn what_cannot_contend_in_a_queue_is_named_and_nothing_is_left() {
    let root = root();
    let mut long = config(system().addr(), &root);
    long.session = Duration::from_secs(60);
    let store = connect(long);
    let first = Claim { term: Duration::from_secs(60), ..claim("r") };
    granted(&store, &first);
    shell(system().addr(), &["create", &format!("/{root}/r/notes"), "x"]);
    let error = entered(&store, &claim("r"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&format!("/{root}/r holds `notes`")), "{error}");
    shell(system().addr(), &["delete", &format!("/{root}/r/notes")]);
    leaves(&store, &first);
}

#[test]
fn a_foreign_contender_is_shown_waited_for_and_can_be_broken() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    let path = format!("/{root}/r");
    shell(system().addr(), &["create", &path, ""]);
    let foreign = "0123456789abcdef0123456789abcdef__lock__0000000000";
    shell(system().addr(), &["create", &format!("{path}/{foreign}"), "192.0.2.7"]);
    let waiter = claim("r");
    let waiting = waits(&store, &waiter);
    assert_eq!(waiting.holder.map(|holder| holder.label).as_deref(), Some("192.0.2.7"));
    let queue = block_on(store.inspect(&waiter.resource)).unwrap();
    let shown: Vec<_> = queue.entries.iter().map(|e| (e.holder.label(), &e.state)).collect();
    let [("192.0.2.7", QueueState::Granted { token, broken: false, .. }), _] = shown[..] else {
        panic!("{shown:?}")
    };
    let broken = block_on(store.break_(&waiter.resource, Some(*token), false)).unwrap();
    assert_eq!(broken, Broken::Marked(vec![*token]));
    assert!(shell(system().addr(), &["get", &format!("{path}/{foreign}")]).contains("__REVOKE__"));
    block_on(store.break_(&waiter.resource, Some(*token), true)).unwrap();
    common::until_granted(&store, &waiter);
    assert_eq!(block_on(store.list(&Page::default())).unwrap(), [waiter.resource]);
}

#[test]
fn raw_names_are_paths_and_what_cannot_be_one_is_refused() {
    let root = root();
    let mut raw = config(system().addr(), &root);
    raw.naming = Naming::Raw;
    let store = connect(raw);
    granted(&store, &claim("team/orders v2"));
    let listed = shell(system().addr(), &["ls", &format!("/{root}/team/orders v2")]);
    assert!(listed.contains("-lock-0000000000"), "{listed}");
    for name in ["a//b", "/a", ".", "a/..", "💥"] {
        let error = entered(&store, &claim(name));
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
}

#[test]
fn an_answer_that_is_too_large_hurts_nothing_but_its_own_call() {
    let root = root();
    let mut small = config(system().addr(), &root);
    small.answer_max = 2000;
    let store = connect(small);
    let held = claim("r");
    granted(&store, &held);
    for n in 0..60 {
        let once = claim(&format!("{n}-{}", "x".repeat(60)));
        granted(&store, &once);
        leaves(&store, &once);
    }
    let error = block_on(store.list(&Page::default())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("more than is taken in"), "{error}");
    let renewed = common::renew(&store, &held);
    assert!(matches!(renewed, Renewed::Granted(_)), "{renewed:?}");
}

#[test]
fn local_sessions_that_cannot_be_upgraded_are_named() {
    let ensemble = Ensemble::with(
        3,
        &Options {
            lines: ["maxSessionTimeout=60000", "localSessionsEnabled=true"]
                .map(String::from)
                .into(),
            ..Options::default()
        },
    );
    let store = connect(config(ensemble.follower().addr(), "local"));
    let error = entered(&store, &claim("r"));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("local sessions"), "{error}");
}

#[test]
fn local_sessions_that_are_upgraded_hold_locks() {
    let lines = [
        "maxSessionTimeout=60000",
        "localSessionsEnabled=true",
        "localSessionsUpgradingEnabled=true",
    ];
    let ensemble =
        Ensemble::with(3, &Options { lines: lines.map(String::from).into(), ..Options::default() });
    let store = connect(config(ensemble.follower().addr(), "local"));
    let (held, next) = (claim("r"), claim("r"));
    granted(&store, &held);
    let other = connect(config(ensemble.leader().addr(), "local"));
    waits(&other, &next);
    leaves(&store, &held);
    common::until_granted(&other, &next);
}

#[test]
fn a_member_that_only_reads_is_refused_and_what_is_held_is_so_once_it_writes_again() {
    let ensemble = Ensemble::with(
        3,
        &Options { java: vec!["-Dreadonlymode.enabled=true".into()], ..Options::default() },
    );
    let member = ensemble.follower();
    let mut long = config(member.addr(), "reads");
    long.session = Duration::from_secs(60);
    let store = connect(long.clone());
    let held = Claim { term: Duration::from_secs(60), ..claim("r") };
    let grant = granted(&store, &held);
    let others: Vec<&Zookeeper> =
        ensemble.members().iter().filter(|other| other.addr() != member.addr()).collect();
    others.iter().for_each(|other| other.server().kill9());
    wait_until("it only reads", Duration::from_secs(60), || match member.mode().as_deref() {
        Some("read-only") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    long.connect_within = Duration::from_secs(2);
    let error = refused(long);
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("no quorum"), "{error}");
    let unsure = common::renew(&store, &held);
    assert!(matches!(unsure, Renewed::Unknown(_)), "{unsure:?}");
    others.iter().for_each(|other| other.server().start_again());
    ensemble.wait(3);
    wait_until("renewed", Duration::from_secs(60), || match common::renew(&store, &held) {
        Renewed::Granted(kept) if kept.token == grant.token => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn a_timed_wait_ends_in_time_with_a_server_that_is_stopped_or_gone() {
    let server = Zookeeper::start();
    let mut long = config(server.addr(), "timed");
    long.session = Duration::from_secs(60);
    let client = common::client(long);
    common::released(block_on(client.lock("r").acquire()).unwrap());
    let within = Duration::from_secs(2);
    for stopped in [true, false] {
        if stopped {
            server.server().stop()
        } else {
            server.server().kill9()
        }
        let began = Instant::now();
        let none = block_on(client.lock("r").wait(within).acquire());
        assert!(
            matches!(none, Err(AcquireError::Failed(_) | AcquireError::TimedOut(_))),
            "{none:?}"
        );
        let took = began.elapsed();
        assert!(took >= within / 2 && took < within * 3, "{took:?}");
        if stopped {
            server.server().cont()
        } else {
            server.server().start_again()
        }
        common::released(block_on(client.lock("r").acquire()).unwrap());
    }
}

#[test]
fn a_root_of_several_nodes_is_made_and_nothing_beside_it_is_touched() {
    let root = format!("{}/of/locks", root());
    let store = connect(config(system().addr(), &root));
    granted(&store, &claim("r"));
    let listed = shell(system().addr(), &["ls", &format!("/{root}")]);
    assert!(listed.contains("[.leasehold, r]"), "{listed}");
    // What this client holds is listed and shown by it and by others.
    for store in [&store, &connect(config(system().addr(), &root))] {
        let name = ResourceName::new("r").unwrap();
        assert_eq!(block_on(store.list(&Page::default())).unwrap(), std::slice::from_ref(&name));
        let queue = block_on(store.inspect(&name)).unwrap();
        assert_eq!(queue.holders().map(|e| e.holder.label()).collect::<Vec<_>>(), ["a test"]);
    }
}

#[test]
fn a_root_of_another_layout_is_not_touched() {
    let root = root();
    drop(connect(config(system().addr(), &root)));
    shell(system().addr(), &["set", &format!("/{root}/.leasehold"), "leasehold 9"]);
    let error = refused(config(system().addr(), &root));
    assert_eq!(error.kind(), ErrorKind::Version, "{error}");
    assert!(error.to_string().contains("leasehold 9"), "{error}");
}

#[test]
fn a_store_that_was_closed_says_so() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    let held = claim("r");
    granted(&store, &held);
    block_on(store.close());
    let error = entered(&store, &claim("r"));
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let other = connect(config(system().addr(), &root));
    assert!(matches!(block_on(other.enter(&claim("r"))), Ok(Admission::Granted(_))));
}
