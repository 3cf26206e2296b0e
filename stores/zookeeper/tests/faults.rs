//! One server, and what may happen between it and a client.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{
    claim, config, connect, granted, leaves, now, renew, root, server, until_granted, waits,
};
use leasehold_core::{
    Admission, Claim, ClaimId, Cursor, Ended, Hint, Left, Mode, Place, Previous, PushedEnd,
    Renewed, Store as _,
};
use leasehold_testkit::block_on;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::wait_until;
use leasehold_testkit::server::zookeeper::{Options, Release, Zookeeper};
use leasehold_zookeeper::ZookeeperConfig;

const PATIENCE: Duration = Duration::from_secs(60);

fn system() -> &'static Zookeeper {
    server(Release::System)
}

/// A store behind a proxy of its own.
fn behind(root: &str) -> (leasehold_zookeeper::ZookeeperStore, Proxy) {
    let proxy = Proxy::start(system().addr());
    (connect(config(proxy.addr(), root)), proxy)
}

fn is_alive(renewed: &Renewed) -> bool {
    matches!(renewed, Renewed::Granted(_) | Renewed::Alive { .. })
}

#[test]
fn a_session_that_ends_behind_the_holders_back_is_believed_no_longer_and_told() {
    let root = root();
    let (holder, proxy) = behind(&root);
    let other = connect(config(system().addr(), &root));
    let term = holder.profile().term_bounds.1;
    let (held, next) = (Claim { term, ..claim("r") }, claim("r"));
    granted(&holder, &held);
    let Renewed::Granted(kept) = renew(&holder, &held) else { panic!("it is held") };
    waits(&other, &next);
    proxy.pause();
    let grant = until_granted(&other, &next);
    let at = now();
    assert!(at >= kept.until, "another was let in {:?} early", kept.until.since(at));
    assert_eq!(grant.previous, Previous::Ended(Ended::Expired));
    proxy.resume();
    block_on(holder.disturbed(Cursor::default()));
    wait_until("told", PATIENCE, || match renew(&holder, &held) {
        Renewed::Gone(Ended::Expired) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(matches!(block_on(holder.enter(&held)), Ok(Admission::Gone(Ended::Expired))));
    let again = claim("r");
    waits(&holder, &again);
    leaves(&other, &next);
    assert!(until_granted(&holder, &again).token > grant.token);
}

#[test]
fn a_create_whose_answer_was_lost_is_found_again_or_taken_back() {
    let root = root();
    let (store, proxy) = behind(&root);
    for round in 0..6 {
        // Made before, so that the answer that is lost is the contender's.
        for name in ["kept", "left"] {
            let before = claim(&format!("{name}{round}"));
            granted(&store, &before);
            leaves(&store, &before);
        }
        let kept = claim(&format!("kept{round}"));
        proxy.drop_replies(1);
        let first = block_on(store.enter(&kept));
        if let Err(error) = &first {
            assert!(error.kind().is_transient(), "{error}");
        }
        let grant = until_granted(&store, &kept);
        let queue = block_on(store.inspect(&kept.resource)).unwrap();
        let there: Vec<_> = queue.entries.iter().map(|e| e.claim).collect();
        assert_eq!(there, [kept.id], "one contender, and ours");
        assert_eq!(queue.last_token, Some(grant.token));

        let left = claim(&format!("left{round}"));
        proxy.drop_replies(1);
        let mut named = left.to_ref();
        named.enter_unanswered = block_on(store.enter(&left)).is_err();
        wait_until("left", PATIENCE, || {
            block_on(store.leave(&named)).map(drop).map_err(|e| e.to_string())
        });
        let queue = block_on(store.inspect(&left.resource)).unwrap();
        assert!(queue.entries.is_empty(), "a ghost: {queue:?}");
        assert!(matches!(block_on(store.enter(&left)), Ok(Admission::Gone(_))));
        granted(&store, &claim(&format!("left{round}")));
    }
}

#[test]
fn a_release_whose_answer_was_lost_is_made_good_in_the_background() {
    let root = root();
    let (store, proxy) = behind(&root);
    let other = connect(config(system().addr(), &root));
    for round in 0..4 {
        let name = format!("r{round}");
        let (held, next) = (claim(&name), claim(&name));
        granted(&store, &held);
        waits(&other, &next);
        proxy.drop_replies(1);
        // Whether it is told or not, nobody asks again.
        let _ = block_on(store.leave(&held.to_ref()));
        let grant = until_granted(&other, &next);
        assert_eq!(grant.previous, Previous::Ended(Ended::Released));
        wait_until("left", PATIENCE, || match block_on(store.leave(&held.to_ref())) {
            Ok(Left::Gone(Ended::Released) | Left::Released) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        assert!(is_alive(&renew(&other, &next)), "a newer grant was touched");
    }
}

#[test]
fn parents_that_the_server_removes_are_made_again_and_tokens_rise() {
    let server = Zookeeper::with(Options {
        java: vec!["-Dznode.container.checkIntervalMs=100".into()],
        ..Options::default()
    });
    let store = connect(config(server.addr(), "reaped"));
    let nodes = || {
        let answer = server.word("srvr").unwrap_or_default();
        let count = answer.lines().find_map(|line| line.strip_prefix("Node count: "));
        count.and_then(|n| n.trim().parse::<u32>().ok())
    };
    let mut last = None;
    for _ in 0..4 {
        let held = claim("r");
        let grant = granted(&store, &held);
        assert!(Some(grant.token) > last, "a token fell with the counter of its parent");
        last = Some(grant.token);
        leaves(&store, &held);
        let empty = nodes();
        wait_until("reaped", PATIENCE, || match (nodes(), empty) {
            (Some(now), Some(before)) if now < before => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
}

#[test]
fn a_server_that_is_killed_and_comes_back_has_lost_nothing_and_one_that_lost_all_says_so() {
    let server = Zookeeper::start();
    let mut long = config(server.addr(), "restart");
    long.session = Duration::from_secs(15);
    let store = connect(long);
    let (held, next) = (Claim { term: Duration::from_secs(15), ..claim("r") }, claim("r"));
    let grant = granted(&store, &held);
    waits(&store, &next);
    server.server().kill9();
    server.server().start_again();
    wait_until("renewed", PATIENCE, || match renew(&store, &held) {
        Renewed::Granted(told) if told.token == grant.token => Ok(()),
        Renewed::Unknown(error) if error.kind().is_transient() => Err(error.to_string()),
        other => panic!("{other:?}"),
    });
    waits(&store, &next);
    server.server().restart_empty();
    for claim in [&held, &next] {
        wait_until("told", PATIENCE, || match renew(&store, claim) {
            Renewed::Gone(_) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    granted(&store, &claim("r"));
}

/// With a session that would outlive the test.
fn long(mut config: ZookeeperConfig) -> ZookeeperConfig {
    config.session = Duration::from_secs(60);
    config
}

#[test]
fn what_an_operator_removes_or_breaks_is_told_at_once() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    let operator = connect(config(system().addr(), &root));
    let (removed, broken) = (claim("removed"), claim("broken"));
    granted(&store, &removed);
    granted(&store, &broken);
    block_on(operator.break_(&broken.resource, None, false)).unwrap();
    let since = block_on(store.disturbed(Cursor::default()));
    assert!(matches!(renew(&store, &broken), Renewed::Gone(Ended::Broken)));
    common::evict(system().addr(), &root, "removed");
    block_on(store.disturbed(since));
    assert!(matches!(renew(&store, &removed), Renewed::Gone(Ended::Unknown)));
    assert!(!block_on(store.check(&removed.to_ref())).unwrap());
}

#[test]
fn a_check_is_asked_of_the_server() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    let operator = connect(config(system().addr(), &root));
    let held = claim("r");
    granted(&store, &held);
    assert!(block_on(store.check(&held.to_ref())).unwrap());
    block_on(operator.break_(&held.resource, None, false)).unwrap();
    assert!(!block_on(store.check(&held.to_ref())).unwrap(), "it was broken");
    assert!(!block_on(store.check(&claim("r").to_ref())).unwrap(), "it never entered");
}

#[test]
fn a_client_that_closes_frees_what_it_holds_long_before_its_session_would_end() {
    let root = root();
    let other = connect(config(system().addr(), &root));
    for drop_it in [false, true] {
        let store = connect(long(config(system().addr(), &root)));
        let session = store.profile().term_bounds.1;
        let (held, next) = (claim("r"), claim("r"));
        granted(&store, &held);
        waits(&other, &next);
        let since = now();
        if drop_it {
            drop(store);
        } else {
            block_on(store.close());
        }
        until_granted(&other, &next);
        assert!(now().since(since) < session / 2, "it took a session");
        leaves(&other, &next);
    }
}

#[test]
fn a_waiter_whose_call_is_dropped_is_served_for_its_term_and_no_longer() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    let (held, dropped, next) =
        (claim("r"), Claim { term: Duration::from_millis(500), ..claim("r") }, claim("r"));
    granted(&store, &held);
    {
        // Polled once and dropped: the enter goes on.
        let mut entering = Box::pin(store.enter(&dropped));
        let polled = block_on(futures_lite::future::poll_once(&mut entering));
        assert!(polled.is_none());
    }
    wait_until("queued", PATIENCE, || {
        let queue = block_on(store.inspect(&held.resource)).unwrap();
        if queue.waiters().count() == 1 { Ok(()) } else { Err(format!("{queue:?}")) }
    });
    waits(&store, &next);
    leaves(&store, &held);
    until_granted(&store, &next);
}

#[test]
fn a_full_counter_orders_by_transactions() {
    let root = root();
    let store = connect(config(system().addr(), &root));
    let first = claim("r");
    granted(&store, &first);
    // What a counter that has overflowed gives to everybody.
    let odd = "_c_11111111-2222-3333-4444-555555555555-lock-2147483647";
    common::shell(system().addr(), &["create", &format!("/{root}/r/{odd}"), "odd"]);
    let last = claim("r");
    let waiting = waits(&store, &last);
    assert_eq!(waiting.ahead, Some(2), "its number is lower, and it came later");
    leaves(&store, &first);
    let queue = block_on(store.inspect(&last.resource)).unwrap();
    assert_eq!(queue.holders().map(|e| e.holder.label()).collect::<Vec<_>>(), ["odd"]);
    let broken = block_on(store.break_(&last.resource, None, true)).unwrap();
    assert!(matches!(broken, leasehold_core::Broken::Marked(tokens) if tokens.len() == 1));
    until_granted(&store, &last);
}

#[test]
fn a_try_leaves_the_queue_alone_and_permits_wake_one_after_the_other() {
    let root = root();
    let stores = [(); 2].map(|()| connect(config(system().addr(), &root)));
    let permit = || Claim { mode: Mode::Permits { count: 1, limit: 2 }, ..claim("p") };
    let holders = [permit(), permit()];
    let waiters = [permit(), permit(), permit()];
    for holder in &holders {
        granted(&stores[0], holder);
    }
    for waiter in &waiters {
        waits(&stores[1], waiter);
    }
    let attempt = Claim { place: Place::No, ..permit() };
    assert!(matches!(block_on(stores[0].enter(&attempt)), Ok(Admission::Busy(_))));
    for (holder, waiter) in holders.iter().zip(&waiters) {
        leaves(&stores[0], holder);
        until_granted(&stores[1], waiter);
    }
    leaves(&stores[1], &waiters[0]);
    until_granted(&stores[1], &waiters[2]);
}

/// The node that Curator's protection and ours would take for the claim's.
fn contender(root: &str, id: ClaimId, number: u32) -> String {
    let id = id.to_string();
    let part = |from: usize, to: usize| &id[from..to];
    let uuid = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-");
    format!("/{root}/r/_c_{uuid}-lock-{number:010}")
}

/// As a session of before that the servers still list, or an operator who restores a node.
#[test]
fn a_node_of_another_session_is_never_taken_for_ours() {
    use zookeeper_client::{Acls, Client, CreateMode};
    let root = root();
    let store = connect(config(system().addr(), &root));
    let (held, waiter, adopted) = (claim("r"), claim("r"), claim("r"));
    granted(&store, &held);
    waits(&store, &waiter);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // Its session lasts as long as this value.
    let _other = runtime.block_on(async {
        let other = Client::connect(&system().addr().to_string()).await.unwrap();
        let acls = Acls::anyone_all();
        let ephemeral = CreateMode::Ephemeral.with_acls(acls);
        for (number, claim) in [&held, &waiter].into_iter().enumerate() {
            let path = contender(&root, claim.id, u32::try_from(number).unwrap());
            let data = other.get_data(&path).await.unwrap().0;
            other.delete(&path, None).await.unwrap();
            other.create(&path, &data, &ephemeral).await.unwrap();
        }
        let mark = format!("/{root}/.leasehold/r/{}", adopted.id);
        other.create(&mark, b"stands", &CreateMode::Persistent.with_acls(acls)).await.unwrap();
        other.create(&contender(&root, adopted.id, 2), b"", &ephemeral).await.unwrap();
        other
    });
    wait_until("told", PATIENCE, || match renew(&store, &held) {
        Renewed::Gone(_) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for claim in [&waiter, &adopted] {
        wait_until("told", PATIENCE, || match block_on(store.enter(claim)) {
            Ok(Admission::Gone(_)) => Ok(()),
            Ok(Admission::Granted(grant)) => panic!("it was taken for ours: {grant:?}"),
            other => Err(format!("{other:?}")),
        });
    }
}

#[test]
fn who_is_next_is_told_with_the_grant_itself() {
    let root = root();
    let (store, other) =
        (connect(config(system().addr(), &root)), connect(config(system().addr(), &root)));
    let (held, next) = (claim("r"), claim("r"));
    granted(&store, &held);
    let waiting = waits(&other, &next);
    let begun = now();
    leaves(&store, &held);
    let mut since = Cursor::default();
    let pushed = (0..10).find_map(|_| {
        let at_most = Duration::from_secs(5);
        match block_on(other.changed(&next.resource, Some(next.id), since, at_most)).unwrap() {
            Hint::Moved(cursor) => {
                since = cursor;
                None
            }
            Hint::Granted(pushed) => Some(pushed),
        }
    });
    let pushed = pushed.unwrap();
    let PushedEnd::At(until) = pushed.grant.until else { panic!("{pushed:?}") };
    assert_eq!((pushed.grant.claim, pushed.ticket), (next.id, waiting.ticket));
    assert!(until > begun && until <= now() + next.term);
    assert_eq!(pushed.grant.previous, Previous::Ended(Ended::Released));
    // Told once: who does not take it must not hear of it for ever.
    let again = block_on(other.changed(&next.resource, Some(next.id), since, Duration::ZERO));
    assert!(matches!(again, Ok(Hint::Moved(_))), "{again:?}");
    let Renewed::Granted(kept) = renew(&other, &next) else { panic!("it is held") };
    assert_eq!(kept.token, pushed.grant.token);
}

#[test]
fn who_waits_hears_at_once_that_the_server_is_gone_and_when_it_is_back() {
    let server = Zookeeper::start();
    let store = connect(long(config(server.addr(), "gone")));
    let (held, next) = (claim("r"), claim("r"));
    granted(&store, &held);
    waits(&store, &next);
    let since = loop {
        let heard = block_on(store.changed(
            &next.resource,
            Some(next.id),
            Cursor::default(),
            Duration::from_millis(100),
        ));
        if let Hint::Moved(cursor) = heard.unwrap() {
            break cursor;
        }
    };
    let hear = |since| {
        let begun = now();
        let heard = block_on(store.changed(&next.resource, Some(next.id), since, PATIENCE));
        assert!(now() < begun + PATIENCE / 4, "it was not told");
        let Hint::Moved(cursor) = heard.unwrap() else { panic!("nobody has left") };
        cursor
    };
    server.server().kill9();
    let since = hear(since);
    assert!(matches!(renew(&store, &next), Renewed::Unknown(_)));
    server.server().start_again();
    hear(since);
    wait_until("heard", PATIENCE, || match renew(&store, &next) {
        Renewed::Waiting(_) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    wait_until("left", PATIENCE, || {
        block_on(store.leave(&held.to_ref())).map(drop).map_err(|e| e.to_string())
    });
    until_granted(&store, &next);
}
