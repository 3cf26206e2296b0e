//! What is wrong is said, with what to do.
#![allow(clippy::unwrap_used)]

mod common;

use std::net::TcpListener;
use std::time::Duration;

use leasehold_core::{Admission, Applied, Claim, Error, ErrorKind, Mode, Place, Store};
use leasehold_net::Secret;
use leasehold_redis::{Layout, RedisConfig, RedisStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::redis::{Options, Redis};

fn refused(config: RedisConfig) -> Error {
    let error = block_on(RedisStore::connect(config)).unwrap_err();
    assert!(error.to_string().starts_with("connect at redis://"), "{error}");
    error
}

/// Each key of a foreign kind under the name of a lock is refused by its kind, and left alone.
#[test]
fn foreign_values_are_refused_by_name() {
    let server = common::shared();
    for (layout, command, kind, advice) in [
        (Layout::Redisson, &["SET", "v"][..], "string", "layout=plain"),
        (Layout::Redisson, &["LPUSH", "v"], "list", "another name"),
        (Layout::Redisson, &["SADD", "v"], "set", "another name"),
        (Layout::Plain, &["HSET", "f", "v"], "hash", "layout=redisson"),
        (Layout::Plain, &["ZADD", "1", "v"], "zset", "another name"),
    ] {
        let store = common::open(server, layout);
        let name = common::fresh("foreign");
        let mut words = vec![command[0], name.as_str()];
        words.extend(&command[1..]);
        server.cli(&words);
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, limit: 2 }] {
            let claim = Claim { mode, ..common::claim(&name) };
            let error = block_on(store.enter(&claim)).unwrap_err();
            assert_eq!((error.kind(), error.applied()), (ErrorKind::Usage, Applied::No), "{error}");
            assert!(error.to_string().contains(kind), "{error}");
            assert!(error.advice().unwrap().contains(advice), "{error}");
        }
        assert_eq!(server.cli(&["TYPE", name.as_str()]), kind);
        assert_eq!(server.cli(&["EXISTS", &format!("leasehold:s:{{{name}}}")]), "0");
    }
}

#[test]
fn one_name_has_one_layout() {
    let server = common::shared();
    let (redisson, plain) =
        (common::open(server, Layout::Redisson), common::open(server, Layout::Plain));
    let name = common::fresh("layouts");
    let held = common::claim(&name);
    let grant = common::granted(&redisson, &held);
    let error = block_on(plain.enter(&common::claim(&name))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("`redisson`"), "{error}");
    common::leave(&redisson, &held);
    let next = common::claim(&name);
    assert!(common::granted(&plain, &next).token > grant.token, "over a change of layout too");
    let error = block_on(redisson.enter(&common::claim(&name))).unwrap_err();
    assert!(error.to_string().contains("plain"), "{error}");
}

#[test]
fn credentials_are_asked_for_and_never_shown() {
    let options = Options { password: Some("s3cret".into()), ..Options::default() };
    let server = Redis::with(options);
    let mut config = common::config(server.port(), Layout::Redisson);
    let error = refused(config.clone());
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    assert!(error.advice().is_some(), "{error}");
    config.password = Some(Secret::new("wr0ng"));
    let error = refused(config.clone());
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    assert!(!format!("{error} {error:?} {config:?}").contains("wr0ng"), "{error:?}");
    config.password = Some(Secret::new("s3cret"));
    let store = block_on(RedisStore::connect(config)).unwrap();
    assert!(!format!("{store:?} {:?}", store.profile()).contains("s3cret"));
}

