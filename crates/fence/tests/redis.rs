//! The fence for what is kept in Redis, at a real server.
#![allow(clippy::unwrap_used)]

use leasehold_fence::redis::{Eval, Fence};
use leasehold_fence::{Access, Epoch, ErrorKind, Mark, Marks, Resource, Token};
use leasehold_testkit::server::redis::Redis;
use proptest::prelude::*;

use Access::{Exclusive, Shared};

fn at(n: u64) -> Mark {
    Mark::from(Token::new(n).unwrap())
}

/// What the server answers, an item a line.
fn ask(server: &Redis, eval: &Eval) -> Vec<String> {
    let words: Vec<String> =
        eval.words().into_iter().map(|word| String::from_utf8(word).unwrap()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    server.cli(&words).lines().map(str::to_owned).collect()
}

fn passes(server: &Redis, fence: &Fence, mark: Mark, eval: &Eval) -> leasehold_fence::Result<()> {
    let answer = ask(server, eval);
    fence.outcome(mark, answer.first().map(String::as_bytes).unwrap_or_default())
}

#[test]
fn a_stale_write_is_refused_and_changes_nothing() {
    let server = Redis::start();
    let fence = Fence::new(&Resource::new("account/7").unwrap());
    let key = "{account/7}:balance";
    let set = |n, value: &str| fence.set(Exclusive, at(n), key, value);
    let enter = |n| fence.enter(Exclusive, at(n));

    let error = passes(&server, &fence, at(41), &set(41, "early")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotEntered);
    passes(&server, &fence, at(41), &enter(41)).unwrap();
    passes(&server, &fence, at(41), &set(41, "100")).unwrap();
    passes(&server, &fence, at(42), &enter(42)).unwrap(); // before its first read
    for late in [set(41, "0"), fence.hset(Exclusive, at(41), "{account/7}:h", [("a", "b")])] {
        let refused = passes(&server, &fence, at(41), &late).unwrap_err();
        assert_eq!(refused.stale_mark().map(|stale| stale.newest), Some(at(42)));
    }
    assert_eq!(server.cli(&["GET", key]), "100");
    assert_eq!(server.cli(&["EXISTS", "{account/7}:h"]), "0");
    passes(&server, &fence, at(42), &set(42, "90")).unwrap();
    passes(&server, &fence, at(42), &set(42, "90")).unwrap(); // sent again
    let raised = Mark { epoch: Epoch(1), ..at(1) };
    passes(&server, &fence, raised, &fence.enter(Exclusive, raised)).unwrap();
    let refused = passes(&server, &fence, at(43), &enter(43)).unwrap_err();
    assert_eq!(refused.stale_mark().map(|stale| stale.newest), Some(raised));
}

#[test]
fn own_scripts_run_behind_it_with_their_own_keys() {
    let server = Redis::start();
    let fence = Fence::new(&Resource::new("r").unwrap());
    let script = "redis.call('INCRBY', KEYS[1], ARGV[1]) -- a comment at the end\n\
                  return redis.call('GET', KEYS[1]) .. ' of ' .. #KEYS .. ' ' .. #ARGV -- the end";
    let run =
        |n| fence.script(Exclusive, at(n), script, vec![b"{r}:n".to_vec()], vec![b"5".to_vec()]);
    passes(&server, &fence, at(7), &fence.enter(Exclusive, at(7))).unwrap();
    assert_eq!(ask(&server, &run(7)), ["ok", "5 of 1 1"]);
    assert_eq!(ask(&server, &run(6)), ["stale 0:7"]);
    assert_eq!(server.cli(&["GET", "{r}:n"]), "5");
    let fields = fence.hset(Exclusive, at(7), "{r}:h", [("a", "1"), ("b", "2")]);
    passes(&server, &fence, at(7), &fields).unwrap();
    assert_eq!(server.cli(&["HGETALL", "{r}:h"]), "a\n1\nb\n2");
}

#[test]
fn marks_that_are_damaged_let_nobody_pass() {
    let server = Redis::start();
    let fence = Fence::new(&Resource::new("r").unwrap());
    let key = String::from_utf8(fence.key().to_vec()).unwrap();
    server.cli(&["HSET", &key, "s", "many"]);
    let answer = passes(&server, &fence, at(1), &fence.enter(Exclusive, at(1)));
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Corrupt);
    server.cli(&["DEL", &key]);
    server.cli(&["SET", &key, "x"]);
    let answer = passes(&server, &fence, at(1), &fence.enter(Exclusive, at(1)));
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn it_admits_as_the_marks_of_core_do() {
    let server = Redis::start();
    let accesses = proptest::collection::vec((any::<bool>(), 0..2_u32, 1..12_u64), 1..12);
    let config =
        ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let n = std::cell::Cell::new(0);
    runner
        .run(&accesses, |accesses| {
            n.set(n.get() + 1);
            let fence = Fence::new(&Resource::new(&format!("case-{}", n.get())).unwrap());
            server.cli(&["DEL", std::str::from_utf8(fence.key()).unwrap()]);
            let mut marks = Marks::default();
            for (exclusive, epoch, token) in accesses {
                let access = if exclusive { Exclusive } else { Shared };
                let mark = Mark { epoch: Epoch(epoch), ..at(token) };
                let ours = passes(&server, &fence, mark, &fence.enter(access, mark));
                match marks.admit(access, mark) {
                    Ok(raised) => {
                        prop_assert!(ours.is_ok());
                        marks = raised;
                    }
                    Err(stale) => prop_assert_eq!(ours.unwrap_err().stale_mark(), Some(stale)),
                }
            }
            Ok(())
        })
        .unwrap();
}
