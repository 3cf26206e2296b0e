//! What a server, or what stands in its place, may refuse.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use leasehold_core::{Applied, ErrorKind};
use leasehold_net::{Secret, Tls};
use leasehold_testkit::server::redis::{Options, Redis};
use leasehold_testkit::server::{Certificates, Port};

use super::super::{Cause, Lane, LinkConfig, Shape};
use super::{GET, INCREMENT, connect, host, run, single};

fn as_user(mut config: LinkConfig, user: Option<&str>, password: &str) -> LinkConfig {
    config.user = user.map(str::to_owned);
    config.password = Some(Secret::new(password));
    config
}

#[test]
fn passwords_and_users_are_checked() {
    let options = Options {
        password: Some("s3cret".into()),
        acl: vec![
            "user ann on >hers ~* &* +@all".into(),
            "user mute on >hers ~* &* +@all -evalsha".into(),
            "user deaf on >hers ~* resetchannels +@all".into(),
            "user blind on >hers ~* &* +@all -info -role".into(),
        ],
        ..Options::default()
    };
    let server = Redis::with(options);
    run(async {
        let refused = async |config| connect(config).await.unwrap_err();
        let error = refused(single(server.addr())).await;
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.advice().is_some(), "{error}");
        let error = refused(as_user(single(server.addr()), None, "wrong")).await;
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(!format!("{error} {error:?}").contains("wrong\""), "{error:?}");
        connect(as_user(single(server.addr()), None, "s3cret")).await.unwrap();
        let ann = connect(as_user(single(server.addr()), Some("ann"), "hers")).await.unwrap();
        ann.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();

        let error = refused(as_user(single(server.addr()), Some("mute"), "hers")).await;
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.to_string().contains("evalsha"), "{error}");

        let deaf = connect(as_user(single(server.addr()), Some("deaf"), "hers")).await.unwrap();
        let error = deaf.listen(b"c").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.advice().is_some_and(|advice| advice.contains("&*")), "{error}");
        assert_eq!(deaf.subscriptions(), 0);
    });
}

#[test]
fn a_server_without_hello_is_spoken_to_in_the_old_protocol() {
    let args = ["--rename-command", "HELLO", ""].map(str::to_owned).to_vec();
    for password in [None, Some("s3cret")] {
        let password = password.map(str::to_owned);
        let options = Options { args: args.clone(), password, ..Options::default() };
        let server = Redis::with(options.clone());
        run(async {
            let mut config = single(server.addr());
            config.password = options.password.as_deref().map(Secret::new);
            let link = connect(config).await.unwrap();
            assert!(!link.facts().resp3 && link.facts().version >= (6, 2, 0));
            link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
            let heard = link.listen(b"c").await.unwrap();
            // Longer than it takes to ask a silent server whether it is there.
            let since = std::time::Instant::now();
            super::until("some time to pass", || since.elapsed().as_secs() >= 4).await;
            assert_eq!(server.cli(&["PUBLISH", "c", "x"]), "1");
            assert_eq!(heard.next().await, super::Heard::Message(b"x".to_vec()));
            drop(heard);
            super::until("no channel", || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await;
        });
    }
}

#[test]
fn a_proxy_without_scripts_is_told() {
    let args = ["--rename-command", "EVALSHA", ""].map(str::to_owned).to_vec();
    let server = Redis::with(Options { args, ..Options::default() });
    run(async {
        let error = connect(single(server.addr())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("EVALSHA")), "{error}");
    });
}

#[test]
fn a_restart_is_noticed_without_info() {
    let acl = vec!["user blind on >hers ~* &* +@all -info -role".into()];
    let options = Options { acl, password: Some("s".into()), ..Options::default() };
    let server = Redis::with(options);
    run(async {
        let config = as_user(single(server.addr()), Some("blind"), "hers");
        let link = connect(config).await.unwrap();
        for _ in 0..20 {
            server.cli(&["PING"]);
        }
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let call = async || link.call(Lane::Front, &GET, &[b"n"], &[]).await;
        super::until_it_works("to call after the cut", call).await;
        let start = link.epoch();
        server.server().kill9();
        server.server().start_again();
        super::until("the restart to be told", || {
            link.cause_since(b"n", start) == Some(Cause::Restarted)
        })
        .await;
    });
}

#[test]
fn databases_are_kept_apart_and_must_exist() {
    let server = Redis::start();
    run(async {
        let mut config = single(server.addr());
        config.db = 3;
        let link = connect(config.clone()).await.unwrap();
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
        assert_eq!(server.cli(&["-n", "3", "GET", "n"]), "1");
        config.db = 99;
        assert_eq!(connect(config).await.unwrap_err().kind(), ErrorKind::Config);
    });
}

