//! `break` and `gc`: an operator's tools.

use crate::world::{World, eventually};

#[test]
fn break_marks_the_grant_and_the_next_token_is_higher() {
    let world = World::new();
    let old = world.run("acquire n --ttl 3s", &[]).ended(0).json();
    let id = old["claim"].as_str().unwrap();
    let ran = world.run("break n --yes", &[]).ended(0);
    assert!(ran.err.contains(&old["token"].to_string()), "{ran:?}");
    // Marked, told, and not free before its old expiry.
    assert_eq!(world.shown("n")["holders"][0]["broken"], true);
    world.run("check n --claim", &[id]).ended(76);
    world.run("run n --no-wait -- true", &[]).ended(75);
    let next = world.run("acquire n --wait 30s", &[]).ended(0).json();
    assert_eq!(next["previous"], "broken");
    assert!(next["token"].as_u64() > old["token"].as_u64());
}

#[test]
fn now_frees_it_at_once() {
    let world = World::new();
    let old = world.run("acquire n --ttl 1h", &[]).ended(0).json();
    world.run("break n --yes --now", &[]).ended(0);
    world.run("run n --no-wait -- true", &[]).ended(0);
    world.run("renew n --claim", &[old["claim"].as_str().unwrap()]).ended(76);
}

#[test]
fn a_token_names_the_grant_and_another_is_left_alone() {
    let world = World::new();
    let token = world.run("acquire n", &[]).ended(0).json()["token"].to_string();
    let ran = world.run("break n --yes --now --token 1", &[]).ended(77);
    assert!(ran.err.contains(&token), "{ran:?}");
    assert_eq!(world.shown("n")["held"], true);
    world.run("break n --yes --now --token", &[&token]).ended(0);
    assert_eq!(world.shown("n")["held"], false);
}

#[test]
fn what_nobody_holds_is_not_broken() {
    let world = World::new();
    let ran = world.run("break n --yes", &[]).ended(0);
    assert!(ran.err.contains("nobody holds"), "{ran:?}");
}

#[test]
fn gc_forgets_names_unused_for_as_long_as_asked_and_a_dry_run_forgets_nothing() {
    let world = World::new();
    let before = world.run("acquire old --ttl 1h", &[]).ended(0).json();
    world.run("release old --claim", &[before["claim"].as_str().unwrap()]).ended(0);
    world.run("acquire held --ttl 1h", &[]).ended(0);
    assert_eq!(world.run("gc", &[]).ended(0).out, "", "a week has not passed");
    let listed = eventually("it is unused for 1ms", || {
        let ran = world.run("gc --dry-run --unused-for 1ms", &[]).ended(0);
        (!ran.out.is_empty()).then_some(ran.out)
    });
    assert_eq!(listed, "old\n");
    assert_eq!(world.run("ls --json old", &[]).ended(0).out.lines().count(), 1);
    assert_eq!(world.run("gc --unused-for 1ms", &[]).ended(0).out, "old\n");
    assert_eq!(world.run("ls --json old", &[]).ended(0).out, "");
    let after = world.run("acquire old", &[]).ended(0).json();
    assert_eq!(after["previous"], "first");
    assert!(after["token"].as_u64() > before["token"].as_u64(), "tokens still rise");
}
