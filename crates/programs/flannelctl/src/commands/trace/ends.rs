//! Where a packet comes from and goes to: a pod of this node, this node itself, a pod of a peer, or the world.

use std::net::IpAddr;

use flannel_trace::End;

use crate::commands::check::node_context::{Network, NodeContext};
use crate::commands::usage;

pub(super) struct Ends<'a> {
    pub(super) network: &'a Network,
    pub(super) from: (IpAddr, End<'a>),
    pub(super) to: (IpAddr, End<'a>),
}

impl<'a> Ends<'a> {
    pub(super) fn place(
        context: &'a NodeContext,
        from: IpAddr,
        to: IpAddr,
    ) -> anyhow::Result<Self> {
        let inside = |network: &&Network| {
            network.ranges.iter().any(|range| range.contains(&from) || range.contains(&to))
        };
        let network = context.networks.iter().find(inside).ok_or_else(|| {
            let ranges = context.networks.iter().flat_map(|network| &network.ranges);
            let mut known: Vec<String> = ranges.map(ToString::to_string).collect();
            if known.is_empty() {
                known.push("none is known; is flanneld running here?".to_owned());
            }
            let known = known.join(", ");
            usage(format!("neither {from} nor {to} is in a pod network of this node ({known})"))
        })?;
        let interfaces = context.host.facts.interfaces.iter();
        let hosts: Vec<IpAddr> = interfaces
            .flat_map(|it| it.addresses.iter().map(|address| address.addr.addr()))
            .collect();
        let end = |ip: IpAddr| End::place(ip, &hosts, &network.own, &network.peers);
        let (first, second) = (end(from), end(to));
        if let (End::Peer(peer), End::Peer(_)) = (first, second) {
            let node = peer.public.first().map_or("that".to_owned(), ToString::to_string);
            return Err(usage(format!(
                "neither pod is on this node: run it on the node {node}, which has {from}"
            )));
        }
        for (ip, end) in [(from, first), (to, second)] {
            let nobodys =
                matches!(end, End::World) && network.ranges.iter().any(|range| range.contains(&ip));
            if nobodys {
                return Err(usage(format!(
                    "{ip} is in the pod network, and no node has a subnet with it (flannelctl leases lists them)"
                )));
            }
        }
        Ok(Self { network, from: (from, first), to: (to, second) })
    }

    pub(super) fn far(&self) -> Option<End<'a>> {
        [self.from.1, self.to.1].into_iter().find(|end| matches!(end, End::Peer(_)))
    }
}
