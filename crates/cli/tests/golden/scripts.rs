//! `acquire`, `renew`, `release`, `check`: locks for scripts.

use serde_json::Value;

use crate::world::{World, eventually};

fn claim(acquired: &Value) -> String {
    acquired["claim"].as_str().unwrap().to_string()
}

#[test]
fn acquire_prints_one_object_with_these_fields_in_this_order() {
    let world = World::new();
    let ran = world.run("acquire n --ttl 1m --holder", &["me & mine"]).ended(0);
    assert_eq!(ran.out.lines().count(), 1);
    let object = ran.json();
    let order = [
        "name",
        "store",
        "claim",
        "holder",
        "token",
        "epoch",
        "slots",
        "ttl_ms",
        "expires_in_ms",
        "previous",
    ];
    let at = |field: &&str| ran.out.find(&format!("\"{field}\":")).unwrap();
    assert!(order.iter().map(at).is_sorted(), "{}", ran.out);
    assert_eq!(object["name"], "n");
    assert_eq!(object["store"], world.store());
    assert_eq!(claim(&object).len(), 32);
    assert_eq!(object["holder"], "me & mine");
    assert!(object["token"].as_u64().unwrap() < 1 << 53);
    assert_eq!(object["epoch"], 0);
    assert_eq!(object["slots"], Value::Array(vec![]));
    assert_eq!(object["ttl_ms"], 60_000);
    let left = object["expires_in_ms"].as_u64().unwrap();
    assert!((30_000..=60_000).contains(&left), "{object}");
    assert_eq!(object["previous"], "first");
    assert_eq!(ran.err, "");
}

#[test]
fn an_acquired_lock_outlives_its_process_and_is_renewed_checked_and_released_by_its_id() {
    let world = World::new();
    let acquired = world.run("acquire n --ttl 1m", &[]).ended(0).json();
    let id = claim(&acquired);
    world.run("run n --no-wait -- true", &[]).ended(75);
    world.run("check n --claim", &[&id]).ended(0);
    world.run("renew n --ttl 1h --claim", &[&id]).ended(0);
    let left = world.shown("n")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!(left > 3_000_000, "{left}");
    world.run("release n --claim", &[&id]).ended(0);
    let next = world.run("acquire n", &[]).ended(0).json();
    assert_eq!(next["previous"], "released");
    assert!(next["token"].as_u64() > acquired["token"].as_u64());

    for verb in ["check", "renew", "release"] {
        let ran = world.run(&format!("{verb} n --claim"), &[&id]).ended(76);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert_eq!(world.run(&format!("-q {verb} n --claim"), &[&id]).ended(76).err, "");
    }
    world.run("check n --claim", &[&claim(&next)]).ended(0);
}

#[test]
fn nothing_renews_an_acquired_lock() {
    let world = World::new();
    let id = claim(&world.run("acquire n --ttl 1s", &[]).ended(0).json());
    eventually("the term ends", || {
        (world.run("check n --claim", &[&id]).code() == 76).then_some(())
    });
    world.run("renew n --claim", &[&id]).ended(76);
    let next = world.run("acquire n", &[]).ended(0).json();
    assert_eq!(next["previous"], "expired");
}

#[test]
fn print_env_is_read_back_by_a_shell_whatever_the_name_holds() {
    let world = World::new();
    let name = "it's $(touch hacked) \"x\"";
    let ran = world.run("acquire --print env --permits 2 --limit 3", &[name]).ended(0);
    std::fs::write(world.path("env"), &ran.out).unwrap();
    let script = ". ./env; printf '%s\\n' \"$LEASEHOLD_NAME\" $LEASEHOLD_SLOTS; \
        $L check \"$LEASEHOLD_NAME\" --claim $LEASEHOLD_CLAIM && echo mine";
    let read = world.sh(script).ended(0);
    assert_eq!(read.out, format!("{name}\n0,1\nmine\n"));
    assert!(!crate::world::exists(&world.path("hacked")));
}

#[test]
fn an_object_that_nobody_reads_leaves_no_lock() {
    let world = World::new();
    world.sh("$L acquire n >/dev/full").ended(74);
    assert_eq!(world.shown("n")["held"], false);
    let ran = world.sh("$L acquire n >&-").ended(74);
    assert!(ran.err.contains("stdout is closed"), "{ran:?}");
    assert_eq!(world.shown("n")["held"], false);
    assert!(world.shown("n")["last_token"].as_u64() > Some(0), "/dev/full was tried");
    for args in ["ls", "show n", "man", "--help"] {
        world.sh(&format!("$L {args} >&-")).ended(74);
    }
}

#[test]
fn wait_and_no_wait() {
    let world = World::new();
    world.run("acquire n --ttl 1s", &[]).ended(0);
    world.run("acquire n --no-wait", &[]).ended(75);
    world.run("acquire n --wait 1ms", &[]).ended(75);
    world.run("acquire n --wait 30s", &[]).ended(0);
}
