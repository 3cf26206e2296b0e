//! What a process does at a store that a test starts in order to kill it.

use std::io::{BufRead, Lines, StdinLock};

use leasehold_core::{Admission, Claim, ClaimRef, Mode, Store};

use crate::block_on;

/// Brings a store's client into a state, tells its parent by lines that begin with `@`, and goes on
/// once it is answered by a line: `holding`, `waiting`, `entering`, `leaving`, `renewing`, or
/// `turning`, which never ends.
///
/// It prints `@there` before the call that names the state, and `@done` after it. `claim` makes one
/// under a new id; it is one that waits.
///
/// # Panics
///
/// If the store answers otherwise than the state needs, or the state is none of these.
pub fn act(store: &dyn Store, state: &str, claim: impl Fn() -> Claim) {
    let mut told = std::io::stdin().lock().lines();
    let asked = claim();
    match state {
        "holding" | "leaving" | "renewing" => {
            let admitted = block_on(store.enter(&asked)).expect("an answer");
            let Admission::Granted(grant) = admitted else { panic!("it is not free") };
            let named = ClaimRef { token: Some(grant.token), ..asked.to_ref() };
            mark("there", &mut told);
            if state == "leaving" {
                drop(block_on(store.leave(&named)));
            } else if state == "renewing" {
                block_on(store.renew(&[named]));
            }
        }
        "waiting" => {
            let admitted = block_on(store.enter(&asked)).expect("an answer");
            assert!(matches!(admitted, Admission::Waiting(_)), "{admitted:?}");
            mark("there", &mut told);
        }
        "entering" => {
            mark("there", &mut told);
            drop(block_on(store.enter(&asked)));
        }
        "turning" => loop {
            for mode in [Mode::Exclusive, Mode::Shared] {
                let claim = Claim { mode, ..claim() };
                let admitted = block_on(store.enter(&claim));
                println!("@turn");
                drop((admitted, block_on(store.leave(&claim.to_ref()))));
            }
        },
        other => panic!("{other}"),
    }
    mark("done", &mut told);
}

fn mark(text: &str, told: &mut Lines<StdinLock<'_>>) {
    println!("@{text}");
    told.next().expect("the parent lives").expect("a line");
}
