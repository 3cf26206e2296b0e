//! Reads the record that a majority keeps, or the newest that a member of one has.

use std::sync::Arc;

use leasehold_core::{Error, Record, ResourceName, Result, Store};

use crate::core::{Core, most};

pub(crate) async fn read(core: Arc<Core>, name: ResourceName) -> Result<Option<Record>> {
    let mut asked = core.ask(core.all(), core.patient(), |_, store| {
        let name = name.clone();
        async move { store.read(&name).await }
    });
    let mut read: Vec<Option<Record>> = Vec::new();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(record) if said.counts => read.push(record),
            Ok(_) => {}
            Err(error) => failed.push((said.at, error)),
        }
    }
    let majority = core.majority();
    if read.len() < majority {
        return Err(core.too_few(&failed, read.len()));
    }
    let key = |record: &Record| (record.token, record.value.clone());
    let agreed = most(read.iter().map(|record| record.as_ref().map(key)));
    let agreed = agreed.filter(|(_, count)| *count >= majority).map(|(record, _)| record);
    let newest = read.iter().flatten().max_by_key(|record| (record.token, record.kept_for));
    Ok(match agreed {
        Some(None) => None,
        Some(Some(record)) => read.iter().flatten().find(|other| key(other) == record).cloned(),
        None => newest.cloned(),
    })
}
