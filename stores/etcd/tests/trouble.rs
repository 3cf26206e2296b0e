//! What goes wrong is told for what it is, and in time.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use leasehold::AcquireError;
use leasehold_core::{ErrorKind, Store};
use leasehold_etcd::{EtcdConfig, EtcdStore};
use leasehold_net::{Secret, Tls};
use leasehold_testkit::server::etcd::{Cluster, Etcd, Options, Release};
use leasehold_testkit::server::{Certificates, Port, wait_until};

fn refused(mut config: EtcdConfig) -> leasehold_core::Error {
    config.connect_within = Duration::from_secs(2);
    let began = Instant::now();
    let error = block_on(EtcdStore::connect(config)).map(drop).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20), "it is told in time");
    error
}

#[test]
fn nobody_there_is_unreachable() {
    let port = Port::reserve();
    let error = refused(common::config(port.number(), ""));
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("cannot connect"), "{error}");
}

#[test]
fn another_server_is_no_etcd() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = refused(common::config(port, ""));
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unreachable), "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

fn with_tls(port: u16, ca: &Path, client: Option<&Path>) -> EtcdConfig {
    let mut config = common::config(port, &common::fresh_prefix());
    let mut tls = Tls::new();
    tls.ca = Some(ca.to_owned());
    tls.cert = client.map(Path::to_owned);
    tls.key = client.map(Certificates::key);
    config.tls = Some(tls);
    config
}

#[test]
fn tls_is_both_or_none_and_certificates_have_to_fit() {
    let options = Options { tls: true, client_certs: true, ..Options::default() };
    let etcd = Etcd::with(options);
    let made = etcd.certificates();
    let store = common::connect(with_tls(etcd.port(), &made.ca(), Some(&made.client())));
    assert_eq!(block_on(store.list(&leasehold_core::Page::default())).unwrap(), []);
    let plain = refused(common::config(etcd.port(), ""));
    assert!(plain.kind().is_transient(), "{plain}");
    let stranger = refused(with_tls(etcd.port(), &made.stranger(), Some(&made.client())));
    assert_eq!(stranger.kind(), ErrorKind::Config, "{stranger}");
    let nobody = refused(with_tls(etcd.port(), &made.ca(), None));
    assert_eq!(nobody.kind(), ErrorKind::Config, "{nobody}");
    let server = common::server(Release::System);
    let not_tls = refused(with_tls(server.port(), &made.ca(), None));
    assert!(not_tls.to_string().contains("does not speak TLS"), "{not_tls}");
}

fn with_user(port: u16, prefix: &str, user: &str, password: &str) -> EtcdConfig {
    let mut config = common::config(port, prefix);
    config.user = Some(user.into());
    config.password = Some(Secret::new(password.to_owned()));
    config
}

fn with_auth(release: Release) -> Etcd {
    let etcd = Etcd::with(Options { release, ..Options::default() });
    for args in [
        &["user", "add", "root:r00t"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "app/"],
        &["user", "add", "app:s3cret"],
        &["user", "grant-role", "app", "locks"],
        &["auth", "enable"],
    ] {
        if args == ["user", "grant-role", "root", "root"] {
            // Newer releases have the role already.
            let _ = etcd.try_ctl(&["role", "add", "root"]);
        }
        etcd.ctl(args);
    }
    etcd
}

