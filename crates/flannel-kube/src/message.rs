//! What the API server sends, in either of two encodings.
//!
//! Protobuf is what Kubernetes' own parts speak with it: a third fewer bytes, and what is not needed is
//! stepped over instead of read. Servers that are not Kubernetes' own may know only JSON.

use crate::annotations::AnnotationPrefix;
use crate::node::NodeView;
use crate::{json, protobuf};

pub(crate) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
pub(crate) const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// What is asked for: protobuf, else JSON.
pub(crate) const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";
pub(crate) const ACCEPT_STREAM: &str =
    "application/vnd.kubernetes.protobuf;stream=watch, application/json";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Protobuf,
    Json,
}

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server's answer cannot be read: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// A message of a watch.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it lives for a moment")]
pub enum Event<'a> {
    Node(EventKind, NodeView<'a>),
    Error(Status),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
    /// Nothing has happened up to this version.
    Bookmark,
}

/// What the server says when it says no.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
}

impl Encoding {
    pub fn of(content_type: &str) -> Self {
        if content_type.starts_with("application/vnd.kubernetes.protobuf") {
            Self::Protobuf
        } else {
            Self::Json
        }
    }

    /// Cuts the first message off a stream, and says how long it was. `None` while it is not whole.
    pub fn cut(self, stream: &[u8]) -> Option<(&[u8], usize)> {
        match self {
            Self::Protobuf => protobuf::cut(stream),
            Self::Json => json::cut(stream),
        }
    }

    pub fn event<'a>(
        self,
        message: &'a [u8],
        prefix: &AnnotationPrefix,
    ) -> Result<Event<'a>, Malformed> {
        let (kind, object) = match self {
            Self::Protobuf => protobuf::event(message)?,
            Self::Json => json::event(message)?,
        };
        let kind = match kind {
            "ADDED" => EventKind::Added,
            "MODIFIED" => EventKind::Modified,
            "DELETED" => EventKind::Deleted,
            "BOOKMARK" => EventKind::Bookmark,
            "ERROR" => return Ok(Event::Error(self.status(object)?)),
            _ => return Err(Malformed("an event of an unknown kind")),
        };
        Ok(Event::Node(kind, self.node(object, prefix)?))
    }

    pub fn node<'a>(
        self,
        object: &'a [u8],
        prefix: &AnnotationPrefix,
    ) -> Result<NodeView<'a>, Malformed> {
        match self {
            Self::Protobuf => protobuf::node(object, prefix),
            Self::Json => json::node(object, prefix),
        }
    }

    /// A page of a list: its Nodes are told one by one. Returns its version, and where the next page begins.
    pub fn list<'a>(
        self,
        object: &'a [u8],
        prefix: &AnnotationPrefix,
        tell: impl FnMut(NodeView<'a>),
    ) -> Result<(String, Option<String>), Malformed> {
        match self {
            Self::Protobuf => protobuf::list(object, prefix, tell),
            Self::Json => json::list(object, prefix, tell),
        }
    }

    pub fn status(self, object: &[u8]) -> Result<Status, Malformed> {
        match self {
            Self::Protobuf => protobuf::status(object),
            Self::Json => json::status(object),
        }
    }
}
