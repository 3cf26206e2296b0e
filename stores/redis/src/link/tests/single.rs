//! Calls to one server.

use futures_util::future::join_all;
use leasehold_core::{Applied, ErrorKind};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::redis::Redis;

use super::super::{Call, Cause, Lane};
use super::{GET, INCREMENT, connect, run, single, until, until_it_works};

#[test]
fn scripts_are_loaded_when_the_server_does_not_know_them() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        for turn in 1..=3 {
            let answer = link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
            assert_eq!(answer.reply.int().unwrap(), turn);
            assert!(answer.sent_at < answer.received_at);
            server.cli(&["SCRIPT", "FLUSH"]);
        }
        assert_eq!(server.cli(&["GET", "n"]), "3");
        assert!(link.facts().resp3 && link.facts().version >= (6, 2, 0));
        assert_eq!(link.masters().len(), 1);
        let pong = link.command_at(link.masters()[0], &[b"PING"]).await.unwrap();
        assert_eq!(pong.reply.str().unwrap(), "PONG");
    });
}

#[test]
fn calls_may_come_from_outside_of_the_runtime_that_connected_and_stands_still() {
    let server = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let link = runtime.block_on(connect(single(server.addr()))).unwrap();
    // The runtime is not polled any more.
    let outside = futures_lite::future::block_on(link.call(Lane::Front, &INCREMENT, &[b"n"], &[]));
    assert_eq!(outside.unwrap().reply.int().unwrap(), 1);
    drop(runtime);
    let outside = futures_lite::future::block_on(link.call(Lane::Front, &INCREMENT, &[b"n"], &[]));
    assert_eq!(outside.unwrap().reply.int().unwrap(), 2);
    let heard = futures_lite::future::block_on(link.listen(b"c")).unwrap();
    server.cli(&["PUBLISH", "c", "x"]);
    let event = futures_lite::future::block_on(heard.next());
    assert_eq!(event, super::Heard::Message(b"x".to_vec()));
}

#[test]
fn many_callers_share_a_connection_and_each_gets_its_own_answer() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let calls = (0..200_u32).map(async |n| {
            let (key, value) = (format!("k{n}"), n.to_string());
            link.command(&[b"SET", key.as_bytes(), value.as_bytes()]).await.unwrap();
            let got = link.call(Lane::Front, &GET, &[key.as_bytes()], &[]).await.unwrap();
            assert_eq!(got.reply.str().unwrap(), value);
        });
        join_all(calls).await;
        let calls = (0..300).map(|n| Call {
            script: if n % 3 == 0 { &INCREMENT } else { &GET },
            keys: vec![if n % 2 == 0 { b"even".to_vec() } else { b"odd".to_vec() }],
            args: vec![],
        });
        server.cli(&["SCRIPT", "FLUSH"]);
        let answers = link.call_each(Lane::Renewals, calls.collect()).await;
        assert_eq!(answers.len(), 300);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(server.cli(&["GET", "even"]), "50");
    });
}

#[test]
fn a_call_whose_answer_was_lost_is_not_sent_again() {
    let server = Redis::start();
    let proxy = Proxy::start(server.addr());
    run(async {
        let link = connect(single(proxy.addr())).await.unwrap();
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
        let before = link.epoch();
        proxy.drop_replies(1);
        let lost = link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap_err();
        assert_eq!((lost.kind(), lost.applied()), (ErrorKind::Unreachable, Applied::Maybe));
        link.disturbed(before).await;
        let call = async || link.call(Lane::Front, &GET, &[b"n"], &[]).await;
        let now = until_it_works("to call again", call).await;
        assert_eq!(now.reply.str().unwrap(), "2");
        assert_eq!(link.cause_since(b"n", before), Some(Cause::Reconnected));
        assert_eq!(link.cause_since(b"n", link.epoch()), None);
    });
}

#[test]
fn a_dropped_call_leaves_the_connection_in_order() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        for n in 0..50 {
            let mut call = Box::pin(link.call(Lane::Front, &INCREMENT, &[b"n"], &[]));
            assert!(futures_lite::future::poll_once(&mut call).await.is_none());
            drop(call);
            let value = format!("v{n}");
            let echo = link.command(&[b"ECHO", value.as_bytes()]).await;
            assert_eq!(echo.unwrap().reply.str().unwrap(), value);
        }
    });
}

#[test]
fn a_restart_is_told_from_a_cut() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let start = link.epoch();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let call = async || link.call(Lane::Front, &GET, &[b"n"], &[]).await;
        until_it_works("to call after CLIENT KILL", call).await;
        assert!(link.cause_since(b"n", start) <= Some(Cause::Reconnected));
        let start = link.epoch();
        server.server().kill9();
        link.disturbed(start).await;
        server.server().start_again();
        until("the restart to be told", || link.cause_since(b"n", start) == Some(Cause::Restarted))
            .await;
        until_it_works("to call after the restart", call).await;
    });
}

#[test]
fn an_idle_connection_may_be_cut_without_any_fuss() {
    let server = Redis::start();
    server.cli(&["CONFIG", "SET", "timeout", "1"]);
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
        let epoch = link.epoch();
        let connections = || {
            let info = server.cli(&["INFO", "stats"]);
            let line = info.lines().find(|line| line.starts_with("total_connections_received:"));
            let count = line.and_then(|line| line.rsplit(':').next()?.trim().parse::<u64>().ok());
            count.unwrap_or_default()
        };
        // Ours was made anew, twice, whatever the questions here add.
        let ours = || server.cli(&["CLIENT", "LIST"]).matches("name=leasehold").count();
        assert!(connections() > 0 && ours() == 1);
        let id = |list: String| {
            let line = list.lines().find(|line| line.contains("name=leasehold")).map(str::to_owned);
            line.and_then(|line| line.split(' ').next().map(str::to_owned))
        };
        let first = id(server.cli(&["CLIENT", "LIST"]));
        until("the connection to be cut and made anew", || {
            let now = id(server.cli(&["CLIENT", "LIST"]));
            now.is_some() && now != first
        })
        .await;
        link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await.unwrap();
        assert_eq!(link.epoch(), epoch);
    });
}

#[test]
fn a_server_that_stands_still_is_given_up_and_taken_up_again() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let epoch = link.epoch();
        server.server().stop();
        let lost = link.call(Lane::Renewals, &GET, &[b"n"], &[]).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Unreachable);
        let lost = link.call(Lane::Front, &GET, &[b"n"], &[]).await.unwrap_err();
        assert_eq!((lost.kind(), lost.applied()), (ErrorKind::Unreachable, Applied::Maybe));
        link.disturbed(epoch).await;
        server.server().cont();
        let call = async || link.call(Lane::Front, &GET, &[b"n"], &[]).await;
        until_it_works("to call the server that goes on", call).await;
    });
}

#[test]
fn a_closed_link_says_so_and_lets_go_of_its_connections() {
    let server = Redis::start();
    run(async {
        let ours = || server.cli(&["CLIENT", "LIST"]).matches("name=leasehold").count();
        let link = connect(single(server.addr())).await.unwrap();
        let _heard = link.listen(b"c").await.unwrap();
        link.call(Lane::Renewals, &GET, &[b"n"], &[]).await.unwrap();
        assert_eq!(ours(), 3);
        link.close().await;
        let closed = link.call(Lane::Front, &GET, &[b"n"], &[]).await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Closed);
        until("all connections to be let go of", || ours() == 0).await;
        let other = connect(single(server.addr())).await.unwrap();
        assert_eq!(ours(), 1);
        drop(other);
        until("the dropped link's connection to be let go of", || ours() == 0).await;
    });
}
