//! Nodes that a lease server speaks for, as they have announced themselves.

use parking_lot::Mutex;
use std::collections::BTreeMap;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_store::PublicAddresses;

use crate::events::Recorder;

#[derive(Debug, Default)]
pub(crate) struct ServedNodes(Mutex<BTreeMap<Box<str>, ServedNode>>);

#[derive(Clone, Debug)]
pub(crate) struct ServedNode {
    subnet: Subnet,
    /// Addresses that the node itself has found.
    own: PublicAddresses,
    /// Addresses that an operator wanted instead when the Node was last seen.
    overwrites: PublicAddresses,
    clash: Option<Box<str>>,
}

impl ServedNode {
    pub(crate) fn new(subnet: Subnet, attrs: &LeaseAttrs, overwrites: PublicAddresses) -> Self {
        let own = PublicAddresses { v4: attrs.public_ip, v6: attrs.public_ipv6 };
        Self { subnet, own, overwrites, clash: None }
    }
}

impl ServedNodes {
    /// Notes what a node has announced. Returns the subnet that it had before.
    pub(crate) fn note_announced(&self, name: &str, now: ServedNode) -> Option<Subnet> {
        let mut nodes = self.0.lock();
        let clash = nodes.get(name).and_then(|before| before.clash.clone());
        nodes.insert(name.into(), ServedNode { clash, ..now }).map(|before| before.subnet)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lock().contains_key(name)
    }

    /// Notes addresses of an operator. Returns the node's own where the operator no longer wants another one.
    pub(crate) fn own_address_again(
        &self,
        name: &str,
        now: PublicAddresses,
    ) -> Option<PublicAddresses> {
        let mut nodes = self.0.lock();
        let node = nodes.get_mut(name)?;
        let before = std::mem::replace(&mut node.overwrites, now);
        let v4 = before.v4.is_some() && now.v4.is_none();
        let v6 = before.v6.is_some() && now.v6.is_none();
        let own =
            PublicAddresses { v4: node.own.v4.filter(|_| v4), v6: node.own.v6.filter(|_| v6) };
        (v4 || v6).then_some(own)
    }

    /// Records an event once when another Node has the subnet of a served node.
    pub(crate) fn note_clash(&self, events: &Recorder, name: &str, other: Option<Box<str>>) {
        let mut nodes = self.0.lock();
        let Some(node) = nodes.get_mut(name) else { return };
        if node.clash != other {
            if let Some(other) = &other {
                events.record_subnet_clash(name, other);
            }
            node.clash = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_counts_again_once_when_an_operator_takes_back_another_one() {
        let served = ServedNodes::default();
        let (own, other) = ("192.0.2.1".parse().ok(), "198.51.100.1".parse().ok());
        let attrs = LeaseAttrs { public_ip: own, ..LeaseAttrs::default() };
        let subnet: Subnet = "10.244.1.0-24".parse().expect("a subnet");
        let written = PublicAddresses { v4: other, v6: None };
        let none = PublicAddresses::default();
        assert_eq!(served.own_address_again("a", written), None, "it is not served here");
        served.note_announced("a", ServedNode::new(subnet, &attrs, none));
        assert_eq!(served.own_address_again("a", none), None);
        assert_eq!(served.own_address_again("a", written), None, "the node takes it up itself");
        let again = Some(PublicAddresses { v4: own, v6: None });
        assert_eq!(served.own_address_again("a", none), again);
        assert_eq!(served.own_address_again("a", none), None);
        assert_eq!(
            served.note_announced("a", ServedNode::new(subnet, &attrs, written)),
            Some(subnet)
        );
        assert_eq!(served.own_address_again("a", none), again, "it was there from the beginning");
    }
}
