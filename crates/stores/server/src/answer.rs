//! Answers: JSON on success, and for a fault text for people or JSON for those who ask for it.

use bytes::Bytes;
use flannel_store::wire::{self, WireFault};
use flannel_store::{Refusal, StoreError};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;

use crate::body::{Body, RemainingBytes};
use crate::embedded::AskError;
use crate::snapshot_permits::SnapshotPermit;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson; charset=utf-8");

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    code: &'static str,
    text: String,
    lease: Option<String>,
    allow: &'static str,
}

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &'static str, text: impl Into<String>) -> Self {
        Self { status, code, text: text.into(), lease: None, allow: "" }
    }

    pub(crate) fn bad(error: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", error.to_string())
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", text)
    }

    pub(crate) fn unknown_client(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unknown-client", text)
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        let text = format!("method not allowed here; allowed: {allow}");
        let fault = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", text);
        Self { allow, ..fault }
    }

    pub(crate) fn response(&self, wants_json: bool) -> Response<Body> {
        let (body, kind) = if wants_json {
            (WireFault::to_json(&self.text, self.code, self.lease.clone()), JSON)
        } else {
            (format!("{}\n", self.text), TEXT)
        };
        let mut response = of(Bytes::from(body), kind);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        match self.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(ALLOW, HeaderValue::from_static(self.allow));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        AskError::from(error).into()
    }
}

impl From<AskError> for Fault {
    fn from(error: AskError) -> Self {
        let text = error.to_string();
        match error {
            AskError::Refused(refusal) => Self::from(refusal),
            AskError::ReadOnly(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "read-only", text),
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text),
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        let (status, code) = match &refusal {
            Refusal::NoNetwork(_) => (StatusCode::NOT_FOUND, "no-network"),
            Refusal::Gone(_) => (StatusCode::NOT_FOUND, "gone"),
            Refusal::BadConfig(_) => (StatusCode::BAD_REQUEST, "bad-config"),
            Refusal::NoAddress(_) => (StatusCode::BAD_REQUEST, "no-address"),
            Refusal::NotInPool(_) => (StatusCode::BAD_REQUEST, "not-in-pool"),
            Refusal::ForeignAddress(_) => (StatusCode::FORBIDDEN, "foreign-address"),
            Refusal::NotYours(..) => (StatusCode::FORBIDDEN, "not-yours"),
            Refusal::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            Refusal::UnusableConfig(_) => (StatusCode::CONFLICT, "unusable-config"),
            Refusal::Stranded { .. } => (StatusCode::CONFLICT, "stranded"),
            Refusal::InUse(_) => (StatusCode::CONFLICT, "in-use"),
            Refusal::OutOfSubnets(_) => (StatusCode::CONFLICT, "out-of-subnets"),
            Refusal::Taken(..) => (StatusCode::CONFLICT, "taken"),
            Refusal::IdentityTaken { .. } => (StatusCode::CONFLICT, "identity-taken"),
            Refusal::Reserved(_) => (StatusCode::CONFLICT, "reserved"),
            Refusal::NodeHasLease { .. } => (StatusCode::CONFLICT, "node-has-lease"),
            Refusal::NotAssignedYet { .. } => (StatusCode::CONFLICT, wire::NOT_ASSIGNED_YET),
            Refusal::KubernetesOwns(_) => (StatusCode::CONFLICT, "kubernetes-owns"),
            Refusal::AddressOfNode { .. } => (StatusCode::FORBIDDEN, "not-yours"),
            Refusal::NoName => (StatusCode::FORBIDDEN, "no-name"),
            Refusal::Overlaps(..) => (StatusCode::CONFLICT, "overlaps"),
            _ => (StatusCode::BAD_REQUEST, "refused"),
        };
        let lease = match &refusal {
            Refusal::Taken(subnet, entry) => Some(wire::lease_json(subnet, entry, None)),
            _ => None,
        };
        Self { lease, ..Self::new(status, code, text) }
    }
}

pub(crate) fn wants_json<B>(request: &Request<B>) -> bool {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("application/json"))
}

pub(crate) fn json(body: impl Into<Bytes>) -> Response<Body> {
    of(body.into(), JSON)
}

pub(crate) fn snapshot(body: Bytes, permit: Option<SnapshotPermit>) -> Response<Body> {
    with(RemainingBytes::new(body, permit).boxed_unsync(), JSON)
}

pub(crate) fn text(body: impl Into<Bytes>) -> Response<Body> {
    of(body.into(), TEXT)
}

pub(crate) fn metrics(text: String, kind: &'static str) -> Response<Body> {
    of(Bytes::from(text), HeaderValue::from_static(kind))
}

pub(crate) fn lines(body: Body) -> Response<Body> {
    with(body, LINES)
}

fn of(body: Bytes, kind: HeaderValue) -> Response<Body> {
    with(RemainingBytes::new(body, None).boxed_unsync(), kind)
}

fn with(body: Body, kind: HeaderValue) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