#[test]
fn users_are_told_which_rights_they_lack() {
    let all = "+@all";
    let options = Options {
        acl: vec![
            format!("user mute on >pw ~* resetchannels {all}"),
            format!("user ours on >pw ~* resetchannels &leasehold:* {all}"),
            format!(
                "user both on >pw ~* resetchannels &leasehold:* &redisson_lock__channel:* {all}"
            ),
            format!("user some on >pw ~leasehold:* ~redisson_lock_token:* ~jobs/* &* {all}"),
            "user least on >pw ~* &* -@all +hello +auth +ping +info +role +select \
             +client|setname +client|id +evalsha +eval +script|load +script|exists +time +get +set \
             +del +type +pttl +ttl +hget +hmget +hset +hdel +hlen +hkeys +hgetall +hexists +zadd \
             +zrem +zrange +zrangebyscore +zrevrange +zrank +zscore +zcount +persist +pexpireat \
             +mget +mset +exists +pexpire +publish +pubsub|numsub +subscribe +unsubscribe +scan"
                .into(),
        ],
        ..Options::default()
    };
    let server = Redis::with(options);
    let user = |name: &str, layout| {
        let mut config = common::config(server.port(), layout);
        config.user = Some(name.into());
        config.password = Some(Secret::new("pw"));
        config
    };
    for (name, layout, advice) in [
        ("mute", Layout::Redisson, Some("&leasehold:*")),
        ("ours", Layout::Redisson, Some("&redisson_lock__channel:*")),
        ("ours", Layout::Plain, None),
        ("both", Layout::Redisson, None),
        ("some", Layout::Redisson, None),
        ("least", Layout::Redisson, None),
        ("least", Layout::Plain, None),
    ] {
        match (block_on(RedisStore::connect(user(name, layout))), advice) {
            (Err(error), Some(advice)) => {
                assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
                assert!(error.advice().unwrap().contains(advice), "{error}");
            }
            (Ok(_), None) => {}
            (answer, _) => panic!("{name} {layout:?}: {answer:?}"),
        }
    }
    let some = block_on(RedisStore::connect(user("some", Layout::Redisson))).unwrap();
    common::granted(&some, &common::claim(&common::name("jobs/1")));
    let error = block_on(some.enter(&common::claim(&common::name("other")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    // With no more than the README lists all verbs work.
    let least = block_on(RedisStore::connect(user("least", Layout::Redisson))).unwrap();
    all_verbs(&least);
    let least = block_on(RedisStore::connect(user("least", Layout::Plain))).unwrap();
    all_verbs(&least);
}

fn all_verbs(store: &RedisStore) {
    let name = common::fresh("verbs");
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, limit: 2 }] {
        let of = || Claim { mode, ..common::claim(&name) };
        let (held, waiter) = (of(), Claim { mode, ..of() });
        common::granted(store, &held);
        let inner = Claim { holder: held.holder.clone(), ..of() };
        common::granted(store, &inner);
        common::leave(store, &inner);
        let answer = block_on(store.enter(&waiter)).unwrap();
        if let Admission::Waiting(_) = answer {
            common::renew(store, &waiter.to_ref());
        }
        let keep = Duration::from_secs(9);
        block_on(store.write(&held.to_ref(), b"x", keep)).unwrap();
        block_on(store.read(&name)).unwrap();
        block_on(store.inspect(&name)).unwrap();
        common::renew(store, &held.to_ref());
        common::leave(store, &held);
        block_on(store.break_(&name, None, true)).unwrap();
    }
    let page = leasehold_core::Page { prefix: name.as_str().into(), ..Default::default() };
    block_on(store.list(&page)).unwrap();
    block_on(store.clean(Duration::ZERO, &page, false)).unwrap();
}

#[test]
fn a_replica_is_refused_and_the_master_named() {
    let master = Redis::start();
    let replica = Redis::with(Options { replica_of: Some(master.port()), ..Options::default() });
    let mut config = common::config(replica.port(), Layout::Redisson);
    config.connect_within = Duration::from_millis(500);
    let error = refused(config);
    assert!(error.kind().is_transient(), "{error}");
    assert!(error.advice().unwrap().contains("master"), "{error}");
}

#[test]
fn a_server_without_scripts_is_told() {
    let args = ["--rename-command", "EVALSHA", ""].map(str::to_owned).to_vec();
    let server = Redis::with(Options { args, ..Options::default() });
    let error = refused(common::config(server.port(), Layout::Redisson));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.advice().unwrap().contains("script"), "{error}");
}

#[test]
fn who_does_not_answer_is_unreachable_in_time() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [nobody.port(), silent.local_addr().unwrap().port()] {
        let mut config = common::config(port, Layout::Redisson);
        config.connect_within = Duration::from_millis(500);
        let error = refused(config);
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
}

#[test]
fn a_state_of_another_version_is_refused_and_left_alone() {
    let server = common::shared();
    let store = common::open(server, Layout::Redisson);
    let name = common::fresh("version");
    let state = format!("leasehold:s:{{{name}}}");
    server.cli(&["HSET", &state, "m", "z 9 9 9"]);
    let attempt = Claim { place: Place::No, ..common::claim(&name) };
    let error = block_on(store.enter(&attempt)).unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Version, Applied::No), "{error}");
    assert_eq!(server.cli(&["HGET", &state, "m"]), "z 9 9 9");
}
