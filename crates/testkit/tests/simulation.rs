//! The seeded simulation: clean schedules, planted bugs, and the seeds of bugs that were fixed.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_testkit::sim::{Bug, Fired, replay_command, simulate};

/// Seeds that once failed, for a defect in core or in the model, with a word on which. The steps of
/// each are held in `corners.rs`, since a seed draws another schedule when the machines ask for
/// other calls.
const FIXED: [(u64, &str); 6] = [
    (137, "a withdrawn place that the store watches was given up after two terms"),
    (173, "the same, with others waiting behind it for ever"),
    (4266, "two permits were entered again through an inner grant that had one slot"),
    (8578, "cleaning forgot claims that had run out unseen, and let them enter again"),
    (16293, "the same, with permits"),
    (39385, "a leave that found its claim ended barred the enter for less than a term"),
];

/// Runs these seeds without a bug; every one must keep all promises.
fn run_clean(seeds: impl Iterator<Item = u64>) -> (u64, Fired) {
    let mut fired = Fired::default();
    let mut runs = 0;
    for seed in seeds {
        let run = simulate(seed, None);
        if let Err(violation) = run.verdict {
            panic!("seed {seed}: {violation}\nreplay: {}", replay_command(seed, None));
        }
        assert!(run.events >= 200, "seed {seed} has only {} events", run.events);
        fired.add(&run.fired);
        runs += 1;
    }
    (runs, fired)
}

#[test]
fn a_thousand_schedules_keep_all_promises_and_every_fault_fires() {
    let (runs, fired) = run_clean(0..1000);
    println!("{runs} schedules\n{fired}");
    assert!(fired.never().is_empty(), "never fired: {:?}", fired.never());
}

#[test]
fn fresh_schedules_keep_all_promises() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let from = since.as_secs() * 1_000;
    println!("fresh seeds from {from}");
    run_clean(from..from + 300);
}

#[test]
fn seeds_of_fixed_bugs_stay_clean() {
    run_clean(FIXED.iter().map(|(seed, _)| *seed));
}

#[test]
fn the_same_seed_makes_the_same_history() {
    let mut digests = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let (one, two) = (simulate(seed, None), simulate(seed, None));
        assert_eq!(one.history.digest(), two.history.digest(), "seed {seed}");
        assert_eq!(one.history.events, two.history.events, "seed {seed}");
        digests.insert(one.history.digest());
    }
    assert_eq!(digests.len(), 50, "other seeds make other histories");
}

/// Finds the first seed that convicts a bug, and sees that without the bug the same seeds pass.
fn convict(bug: Bug, promises: &[&str]) {
    let found =
        (0..2000).find_map(|seed| simulate(seed, Some(bug)).verdict.err().map(|v| (seed, v)));
    let Some((seed, violation)) = found else { panic!("{bug} is never convicted") };
    println!("{bug:<26} {seed:>5}  {}", violation.promise);
    assert!(promises.contains(&violation.promise), "{bug} is convicted of {violation}");
    run_clean(0..=seed);
}

macro_rules! convicted {
    ($($test:ident: $bug:ident by $($promise:literal)|+;)*) => {
        $(
            #[test]
            fn $test() {
                convict(Bug::$bug, &[$($promise),+]);
            }
        )*

        /// A bug without a test would silently never be looked for.
        #[test]
        fn every_planted_bug_has_a_test() {
            assert_eq!([$(Bug::$bug),*].as_slice(), Bug::ALL);
        }
    };
}

convicted! {
    release_by_name: ReleaseByName by "exclusion" | "permits_fit" | "belief_ends_first";
    validity_from_reply: ValidityFromReply by "exclusion" | "permits_fit" | "belief_ends_first";
    push_from_arrival: PushFromArrival by "exclusion" | "permits_fit" | "belief_ends_first";
    enter_after_leave: EnterAfterLeave by "no_ghosts" | "death_is_final";
    token_restarts: TokenRestarts by "tokens_rise";
    dead_revived: DeadRevived by "death_is_final";
    no_wake_after_reconnect: NoWakeAfterReconnect by "reconnect_wakes";
    token_before_lock: TokenBeforeLock by "tokens_rise";
    reentry_shortens: ReentryShortens by "exclusion" | "permits_fit" | "belief_ends_first";
    single_mark: SingleMark by "fence_holds";
    mark_at_first_write: MarkAtFirstWrite by "fence_holds";
    heartbeat_recreates: HeartbeatRecreates by "death_is_final";
    buries_the_living: BuriesTheLiving by "exclusion" | "permits_fit" | "belief_ends_first";
}
