//! Grants that replicas, or disks, must have before they count.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};

use crate::config::Durability;
use crate::link::{Durability as Wanted, Script};
use crate::store::RedisStore;
use crate::told::{DOING, Told};

/// For how long replicas are waited for.
const WITHIN: Duration = Duration::from_secs(1);

/// Runs a script and waits until enough have what it wrote. The second value says what is
/// missing; the script has run all the same.
pub(crate) async fn tell(
    store: &RedisStore,
    script: &'static Script,
    keys: &[&[u8]],
    args: &[&[u8]],
    durability: Durability,
) -> Result<(Told, Option<Error>)> {
    let (replicas, fsync) = match durability {
        Durability::Local => (0, false),
        Durability::Wait(replicas) => (replicas, false),
        Durability::WaitAof(replicas) => (replicas, true),
    };
    let wanted = Wanted { replicas, fsync, within: WITHIN };
    let (answer, reached) = store.link().call_durably(script, keys, args, wanted).await?;
    let told = store.read(Told::read(answer)?)?;
    let shortfall = if reached.replicas < replicas {
        let detail = format!("{} of {replicas} replicas have it after a second", reached.replicas);
        Some(detail)
    } else if fsync && !reached.fsynced {
        Some("it is not on the master's disk after a second".into())
    } else {
        None
    };
    let unavailable = |detail| {
        Error::new(ErrorKind::Unavailable, DOING, detail)
            .advise("ask for less by `?durability=`, or see to the replicas")
    };
    Ok((told, shortfall.map(unavailable)))
}
