//! Reaching the server, and seeing that it can be used.

use std::sync::Arc;

use leasehold_core::{Clock, Error, ErrorKind, Result, shown};
use leasehold_net::{BootClock, Io};

use crate::config::{Durability, RedisConfig, Servers};
use crate::hub::Hub;
use crate::link::{Facts, Lane, Link, LinkConfig, Shape};
use crate::scripts::PROBE;
use crate::store::RedisStore;

const CONNECTING: &str = "connect";
/// What the scripts need: `SET` with `PXAT`.
const OLDEST: (u16, u16, u16) = (6, 2, 0);
/// A name that no resource has, for asking what is allowed.
const NOBODY: &str = "leasehold-probe";

pub(crate) async fn connect(config: RedisConfig) -> Result<RedisStore> {
    let url = config.url();
    let named = |error: Error| error.while_doing(CONNECTING).at(url.as_str());
    let io = Io::start("leasehold-redis").map_err(named)?;
    let clock: Arc<dyn Clock> = Arc::new(BootClock);
    let link = Link::connect(link_config(&config), io.clone(), clock).await.map_err(named)?;
    match check(&config, &link).await {
        Ok(()) => {}
        Err(error) => {
            link.close().await;
            return Err(named(error));
        }
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id)
        .map_err(|e| named(Error::new(ErrorKind::Unavailable, CONNECTING, e.to_string())))?;
    let confirms = config.durability != Durability::Local;
    let id = u128::from_ne_bytes(id);
    let hub = Hub::new(link.clone(), io.clone(), config.layout, confirms, id);
    Ok(RedisStore::new(config, io, link, hub))
}

fn link_config(config: &RedisConfig) -> LinkConfig {
    let shape = match &config.servers {
        Servers::Single(host) => Shape::Single(host.clone()),
        Servers::Sentinel { sentinels, master, user, password } => Shape::Sentinel {
            sentinels: sentinels.clone(),
            master: master.clone(),
            user: user.clone(),
            password: password.clone(),
        },
        Servers::Cluster(seeds) => Shape::Cluster(seeds.clone()),
    };
    LinkConfig {
        shape,
        user: config.user.clone(),
        password: config.password.clone(),
        db: config.db,
        tls: config.tls.clone(),
        connect_within: config.connect_within,
        url: config.url(),
    }
}

async fn check(config: &RedisConfig, link: &Link) -> Result<()> {
    check_facts(config, &link.facts())?;
    let state = format!("leasehold:s:{{{NOBODY}}}");
    let wake = format!("leasehold:wake:{{{NOBODY}}}");
    let foreign = format!("redisson_lock__channel:{{{NOBODY}}}");
    let args: [&[u8]; 4] = [
        config.layout.letter(),
        link.publish_word().as_bytes(),
        wake.as_bytes(),
        foreign.as_bytes(),
    ];
    let answer = link.call(Lane::Front, &PROBE, &[state.as_bytes()], &args).await?;
    let mut parts = answer.reply.into_array()?.into_iter().skip(1);
    if let (Some(what), Some(why)) = (parts.next(), parts.next()) {
        return Err(refused(what.str()?, why.str()?));
    }
    Ok(())
}

fn check_facts(config: &RedisConfig, facts: &Facts) -> Result<()> {
    // Some proxies and some users are not told.
    if facts.version != (0, 0, 0) && facts.version < OLDEST {
        let (major, minor, _) = facts.version;
        let detail = format!("the server is version {major}.{minor}: want 6.2 or newer");
        return Err(
            Error::new(ErrorKind::Config, CONNECTING, detail).advise("update Redis, or use Valkey")
        );
    }
    let wants_cluster = matches!(config.servers, Servers::Cluster(_));
    if facts.cluster && !wants_cluster {
        let detail = "the server is a node of a cluster";
        return Err(Error::new(ErrorKind::Config, CONNECTING, detail)
            .advise("write `redis+cluster` in place of `redis`"));
    }
    Ok(())
}

/// What the probe was refused.
fn refused(what: &str, why: &str) -> Error {
    let says = |words: &str| why.contains(words);
    let kind = if says("NOPERM") || says("executing the script can't") || says("no permissions") {
        ErrorKind::Permission
    } else if says("READONLY") || says("replica") {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Config
    };
    let detail = format!("its scripts are refused what they need ({what}): {}", shown(why, 160));
    let error = Error::new(kind, CONNECTING, detail);
    match (kind, what) {
        (ErrorKind::Permission, "own channel") => {
            error.advise("grant the user the channels `&leasehold:*`")
        }
        (ErrorKind::Permission, "foreign channel") => error.advise(
            "grant the user the channels `&redisson_lock__channel:*`, or use `?layout=plain`",
        ),
        (ErrorKind::Permission, _) => error.advise(
            "grant the user `~leasehold:*`, the names of the locks, `~redisson_lock_token:*` and \
             `+@all -@dangerous`, or see the README for the commands one by one",
        ),
        (ErrorKind::Unavailable, _) => error.advise("name the master, or use `redis+sentinel`"),
        _ => error.advise("connect to a Redis or Valkey server itself, not to a proxy"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_net::HostPort;

    #[test]
    fn an_old_server_and_a_node_of_a_cluster_are_refused() {
        let single = RedisConfig::new("h", 6379);
        let facts = |version, cluster| Facts { version, cluster, sharded: false, resp3: true };
        let old = check_facts(&single, &facts((6, 0, 20), false)).unwrap_err();
        assert_eq!(old.kind(), ErrorKind::Config);
        assert!(old.to_string().contains("6.0"), "{old}");
        assert!(check_facts(&single, &facts((6, 2, 0), false)).is_ok());
        assert!(check_facts(&single, &facts((0, 0, 0), false)).is_ok());
        let node = check_facts(&single, &facts((7, 0, 0), true)).unwrap_err();
        assert!(node.advice().is_some_and(|a| a.contains("redis+cluster")), "{node}");
        let mut cluster = single;
        cluster.servers = Servers::Cluster(vec![HostPort { host: "h".into(), port: None }]);
        assert!(check_facts(&cluster, &facts((7, 0, 0), true)).is_ok());
    }
}
