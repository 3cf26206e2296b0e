//! What the program says of itself.

use crate::world::World;

const CODES: [&str; 12] =
    ["1", "64", "69", "70", "74", "75", "76", "77", "78", "126", "127", "128+N"];

#[test]
fn help_and_manual_page_list_the_same_exit_codes() {
    let world = World::new();
    for args in ["--help", "run --help", "man"] {
        let ran = world.run(args, &[]).ended(0);
        for code in CODES {
            let there = ran
                .out
                .lines()
                .any(|line| line.split_whitespace().next() == Some(code) && line.starts_with("  "));
            assert!(there, "{args} does not list {code}");
        }
        assert_eq!(ran.err, "");
    }
}

#[test]
fn help_names_every_command_that_is_built_and_none_that_is_not() {
    let world = World::new();
    let help = world.run("--help", &[]).ended(0).out;
    let named = |name: &str| {
        let mut words = help.lines().map(|line| line.split_whitespace().next());
        words.any(|word| word == Some(name))
    };
    for built in [
        "run",
        "hold",
        "acquire",
        "renew",
        "release",
        "check",
        "ls",
        "show",
        "break",
        "fence",
        "gc",
        "schema",
        "completions",
        "man",
    ] {
        assert!(named(built), "{built}");
        world.run(built, &["--help"]).ended(0);
    }
    let later = ["watch", "elect", "once", "cron", "doctor", "verify", "accidents", "bench"];
    for later in later {
        assert!(!named(later), "{later}");
        world.run(later, &[]).ended(64);
    }
}

#[test]
fn the_manual_page_has_unit_files_and_jobs() {
    let page = World::new().run("man", &[]).ended(0).out;
    let page = page.replace("\\-", "-");
    for says in [
        "KillMode",
        "RestartPreventExitStatus",
        "podFailurePolicy",
        "LEASEHOLD_CLAIMS",
        "--after-loss",
    ] {
        assert!(page.contains(says), "{says}");
    }
    assert!(page.contains(".TH"), "it is roff");
}

#[test]
fn completions_are_made_for_each_shell() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = world.run("completions", &[shell]).ended(0).out;
        assert!(script.contains("leasehold") && script.contains("acquire"), "{shell}");
    }
    let script = world.run("completions bash", &[]).ended(0).out;
    std::fs::write(world.path("c.bash"), script).unwrap();
    let mut command = world.program("bash");
    command.args(["-n", "c.bash"]);
    crate::world::finish(command).ended(0);
}

#[test]
fn schema_prints_tables_that_the_stores_own_shell_takes() {
    let world = World::new();
    let printed = world.run("schema sqlite", &[]).ended(0).out;
    let database = rusqlite::Connection::open_in_memory().unwrap();
    database.execute_batch(&printed).unwrap();
    assert!(database.table_exists(None, "resource").unwrap());
    let ran = world.run("schema carrier-pigeon", &[]).ended(64);
    assert!(ran.err.contains("sqlite"), "{ran:?}");
}

#[test]
fn schema_prints_a_trigger_that_protects_a_table() {
    let world = World::new();
    let postgres = world.run("schema postgres --fence", &["shop.orders"]).ended(0).out;
    for says in [
        "CREATE TABLE IF NOT EXISTS leasehold_fence (",
        "BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON \"shop\".\"orders\"",
        "EXECUTE FUNCTION leasehold_refuse_stale('shop.orders');",
        "PGOPTIONS=",
    ] {
        assert!(postgres.contains(says), "{says}");
    }
    let mysql = world.run("schema mysql --fence", &["orders"]).ended(0).out;
    for says in [
        "CREATE TRIGGER `leasehold_delete_orders` BEFORE DELETE ON `orders`",
        "FOR EACH ROW CALL leasehold_refuse_stale('orders');",
        "DELIMITER //",
    ] {
        assert!(mysql.contains(says), "{says}");
    }
    for sql in [&postgres, &mysql] {
        assert!(!sql.contains("{table}") && !sql.contains("{create_table}"), "{sql}");
    }
    for bad in ["x'; DROP TABLE y --", "a`b", "a\"b", "", "a.b.c"] {
        for store in ["postgres", "mysql"] {
            let ran = world.run(&format!("schema {store} --fence"), &[bad]).ended(64);
            assert!(ran.out.is_empty() && ran.err.contains("name a table"), "{ran:?}");
        }
    }
    let ran = world.run("schema sqlite --fence", &["orders"]).ended(64);
    assert!(ran.err.contains("have every writer enter instead"), "{ran:?}");
}

#[test]
fn version_and_help_are_data() {
    let world = World::new();
    let version = world.run("--version", &[]).ended(0);
    assert_eq!(version.out, format!("leasehold {}\n", env!("CARGO_PKG_VERSION")));
    assert!(world.run("run --help", &[]).ended(0).out.contains("--hold-at-least"));
    assert!(!world.run("--help", &[]).ended(0).out.contains('\u{1b}'), "no colour off a terminal");
}