#[test]
fn users_are_asked_for_and_tokens_renewed() {
    for release in Release::ALL {
        let etcd = with_auth(release);
        let nobody = refused(common::config(etcd.port(), "app/"));
        assert_eq!(nobody.kind(), ErrorKind::Permission, "{nobody}");
        let wrong = refused(with_user(etcd.port(), "app/", "app", "wr0ng"));
        assert_eq!(wrong.kind(), ErrorKind::Permission, "{wrong}");
        assert!(!wrong.to_string().contains("wr0ng"), "{wrong}");
        let elsewhere = refused(with_user(etcd.port(), "other/", "app", "s3cret"));
        assert_eq!(elsewhere.kind(), ErrorKind::Permission, "{elsewhere}");
        assert!(elsewhere.to_string().contains("readwrite"), "{elsewhere}");
        let client = common::client(with_user(etcd.port(), "app/", "app", "s3cret"));
        let lease = block_on(client.lock("x").ttl(Duration::from_secs(20)).acquire()).unwrap();
        // Its tokens are gone with the server, and another is asked for.
        etcd.server().restart();
        wait_until("the server to be asked again", Duration::from_secs(15), || {
            block_on(lease.check()).map_err(|error| error.to_string())
        });
        assert!(matches!(block_on(lease.release()), leasehold::Release::Released));
        let again = block_on(client.lock("x").acquire()).unwrap();
        common::released(again);
    }
}

#[test]
fn a_full_cluster_says_so_and_goes_on_when_there_is_room() {
    let quota = ["--quota-backend-bytes".to_owned(), "2097152".into()];
    let etcd = Etcd::with(Options { args: quota.into(), ..Options::default() });
    let client = common::client(common::config(etcd.port(), ""));
    let held = block_on(client.lock("held").ttl(Duration::from_secs(30)).acquire()).unwrap();
    let value = "x".repeat(100_000);
    for n in 0..100 {
        if etcd.try_ctl(&["put", &format!("fill{n}"), &value]).is_err() {
            break;
        }
    }
    // A term that needs a new lease: those that are there go on.
    let full = client.lock("other").ttl(Duration::from_secs(40));
    let full = block_on(full.wait(Duration::from_secs(1)).acquire());
    let Err(AcquireError::Failed(error)) = full else { panic!("{full:?}") };
    assert!(error.to_string().contains("NOSPACE"), "{error}");
    block_on(held.check()).unwrap();
    assert!(
        matches!(block_on(held.release()), leasehold::Release::Released),
        "what was held can be let go"
    );
    let revision = etcd.ctl(&["get", "fill0", "--write-out", "fields"]);
    let revision = revision.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap();
    etcd.ctl(&["del", "--prefix", "fill"]);
    etcd.ctl(&["compact", revision]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    let lease = block_on(client.lock("other").ttl(Duration::from_secs(40)).acquire()).unwrap();
    common::released(lease);
}

#[test]
fn without_a_quorum_a_timed_wait_ends_in_time() {
    let cluster = Cluster::with(3, &Options::default());
    let members = cluster.members();
    let mut config = common::config(members[0].port(), "");
    config.hosts = members.iter().flat_map(|m| common::config(m.port(), "").hosts).collect();
    let client = common::client(config);
    let lease = block_on(client.lock("before").acquire()).unwrap();
    members[1].server().kill9();
    members[2].server().kill9();
    let within = Duration::from_secs(2);
    let began = Instant::now();
    let none = block_on(client.lock("x").wait(within).acquire());
    assert!(matches!(none, Err(AcquireError::Failed(_) | AcquireError::TimedOut(_))), "{none:?}");
    let took = began.elapsed();
    assert!(took >= within / 2 && took < within * 3, "{took:?}");
    members[1].server().restart();
    cluster.wait(2);
    block_on(lease.check()).unwrap();
    common::released(lease);
    let lease = block_on(client.lock("x").acquire()).unwrap();
    common::released(lease);
}

#[test]
fn a_term_below_the_clusters_minimum_is_refused_with_the_real_one() {
    let args = ["--election-timeout".to_owned(), "2000".into()];
    let etcd = Etcd::with(Options { args: args.into(), ..Options::default() });
    let client = common::client(common::config(etcd.port(), ""));
    assert_eq!(client.profile().term_bounds.0, Duration::from_secs(3));
    let short = block_on(client.lock("x").ttl(Duration::from_secs(2)).acquire());
    let Err(AcquireError::Failed(error)) = short else { panic!("{short:?}") };
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("want 3s"), "{error}");
}
