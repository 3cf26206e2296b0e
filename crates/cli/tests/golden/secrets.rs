//! Secrets are never printed.

use crate::world::{World, finish};

const SECRET: &str = "s3cr3t/with@odd";

#[test]
fn a_password_is_never_shown_whatever_goes_wrong() {
    let world = World::new();
    let url = format!("redis://user:{SECRET}@host:6379/0");
    let mut tries = Vec::new();
    for args in ["run n -- true", "ls", "show n", "-v acquire n"] {
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

#[test]
fn a_password_in_the_option_draws_a_warning() {
    let world = World::new();
    let ran = world.run("--store redis://:s3cr3t@host/ ls", &[]).ended(78);
    assert!(ran.err.contains("password in --store"), "{ran:?}");
    let mut command = world.leasehold("ls", &[]);
    command.env("LEASEHOLD_STORE", "redis://:s3cr3t@host/");
    assert!(!finish(command).err.contains("password"));
}
