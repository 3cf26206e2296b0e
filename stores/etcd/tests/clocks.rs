//! Clocks that step, and clocks that are slow.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/contest.rs"]
mod contest;

use std::sync::Arc;
use std::time::Duration;

use common::{claim, granted, until_pushed, waits};
use contest::Contest;
use futures_lite::future::block_on;
use leasehold_core::{Access, Clock, Mark, Marks, Moment, Renewed};
use leasehold_etcd::EtcdStore;
use leasehold_net::BootClock;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::FakeTime;
use leasehold_testkit::server::etcd::{Cluster, Etcd, Options, Release};

const DAY: i64 = 24 * 3600;
/// Two hundred years, which no log shows by itself.
const AGES: i64 = 73_048 * DAY;

#[test]
fn the_wall_clocks_of_members_may_step() {
    for release in Release::ALL {
        let time = Arc::new(FakeTime::new());
        let options = Options { release, time: Some(Arc::clone(&time)), ..Options::default() };
        let cluster = Cluster::with(3, &options);
        let members = || cluster.members().iter();
        let all = || {
            let mut config = common::config(members().next().unwrap().port(), "");
            config.hosts = members().flat_map(|m| common::config(m.port(), "").hosts).collect();
            config
        };
        let contest = Contest::default();
        let clients: Vec<_> =
            (0..3).map(|n| contest.join(n, common::client(all()), "contended")).collect();
        let keeper = common::client(all());
        let held = block_on(keeper.lock("held").ttl(Duration::from_secs(2)).acquire()).unwrap();
        contest.until_rounds(5);
        for step in [3600, -2 * DAY, AGES, 0] {
            time.step(step);
            contest.until_rounds(20);
            assert!(matches!(held.state(), leasehold::State::Held), "after a step of {step} s");
            if step == AGES {
                let (any, told) = (members().next().unwrap(), "the member's log tells its time");
                let key = any.ctl(&["put", "x", "y", "--write-out", "fields"]);
                let at = key.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap();
                any.ctl(&["compact", at]);
                let shown =
                    |log: String| log.lines().any(|line| line.contains("22") && dated(line));
                leasehold_testkit::server::wait_until(told, Duration::from_secs(20), || {
                    if shown(any.server().log()) { Ok(()) } else { Err("not yet".to_owned()) }
                });
            }
        }
        assert_eq!(contest.thing.lock().unwrap().refused, 0);
        contest.end(clients);
        common::released(held);
        common::until_no_claim(cluster.leader(), "contended");
    }
}

/// Whether a line of a log is of a year two hundred years from now.
fn dated(line: &str) -> bool {
    let year = line.split("22").nth(1).and_then(|rest| rest.get(..3));
    year.is_some_and(|rest| rest.ends_with('-') && rest[..2].bytes().all(|b| b.is_ascii_digit()))
}

/// A local clock that runs at a rate of its own.
#[derive(Debug)]
struct Slow {
    began: Moment,
    percent: u32,
}

impl Slow {
    fn new(percent: u32) -> Arc<Slow> {
        Arc::new(Slow { began: BootClock.now(), percent })
    }
}

impl Clock for Slow {
    fn now(&self) -> Moment {
        self.began + BootClock.now().since(self.began) * self.percent / 100
    }
}

/// A holder with such a clock renews once, and is cut off; until when it believes by its clock, and
/// what that shows when the next one holds; with the marks of both.
fn cut_off(percent: u32) -> (Moment, Moment, Mark, Mark) {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.addr());
    let slow = Slow::new(percent);
    let far = common::config(proxy.port(), "");
    let clock: Arc<dyn Clock> = slow.clone();
    let holder = block_on(EtcdStore::connect_by(far, clock)).unwrap();
    let near = common::connect(common::config(etcd.port(), ""));
    let (held, next) = (claim("r"), claim("r"));
    let old = granted(&holder, &held);
    waits(&near, &next);
    let Renewed::Granted(renewed) = common::renewed(&holder, &held) else { panic!("not renewed") };
    proxy.pause();
    let new = until_pushed(&near, &next);
    (renewed.until, slow.now(), Mark::from(old.token), Mark::from(new.token))
}

#[test]
fn a_holder_whose_clock_is_a_tenth_slow_stops_believing_in_time() {
    for percent in [100, 95, 92] {
        let (until, shown, old, new) = cut_off(percent);
        assert!(until <= shown, "it believes for {:?} more, at {percent} %", until.since(shown));
        assert!(old < new);
    }
}

#[test]
fn a_clock_beyond_what_is_allowed_for_is_caught_by_the_fence() {
    let (until, shown, old, new) = cut_off(40);
    assert!(shown < until, "at less than half the rate it believes beside the next one");
    let marks = Marks::default().admit(Access::Exclusive, old).unwrap();
    let marks = marks.admit(Access::Exclusive, new).unwrap();
    let mut refused = 0;
    for _ in 0..3 {
        refused += u32::from(marks.admit(Access::Exclusive, old).is_err());
    }
    assert_eq!(refused, 3, "every late write of it is refused");
}
