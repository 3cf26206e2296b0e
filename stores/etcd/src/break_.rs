//! An operator's force.

use std::sync::Arc;

use leasehold_core::{Broken, Ended, Error, ErrorKind, ResourceName, Result, Token};

use crate::keys::{Beside, Keys};
use crate::look::look;
use crate::mirror::{Entry, Mirror};
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn;
use crate::value::End;

pub(crate) async fn break_(
    inner: Arc<Inner>,
    rpc: Rpc,
    resource: ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let keys = inner.layout.keys(&resource)?;
    for _ in 0..4 {
        let mirror = look(&inner, &rpc, &keys).await?;
        let holders: Vec<&Entry> = mirror
            .queue()
            .filter(|(entry, admitted)| entry.holds(*admitted))
            .map(|(entry, _)| entry)
            .collect();
        let meant: Vec<&Entry> = holders
            .iter()
            .copied()
            .filter(|entry| expect.is_none_or(|token| entry.token() == Some(token)))
            .collect();
        if meant.is_empty() {
            let held = holders.iter().filter_map(|entry| entry.token()).collect();
            return Ok(Broken::Nothing { held });
        }
        if !now && let Some(foreign) = meant.iter().find(|entry| entry.ours.is_none()) {
            let detail = format!("it is held by a foreign client: {}", foreign.label());
            return Err(Error::new(ErrorKind::Unsupported, "break a grant", detail)
                .on(&resource)
                .advise("a foreign client is told nothing: free it at once with --now"));
        }
        let mut tokens = Vec::new();
        let mut changed = false;
        for entry in meant {
            let done = if now {
                free(&inner, &rpc, &keys, &mirror, entry).await?
            } else {
                mark(&inner, &rpc, &keys, entry).await?
            };
            changed |= !done;
            if done
                && let Some(token) = entry.token()
                && !tokens.contains(&token)
            {
                tokens.push(token);
            }
        }
        if !changed || !tokens.is_empty() {
            return Ok(Broken::Marked(tokens));
        }
    }
    let detail = "the queue changes faster than it can be read";
    Err(Error::new(ErrorKind::Unavailable, "break a grant", detail).on(&resource))
}

fn key_of(keys: &Keys, entry: &Entry) -> Vec<u8> {
    let mut key = keys.claims().0;
    key.extend_from_slice(&entry.rest);
    key
}

/// Marks a grant, on the lease of its holder, where its next renewal finds it.
async fn mark(inner: &Inner, rpc: &Rpc, keys: &Keys, entry: &Entry) -> Result<bool> {
    let Some(claim) = entry.claim() else { return Ok(false) };
    let guard = txn::modified_at(key_of(keys, entry), entry.modified);
    let ops = vec![
        txn::put(keys.beside(Beside::Broken(claim)), vec![], entry.lease),
        txn::put(keys.beside(Beside::Broke), claim.to_string().into_bytes(), 0),
    ];
    let done = txn::run(rpc, vec![guard], ops, vec![]).await;
    Ok(done.map_err(|f| inner.failed(f).while_doing("break a grant"))?.succeeded)
}

/// Frees at once.
async fn free(
    inner: &Inner,
    rpc: &Rpc,
    keys: &Keys,
    mirror: &Mirror,
    entry: &Entry,
) -> Result<bool> {
    let key = key_of(keys, entry);
    let guard = txn::created_at(key.clone(), entry.create);
    let mut ops = vec![txn::delete(key)];
    if let Some(claim) = entry.claim() {
        let end = End::new(Ended::Broken, claim, entry.token(), mirror.untold());
        ops.push(txn::put(keys.beside(Beside::Out), end.write(), 0));
        ops.push(txn::delete(keys.beside(Beside::Broken(claim))));
        // Where several are broken at once, each finds its own end.
        let term = entry.contender().map(|contender| contender.term).unwrap_or_default();
        ops.push(crate::leave::tomb(inner, claim, term, Ended::Broken).await?);
    }
    let done = txn::run(rpc, vec![guard], ops, vec![]).await;
    Ok(done.map_err(|f| inner.failed(f).while_doing("break a grant"))?.succeeded)
}
