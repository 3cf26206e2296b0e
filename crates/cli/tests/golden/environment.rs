//! What a command finds in its environment.

use crate::world::{World, finish};

#[test]
fn a_command_finds_its_lock_in_the_environment() {
    let world = World::new();
    let script = "for n in NAME TOKEN CLAIM HOLDER STORE NAMESPACE EPOCH CLAIMS SLOTS; do \
        eval echo \"$n=\\${LEASEHOLD_$n-unset}\"; done";
    let ran = world.run("--namespace team run nightly --holder me --", &["sh", "-c", script]);
    let ran = ran.ended(0);
    let value = |name: &str| {
        let line = ran.out.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name}: {ran:?}")).to_string()
    };
    assert_eq!(value("NAME"), "nightly");
    assert!(value("TOKEN").parse::<u64>().unwrap() > 0);
    assert_eq!(value("CLAIM").len(), 32);
    assert!(value("HOLDER").ends_with(":me"), "{ran:?}");
    assert_eq!(value("STORE"), world.store());
    assert_eq!(value("NAMESPACE"), "team");
    assert_eq!(value("EPOCH"), "0");
    assert_eq!(value("CLAIMS"), value("CLAIM"));
    assert_eq!(value("SLOTS"), "unset");
}

#[test]
fn the_innermost_lock_wins_and_claims_are_listed_outermost_first() {
    let world = World::new();
    let ran = world.sh(
        "$L run outer --permits 2 --limit 3 -- sh -c 'echo $LEASEHOLD_CLAIM $LEASEHOLD_SLOTS; \
         $L run inner -- sh -c \"echo \\$LEASEHOLD_CLAIM \\$LEASEHOLD_NAME \
         \\${LEASEHOLD_SLOTS-none}; echo \\$LEASEHOLD_CLAIMS\"'",
    );
    let ran = ran.ended(0);
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|l| l.split(' ').collect()).collect();
    let [outer, inner, claims] = lines.as_slice() else { panic!("{ran:?}") };
    assert_eq!(outer[1], "0,1");
    assert_eq!(inner[1..], ["inner", "none"]);
    assert_eq!(claims[0], format!("{},{}", outer[0], inner[0]));
}

#[test]
fn by_default_the_holder_is_host_pid_and_program_and_never_an_argument() {
    let world = World::new();
    let script = "echo $LEASEHOLD_HOLDER; : s3cret";
    let ran = world.run("run n --", &["sh", "-c", script]).ended(0);
    let label = ran.out.trim_end().split_once(':').unwrap().1.to_string();
    let parts: Vec<&str> = label.split(':').collect();
    assert_eq!(parts.last(), Some(&"sh"), "{label}");
    assert!(parts[parts.len() - 2].parse::<u32>().is_ok(), "{label}");
    assert!(!label.contains("s3cret"));
}

#[test]
fn a_relative_path_is_made_absolute_also_for_the_command() {
    let world = World::new();
    for by_option in [true, false] {
        let mut command = world.leasehold("", &[]);
        if by_option {
            command.args(["--store", "sqlite:rel.db"]);
        } else {
            command.env("LEASEHOLD_STORE", "sqlite:rel.db");
        }
        command.args([
            "run",
            "n",
            "--",
            "sh",
            "-c",
            "cd / && echo $LEASEHOLD_STORE && $L show -q n",
        ]);
        let ran = finish(command).ended(0);
        let here = world.path("rel.db");
        assert_eq!(
            ran.out.trim_end(),
            format!("sqlite:{}", here.canonicalize().unwrap().display())
        );
    }
}

#[test]
fn a_namespace_keeps_names_apart_and_is_passed_on() {
    let world = World::new();
    let ran = world.sh("$L --namespace a run n -- sh -c '
           $L show -q n && echo inside-held
           $L --namespace b show -q n || echo other-free
           $L --namespace \"\" show -q n || echo bare-free
           $L --namespace \"\" show -q a/n && echo full-held
           $L ls --json'");
    let ran = ran.ended(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[..4], ["inside-held", "other-free", "bare-free", "full-held"]);
    let listed: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!((&listed["name"], &listed["namespace"]), (&"n".into(), &"a".into()));
}

#[test]
fn the_epoch_of_the_store_is_passed_on_beside_the_token() {
    let world = World::new();
    let mut command = world.leasehold("run n --", &["sh", "-c", "echo $LEASEHOLD_EPOCH"]);
    command.env("LEASEHOLD_STORE", format!("{}?epoch=3", world.store()));
    assert_eq!(finish(command).ended(0).out, "3\n");
}

#[test]
fn a_pid_that_named_leasehold_names_the_command() {
    let world = World::new();
    let ran = world
        .sh("LISTEN_FDS=1 WATCHDOG_PID=1 exec sh -c 'export LISTEN_PID=$$; exec $L run n -- \
         sh -c \"test \\$LISTEN_PID = \\$\\$ && echo \\$WATCHDOG_PID\"'");
    assert_eq!(ran.ended(0).out, "1\n");
}
