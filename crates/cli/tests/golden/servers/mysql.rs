//! MariaDB.

use std::net::SocketAddr;
use std::sync::LazyLock;

use leasehold_testkit::server::Server;
use leasehold_testkit::server::mariadb::MariaDb;

use crate::servers::{Site, suite};

struct MysqlSite(MariaDb);

const PASSWORD: &str = "s3cr3t of app";

impl MysqlSite {
    fn start() -> MysqlSite {
        let server = MariaDb::start();
        let statements = format!(
            "CREATE DATABASE locks; CREATE USER app@'%' IDENTIFIED BY '{PASSWORD}'; \
             GRANT ALL ON locks.* TO app@'%'"
        );
        server.sql("mysql", &statements);
        MysqlSite(server)
    }
}

impl Site for MysqlSite {
    fn server(&self) -> &Server {
        self.0.server()
    }

    fn url(&self, addr: SocketAddr) -> String {
        format!("mysql://app@{addr}/locks")
    }

    fn password(&self) -> String {
        PASSWORD.into()
    }
}

static SHARED: LazyLock<MysqlSite> = LazyLock::new(MysqlSite::start);

suite!(*SHARED, MysqlSite::start());

#[test]
fn the_printed_tables_are_enough_for_a_user_who_may_make_none() {
    let site = &*SHARED;
    let world = crate::world::World::new();
    let printed = world.run("schema mysql", &[]).ended(0).out;
    site.0.sql(
        "mysql",
        "CREATE DATABASE made; CREATE USER poor@'%' IDENTIFIED BY 'pw'; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON made.* TO poor@'%'",
    );
    let url = format!("mysql://poor@{}/made", site.server().addr());
    let run = || {
        let mut command = world.leasehold("run n -- true", &[]);
        command.env("LEASEHOLD_STORE", &url).env("LEASEHOLD_STORE_PASSWORD", "pw");
        crate::world::finish(command)
    };
    let ran = run().ended(78);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    site.0.sql("made", &printed);
    assert_eq!(run().ended(0).err, "");
}
