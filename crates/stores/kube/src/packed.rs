//! State of each of thousands of Nodes, packed into one small allocation.

use std::num::NonZeroU64;

use crate::annotations::Key;
use crate::node::{Annotations, NodeView};

/// Lease of a Node: the hash of its machine id in eight bytes, zeros if there is none; then our annotations
/// and its networks, one after the other: the length of each, then its text.
#[derive(Debug)]
pub(crate) struct PackedNode(Box<[u8]>);

impl PackedNode {
    pub(crate) fn of(node: &NodeView<'_>) -> Self {
        let mut bytes = machine(node).to_vec();
        for text in texts(node) {
            write_length(&mut bytes, text.map_or(0, |text| text.len() + 1));
            bytes.extend_from_slice(text.unwrap_or_default().as_bytes());
        }
        Self(bytes.into())
    }

    pub(crate) fn matches(&self, node: &NodeView<'_>) -> bool {
        let Some(mut rest) = self.0.strip_prefix(&machine(node)) else { return false };
        texts(node).all(|text| next(&mut rest) == Some(text.map(str::as_bytes))) && rest.is_empty()
    }

    /// The Node that it was made of; what is not kept is empty.
    pub(crate) fn node(&self) -> NodeView<'_> {
        let (machine, mut rest) = self.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let mut next = || next(&mut rest).map(|text| text.and_then(|it| str::from_utf8(it).ok()));
        let mut annotations = Annotations::default();
        for key in keys() {
            if let Some(Some(text)) = next() {
                annotations.set(key, text.into());
            }
        }
        let networks = std::iter::from_fn(|| next().flatten()).map(Into::into).collect();
        NodeView {
            annotations,
            pod_cidrs: networks,
            machine: NonZeroU64::new(u64::from_be_bytes(*machine)),
            ..NodeView::default()
        }
    }
}

fn machine(node: &NodeView<'_>) -> [u8; 8] {
    node.machine.map_or(0, NonZeroU64::get).to_be_bytes()
}

fn texts<'a>(node: &'a NodeView<'_>) -> impl Iterator<Item = Option<&'a str>> {
    keys().map(|key| node.annotations.get(key)).chain(node.networks().map(Some))
}

/// Annotations of a lease; requests and answers are not among them.
fn keys() -> impl Iterator<Item = Key> {
    Key::all().filter(|key| key.is_of_lease())
}

/// Seven bits in a byte; the eighth means that more follow.
fn write_length(bytes: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
}

/// The next text, which may be none. `None` at the end.
fn next<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let end = rest.iter().position(|byte| *byte < 0x80)?;
    let (length, text) = rest.split_at(end + 1);
    let length = length.iter().rev().fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
    let (text, after) = text.split_at_checked(length.saturating_sub(1))?;
    *rest = after;
    Some((length > 0).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(annotations: &[(Key, &str)], networks: &[&str]) -> NodeView<'static> {
        let mut node = NodeView::default();
        for (key, text) in annotations {
            node.annotations.set(*key, text.to_string().into());
        }
        node.pod_cidrs = networks.iter().map(|text| text.to_string().into()).collect();
        node
    }

    #[test]
    fn what_is_kept_of_a_node_is_what_it_says_and_nothing_else_is_the_same() {
        let long = "x".repeat(70_000);
        let nodes = [
            node(&[], &[]),
            node(&[], &["10.1.0.0/24"]),
            node(&[], &["10.1.0.0/24", "fd00::/64"]),
            NodeView { machine: NonZeroU64::new(7), ..node(&[], &["10.1.0.0/24"]) },
            NodeView { machine: NonZeroU64::new(8), ..node(&[], &["10.1.0.0/24"]) },
            node(&[(Key::SubnetManager, "true")], &["10.1.0.0/24"]),
            node(&[(Key::SubnetManager, "")], &["10.1.0.0/24"]),
            node(&[(Key::BackendType, "true")], &["10.1.0.0/24"]),
            node(&[(Key::ProbePort, "10.1.0.0/24")], &[]),
            node(
                &[(Key::BackendData, "{\"a\":\"\0\"}"), (Key::BackendType, "ü")],
                &["10.1.0.0/24"],
            ),
            node(&[(Key::BackendData, &long[..8_000])], &[&long[..127], &long[..128]]),
        ];
        for (i, one) in nodes.iter().enumerate() {
            let packed = PackedNode::of(one);
            assert_eq!(packed.node(), *one);
            for (j, other) in nodes.iter().enumerate() {
                assert_eq!(packed.matches(other), i == j, "{i} {j}");
            }
        }
    }

    #[test]
    fn a_node_with_vxlan_is_packed_into_little_more_than_a_hundred_bytes() {
        let annotations = [
            (Key::SubnetManager, "true"),
            (Key::BackendType, "vxlan"),
            (Key::BackendData, r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#),
            (Key::PublicIp, "192.168.100.100"),
            (Key::ProbePort, "8285"),
        ];
        let packed = PackedNode::of(&node(&annotations, &["10.244.100.0/24"]));
        assert!(packed.0.len() < 110, "{}", packed.0.len());
    }

    #[test]
    fn a_single_network_is_the_same_as_a_list_of_one() {
        let single = NodeView { pod_cidr: "10.1.0.0/24".into(), ..NodeView::default() };
        assert!(PackedNode::of(&single).matches(&node(&[], &["10.1.0.0/24"])));
    }
}
