//! Places of a lab as people name them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a command runs or a log comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlaceName {
    Node(u16),
    /// The node's pod, and which of its pods (from 1).
    Pod(u16, u16),
    /// A member of etcd, from 0.
    Etcd(usize),
    Switch,
}

impl PlaceName {
    /// What the lab calls it.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Node(number) => format!("node{number}"),
            Self::Pod(node, 1) => format!("pod{node}"),
            Self::Pod(node, index) => format!("pod{node}.{index}"),
            Self::Etcd(0) => "etcd".into(),
            Self::Etcd(member) => format!("etcd{}", member + 1),
            Self::Switch => "switch".into(),
        }
    }
}

impl FromStr for PlaceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a place: try 1, node1, pod1, etcd or switch");
        let number = |text: &str| text.parse::<u16>().ok().filter(|&n| n > 0).ok_or_else(wrong);
        if text == "switch" {
            return Ok(Self::Switch);
        }
        if let Some(rest) = text.strip_prefix("etcd") {
            let member = if rest.is_empty() { 1 } else { number(rest)? };
            return Ok(Self::Etcd(usize::from(member) - 1));
        }
        if let Some(rest) = text.strip_prefix("pod") {
            let (node, index) = rest.split_once('.').unwrap_or((rest, "1"));
            return Ok(Self::Pod(number(node)?, number(index)?));
        }
        number(text.strip_prefix("node").unwrap_or(text)).map(Self::Node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_as_people_name_them() {
        let place = |text: &str| text.parse::<PlaceName>();
        assert_eq!(place("2"), Ok(PlaceName::Node(2)));
        assert_eq!(place("node2"), Ok(PlaceName::Node(2)));
        assert_eq!(place("pod3"), Ok(PlaceName::Pod(3, 1)));
        assert_eq!(place("pod3.2"), Ok(PlaceName::Pod(3, 2)));
        assert_eq!(place("etcd"), Ok(PlaceName::Etcd(0)));
        assert_eq!(place("etcd3"), Ok(PlaceName::Etcd(2)));
        assert_eq!(place("switch"), Ok(PlaceName::Switch));
        for wrong in ["", "0", "pod", "pod0", "etcd0", "nodes", "pod1."] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_label_names_the_same_place() {
        for text in ["node2", "pod3", "pod3.2", "etcd", "etcd2", "switch"] {
            assert_eq!(text.parse::<PlaceName>().unwrap().label(), text);
        }
    }
}
