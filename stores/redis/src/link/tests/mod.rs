//! The link to real servers.

mod cluster;
mod durable;
mod mailbox;
mod refused;
mod sentinel;
mod single;
mod waiting;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Result;
use leasehold_net::{BootClock, HostPort, Io};

use super::call::What;
use super::{Answer, Lane, Link, LinkConfig, Script, Shape, Subscription};
pub(super) use mailbox::{Heard, Mailbox};

/// How long anything may take that is awaited here.
const PATIENCE: Duration = Duration::from_secs(60);

static INCREMENT: Script = Script::new("increment", "return redis.call('INCR', KEYS[1])");
static GET: Script = Script::new("get", "return redis.call('GET', KEYS[1])");

fn host(addr: SocketAddr) -> HostPort {
    HostPort { host: addr.ip().to_string(), port: Some(addr.port()) }
}

fn config(shape: Shape) -> LinkConfig {
    LinkConfig {
        shape,
        user: None,
        password: None,
        db: 0,
        tls: None,
        connect_within: Duration::from_secs(20),
        url: "redis://test".into(),
    }
}

fn single(addr: SocketAddr) -> LinkConfig {
    config(Shape::Single(host(addr)))
}

async fn connect(config: LinkConfig) -> Result<Link> {
    Link::connect(config, Io::start("test-redis")?, Arc::new(BootClock)).await
}

/// Runs a case on a runtime with one thread, in which links are connected.
fn run<T>(case: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE * 2, case).await.unwrap() })
}

/// Tries again what fails for now, until it works.
async fn until_it_works<T>(what: &str, mut step: impl AsyncFnMut() -> Result<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        match step().await {
            Ok(done) => return done,
            Err(error) => {
                assert!(error.kind().is_transient(), "{what}: {error:?}");
                assert!(begun.elapsed() < PATIENCE, "{what}: {error:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Link {
    /// Sends a command to where a key is that is named "n".
    async fn command(&self, words: &[&[u8]]) -> Result<Answer> {
        let slot = self.inner.0.slot_of_first(&[b"n"]);
        self.inner.0.call(self.line(Lane::Front), slot, What::Command(words)).await
    }
}

/// A subscription, and what was heard by it.
#[derive(Debug)]
struct Hearing {
    mailbox: Arc<Mailbox>,
    _subscription: Subscription,
}

impl Hearing {
    async fn next(&self) -> Heard {
        self.mailbox.next().await
    }

    fn try_next(&self) -> Option<Heard> {
        self.mailbox.take()
    }
}

impl Link {
    /// Listens where the caller is.
    async fn listen(&self, channel: &[u8]) -> Result<Hearing> {
        let mailbox = Arc::new(Mailbox::default());
        let listener = Mailbox::listener(&mailbox);
        let subscription = self.subscribe(self.side(), channel, listener).await?;
        Ok(Hearing { mailbox, _subscription: subscription })
    }
}
