//! Writing a record, in one step with the proof that its grant stands.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimRef, Ended, Error, ErrorKind, Record, Result, Written};

use crate::card::Stored;
use crate::error::DOING;
use crate::hall::{Hall, Known};
use crate::leave::reread;
use crate::look::vanished;
use crate::seat::Stage;
use crate::wire::{Make, Op, code};

const TRIES: usize = 10;

pub(crate) async fn write(
    hall: &Arc<Hall>,
    claim: &ClaimRef,
    value: &[u8],
    keep: Duration,
) -> Result<Written> {
    if value.len() > Record::VALUE_MAX {
        let (len, max) = (value.len(), Record::VALUE_MAX);
        let detail = format!("the value has {len} bytes: want at most {max}");
        return Err(Error::new(ErrorKind::Usage, DOING, detail).on(&claim.resource));
    }
    let seat = match hall.find(claim.id) {
        Known::Nothing => return Ok(Written::Gone(Ended::Unknown)),
        Known::Ended(how) => return Ok(Written::Gone(how)),
        Known::Sits(seat) => seat,
    };
    crate::expire::expire(hall, &seat);
    let _turn = seat.turn.lock().await;
    let mut exists = true;
    for _ in 0..TRIES {
        if let Known::Ended(how) = hall.find(claim.id) {
            return Ok(Written::Gone(how));
        }
        let (held, generation) = {
            let facts = seat.facts();
            let held = match &facts.stage {
                Stage::Granted(held) => held.clone(),
                Stage::Over(how) => return Ok(Written::Gone(*how)),
                Stage::Asked | Stage::Waiting(_) => return Ok(Written::Gone(Ended::Unknown)),
            };
            (held, facts.generation)
        };
        if held.broken {
            return Ok(Written::Gone(Ended::Broken));
        }
        let Some(path) = seat.path() else { return Ok(Written::Gone(Ended::Unknown)) };
        let stored = Stored { token: held.token, keep, value: value.to_vec() };
        let (record, data) = (seat.paths.record(), stored.write());
        let put = if exists {
            Op::Set { path: record, data, version: -1 }
        } else {
            Op::Create { path: record, data, make: Make::Persistent }
        };
        // What does not change the node's version proves that it was not broken.
        let check = Op::Check { path, version: held.version };
        let refusal = match hall.ask(generation, &Op::Multi(vec![check, put])).await.result {
            Ok(_) => return Ok(Written::Stored),
            Err(crate::wire::Fail::Refused(refusal)) => refusal,
            Err(fail) => return Err(hall.error(fail)),
        };
        let failed = |fail| hall.error(fail);
        match (refusal.code, refusal.at) {
            (code::NO_NODE, 0) => {
                let how = vanished(hall, &seat, generation).await.map_err(failed)?;
                hall.finish(&seat, how);
            }
            (code::BAD_VERSION, 0) => reread(hall, &seat, generation).await.map_err(failed)?,
            (code::NO_NODE, _) => exists = false,
            (code::NODE_EXISTS, _) => exists = true,
            _ => return Err(hall.error(crate::wire::Fail::Refused(refusal))),
        }
    }
    let detail = "others changed its record at each try";
    Err(Error::new(ErrorKind::Unavailable, DOING, detail).on(&claim.resource))
}
