//! Faults of requests to etcd, sorted by what to do about them.

use std::error::Error;

use tonic::{Code, Status};

use crate::StoreError;

#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) endpoint: String,
    pub(super) reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// This connection or member does not work; another one may.
    Unavailable,
    /// The token is unknown or too old: log in again.
    Token,
    Denied,
    /// The requested revision is compacted, or not there yet: list again.
    Outdated,
    Refused,
    OtherCluster,
}

impl Fault {
    pub(super) fn new(kind: Kind, endpoint: &str, reason: impl Into<String>) -> Self {
        Self { kind, endpoint: endpoint.to_owned(), reason: reason.into() }
    }

    pub(super) fn from_status(endpoint: &str, status: &Status) -> Self {
        Self::new(kind(status), endpoint, reason(status))
    }

    /// `attempted` completes the sentence "cannot …".
    pub(super) fn during(self, attempted: impl Into<String>) -> StoreError {
        let Self { kind, endpoint, reason } = self;
        let attempted = attempted.into();
        match kind {
            Kind::Unavailable | Kind::Outdated => {
                StoreError::Unavailable { attempted, endpoint, reason }
            }
            Kind::Token | Kind::Denied => {
                let fix = "check the user name, the password, the client certificate and what the \
                           user's role may read and write";
                StoreError::Denied { attempted, endpoint, reason, fix }
            }
            Kind::Refused => StoreError::Refused { attempted, endpoint, reason },
            Kind::OtherCluster => StoreError::OtherCluster { attempted, endpoint, reason },
        }
    }
}

fn kind(status: &Status) -> Kind {
    let says = |text| status.message().contains(text);
    match status.code() {
        Code::Unauthenticated => Kind::Token,
        // "user name is empty": etcd's authentication was switched on after we connected.
        Code::InvalidArgument if says("auth store is old") || says("user name is empty") => {
            Kind::Token
        }
        Code::InvalidArgument if says("authentication failed") => Kind::Denied,
        Code::PermissionDenied => Kind::Denied,
        Code::OutOfRange => Kind::Outdated,
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Aborted => Kind::Unavailable,
        Code::Internal if status.source().is_some() => Kind::Unavailable,
        Code::ResourceExhausted if says("too many requests") => Kind::Unavailable,
        // What answers there is not etcd.
        Code::Unimplemented => Kind::Unavailable,
        _ if says("learner") => Kind::Unavailable,
        _ => Kind::Refused,
    }
}

fn reason(status: &Status) -> String {
    match status.source() {
        Some(source) => causes(source),
        None if status.message().is_empty() => format!("{:?}", status.code()),
        None if status.message().contains("database space exceeded") => format!(
            "{} (etcd is full: compact and defragment it, then `etcdctl alarm disarm`)",
            status.message()
        ),
        None => status.message().to_owned(),
    }
}

/// The error with all its causes, since "transport error" alone says nothing.
pub(super) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcds_errors_are_sorted_by_what_to_do_about_them() {
        let table = [
            (Code::Unavailable, "etcdserver: no leader", Kind::Unavailable),
            (Code::Unavailable, "etcdserver: request timed out", Kind::Unavailable),
            (Code::DeadlineExceeded, "context deadline exceeded", Kind::Unavailable),
            (
                Code::FailedPrecondition,
                "etcdserver: rpc not supported for learner",
                Kind::Unavailable,
            ),
            (Code::Unimplemented, "mapped from HTTP status code 404", Kind::Unavailable),
            (Code::ResourceExhausted, "etcdserver: too many requests", Kind::Unavailable),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Kind::Refused),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Kind::Token),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", Kind::Token),
            (Code::InvalidArgument, "etcdserver: user name is empty", Kind::Token),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                Kind::Denied,
            ),
            (Code::PermissionDenied, "etcdserver: permission denied", Kind::Denied),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                Kind::Outdated,
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
                Kind::Outdated,
            ),
            (Code::NotFound, "etcdserver: requested lease not found", Kind::Refused),
        ];
        for (code, message, expected) in table {
            assert_eq!(kind(&Status::new(code, message)), expected, "{message}");
        }
    }
}
