//! ZooKeeper.

use std::net::SocketAddr;
use std::sync::LazyLock;

use leasehold_testkit::server::Server;
use leasehold_testkit::server::zookeeper::Zookeeper;

use crate::servers::{Site, suite};

struct ZookeeperSite(Zookeeper);

impl ZookeeperSite {
    fn start() -> ZookeeperSite {
        ZookeeperSite(Zookeeper::start())
    }
}

impl Site for ZookeeperSite {
    fn server(&self) -> &Server {
        self.0.server()
    }

    fn url(&self, addr: SocketAddr) -> String {
        format!("zookeeper://ann@{addr}/golden")
    }

    fn lets_others_reenter(&self) -> bool {
        false
    }

    fn password(&self) -> String {
        "s3cr3t of ann".into()
    }

    fn keeps_claims(&self) -> bool {
        false
    }
}

static SHARED: LazyLock<ZookeeperSite> = LazyLock::new(ZookeeperSite::start);

suite!(*SHARED, ZookeeperSite::start());
