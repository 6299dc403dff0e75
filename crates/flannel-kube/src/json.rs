//! Kubernetes' JSON, as much of it as is needed; all else is stepped over without being kept.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use flannel_lease::machine_hash;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::annotations::AnnotationPrefix;
use crate::message::{INITIAL_EVENTS_END, Malformed, NETWORK_UNAVAILABLE, Status};
use crate::node::NodeView;

/// Each message is a line.
pub(crate) fn cut(stream: &[u8]) -> Option<(&[u8], usize)> {
    let end = stream.iter().position(|byte| *byte == b'\n')?;
    Some((&stream[..end], end + 1))
}

/// The type of a watch's message, and its object.
pub(crate) fn event(message: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let message: Message<'_> = read(message)?;
    Ok((message.kind, message.object.get().as_bytes()))
}

pub(crate) fn node<'a>(
    object: &'a [u8],
    prefix: &AnnotationPrefix,
) -> Result<NodeView<'a>, Malformed> {
    Ok(view(read(object)?, prefix))
}

pub(crate) fn list<'a>(
    object: &'a [u8],
    prefix: &AnnotationPrefix,
    mut tell: impl FnMut(NodeView<'a>),
) -> Result<(String, Option<String>), Malformed> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(default)]
        metadata: ListMeta,
        #[serde(borrow)]
        items: Option<Vec<Node<'a>>>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct ListMeta {
        #[serde(rename = "resourceVersion")]
        version: String,
        #[serde(rename = "continue")]
        next: String,
    }
    let List { metadata: ListMeta { version, next }, items } = read(object)?;
    items.into_iter().flatten().for_each(|node| tell(view(node, prefix)));
    Ok((version, Some(next).filter(|token| !token.is_empty())))
}

pub(crate) fn status(object: &[u8]) -> Result<Status, Malformed> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Said {
        code: u16,
        reason: String,
        message: String,
    }
    let Said { code, reason, message } = read(object)?;
    Ok(Status { code, reason, message })
}

fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(json).map_err(|_| Malformed("it is not the JSON that was expected"))
}

fn view<'a>(node: Node<'a>, prefix: &AnnotationPrefix) -> NodeView<'a> {
    let Node { metadata, spec, status } = node;
    let is_ours = |condition: &Condition<'_>| condition.kind.0 == NETWORK_UNAVAILABLE;
    let condition = status.conditions.into_iter().flatten().find(is_ours);
    let mut view = NodeView {
        name: metadata.name.0,
        uid: metadata.uid.0,
        resource_version: metadata.resource_version.0,
        created: seconds(&metadata.created.0),
        pod_cidr: spec.pod_cidr.0,
        pod_cidrs: spec.pod_cidrs.into_iter().flatten().map(|cidr| cidr.0).collect(),
        machine: machine_hash(&status.node_info.machine_id.0),
        network_unavailable: condition.map(|condition| condition.status.0),
        ..NodeView::default()
    };
    for (name, value) in metadata.annotations.into_iter().flat_map(|pairs| pairs.0) {
        match prefix.key(&name.0) {
            Some(key) => view.annotations.set(key, value.0),
            None if name.0 == INITIAL_EVENTS_END => view.ends_initial_events = value.0 == "true",
            None => {}
        }
    }
    view
}

/// Seconds since 1970 of a time in RFC 3339.
fn seconds(time: &str) -> Option<NonZeroU64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    NonZeroU64::new(u64::try_from(time.as_second()).ok()?)
}

#[derive(Deserialize)]
struct Node<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
    #[serde(borrow, default)]
    status: NodeStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    uid: Text<'a>,
    #[serde(rename = "resourceVersion", borrow)]
    resource_version: Text<'a>,
    #[serde(rename = "creationTimestamp", borrow)]
    created: Text<'a>,
    #[serde(borrow)]
    annotations: Option<Pairs<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec<'a> {
    #[serde(rename = "podCIDR", borrow)]
    pod_cidr: Text<'a>,
    #[serde(rename = "podCIDRs", borrow)]
    pod_cidrs: Option<Vec<Text<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeStatus<'a> {
    #[serde(borrow)]
    conditions: Option<Vec<Condition<'a>>>,
    #[serde(rename = "nodeInfo", borrow)]
    node_info: NodeInfo<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeInfo<'a> {
    #[serde(rename = "machineID", borrow)]
    machine_id: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
}

/// Stays where it was received, unless something in it is written as an escape. `null` is empty.
#[derive(Default)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Cow::default())
    }
}

/// The members of an object, in their order.
struct Pairs<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor).map(Self)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Vec<(Text<'de>, Text<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}
