//! Connecting: a session, and a root with a layout that is known.

use std::sync::{Arc, OnceLock, Weak};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::{Io, Secret};

use crate::config::ZookeeperConfig;
use crate::enter::{get, make_path};
use crate::error::from_fail;
use crate::hall::Hall;
use crate::names::OWN;
use crate::wire::{Event, Fail, Make, Op, Wire, WireConfig};

/// What stands in our own node: the layout of all below.
pub(crate) const VERSION: &[u8] = b"leasehold 1\n";
const CONNECTING: &str = "connect to ZooKeeper";

/// Connects within the time that the configuration gives.
pub(crate) async fn open(io: &Io, config: ZookeeperConfig) -> Result<Arc<Hall>> {
    let wire_config = wire_config(&config)?;
    let hall: Arc<OnceLock<Weak<Hall>>> = Arc::default();
    let told = Arc::clone(&hall);
    let hook = move |event: Event| {
        if let Some(hall) = told.get().and_then(Weak::upgrade) {
            hall.on_event(event);
        }
    };
    let runtime = io.back().clone();
    let wire = Wire::start(&runtime, wire_config, Box::new(hook), io.clone());
    let session = Arc::clone(wire.session());
    let within = config.connect_within;
    let connected = tokio::time::timeout(within, session.connected()).await;
    let now = match connected {
        Ok(Some(now)) => now,
        Ok(None) => return Err(from_fail(Fail::Closed, None).while_doing(CONNECTING)),
        Err(_) => {
            let trouble = session.trouble();
            return Err(from_fail(Fail::Lost { maybe: false }, trouble)
                .while_doing(CONNECTING)
                .advise(
                    "see that the servers run and have a quorum, and that the ports are right",
                ));
        }
    };
    let opened = Arc::new(Hall::new(config, runtime, wire, now.timeout));
    let _ = hall.set(Arc::downgrade(&opened));
    tokio::time::timeout(within, prepare(&opened, now.generation))
        .await
        .map_err(|_| from_fail(Fail::Lost { maybe: true }, None).while_doing(CONNECTING))??;
    opened.runtime.spawn(crate::expire::watch(Arc::downgrade(&opened)));
    Ok(opened)
}

fn wire_config(config: &ZookeeperConfig) -> Result<WireConfig> {
    let tls = match &config.tls {
        None => None,
        Some(tls) => Some((tls.client_config()?, tls.server_name.clone())),
    };
    let login = config.user.as_ref().map(|user| {
        let password = config.password.as_ref().map_or("", Secret::expose);
        Secret::new(format!("{user}:{password}"))
    });
    Ok(WireConfig {
        hosts: config.hosts.clone(),
        timeout: config.session,
        login,
        acl: config.acl,
        tls,
        answer_max: config.answer_max,
    })
}

/// Makes the root, or sees that it is one of ours.
async fn prepare(hall: &Hall, generation: u64) -> Result<()> {
    let failed = |fail| hall.error(fail).while_doing(CONNECTING);
    let own = format!("{}/{OWN}", hall.config.root);
    for _ in 0..3 {
        match get(hall, generation, own.clone()).await.map_err(failed)? {
            Some((found, _)) if found == VERSION => return Ok(()),
            Some((found, _)) if !found.is_empty() => {
                let found = String::from_utf8_lossy(&found);
                let found = leasehold_core::shown(found.trim(), 40);
                let detail = format!("{own} says `{found}`: its layout is not known here");
                return Err(Error::new(ErrorKind::Version, CONNECTING, detail)
                    .advise("use a leasehold that is not older than those beside it"));
            }
            Some(_) => {}
            None => make_path(hall, generation, &own, Make::Persistent).await.map_err(failed)?,
        }
        let op = Op::Set { path: own.clone(), data: VERSION.to_vec(), version: -1 };
        match hall.ask(generation, &op).await.result {
            Ok(_) => return Ok(()),
            Err(Fail::Refused(refusal)) if refusal.code == crate::wire::code::NO_NODE => {}
            Err(fail) => return Err(failed(fail)),
        }
    }
    Err(failed(Fail::Lost { maybe: true }))
}
