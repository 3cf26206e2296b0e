//! Transactions, written shortly.

use crate::error::Failure;
use crate::keys::Range;
use crate::proto::{
    Against, Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, PutRequest,
    RangeRequest, RangeResponse, Request, RequestOp, Response, SortOrder, SortTarget, TXN,
    TxnRequest, TxnResponse,
};
use crate::rpc::Rpc;

fn compare(
    key: Vec<u8>,
    range_end: Vec<u8>,
    target: CompareTarget,
    result: CompareResult,
    against: Against,
) -> Compare {
    Compare { result: result.into(), target: target.into(), key, against: Some(against), range_end }
}

/// The key is not there.
pub(crate) fn absent(key: Vec<u8>) -> Compare {
    created_at(key, 0)
}

/// The key is there, whenever it was made.
pub(crate) fn present(key: Vec<u8>) -> Compare {
    compare(key, vec![], CompareTarget::Create, CompareResult::NotEqual, Against::Create(0))
}

/// The key is the one that was made then.
pub(crate) fn created_at(key: Vec<u8>, revision: i64) -> Compare {
    compare(key, vec![], CompareTarget::Create, CompareResult::Equal, Against::Create(revision))
}

/// The key was last written then; 0 for one that is not there.
pub(crate) fn modified_at(key: Vec<u8>, revision: i64) -> Compare {
    compare(key, vec![], CompareTarget::Mod, CompareResult::Equal, Against::Mod(revision))
}

/// There is no key in the range. (A comparison over a range holds if it holds for each of its keys,
/// and no key was created at revision 0.)
pub(crate) fn empty(range: Range) -> Compare {
    compare(range.0, range.1, CompareTarget::Create, CompareResult::Equal, Against::Create(0))
}

/// All keys in the range were made then or later.
pub(crate) fn none_before(range: Range, revision: i64) -> Compare {
    let before = Against::Create(revision - 1);
    compare(range.0, range.1, CompareTarget::Create, CompareResult::Greater, before)
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::Put(PutRequest { key, value, lease, prev_kv: false }))
}

/// A put that answers what was there before.
pub(crate) fn swap(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::Put(PutRequest { key, value, lease, prev_kv: true }))
}

pub(crate) fn delete(key: Vec<u8>) -> RequestOp {
    op(Request::Delete(DeleteRangeRequest { key, range_end: vec![] }))
}

pub(crate) fn delete_all(range: Range) -> RequestOp {
    op(Request::Delete(DeleteRangeRequest { key: range.0, range_end: range.1 }))
}

pub(crate) fn get(key: Vec<u8>) -> RequestOp {
    op(Request::Range(RangeRequest { key, ..RangeRequest::default() }))
}

/// The keys of the range in the order of their making, at most so many; 0 for all.
pub(crate) fn range(range: Range, limit: i64) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: range.0,
        range_end: range.1,
        limit,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }))
}

pub(crate) fn nested(
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
) -> RequestOp {
    op(Request::Txn(TxnRequest { compare, success, failure }))
}

/// The answer to a transaction.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) succeeded: bool,
    /// The revision of the store: that of the transaction itself, if it wrote.
    pub(crate) revision: i64,
    responses: Vec<Option<Response>>,
}

/// Runs a transaction.
pub(crate) async fn run(
    rpc: &Rpc,
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
) -> Result<Done, Failure> {
    let answer: TxnResponse = rpc.call(TXN, TxnRequest { compare, success, failure }).await?;
    Done::of(answer)
}

impl Done {
    fn of(answer: TxnResponse) -> Result<Done, Failure> {
        let header = answer.header.ok_or_else(|| Failure::odd("an answer without a header"))?;
        let responses = answer.responses.into_iter().map(|r| r.response).collect();
        Ok(Done { succeeded: answer.succeeded, revision: header.revision, responses })
    }

    /// What the range at this place has found.
    pub(crate) fn range(&mut self, at: usize) -> Result<RangeResponse, Failure> {
        match self.responses.get_mut(at).and_then(Option::take) {
            Some(Response::Range(range)) => Ok(range),
            _ => Err(Failure::odd("an answer without what was asked for")),
        }
    }

    /// What the put at this place has replaced.
    pub(crate) fn replaced(&mut self, at: usize) -> Option<KeyValue> {
        match self.responses.get_mut(at).and_then(Option::take) {
            Some(Response::Put(put)) => put.prev_kv,
            _ => None,
        }
    }

    /// Whether the nested transaction at this place succeeded.
    pub(crate) fn nested(&mut self, at: usize) -> Result<bool, Failure> {
        match self.responses.get_mut(at).and_then(Option::take) {
            Some(Response::Txn(txn)) => Ok(txn.succeeded),
            _ => Err(Failure::odd("an answer without what was asked for")),
        }
    }
}
