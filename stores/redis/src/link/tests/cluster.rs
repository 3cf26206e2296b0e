//! A cluster whose slots move and whose nodes die.

use leasehold_core::Route;
use leasehold_testkit::server::redis::Cluster;

use super::super::{Call, Cause, Lane, Link, LinkConfig, Shape, slot_of};
use super::{GET, Heard, INCREMENT, config, connect, host, run, until, until_it_works};

fn seeded(cluster: &Cluster, seeds: usize) -> LinkConfig {
    let seeds = cluster.proxies().iter().take(seeds).map(|proxy| host(proxy.addr())).collect();
    config(Shape::Cluster(seeds))
}

/// A key in a slot of each of the three masters.
fn keys(cluster: &Cluster) -> Vec<String> {
    (0..3)
        .map(|master| {
            let mut names = (0..).map(|n| format!("{{k{n}}}"));
            let of_master = |key: &String| cluster.owner(slot_of(key.as_bytes()), 0) == Ok(master);
            names.find(of_master).unwrap()
        })
        .collect()
}

async fn increment(link: &Link, key: &str) -> i64 {
    let call = async || link.call(Lane::Front, &INCREMENT, &[key.as_bytes()], &[]).await;
    until_it_works("to call the slot's node", call).await.reply.int().unwrap()
}

#[test]
fn calls_and_channels_go_where_the_slot_is() {
    let cluster = Cluster::start();
    run(async {
        let link = connect(seeded(&cluster, 1)).await.unwrap();
        let keys = keys(&cluster);
        let mut routes: Vec<Route> = keys.iter().map(|key| link.route(key.as_bytes())).collect();
        routes.dedup();
        assert_eq!((routes.len(), link.masters().len()), (3, 3));
        assert_eq!(link.publish_word(), "SPUBLISH");
        for (master, key) in keys.iter().enumerate() {
            assert_eq!(increment(&link, key).await, 1);
            assert_eq!(cluster.cli(master, &["GET", key]), "1");
            let heard = link.listen(key.as_bytes()).await.unwrap();
            assert_eq!(cluster.cli(master, &["SPUBLISH", key, "x"]), "1");
            assert_eq!(heard.next().await, Heard::Message(b"x".to_vec()));
        }
        let calls = keys.iter().cycle().take(9).map(|key| Call {
            script: &INCREMENT,
            keys: vec![key.clone().into_bytes()],
            args: vec![],
        });
        let answers = link.call_each(Lane::Renewals, calls.collect()).await;
        let counts: Vec<_> = answers.into_iter().map(|a| a.unwrap().reply.int().unwrap()).collect();
        assert_eq!(counts, [2, 2, 2, 3, 3, 3, 4, 4, 4]);
        until("no channel", || {
            (0..3).all(|node| cluster.cli(node, &["PUBSUB", "SHARDCHANNELS"]).is_empty())
        })
        .await;
    });
}

#[test]
fn a_slot_that_moves_is_followed() {
    let cluster = Cluster::start();
    run(async {
        let link = connect(seeded(&cluster, 1)).await.unwrap();
        let key = keys(&cluster).swap_remove(0);
        let slot = slot_of(key.as_bytes());
        let other = keys(&cluster).swap_remove(2);
        assert_eq!(increment(&link, &key).await, 1);
        let heard = link.listen(key.as_bytes()).await.unwrap();
        let (before, route) = (link.epoch(), link.route(key.as_bytes()));

        cluster.begin_move(slot, 0, 1);
        // Still at the first node; and one that is not there yet is made at the second (ASK).
        assert_eq!(increment(&link, &key).await, 2);
        let beside = format!("{key}.beside");
        assert_eq!(increment(&link, &beside).await, 1);
        cluster.move_keys(slot, 0, 1);
        assert_eq!(increment(&link, &key).await, 3);
        cluster.end_move(slot, 0, 1);
        assert_eq!(increment(&link, &key).await, 4);

        assert_ne!(link.route(key.as_bytes()), route);
        assert_eq!(link.cause_since(key.as_bytes(), before), Some(Cause::Moved));
        assert_eq!(link.cause_since(other.as_bytes(), before), None);
        // The channel went with it.
        assert_eq!(heard.next().await, Heard::Nudge);
        assert_eq!(cluster.cli(1, &["SPUBLISH", &key, "x"]), "1");
        assert_eq!(heard.next().await, Heard::Message(b"x".to_vec()));
    });
}

#[test]
fn a_node_that_dies_is_told_for_its_slots_and_delays_no_other() {
    let cluster = Cluster::start();
    run(async {
        let link = connect(seeded(&cluster, 6)).await.unwrap();
        let keys = keys(&cluster);
        for key in &keys {
            increment(&link, key).await;
        }
        let heard = link.listen(keys[0].as_bytes()).await.unwrap();
        let before = link.epoch();
        let slot = slot_of(keys[0].as_bytes());
        cluster.nodes()[0].kill9();
        link.disturbed(before).await;
        // The others go on while that one has no master.
        for key in &keys[1..] {
            link.call(Lane::Front, &INCREMENT, &[key.as_bytes()], &[]).await.unwrap();
        }
        until("the failover to be told", || {
            link.cause_since(keys[0].as_bytes(), before) == Some(Cause::Failover)
        })
        .await;
        for key in &keys[1..] {
            assert_eq!(link.cause_since(key.as_bytes(), before), None);
        }
        increment(&link, &keys[0]).await;
        assert_eq!(heard.next().await, Heard::Nudge);
        let owner = cluster.wait_for_another_owner(slot, 0);
        assert_eq!(cluster.cli(owner, &["SPUBLISH", &keys[0], "x"]), "1");
        assert_eq!(heard.next().await, Heard::Message(b"x".to_vec()));

        // The old master comes back as a replica, and nothing is sent there.
        cluster.nodes()[0].start_again();
        let get = async || link.call(Lane::Front, &GET, &[keys[0].as_bytes()], &[]).await;
        until_it_works("to read", get).await;
    });
}
