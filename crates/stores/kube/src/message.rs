//! Messages of the API server, in either of two encodings.
//!
//! Protobuf is what Kubernetes' own parts speak with it: a third fewer bytes, and what is not needed is
//! stepped over instead of read. Servers that are not Kubernetes' own may know only JSON.

use serde::Deserialize;
use serde_json::Value;

use crate::client::Collection;
use crate::{json, protobuf};

pub(crate) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

pub(crate) const JSON: &str = "application/json";
/// Accepted encodings: protobuf, else JSON.
pub(crate) const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";
pub(crate) const ACCEPT_STREAM: &str =
    "application/vnd.kubernetes.protobuf;stream=watch, application/json";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Protobuf,
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server's answer cannot be read: {0}")]
pub struct Malformed(pub(crate) &'static str);

pub type Result<T, E = Malformed> = std::result::Result<T, E>;

/// Kind of object: its collection, and what is read of one.
pub trait Resource: Send + Sync {
    type View<'a>;

    const ACCEPT: &'static str = ACCEPT;

    fn collection(&self) -> &Collection;

    fn read_protobuf<'a>(&self, object: &'a [u8]) -> Result<Self::View<'a>>;

    fn read_json<'a>(&self, object: &'a [u8]) -> Result<Self::View<'a>>;
}

/// Resource that can be followed into a table.
pub trait Followed: Resource {
    /// The object's `resourceVersion`.
    fn version<'v>(object: &'v Self::View<'_>) -> &'v str;

    /// Whether it is the bookmark after the initial objects.
    fn ends_initial_events(object: &Self::View<'_>) -> bool;
}

/// A collection by itself is read as plain JSON, for what is asked for now and then.
impl Resource for Collection {
    type View<'a> = Value;

    const ACCEPT: &'static str = JSON;

    fn collection(&self) -> &Collection {
        self
    }

    fn read_protobuf(&self, _: &[u8]) -> Result<Value> {
        Err(Malformed("it is protobuf, and JSON was asked for"))
    }

    fn read_json(&self, object: &[u8]) -> Result<Value> {
        json::read(object)
    }
}

pub enum Event<'a, R: Resource> {
    Object(EventKind, R::View<'a>),
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    pub code: u16,
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

    /// First message of a stream, and its length. `None` while it is incomplete.
    pub fn cut(self, stream: &[u8]) -> Option<(&[u8], usize)> {
        match self {
            Self::Protobuf => protobuf::cut(stream),
            Self::Json => json::cut(stream),
        }
    }

    pub fn event<'a, R: Resource>(self, message: &'a [u8], resource: &R) -> Result<Event<'a, R>> {
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
        Ok(Event::Object(kind, self.object(object, resource)?))
    }

    pub fn object<'a, R: Resource>(self, object: &'a [u8], resource: &R) -> Result<R::View<'a>> {
        match self {
            Self::Protobuf => resource.read_protobuf(protobuf::unwrap(object)?),
            Self::Json => resource.read_json(object),
        }
    }

    /// Reads a page of a list object by object. Returns its version, and where the next page begins.
    pub fn list<'a, R: Resource>(
        self,
        object: &'a [u8],
        resource: &R,
        mut take_object: impl FnMut(R::View<'a>),
    ) -> Result<(String, Option<String>)> {
        match self {
            Self::Protobuf => {
                protobuf::list(object, |item| resource.read_protobuf(item).map(&mut take_object))
            }
            Self::Json => json::list(object, |item| resource.read_json(item).map(&mut take_object)),
        }
    }

    pub fn status(self, object: &[u8]) -> Result<Status> {
        match self {
            Self::Protobuf => protobuf::status(object),
            Self::Json => json::read(object),
        }
    }
}
