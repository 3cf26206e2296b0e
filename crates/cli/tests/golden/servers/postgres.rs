//! PostgreSQL.

use std::net::SocketAddr;
use std::sync::LazyLock;

use leasehold_testkit::server::Server;
use leasehold_testkit::server::postgres::{Options, Postgres};

use crate::servers::{Site, suite};
use crate::world::{World, finish};

struct PostgresSite(Postgres);

const PASSWORD: &str = "s3cr3t of app";

impl PostgresSite {
    fn start() -> PostgresSite {
        let hba = vec!["host all app,poor 127.0.0.1/32 scram-sha-256".to_string()];
        let server = Postgres::with(Options { hba, ..Options::default() });
        server.sql(&format!("CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'"));
        server.sql("CREATE DATABASE locks OWNER app");
        PostgresSite(server)
    }
}

impl Site for PostgresSite {
    fn server(&self) -> &Server {
        self.0.server()
    }

    fn url(&self, addr: SocketAddr) -> String {
        format!("postgres://app@{addr}/locks")
    }

    fn password(&self) -> String {
        PASSWORD.into()
    }
}

static SHARED: LazyLock<PostgresSite> = LazyLock::new(PostgresSite::start);

suite!(*SHARED, PostgresSite::start());

#[test]
fn the_printed_tables_are_enough_for_a_role_that_may_make_none() {
    let site = &*SHARED;
    let world = World::new();
    site.0.sql("CREATE ROLE poor LOGIN PASSWORD 'pw'");
    site.0.create_database("made");
    let url = format!("postgres://poor@{}/made", site.server().addr());
    let run = || {
        let mut command = world.leasehold("run n -- true", &[]);
        command.env("LEASEHOLD_STORE", &url).env("LEASEHOLD_STORE_PASSWORD", "pw");
        finish(command)
    };
    let ran = run().ended(78);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    let printed = world.run("schema postgres", &[]).ended(0).out;
    site.0.sql_in("made", &printed);
    // The rights that it names in comments at its end, given as it names them.
    let (_, rights) = printed.split_once("-- The role of the application").unwrap();
    let rights: Vec<&str> = rights.lines().skip(1).map(|l| l.trim_start_matches('-')).collect();
    site.0.sql_in("made", &rights.join("\n").replace("TO app", "TO poor"));
    assert_eq!(run().ended(0).err, "");
}
