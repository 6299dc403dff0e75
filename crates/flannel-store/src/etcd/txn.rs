//! Short names for the parts a transaction is made of.

use prost::bytes::Bytes;

use super::keys::KeyRange;
use super::proto::{
    Compare, CompareResult, CompareTarget, CompareValue, DeleteRangeRequest, KeyValue, Operation,
    Outcome, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest,
};

pub(super) fn is_absent(key: &Bytes) -> Compare {
    compare(key, CompareTarget::Version, CompareValue::Version(0))
}

pub(super) fn is_unchanged(key: &Bytes, mod_revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, CompareValue::ModRevision(mod_revision))
}

fn compare(key: &Bytes, target: CompareTarget, value: CompareValue) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.clone(),
        value: Some(value),
    }
}

/// With `lease` 0 the key does not expire. The answer holds the value that was there before.
pub(super) fn put(key: &Bytes, value: &Bytes, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), value: value.clone(), lease, prev_kv: true };
    RequestOp { request: Some(Operation::Put(put)) }
}

/// The answer holds what was deleted.
pub(super) fn delete(key: &Bytes) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.clone(), prev_kv: true, ..Default::default() };
    RequestOp { request: Some(Operation::DeleteRange(delete)) }
}

pub(super) fn get(range: KeyRange) -> RequestOp {
    self::range(RangeRequest { key: range.start, range_end: range.end, ..Default::default() })
}

pub(super) fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Operation::Range(request)) }
}

/// The names of the keys that were created after `revision`.
pub(super) fn created_since(range: KeyRange, revision: i64) -> RequestOp {
    self::range(RangeRequest {
        key: range.start,
        range_end: range.end,
        keys_only: true,
        min_create_revision: revision + 1,
        ..Default::default()
    })
}

/// All of them at the same revision.
pub(super) fn all(operations: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare: vec![], success: operations, failure: vec![] }
}

/// What a read found, and whether there is more.
pub(super) fn found_range(response: ResponseOp) -> RangeResponse {
    match response.response {
        Some(Outcome::Range(range)) => range,
        _ => RangeResponse::default(),
    }
}

/// What a read found, or what a write or delete replaced.
pub(super) fn found(response: ResponseOp) -> Vec<KeyValue> {
    match response.response {
        Some(Outcome::Range(range)) => range.kvs,
        Some(Outcome::Put(put)) => put.prev_kv.into_iter().collect(),
        Some(Outcome::DeleteRange(delete)) => delete.prev_kvs,
        None => vec![],
    }
}
