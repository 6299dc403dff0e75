//! A network that this node is a part of.

use std::net::IpAddr;
use std::num::NonZeroU64;

use flannel_backend::{Connected, Encapsulation, Stack, Underlay};
use flannel_common::Family;
use flannel_kernel::look::{Device, Kernel};
use flannel_lease::Lease;
use flannel_trace::{NodeInNetwork, Peer};
use ipnet::IpNet;

#[derive(Default)]
pub(crate) struct Network {
    pub(crate) name: String,
    pub(crate) stack: Stack,
    /// Empty as long as no config is known.
    pub(crate) ranges: Vec<IpNet>,
    pub(crate) backend: String,
    /// iptables or nftables, where the config is known.
    pub(crate) nftables: Option<bool>,
    pub(crate) encapsulation: Encapsulation,
    pub(crate) underlay: Option<Underlay>,
    pub(crate) no_underlay: Option<String>,
    pub(crate) mtu: Option<u32>,
    pub(crate) devices: Vec<String>,
    /// What lies in, or around, its ranges and is not flannel's.
    pub(crate) connected: Vec<Connected>,
    pub(crate) own: Vec<IpNet>,
    /// The hash of its machine id, as others are told; without a lease, as they would be.
    pub(crate) own_machine: Option<NonZeroU64>,
    pub(crate) peers: Vec<Peer>,
    /// As the store has them, this node's own among them.
    pub(crate) leases: Vec<Lease>,
}

impl Network {
    pub(super) fn unknown(name: &str, stack: Stack, backend: &str) -> Self {
        Self {
            name: name.to_owned(),
            stack,
            backend: backend.to_owned(),
            encapsulation: Encapsulation::usual(backend, stack),
            ..Self::default()
        }
    }

    pub(crate) fn node(&self) -> NodeInNetwork {
        let encapsulation = self.encapsulation.clone();
        let underlay = self.underlay.clone();
        let devices = self.devices.clone();
        NodeInNetwork { encapsulation, underlay, mtu: self.mtu, devices, own: self.own.clone() }
    }

    pub(crate) fn tunnel_device(&self, family: Family) -> Option<&str> {
        self.encapsulation.device(&self.devices, family)
    }

    pub(crate) fn public(&self) -> Vec<IpAddr> {
        self.underlay.iter().flat_map(Underlay::announced_addresses).collect()
    }

    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.contains(&ip))
    }

    /// The bridge of pods: it has an address of this node's own subnet.
    pub(crate) fn bridge<'a>(&self, kernel: &'a Kernel) -> Option<&'a Device> {
        let has_own = |it: &Device| it.addresses.iter().any(|net| self.is_own(net.addr()));
        kernel.devices.iter().find(|device| device.kind == "bridge" && has_own(device))
    }

    /// Whether more than one lease has this address: what is sent there comes to one node, whichever it is for.
    pub(crate) fn is_shared(&self, address: IpAddr) -> bool {
        let peers = self.peers.iter().filter(|peer| peer.public.contains(&address)).count();
        peers + usize::from(self.public().contains(&address)) > 1
    }

    /// Of the store. Where no daemon says which lease is this node's own, its addresses do.
    pub(super) fn take_leases(&mut self, leases: Vec<Lease>) {
        let public = self.public();
        for lease in &leases {
            let peer = Peer::of_lease(lease);
            let mine = match self.own.is_empty() {
                true => peer.public.iter().any(|ip| public.contains(ip)),
                false => peer.subnets.iter().any(|net| self.own.contains(net)),
            };
            if !mine {
                self.peers.push(peer);
                continue;
            }
            self.own_machine = peer.machine;
            self.own = peer.subnets;
        }
        self.leases = leases;
    }
}

#[cfg(test)]
impl Network {
    /// One of vxlan and IPv4, on eth0.
    pub(crate) fn sample() -> Self {
        let underlay = Underlay {
            link: flannel_common::IfName::new("eth0").unwrap(),
            mtu: 1500,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
            public_v4: Some([192, 0, 2, 1].into()),
            public_v6: None,
            why: String::new(),
        };
        Self {
            ranges: vec!["10.244.0.0/16".parse().unwrap()],
            nftables: Some(false),
            underlay: Some(underlay),
            mtu: Some(1450),
            devices: vec!["flannel.1".to_owned()],
            own: vec!["10.244.1.0/24".parse().unwrap()],
            ..Self::unknown("_", Stack::V4, "vxlan")
        }
    }
}
