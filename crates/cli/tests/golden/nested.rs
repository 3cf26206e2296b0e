//! A run within a run.

use crate::world::World;

#[test]
fn a_nested_run_of_a_held_name_fails_at_once_with_64() {
    let world = World::new();
    for mode in ["", "--shared", "--permits 1 --limit 3"] {
        let script = format!("$L run n {mode} -- sh -c '$L run n {mode} -- true; echo $?'");
        let ran = world.sh(&script).ended(0);
        assert_eq!(ran.out, "64\n", "{mode}: {ran:?}");
        assert!(ran.err.contains("--reenter"), "{ran:?}");
    }
    // Also when another lock stands between the two.
    let ran = world.sh("$L run n -- sh -c '$L run m -- sh -c \"$L run n -- true; echo \\$?\"'");
    assert_eq!(ran.ended(0).out, "64\n");
}

#[test]
fn reenter_enters_with_the_same_token_and_leaves_the_outer_lock_held() {
    let world = World::new();
    let ran = world.sh("$L run n -- sh -c 'echo $LEASEHOLD_TOKEN
           $L run m -- sh -c \"$L run --reenter n -- sh -c \\\"echo \\\\\\$LEASEHOLD_TOKEN\\\"\"
           $L show -q n && echo still-held'");
    let ran = ran.ended(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[2], "still-held");
    world.run("show -q n", &[]).ended(1);
}

#[test]
fn reenter_never_upgrades() {
    let world = World::new();
    let ran = world.sh("$L run n --shared -- sh -c '$L run --reenter n -- true; echo $?'");
    let ran = ran.ended(0);
    assert_eq!(ran.out, "64\n");
    assert!(ran.err.contains("no upgrade"), "{ran:?}");
}

#[test]
fn reenter_where_nothing_is_held_is_a_run_like_any_other() {
    let world = World::new();
    world.run("run --reenter n -- true", &[]).ended(0);
    world.sh("$L run m -- $L run --reenter n -- true").ended(0);
}

#[test]
fn another_name_namespace_or_store_is_no_nested_run() {
    let world = World::new();
    world.sh("$L run n -- $L run m -- true").ended(0);
    world.sh("$L run n -- $L --namespace x run n -- true").ended(0);
    world.sh("$L run n -- $L --store sqlite:other.db run n -- true").ended(0);
}

#[test]
fn a_claim_that_has_ended_is_no_ancestor() {
    let world = World::new();
    // What a run left running may run again when that run is over.
    let ran = world.sh("$L run n -- sh -c '( until test -e over; do sleep 0.01; done; \
           $L run n -- true; echo $? >code ) >/dev/null 2>&1 &'; touch over");
    ran.ended(0);
    assert_eq!(world.line("code"), "0");
}
