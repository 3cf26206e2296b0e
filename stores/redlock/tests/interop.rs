//! One lock with redsync, in both directions.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{claim, fresh, granted, is_busy, leave, open, ports, shared, until_granted};
use leasehold_core::Left;
use leasehold_testkit::interop::Foreign;

const TERM: Duration = Duration::from_secs(20);

fn redsync() -> Foreign {
    let ports = ports(shared());
    let members: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    Foreign::redlock(&members.join(","), &[])
}

#[test]
fn what_redsync_holds_is_busy_and_free_after_it() {
    let store = open(shared());
    let mut go = redsync();
    let name = fresh("go");
    let locked = go.call("A", &format!("lock {name} 20000"));
    assert!(locked.text.starts_with("locked"), "{}", locked.text);
    assert!(is_busy(&store, &claim(&name, TERM)));
    let unlocked = go.call("A", &format!("unlock {name}"));
    assert_eq!(unlocked.text, "unlocked true");
    until_granted(&store, &claim(&name, TERM), TERM);
}

#[test]
fn what_we_hold_redsync_does_not_get() {
    let store = open(shared());
    let mut go = redsync();
    let name = fresh("ours");
    let ours = claim(&name, TERM);
    granted(&store, &ours);
    let refused = go.call("A", &format!("trylock {name} 20000"));
    assert_eq!(refused.text, "refused");
    assert_eq!(leave(&store, &ours), Left::Released);
    let locked = go.call("A", &format!("lock {name} 20000"));
    assert!(locked.text.starts_with("locked"), "{}", locked.text);
    assert!(is_busy(&store, &claim(&name, TERM)));
}
