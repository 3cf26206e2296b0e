//! Plain requests, for tests and figures: what a lock is compared with.

use std::time::Duration;

use leasehold_core::Result;
use leasehold_net::Io;
use prost::Message;

use crate::config::EtcdConfig;
use crate::proto::LeaseGrantRequest;
use crate::proto::{
    Against, Compare, CompareResult, CompareTarget, LEASE_GRANT, LeaseGrantResponse, RequestOp,
};
use crate::rpc::{Auth, Rpc, targets};
use crate::txn;

const SERVER_LOCK: &str = "/v3lockpb.Lock/Lock";
const SERVER_UNLOCK: &str = "/v3lockpb.Lock/Unlock";

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {}

/// A connection that takes its requests as they are.
#[derive(Debug)]
pub struct Raw {
    rpc: Rpc,
    url: String,
    io: Io,
}

/// A comparison of creation revisions, and whether equal is meant.
#[derive(Debug, Clone)]
pub struct RawCompare {
    /// The key, or the first of a range.
    pub key: Vec<u8>,
    /// The first key after the range; empty for a single key.
    pub range_end: Vec<u8>,
    /// What the creation revision is compared with.
    pub revision: i64,
    /// Whether it has to be equal, or not equal.
    pub equal: bool,
}

/// An operation.
#[derive(Debug, Clone)]
pub enum RawOp {
    /// Puts a key, on a lease or 0.
    Put(Vec<u8>, Vec<u8>, i64),
    /// Deletes a key.
    Delete(Vec<u8>),
    /// Deletes a range.
    DeleteRange(Vec<u8>, Vec<u8>),
    /// Reads a range.
    Range(Vec<u8>, Vec<u8>),
}

impl Raw {
    /// Connects when it is first used.
    ///
    /// # Errors
    ///
    /// `Config` for an unfit configuration.
    pub fn new(config: &EtcdConfig) -> Result<Raw> {
        let io = Io::start("leasehold-etcd-raw")?;
        let handle = if io.has_front() { io.front().clone() } else { io.back().clone() };
        let rpc = Rpc::new(targets(config)?, Auth::new(config), handle);
        Ok(Raw { rpc, url: config.url(), io })
    }

    /// Runs a transaction; whether it succeeded, and the keys that its ranges have found.
    ///
    /// # Errors
    ///
    /// What the store's calls may answer.
    pub async fn txn(
        &self,
        compare: Vec<RawCompare>,
        success: Vec<RawOp>,
        failure: Vec<RawOp>,
    ) -> Result<(bool, Vec<Vec<u8>>)> {
        let (rpc, url) = (self.rpc.clone(), self.url.clone());
        self.io
            .on_front("raw", async move {
                let compare = compare.into_iter().map(compared).collect();
                let ops = |ops: Vec<RawOp>| ops.into_iter().map(op).collect::<Vec<RequestOp>>();
                let (success, failure) = (ops(success), ops(failure));
                let count = success.len().max(failure.len());
                let done = txn::run(&rpc, compare, success, failure).await;
                let mut done = done.map_err(|failure| failure.error(&url))?;
                let found = (0..count).filter_map(|at| done.range(at).ok());
                let keys = found.flat_map(|range| range.kvs).map(|kv| kv.key).collect();
                Ok((done.succeeded, keys))
            })
            .await?
    }

    /// A lease of so many seconds.
    ///
    /// # Errors
    ///
    /// As [`Raw::txn`].
    pub async fn grant(&self, ttl: i64) -> Result<i64> {
        let (rpc, url) = (self.rpc.clone(), self.url.clone());
        self.io
            .on_front("raw", async move {
                let question = LeaseGrantRequest { ttl, id: 0 };
                let granted: Result<LeaseGrantResponse, _> = rpc.call(LEASE_GRANT, question).await;
                granted.map(|granted| granted.id).map_err(|failure| failure.error(&url))
            })
            .await?
    }

    /// Waits for the server's own lock, and tells its key.
    ///
    /// # Errors
    ///
    /// As [`Raw::txn`].
    pub async fn server_lock(&self, name: &str, lease: i64) -> Result<Vec<u8>> {
        let (rpc, url) = (self.rpc.clone(), self.url.clone());
        let question = LockRequest { name: name.as_bytes().to_vec(), lease };
        self.io
            .on_front("raw", async move {
                let within = Duration::from_secs(60);
                let locked: Result<LockResponse, _> =
                    rpc.call_within(within, SERVER_LOCK, question).await;
                locked.map(|locked| locked.key).map_err(|failure| failure.error(&url))
            })
            .await?
    }

    /// Gives it back.
    ///
    /// # Errors
    ///
    /// As [`Raw::txn`].
    pub async fn server_unlock(&self, key: Vec<u8>) -> Result<()> {
        let (rpc, url) = (self.rpc.clone(), self.url.clone());
        self.io
            .on_front("raw", async move {
                let unlocked: Result<UnlockResponse, _> =
                    rpc.call(SERVER_UNLOCK, UnlockRequest { key }).await;
                unlocked.map(drop).map_err(|failure| failure.error(&url))
            })
            .await?
    }
}

fn compared(compare: RawCompare) -> Compare {
    let result = if compare.equal { CompareResult::Equal } else { CompareResult::NotEqual };
    Compare {
        result: result.into(),
        target: CompareTarget::Create.into(),
        key: compare.key,
        against: Some(Against::Create(compare.revision)),
        range_end: compare.range_end,
    }
}

fn op(op: RawOp) -> RequestOp {
    match op {
        RawOp::Put(key, value, lease) => txn::put(key, value, lease),
        RawOp::Delete(key) => txn::delete(key),
        RawOp::DeleteRange(key, end) => txn::delete_all((key, end)),
        RawOp::Range(key, end) => txn::range((key, end), 0),
    }
}
