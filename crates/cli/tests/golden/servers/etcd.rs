//! etcd.

use std::net::SocketAddr;
use std::sync::LazyLock;

use leasehold_testkit::server::Server;
use leasehold_testkit::server::etcd::Etcd;

use crate::servers::{Site, suite};

struct EtcdSite(Etcd);

const PASSWORD: &str = "s3cr3t-of-root";

impl EtcdSite {
    fn start() -> EtcdSite {
        let etcd = Etcd::start();
        etcd.ctl(&["user", "add", &format!("root:{PASSWORD}")]);
        etcd.ctl(&["user", "grant-role", "root", "root"]);
        etcd.ctl(&["auth", "enable"]);
        EtcdSite(etcd)
    }
}

impl Site for EtcdSite {
    fn server(&self) -> &Server {
        self.0.server()
    }

    fn url(&self, addr: SocketAddr) -> String {
        format!("etcd://root@{addr}/golden/")
    }

    fn lets_others_reenter(&self) -> bool {
        false
    }

    fn password(&self) -> String {
        PASSWORD.into()
    }
}

static SHARED: LazyLock<EtcdSite> = LazyLock::new(EtcdSite::start);

suite!(*SHARED, EtcdSite::start());
