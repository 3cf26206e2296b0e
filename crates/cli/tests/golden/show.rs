//! `ls` and `show`: for people and for programs.

use serde_json::Value;

use crate::world::World;

#[test]
fn show_q_is_0_for_held_and_1_for_free_and_says_nothing() {
    let world = World::new();
    let ran = world.run("show -q n", &[]).ended(1);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
    let _holder = world.start("hold n", &[]);
    world.held("n");
    let ran = world.run("show -q n", &[]).ended(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
}

#[test]
fn show_json_tells_holders_waiters_mode_since_remaining_and_the_last_end() {
    let world = World::new();
    world.run("run n -- true", &[]).ended(0);
    let _holder = world.start("hold n --holder first --ttl 1m", &[]);
    world.held("n");
    let _waiter = world.start("hold n --shared --holder second", &[]);
    world.waiters("n", 1);
    let ran = world.run("show n --json", &[]).ended(0);
    assert_eq!(ran.out.lines().count(), 1);
    let object = ran.json();
    assert_eq!((&object["name"], &object["store"]), (&"n".into(), &world.store().into()));
    assert_eq!((&object["held"], &object["kind"]), (&true.into(), &"lock".into()));
    let holder = &object["holders"][0];
    assert_eq!((&holder["holder"], &holder["mode"]), (&"first".into(), &"exclusive".into()));
    assert_eq!(holder["token"], object["last_token"]);
    assert!(holder["expires_in_ms"].as_u64().unwrap() <= 60_000);
    assert!(holder["held_ms"].is_u64() && holder["broken"] == false);
    assert!(holder["since"].as_str().unwrap().ends_with('Z'), "{holder}");
    let waiter = &object["waiters"][0];
    assert_eq!((&waiter["holder"], &waiter["mode"]), (&"second".into(), &"shared".into()));
    assert!(waiter["waited_ms"].is_u64());
    assert_eq!(object["last_end"], "released");
    assert!(object["last_end_ago_ms"].is_u64());
    assert!(object["last_end_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn show_tells_people_the_same() {
    let world = World::new();
    let _holder = world.start("hold n --holder first --permits 2 --limit 5", &[]);
    world.held("n");
    let _waiter = world.start("hold n --holder second --permits 5 --limit 5", &[]);
    world.waiters("n", 1);
    let ran = world.run("show n", &[]).ended(0);
    for says in ["first (2 of 5 permits)", "slots 0,1", "second (5 of 5 permits)", "last token"] {
        assert!(ran.out.contains(says), "{says}: {}", ran.out);
    }
    assert!(world.run("show never-used", &[]).ended(0).out.contains("free"));
}

#[test]
fn ls_lists_by_prefix_in_order_a_row_or_an_object_each() {
    let world = World::new();
    for name in ["b2", "a", "b1"] {
        world.run("run", &[name, "--", "true"]).ended(0);
    }
    let _holder = world.start("hold b1 --holder someone", &[]);
    world.held("b1");
    let rows = world.run("ls b", &[]).ended(0).out;
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert_eq!(rows[0][..2], ["NAME", "STATE"]);
    assert_eq!(rows[1][..4], ["b1", "held", "exclusive", "someone"]);
    assert_eq!(rows[2][..2], ["b2", "free"]);
    let lines = world.run("ls --json", &[]).ended(0).out;
    let objects: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let names: Vec<&str> = objects.iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b1", "b2"]);
    assert!(objects.iter().all(|o| o["store"] == world.store()));
}

#[test]
fn ls_into_head_ends_quietly() {
    let world = World::new();
    let names: Vec<String> = (0..300).map(|i| format!("{i:0200}")).collect();
    let script: String = names.iter().map(|n| format!("$L acquire {n} >/dev/null\n")).collect();
    world.sh(&script).ended(0);
    let ran = world.sh("{ $L ls --json; echo $? >code; } | head -n 1 | cut -c 1-12");
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("{\"name\":\"000\n", ""));
    assert_eq!(world.line("code"), "0");
}

#[test]
fn what_others_wrote_cannot_steer_a_terminal() {
    let world = World::new();
    let ran = world.run("acquire n --holder", &["a\u{1b}[2Jb\nc"]).ended(0);
    assert!(!ran.out.contains('\u{1b}'), "{ran:?}");
    for args in ["show n", "ls", "show n --json"] {
        let ran = world.run(args, &[]).ended(0);
        assert!(!ran.out.contains('\u{1b}'), "{ran:?}");
    }
    let ran = world.run("run n --no-wait -- true", &[]).ended(75);
    assert!(!ran.err.contains('\u{1b}') && ran.err.lines().count() == 1, "{ran:?}");
}
