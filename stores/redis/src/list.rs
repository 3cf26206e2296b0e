//! Names with a live claim or a memory of one.

use std::collections::BTreeSet;

use leasehold_core::{Page, ResourceName, Result};

use crate::keys::{STATES, name_of_state};
use crate::store::RedisStore;
use crate::told::corrupt;

/// How many keys one step of the scan looks at.
const STEP: &[u8] = b"1000";

/// The first names of the page in byte order. Redis keeps no order, so all keys are looked at;
/// what is kept at any time is one page.
pub(crate) async fn list(store: &RedisStore, page: &Page) -> Result<Vec<ResourceName>> {
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let mut first: BTreeSet<ResourceName> = BTreeSet::new();
    for node in store.link().masters() {
        let mut cursor = b"0".to_vec();
        loop {
            let command: [&[u8]; 6] =
                [b"SCAN", &cursor, b"MATCH", STATES.as_bytes(), b"COUNT", STEP];
            let answer = store.link().command_at(node, &command).await?;
            let mut parts = answer.reply.into_array()?.into_iter();
            let (Some(next), Some(keys)) = (parts.next(), parts.next()) else {
                return Err(corrupt("a scan is answered by something else"));
            };
            for key in keys.into_array()? {
                // What is not ours in form is another's, and no name.
                let Ok(name) = name_of_state(key.bytes()?) else { continue };
                let fits = name.as_str().starts_with(&page.prefix)
                    && page.after.as_ref().is_none_or(|after| name > *after);
                if fits {
                    first.insert(name);
                    if first.len() > limit {
                        first.pop_last();
                    }
                }
            }
            cursor = next.bytes()?.to_vec();
            if cursor == b"0" {
                break;
            }
        }
    }
    Ok(first.into_iter().collect())
}
