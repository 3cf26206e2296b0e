//! Channels: heard, lost, and found again.

use std::time::Duration;

use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::redis::Redis;

use super::super::Cause;
use super::{Heard, connect, run, single, until};

fn said(word: &str) -> Heard {
    Heard::Message(word.as_bytes().to_vec())
}

fn channels(server: &Redis) -> Vec<String> {
    let told = server.cli(&["PUBSUB", "CHANNELS"]);
    told.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn what_is_said_after_a_subscription_is_heard_by_all_who_listen() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let first = link.listen(b"c").await.unwrap();
        assert_eq!(server.cli(&["PUBLISH", "c", "1"]), "1");
        let second = link.listen(b"c").await.unwrap();
        let other = link.listen(b"d").await.unwrap();
        assert_eq!(server.cli(&["PUBLISH", "c", "2"]), "1");
        assert_eq!(first.next().await, said("1"));
        assert_eq!(first.next().await, said("2"));
        // It may hear what was said while it came.
        while second.next().await != said("2") {}
        assert_eq!((second.try_next(), other.try_next()), (None, None));
        assert_eq!(link.subscriptions(), 2);
        // One connection for calls, one that hears.
        assert_eq!(server.cli(&["CLIENT", "LIST"]).matches("name=leasehold").count(), 2);
        drop((first, second));
        until("only one channel", || channels(&server) == ["d"]).await;
        drop(other);
        until("no channel", || channels(&server).is_empty()).await;
        assert_eq!(link.subscriptions(), 0);
    });
}

#[test]
fn a_channel_taken_up_again_while_it_lingers_is_not_asked_for_anew() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        server.cli(&["CONFIG", "RESETSTAT"]);
        for turn in 0..20 {
            let heard = link.listen(b"c").await.unwrap();
            let word = turn.to_string();
            link.command(&[b"PUBLISH", b"c", word.as_bytes()]).await.unwrap();
            assert_eq!(heard.next().await, said(&word));
        }
        let stats = server.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_subscribe")).unwrap();
        assert!(line.contains("calls=1,"), "{line}");
        assert!(!stats.contains("cmdstat_unsubscribe"), "{stats}");
    });
}

#[test]
fn many_come_and_go_at_once_and_none_misses_its_word() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let waiters = (0..100).map(async |n: u32| {
            for turn in 0..5 {
                let channel = format!("c{}", (n + turn) % 7);
                let heard = link.listen(channel.as_bytes()).await.unwrap();
                let word = format!("{n}.{turn}");
                let publish = [b"PUBLISH", channel.as_bytes(), word.as_bytes()];
                link.command(&publish).await.unwrap();
                while heard.next().await != said(&word) {}
            }
        });
        futures_util::future::join_all(waiters).await;
        until("no channel", || channels(&server).is_empty()).await;
    });
}

#[test]
fn a_cut_nudges_each_waiter_once_and_then_it_hears_again() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let one = link.listen(b"c").await.unwrap();
        let two = link.listen(b"d").await.unwrap();
        let epoch = link.epoch();
        assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
        assert_eq!(one.next().await, Heard::Nudge);
        assert_eq!(two.next().await, Heard::Nudge);
        assert_eq!(link.cause_since(b"c", epoch), Some(Cause::Reconnected));
        assert_eq!(server.cli(&["PUBLISH", "c", "1"]), "1");
        assert_eq!(one.next().await, said("1"));
        assert_eq!(two.try_next(), None);
    });
}

#[test]
fn a_connection_cut_for_its_output_buffer_is_made_anew() {
    let server = Redis::start();
    server.cli(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 100kb 50kb 1"]);
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let heard = link.listen(b"c").await.unwrap();
        let much = vec![b'x'; 4 << 20];
        link.command(&[b"PUBLISH", b"c", &much]).await.unwrap();
        // Whether or not the word itself still came through.
        while heard.next().await != Heard::Nudge {}
        server.cli(&["PUBLISH", "c", "1"]);
        assert_eq!(heard.next().await, said("1"));
    });
}

#[test]
fn a_half_open_connection_is_noticed_and_made_anew() {
    let server = Redis::start();
    let proxy = Proxy::start(server.addr());
    run(async {
        let link = connect(single(proxy.addr())).await.unwrap();
        let heard = link.listen(b"c").await.unwrap();
        let epoch = link.epoch();
        proxy.pause_to_client(true);
        link.disturbed(epoch).await;
        assert_eq!(heard.try_next(), None);
        proxy.sever();
        proxy.pause_to_client(false);
        assert_eq!(heard.next().await, Heard::Nudge);
        server.cli(&["PUBLISH", "c", "1"]);
        assert_eq!(heard.next().await, said("1"));
    });
}

#[test]
fn a_subscription_that_is_not_confirmed_ends_unreachable() {
    let server = Redis::start();
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        server.server().stop();
        let error = link.listen(b"c").await.unwrap_err();
        assert!(error.kind().is_transient(), "{error}");
        server.server().cont();
        let heard = super::until_it_works("to listen", async || link.listen(b"c").await).await;
        server.cli(&["PUBLISH", "c", "1"]);
        while heard.next().await != said("1") {}
    });
}

#[test]
fn an_idle_listener_outlives_the_servers_timeout() {
    let server = Redis::start();
    server.cli(&["CONFIG", "SET", "timeout", "1"]);
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let heard = link.listen(b"c").await.unwrap();
        // Another one, that says nothing, is cut meanwhile.
        let idle = std::net::TcpStream::connect(server.addr()).unwrap();
        idle.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut idle = idle;
        tokio::task::yield_now().await;
        let cut = std::thread::spawn(move || std::io::Read::read(&mut idle, &mut [0; 8]).unwrap());
        until("an idle connection to be cut", || cut.is_finished()).await;
        assert_eq!(server.cli(&["PUBLISH", "c", "1"]), "1");
        assert_eq!(heard.next().await, said("1"));
    });
}
