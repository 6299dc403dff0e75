//! What a node has in its network: what a walk over it expects to find.

use flannel_backend::{Encapsulation, Underlay};
use flannel_common::Family;
use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInNetwork {
    pub encapsulation: Encapsulation,
    pub underlay: Option<Underlay>,
    pub mtu: Option<u32>,
    pub devices: Vec<String>,
    pub own: Vec<IpNet>,
}

impl NodeInNetwork {
    pub fn tunnel_device(&self, family: Family) -> Option<&str> {
        self.encapsulation.device(&self.devices, family)
    }
}

#[cfg(test)]
mod tests {
    use flannel_backend::Stack;

    use super::*;

    #[test]
    fn ipv6_goes_by_the_sit_device_with_ipip() {
        let stack = Stack { v4: true, v6: true };
        let node = NodeInNetwork {
            encapsulation: Encapsulation::usual("ipip", stack),
            underlay: None,
            mtu: None,
            devices: vec!["flannel.ipip".to_owned(), "flannel.sit".to_owned()],
            own: Vec::new(),
        };
        assert_eq!(node.tunnel_device(Family::V6), Some("flannel.sit"));
        assert_eq!(node.tunnel_device(Family::V4), Some("flannel.ipip"));
    }
}
