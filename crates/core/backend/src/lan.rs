//! The nodes' own LAN as pod network: a peer's subnet would then replace the network by which nodes reach each other.

use std::net::IpAddr;

use flannel_common::IfName;
use flannel_lease::{Net, SubnetSource};
use ipnet::IpNet;

use crate::Node;

/// Error: pods' subnets may come from the network of this node's own card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{prefix}Network {network} has this node's own address {address} of {link} in it, and subnets for pods may come \
     from its LAN {lan}: choose another {prefix}Network, or leave the LAN out by {prefix}SubnetMin and {prefix}SubnetMax"
)]
pub struct LanOverlap {
    /// Of the config's keys of this family.
    prefix: &'static str,
    network: IpNet,
    address: IpAddr,
    lan: IpNet,
    link: IfName,
}

impl LanOverlap {
    /// Whether the whole network is a part of the LAN, so that no subnet of it lies elsewhere.
    pub fn is_inside_lan(&self) -> bool {
        self.lan.contains(&self.network)
    }
}

/// Checks whether subnets of pods may lie in the LAN of this node's interface.
pub fn lan_overlap(node: &Node) -> Option<LanOverlap> {
    let underlay = &node.underlay;
    let v4 = [underlay.v4, underlay.public_v4].into_iter().flatten().map(IpAddr::V4);
    let v6 = [underlay.v6, underlay.public_v6].into_iter().flatten().map(IpAddr::V6);
    v4.chain(v6).find_map(|address| {
        let on_card = node.connected.iter().filter(|connected| connected.link == underlay.link);
        let lan = on_card.map(|connected| connected.net()).find(|net| net.contains(&address));
        let lan = lan.unwrap_or_else(|| IpNet::from(address));
        let (network, prefix) = match lan {
            IpNet::V4(lan) => (reached(node.network.v4, lan)?, ""),
            IpNet::V6(lan) => (reached(node.network.v6, lan)?, "IPv6"),
        };
        let (link, is_inside) = (underlay.link, network.contains(&address));
        is_inside.then_some(LanOverlap { prefix, network, address, lan, link })
    })
}

/// The network of `source`, if its subnets may lie in `lan`.
fn reached<N: Net + Into<IpNet>>(source: Option<SubnetSource<N>>, lan: N) -> Option<IpNet> {
    let source = source?;
    source.may_hand_out_of(lan).then(|| source.network().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use flannel_lease::{NetworkConfig, SubnetOrigin};

    use super::*;
    use crate::{Connected, Underlay};

    /// A node at 10.1.2.3/24.
    fn node(config: &str, subnets: SubnetOrigin) -> Node {
        let link = IfName::new("eth0").unwrap();
        let text = format!(r#"{{{config},"Backend":{{"Type":"vxlan"}}}}"#);
        Node {
            network: NetworkConfig::read(&text, subnets).unwrap(),
            underlay: Underlay {
                link,
                mtu: 1500,
                v4: Some([10, 1, 2, 3].into()),
                v6: None,
                public_v4: Some([10, 1, 2, 3].into()),
                public_v6: None,
                why: String::new(),
            },
            kernel: flannel_entries::facts::KernelVersion { major: 6, minor: 1 },
            paths: Default::default(),
            connected: vec![Connected {
                link,
                addr: "10.1.2.3/24".parse().unwrap(),
                gateways: Vec::new(),
            }],
            answers: Default::default(),
        }
    }

    #[test]
    fn a_network_whose_subnets_may_be_the_lans_is_told_from_one_that_leaves_it_out() {
        let overlaps = |config: &str| lan_overlap(&node(config, SubnetOrigin::Pool)).is_some();
        assert!(overlaps(r#""Network":"10.1.2.0/24""#));
        assert!(overlaps(r#""Network":"10.1.0.0/16""#));
        assert!(overlaps(r#""Network":"10.0.0.0/8""#));
        assert!(!overlaps(r#""Network":"10.244.0.0/16""#));
        let wide = r#""Network":"10.0.0.0/8","SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0""#;
        assert!(!overlaps(wide));
        let said = lan_overlap(&node(r#""Network":"10.1.2.0/24""#, SubnetOrigin::Pool)).unwrap();
        assert!(said.is_inside_lan());
        let wide = lan_overlap(&node(r#""Network":"10.1.0.0/16""#, SubnetOrigin::Pool)).unwrap();
        assert!(!wide.is_inside_lan());
        let said = said.to_string();
        assert!(said.contains("10.1.2.3 of eth0") && said.contains("SubnetMin"), "{said}");
    }

    #[test]
    fn where_subnets_are_assigned_only_a_network_inside_the_lan_is_one_that_cannot_work() {
        let overlaps = |config: &str| lan_overlap(&node(config, SubnetOrigin::Store)).is_some();
        assert!(overlaps(r#""Network":"10.1.2.0/24""#));
        assert!(overlaps(r#""Network":"10.1.2.0/25""#));
        assert!(!overlaps(r#""Network":"10.0.0.0/8""#));
    }

    #[test]
    fn a_public_address_inside_the_pods_network_is_found_too() {
        let mut node = node(r#""Network":"10.244.0.0/16""#, SubnetOrigin::Pool);
        node.underlay.public_v4 = Some([10, 244, 7, 7].into());
        assert!(lan_overlap(&node).unwrap().to_string().contains("10.244.7.7"));
    }
}
