//! Secrets are never printed.

use crate::world::{World, finish};

const SECRET: &str = "s3cr3t/with@odd";

#[test]
fn a_password_is_never_shown_whatever_goes_wrong() {
    let world = World::new();
    // Nobody listens there.
    let url = format!("redis://user:{SECRET}@127.0.0.1:1/0");
    let mut tries = Vec::new();
    for args in ["run n -- true", "ls", "show n", "-v acquire n"] {
        let args = &format!("--timeout 200ms {args}");
        let mut command = world.leasehold("--store", &[&url]);
        command.args(args.split_whitespace());
        tries.push(command);
        let mut command = world.leasehold(args, &[]);
        command.env("LEASEHOLD_STORE", &url);
        tries.push(command);
    }
    // Marks are kept in the embedded store whatever the store, and nothing else is looked at.
    let mut fence = world.leasehold("-v fence check r --token 1 --slot", &["x"]);
    fence.env("LEASEHOLD_STORE", &url);
    tries.push(fence);
    // Where clap quotes what it did not understand.
    tries.push(world.leasehold("run n --stoer", &[&url, "--", "true"]));
    tries.push(world.leasehold("", &[&url]));
    tries.push(world.leasehold("show n", &[&url]));
    for command in tries {
        let what = format!("{command:?}");
        let ran = finish(command);
        assert_ne!(ran.code(), 0, "{what}");
        for part in ["s3cr3t", "with@odd"] {
            assert!(!ran.err.contains(part) && !ran.out.contains(part), "{what}: {ran:?}");
        }
    }
}

/// The store is not reached, nor is it known here: the password is looked for before.
#[test]
fn a_password_that_cannot_be_read_is_78_with_the_reason() {
    let world = World::new();
    std::fs::create_dir(world.path("credentials")).unwrap();
    std::fs::write(world.path("credentials/leasehold"), b"s3cr3t\xff").unwrap();
    std::fs::write(world.path("empty"), "\n").unwrap();
    std::fs::write(world.path("long"), "s3cr3t".repeat(1000)).unwrap();
    for (name, value, says) in [
        ("LEASEHOLD_STORE_PASSWORD_FILE", "missing", "No such file"),
        ("LEASEHOLD_STORE_PASSWORD_FILE", "empty", "is empty"),
        ("LEASEHOLD_STORE_PASSWORD_FILE", "long", "longer than 4096 bytes"),
        ("LEASEHOLD_STORE_PASSWORD_FILE", "credentials", "directory"),
        ("CREDENTIALS_DIRECTORY", "credentials", "not UTF-8"),
    ] {
        for args in ["run n -- true", "show n"] {
            let mut command = world.leasehold(args, &[]);
            command.env("LEASEHOLD_STORE", "redis://host/").env(name, value);
            let ran = finish(command).ended(78);
            assert!(ran.err.contains(says) && ran.err.contains(value), "{ran:?}");
            assert!(ran.err.lines().count() == 1 && !ran.err.contains("s3cr3t"), "{ran:?}");
        }
    }
    // A store without passwords is not asked for one.
    let mut command = world.leasehold("run n -- true", &[]);
    command.env("LEASEHOLD_STORE_PASSWORD_FILE", "missing");
    finish(command).ended(0);
}

#[test]
fn a_password_in_the_option_draws_a_warning() {
    let world = World::new();
    let url = "redis://:s3cr3t@127.0.0.1:1/";
    let ran = world.run("--timeout 200ms ls --store", &[url]).ended(69);
    assert!(ran.err.contains("password in --store"), "{ran:?}");
    let mut command = world.leasehold("--timeout 200ms ls", &[]);
    command.env("LEASEHOLD_STORE", url);
    assert!(!finish(command).err.contains("password"));
}