#[test]
fn a_replica_is_never_taken_for_its_master() {
    let master = Redis::start();
    let replica_of = Some(master.port());
    let replica = Redis::with(Options { replica_of, ..Options::default() });
    run(async {
        let mut config = single(replica.addr());
        config.connect_within = Duration::from_millis(300);
        let error = connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("replica") && error.advice().is_some(), "{error}");

        // One that is demoted under our hands refuses, and is not written to again.
        let link = connect(single(master.addr())).await.unwrap();
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
        let start = link.epoch();
        replica.cli(&["REPLICAOF", "NO", "ONE"]);
        master.cli(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
        let refused = link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap_err();
        assert!(refused.kind().is_transient(), "{refused}");
        assert_eq!(link.cause_since(b"n", start), Some(Cause::Failover));
    });
}

#[test]
fn refusals_inside_scripts_are_told() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        server.cli(&["RPUSH", "list", "a"]);
        let wrong = link.call(Lane::Front, &INCREMENT, &[b"list"], &[]).await.unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Usage, "{wrong}");
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let full = link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap_err();
        assert_eq!((full.kind(), full.applied()), (ErrorKind::Unavailable, Applied::Maybe));
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
    });
}

#[test]
fn who_is_not_there_is_unreachable_in_time() {
    let port = Port::reserve();
    run(async {
        let mut config = single(([127, 0, 0, 1], port.number()).into());
        config.connect_within = Duration::from_millis(200);
        let error = connect(config).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::No));
    });
}

#[test]
fn what_is_no_redis_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let web = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    run(async {
        let error = connect(single(addr)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("HTTP") && error.advice().is_some());
    });
    web.join().unwrap();
}

#[test]
fn a_single_server_is_not_a_cluster() {
    let server = Redis::start();
    run(async {
        let error = connect(super::config(Shape::Cluster(vec![host(server.addr())]))).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.advice().is_some());
    });
}

#[test]
fn tls_is_spoken_and_strangers_are_refused() {
    let server = Redis::with(Options { tls: true, ..Options::default() });
    let made = server.certificates();
    run(async {
        let mut tls = Tls::new();
        tls.ca = Some(made.ca());
        let mut config = single(server.addr());
        config.tls = Some(tls.clone());
        let link = connect(config.clone()).await.unwrap();
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
        let long = vec![b'x'; 300_000];
        let echo = link.command(&[b"ECHO", &long]).await.unwrap();
        assert_eq!(echo.reply.bytes().unwrap(), long);
        let heard = link.listen(b"c").await.unwrap();
        link.command(&[b"PUBLISH", b"c", b"x"]).await.unwrap();
        assert_eq!(heard.next().await, super::Heard::Message(b"x".to_vec()));

        // Another authority, none at all, and a name that the certificate does not bear.
        for change in 0..3 {
            let mut tls = tls.clone();
            match change {
                0 => tls.ca = Some(made.stranger()),
                1 => tls.ca = None,
                _ => tls.server_name = Some("elsewhere.example".into()),
            }
            config.tls = Some(tls);
            let error = connect(config.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{change}: {error}");
        }
        // In the clear.
        config.tls = None;
        config.connect_within = Duration::from_millis(300);
        assert!(connect(config).await.is_err());
    });
}

#[test]
fn a_server_without_tls_is_told() {
    let server = Redis::start();
    let made = Redis::with(Options { tls: true, ..Options::default() });
    run(async {
        let mut tls = Tls::new();
        tls.ca = Some(made.certificates().ca());
        let mut config = single(server.addr());
        config.tls = Some(tls);
        config.connect_within = Duration::from_millis(300);
        let error = connect(config).await.unwrap_err();
        assert!(!error.to_string().is_empty());
    });
}

#[test]
fn a_client_certificate_is_shown() {
    // From here on `redis-cli` is refused as well.
    let server = Redis::with(Options { tls: true, ..Options::default() });
    server.cli(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    let made = server.certificates();
    run(async {
        let mut tls = Tls::new();
        tls.ca = Some(made.ca());
        let mut config = single(server.addr());
        config.connect_within = Duration::from_millis(300);
        config.tls = Some(tls.clone());
        assert!(connect(config.clone()).await.is_err());
        tls.cert = Some(made.client());
        tls.key = Some(Certificates::key(&made.client()));
        config.tls = Some(tls);
        let link = connect(config).await.unwrap();
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
    });
}
