//! Who counts as a member: restarted with its data, away and back, without a right to say what it
//! is, of another layout, behind TLS.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{
    Behind, claim, config, durable, fresh, granted, is_busy, leave, named, open, ports, renew,
    start, start_with, until_granted,
};
use leasehold_core::{Admission, ErrorKind, Left, Renewed, Store};
use leasehold_net::{Secret, Tls};
use leasehold_redlock::{Layout, RedlockStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::redis::{Options, Redis};

const TERM: Duration = Duration::from_secs(30);

/// Waits for what the members come to by themselves.
fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + TERM;
    while !is() {
        assert!(Instant::now() < end, "{what}: waited {TERM:?} in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn members_restarted_with_their_data_hold_what_they_held() {
    let servers = start();
    let (a, b) = (open(&servers), open(&servers));
    let name = fresh("kept");
    let first = claim(&name, TERM);
    let grant = granted(&a, &first);
    for server in &servers {
        server.server().kill9();
        server.server().restart();
    }
    until("the holder reaches them again", || {
        matches!(renew(&a, &named(&first, &grant)), Renewed::Alive { .. })
    });
    // The other may find them gone for a moment; it is never let in.
    until("the other reaches them again", || match block_on(b.enter(&claim(&name, TERM))) {
        Ok(Admission::Busy(_)) => true,
        Ok(other) => panic!("beside the holder: {other:?}"),
        Err(error) => {
            assert!(error.kind().is_transient(), "{error}");
            false
        }
    });
    assert_eq!(leave(&a, &first), Left::Released);
    assert!(until_granted(&b, &claim(&name, TERM), TERM).token > grant.token);
}

#[test]
fn a_member_that_was_away_joins_a_grant_and_then_bears_it() {
    let servers = start();
    let (a, b) = (open(&servers), open(&servers));
    let name = fresh("joins");
    servers[3..].iter().for_each(|s| s.server().kill9());
    let first = claim(&name, TERM);
    let grant = granted(&a, &first);
    // What was asked of them for the grant is given up meanwhile.
    std::thread::sleep(Duration::from_millis(1500));
    servers[3..].iter().for_each(|s| s.server().restart());
    let has_it = |server: &Redis| server.cli(&["EXISTS", name.as_str()]) == "1";
    until("those that were away join", || {
        let renewed = renew(&a, &named(&first, &grant));
        assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
        servers[3..].iter().all(has_it)
    });
    // Now they bear it, without two of those that granted it.
    servers[..2].iter().for_each(|s| s.server().kill9());
    until("the others extend it", || match renew(&a, &named(&first, &grant)) {
        Renewed::Alive { .. } => true,
        Renewed::Unknown(_) => false,
        other => panic!("{other:?}"),
    });
    assert!(is_busy(&b, &claim(&name, TERM)), "two hold");
    assert_eq!(leave(&a, &first), Left::Released);
    assert!(until_granted(&b, &claim(&name, TERM), TERM).token > grant.token);
}

#[test]
fn a_member_that_was_slow_bears_the_grant_later() {
    let servers = start();
    let (a, b) = (Behind::of(&servers), open(&servers));
    let name = fresh("slow");
    // They take the claim when the others have agreed on a token, and propose a higher one.
    a.proxies[3..].iter().for_each(|proxy| proxy.pause_to_server(true));
    let first = claim(&name, TERM);
    let grant = granted(&a.store, &first);
    a.proxies[3..].iter().for_each(|proxy| proxy.pause_to_server(false));
    let has_it = |server: &Redis| server.cli(&["EXISTS", name.as_str()]) == "1";
    until("the slow ones take it", || servers[3..].iter().all(has_it));
    until("the slow ones extend it", || {
        let renewed = renew(&a.store, &named(&first, &grant));
        assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
        let token = grant.token.to_string();
        let counter = format!("leasehold:t:{{{name}}}");
        servers[3..].iter().all(|server| server.cli(&["GET", &counter]) == token)
    });
    servers[..2].iter().for_each(|s| s.server().kill9());
    until("the others extend it", || match renew(&a.store, &named(&first, &grant)) {
        Renewed::Alive { .. } => true,
        Renewed::Unknown(_) => false,
        other => panic!("{other:?}"),
    });
    assert_eq!(leave(&a.store, &first), Left::Released);
    assert!(until_granted(&b, &claim(&name, TERM), TERM).token > grant.token);
}

#[test]
fn a_member_that_may_not_say_what_it_is_counts_as_started_anew() {
    let servers = start_with(|| Options {
        password: Some("admin".into()),
        acl: vec!["user app on >s3cret ~* &* +@all -info".into()],
        ..durable()
    });
    let mut config = config(ports(&servers));
    (config.user, config.password) = (Some("app".into()), Some(Secret::new("s3cret")));
    config.max_term = Duration::from_secs(2);
    let began = Instant::now();
    let store = block_on(RedlockStore::connect(config.clone())).unwrap();
    let name = fresh("unnamed");
    let error = block_on(store.enter(&claim(&name, Duration::from_secs(1)))).unwrap_err();
    assert!(error.kind().is_transient(), "{error}");
    assert!(error.to_string().contains("has started anew, or may have"), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    let limits = store.profile().limits.concat();
    assert!(limits.contains("INFO"), "the profile says it: {limits}");
    until_granted(&store, &claim(&name, Duration::from_secs(1)), TERM);
    assert!(began.elapsed() >= config.max_term, "it counted before its time");
}

#[test]
fn members_of_mixed_layouts_are_refused() {
    let servers = start();
    drop(open(&servers));
    let mut other = config(ports(&servers));
    other.layout = Layout::Redisson;
    let error = block_on(RedlockStore::connect(other)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("layout"), "{error}");
}

#[test]
fn who_is_missing_at_the_start_is_named_and_a_majority_goes_on() {
    let servers = start();
    servers[3..].iter().for_each(|s| s.server().kill9());
    let store = open(&servers);
    let name = fresh("few");
    let mine = claim(&name, TERM);
    granted(&store, &mine);
    assert_eq!(leave(&store, &mine), Left::Released);
    servers[2].server().kill9();
    let mut without = config(ports(&servers));
    without.connect_within = Duration::from_millis(500);
    let error = block_on(RedlockStore::connect(without)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    for server in &servers[2..] {
        assert!(error.to_string().contains(&server.port().to_string()), "{error}");
    }
}

fn trusting(ca: PathBuf) -> Tls {
    let mut tls = Tls::default();
    tls.ca = Some(ca);
    tls
}

#[test]
fn members_are_reached_by_tls_with_the_right_certificate_only() {
    let servers = start_with(|| Options { tls: true, ..durable() });
    let mut config = config(ports(&servers));
    // Each has an authority of its own; one file names them all.
    let folder = tempfile::tempdir().unwrap();
    let all: String =
        servers.iter().map(|s| std::fs::read_to_string(s.certificates().ca()).unwrap()).collect();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, all).unwrap();
    config.tls = Some(trusting(ca));
    let store = block_on(RedlockStore::connect(config.clone())).unwrap();
    let name = fresh("tls");
    let mine = claim(&name, TERM);
    granted(&store, &mine);
    assert_eq!(leave(&store, &mine), Left::Released);

    let stranger = servers[0].certificates().ca();
    config.tls = Some(trusting(stranger));
    config.connect_within = Duration::from_millis(500);
    let error = block_on(RedlockStore::connect(config)).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
