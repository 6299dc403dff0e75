//! View of a Node with what flannel reads. A Node is 12 kB of text, of which some 500 bytes matter here, and it is
//! written again and again by its kubelet: so what is read stays where it was received, and only what is
//! new is ever copied.

use std::borrow::Cow;
use std::num::NonZeroU64;

use flannel_lease::MAX_DATA_BYTES;

use crate::annotations::{AnnotationPrefix, Key};
use crate::client::{CORE, Collection};
use crate::message::{Followed, Resource, Result};
use crate::{node_json, node_protobuf};

pub(crate) const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// More than a lease may carry, wherever a character begins.
const MAX_KEPT_DATA: usize = MAX_DATA_BYTES + 8;

#[derive(Clone, Debug)]
pub struct NodeResource {
    collection: Collection,
    pub(crate) prefix: AnnotationPrefix,
}

impl NodeResource {
    pub fn new(prefix: AnnotationPrefix) -> Self {
        Self { collection: Collection::of_cluster(CORE, "nodes"), prefix }
    }
}

impl Resource for NodeResource {
    type View<'a> = NodeView<'a>;

    fn collection(&self) -> &Collection {
        &self.collection
    }

    fn read_protobuf<'a>(&self, object: &'a [u8]) -> Result<NodeView<'a>> {
        node_protobuf::read(object, &self.prefix)
    }

    fn read_json<'a>(&self, object: &'a [u8]) -> Result<NodeView<'a>> {
        node_json::read(object, &self.prefix)
    }
}

impl Followed for NodeResource {
    fn version<'v>(object: &'v NodeView<'_>) -> &'v str {
        &object.resource_version
    }

    fn ends_initial_events(object: &NodeView<'_>) -> bool {
        object.ends_initial_events
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView<'a> {
    pub name: Cow<'a, str>,
    /// Another one when the Node was deleted and made again.
    pub uid: Cow<'a, str>,
    pub resource_version: Cow<'a, str>,
    /// Creation in seconds since 1970, which nobody can change.
    pub created: Option<NonZeroU64>,
    pub annotations: Annotations<'a>,
    pub pod_cidr: Cow<'a, str>,
    pub pod_cidrs: Vec<Cow<'a, str>>,
    /// Hash of the machine id that its kubelet has reported.
    pub machine: Option<NonZeroU64>,
    /// The status of the condition `NetworkUnavailable`: `True`, `False` or `Unknown`.
    pub network_unavailable: Option<Cow<'a, str>>,
    /// Whether it is the bookmark after the initial objects.
    pub ends_initial_events: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations<'a>([Option<Cow<'a, str>>; Key::COUNT]);

impl<'a> Annotations<'a> {
    pub fn get(&self, key: Key) -> Option<&str> {
        self.0[key as usize].as_deref()
    }

    /// As [`Self::get`], but `None` for an empty text.
    pub fn text(&self, key: Key) -> Option<&str> {
        self.get(key).filter(|text| !text.is_empty())
    }

    /// Of what a lease cannot carry, no more is kept than shows that it is too long.
    pub fn set(&mut self, key: Key, mut value: Cow<'a, str>) {
        if key.is_of_lease() && value.len() > MAX_KEPT_DATA {
            let end = value.floor_char_boundary(MAX_KEPT_DATA);
            value = match value {
                Cow::Borrowed(text) => Cow::Borrowed(&text[..end]),
                Cow::Owned(text) => Cow::Owned(text[..end].to_owned()),
            };
        }
        self.0[key as usize] = Some(value);
    }

    pub fn into_owned(self) -> Annotations<'static> {
        Annotations(self.0.map(|value| value.map(|text| Cow::Owned(text.into_owned()))))
    }
}

impl NodeView<'_> {
    /// The networks of its pods, of whichever family and in whichever order.
    pub fn networks(&self) -> impl Iterator<Item = &str> {
        let single = self.pod_cidrs.is_empty() && !self.pod_cidr.is_empty();
        let single = single.then_some(&*self.pod_cidr);
        self.pod_cidrs.iter().map(|cidr| &**cidr).chain(single)
    }

    pub fn into_owned(self) -> NodeView<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        NodeView {
            name: own(self.name),
            uid: own(self.uid),
            resource_version: own(self.resource_version),
            created: self.created,
            annotations: self.annotations.into_owned(),
            pod_cidr: own(self.pod_cidr),
            pod_cidrs: self.pod_cidrs.into_iter().map(own).collect(),
            machine: self.machine,
            network_unavailable: self.network_unavailable.map(own),
            ends_initial_events: self.ends_initial_events,
        }
    }
}
