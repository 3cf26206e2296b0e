//! Redis.

use std::net::SocketAddr;
use std::sync::LazyLock;

use leasehold_testkit::server::redis::{Options, Redis};
use leasehold_testkit::server::{Certificates, Server};

use crate::servers::{Site, suite};
use crate::world::{World, finish};

struct RedisSite(Redis);

const PASSWORD: &str = "s3cr3t of redis";

impl RedisSite {
    fn start() -> RedisSite {
        let password = Some(PASSWORD.to_string());
        RedisSite(Redis::with(Options { password, ..Options::default() }))
    }
}

impl Site for RedisSite {
    fn server(&self) -> &Server {
        self.0.server()
    }

    fn url(&self, addr: SocketAddr) -> String {
        format!("redis://{addr}/3")
    }

    fn password(&self) -> String {
        PASSWORD.into()
    }
}

static SHARED: LazyLock<RedisSite> = LazyLock::new(RedisSite::start);

suite!(*SHARED, RedisSite::start());

#[test]
fn certificates_are_named_from_where_the_command_may_not_be() {
    let redis = Redis::with(Options { tls: true, ..Options::default() });
    let url = format!("rediss://{}?ca=ca.pem", redis.addr());
    let world = World::with(&[("LEASEHOLD_STORE", url)]);
    std::fs::copy(redis.certificates().ca(), world.path("ca.pem")).unwrap();
    std::fs::create_dir(world.path("elsewhere")).unwrap();
    let script = "cd elsewhere && exec $L run m -- sh -c 'echo $LEASEHOLD_STORE'";
    let ran = world.run("run n --", &["sh", "-c", script]).ended(0);
    let ca = world.path("ca.pem");
    let absolute = format!("rediss://{}?ca={}\n", redis.addr(), ca.display());
    assert_eq!((ran.out, ran.err), (absolute, String::new()));
    // An authority that has not signed the server's certificate.
    let made: Certificates = redis.certificates();
    std::fs::copy(made.stranger(), world.path("ca.pem")).unwrap();
    let mut command = world.leasehold("--timeout 2s run n -- true", &[]);
    command.env("RUST_BACKTRACE", "0");
    let ran = finish(command);
    assert!(ran.code() == 69 || ran.code() == 78, "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}
