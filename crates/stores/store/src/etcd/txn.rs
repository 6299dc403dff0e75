//! Short names for the parts a transaction is made of.

use prost::bytes::Bytes;

use super::keys::KeyRange;
use super::proto::{
    COMPARE_MOD, COMPARE_VERSION, Compare, CompareValue, DeleteRangeRequest, KeyValue, Operation,
    Outcome, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest,
};

pub(super) fn is_absent(key: &Bytes) -> Compare {
    let value = Some(CompareValue::Version(0));
    Compare { target: COMPARE_VERSION, key: key.clone(), value }
}

pub(super) fn is_unchanged(key: &Bytes, mod_revision: i64) -> Compare {
    let value = Some(CompareValue::ModRevision(mod_revision));
    Compare { target: COMPARE_MOD, key: key.clone(), value }
}

/// Write of a key, which does not expire with `lease` 0. The answer has the former value.
pub(super) fn put(key: &Bytes, value: &Bytes, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), value: value.clone(), lease, prev_kv: true };
    RequestOp { request: Some(Operation::Put(put)) }
}

/// Deletion of a key. The answer has what was deleted.
pub(super) fn delete(key: &Bytes) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.clone(), prev_kv: true, ..Default::default() };
    RequestOp { request: Some(Operation::DeleteRange(delete)) }
}

pub(super) fn get(range: KeyRange) -> RequestOp {
    self::range(range.into())
}

pub(super) fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Operation::Range(request)) }
}

/// The names of the keys that were created after `revision`.
pub(super) fn created_since(range: KeyRange, revision: i64) -> RequestOp {
    let min_create_revision = revision + 1;
    self::range(RangeRequest { keys_only: true, min_create_revision, ..range.into() })
}

/// Transaction of these operations, all at one revision.
pub(super) fn all(operations: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare: vec![], success: operations, failure: vec![] }
}

/// Keys that a read found, and whether there are more.
pub(super) fn found_range(response: ResponseOp) -> RangeResponse {
    match response.response {
        Some(Outcome::Range(range)) => range,
        _ => RangeResponse::default(),
    }
}

/// Keys that a read found, or that a write or delete replaced.
pub(super) fn found(response: ResponseOp) -> Vec<KeyValue> {
    match response.response {
        Some(Outcome::Range(range)) => range.kvs,
        Some(Outcome::Put(put)) => put.prev_kv.into_iter().collect(),
        Some(Outcome::DeleteRange(delete)) => delete.prev_kvs,
        None => vec![],
    }
}
