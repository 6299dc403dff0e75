//! vxlan: pods' packets travel in UDP between the nodes' VTEPs, in the kernel.
//!
//! One device for each family that packets travel in. Each peer's subnet is routed to the peer's VTEP, known by the
//! first address of that subnet; a neighbour entry gives its MAC, a forwarding entry the node to send that MAC's
//! frames to. With DirectRouting, peers on the same link are reached without any of it. Where a node has no address
//! of a family that pods have, their packets of that family go through the device of the other one.

use std::net::IpAddr;

use flannel_common::{IfName, Mac};
use flannel_entries::devices::VXLAN_DEVICES;
use flannel_entries::facts::KernelVersion;
use flannel_entries::kernel::{
    Entry, Fdb, LegacyRoutes, Link, LinkKind, Neighbour, Offload, Vxlan,
};
use flannel_lease::{BackendConfig, Lease, LeaseAttrs, NetworkConfig, RawJson};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::encapsulation::{Encapsulation, KernelFeature};
use crate::family::{Family, check_configured_mtu, for_each_family, host_address};
use crate::{Backend, BackendError, LinkIdentity, Node, NodeMemory, PeerProblem, Stack, Wishes};

/// First kernel with correct checksums: earlier ones send vxlan packets with a wrong outer checksum when they were
/// also masqueraded, and the receiver waits a minute for the retransmission.
const FIRST_WITH_RIGHT_CHECKSUMS: KernelVersion = KernelVersion { major: 5, minor: 7 };
/// Port that the kernel uses if it is told none.
pub(crate) const KERNEL_DEFAULT_PORT: u16 = 8472;
/// Bytes that a tunnel over IPv4 adds, and one over IPv6.
const OVERHEAD: [u32; 2] = [50, 70];
/// Number of MACs that belong to a VTEP by its node's address: when others have announced some, one is left.
const DERIVED_MACS: u32 = 4;
/// Rounds of hashing: an attacker who may choose among 2^64 IPv6 addresses tries some 2^46 of them to get a MAC that is given.
const HASH_ROUNDS: u32 = 1_000;

pub(crate) struct VxlanBackend {
    vni: u32,
    port: Option<u16>,
    mtu: Option<u32>,
    gbp: bool,
    learning: bool,
    direct_routing: bool,
    devices: Devices,
}

struct Devices {
    v4: IfName,
    v6: Option<IfName>,
}

#[derive(Serialize, Deserialize)]
struct VtepData {
    // Nobody reads it, and some leases lack it; but it has always been written.
    #[serde(rename = "VNI", default)]
    vni: u32,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

impl VxlanBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let vni = config.int("VNI", 1, 0..=0xff_ffff)? as u32;
        let port = config.int("Port", 0, 0..=65535)? as u16;
        let mtu = config.int("MTU", 0, 0..=65535)? as u32;
        let name = |prefix| IfName::new(&format!("{prefix}{vni}"));
        let [v4, v6] = VXLAN_DEVICES.map(name);
        let v4 = v4.map_err(|_| {
            BackendError::Unfit(format!(
                "Backend.VNI {vni} makes a device name longer than the kernel allows: \
                 use 9999999 or less"
            ))
        })?;
        Ok(Self {
            vni,
            port: (port != 0).then_some(port),
            mtu: (mtu != 0).then_some(mtu),
            gbp: config.bool("GBP", false)?,
            learning: config.bool("Learning", false)?,
            direct_routing: config.bool("DirectRouting", false)?,
            devices: Devices { v4, v6: v6.ok() },
        })
    }

    fn device(&self, outer: Family) -> IfName {
        match outer {
            Family::V4 => self.devices.v4,
            // `check` has refused networks that need a name which is not possible.
            Family::V6 => self.devices.v6.unwrap_or(self.devices.v4),
        }
    }

    fn name_too_long(&self) -> BackendError {
        BackendError::Unfit(format!(
            "Backend.VNI {} makes an IPv6 device name longer than the kernel allows: use 9999 or less with IPv6",
            self.vni
        ))
    }

    fn device_mtu(&self, outer: Family, node: &Node) -> u32 {
        self.outer_mtu(node).saturating_sub(outer.choose(OVERHEAD))
    }

    /// MAC of this node's VTEP: the announced one, else the device's, else one derived from its address; not taken.
    fn mac(&self, family: Family, node: &Node, memory: &NodeMemory<'_>) -> Mac {
        let device = self.device(family);
        let address = node.underlay.announced(family);
        let announced = memory
            .announced
            .filter(|attrs| attrs.backend_type.eq_ignore_ascii_case(self.kind()))
            .and_then(|attrs| vtep_mac(attrs.data(family)?).ok());
        let existing = memory.facts.interface(device).and_then(|interface| interface.mac);
        let is_free = |mac: &Mac| {
            mac.is_unicast() && !memory.taken.contains(&LinkIdentity::VtepMac(family, *mac))
        };
        // A MAC that belongs to an address is not taken along: the next node at that address has a claim to it.
        let moved = memory.announced.zip(announced).is_some_and(|(attrs, mac)| {
            let before = attrs.public_address(family);
            before.is_some() && before != address && self.has_derived(mac, before)
        });
        let kept = announced.or(existing).filter(|mac| !moved && is_free(mac));
        let attempts = u32::try_from(memory.taken.len()).unwrap_or(u32::MAX);
        let derived = |attempt| self.derived_mac(address, attempt);
        kept.or_else(|| (0..=attempts).map(derived).find(is_free)).unwrap_or_else(|| derived(0))
    }

    /// MAC that a VTEP gets at this address. It follows from the lease, so that everybody sees whose it is.
    fn derived_mac(&self, address: Option<IpAddr>, attempt: u32) -> Mac {
        let address = address.map(|it| it.to_string()).unwrap_or_default();
        let text = format!("flannel vtep {} {address} {attempt}", self.vni);
        let mut hash = Sha256::digest(text.as_bytes());
        for _ in 1..HASH_ROUNDS {
            hash = Sha256::digest(hash);
        }
        Mac::local([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5]])
    }

    fn has_derived(&self, mac: Mac, address: Option<IpAddr>) -> bool {
        address.is_some()
            && (0..DERIVED_MACS).any(|attempt| self.derived_mac(address, attempt) == mac)
    }

    fn data(&self, outer: Family, node: &Node, memory: &NodeMemory<'_>) -> Option<RawJson> {
        node.underlay.announced(outer)?;
        let data = VtepData { vni: self.vni, mac: self.mac(outer, node, memory).to_string() };
        RawJson::encode(&data).ok()
    }

    fn base_of(&self, family: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let subnet = own.subnet.net(family)?;
        let outer = node.outer(family)?;
        let mut entries = self.device_entries(outer, node, own)?;
        entries.extend(host_address(self.device(outer), subnet));
        Some(entries)
    }

    fn device_entries(&self, outer: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let link = self.device(outer);
        let local = node.underlay.source(outer)?;
        let mac = own.attrs.data(outer).and_then(|data| vtep_mac(data).ok());
        let mut entries = vec![
            Entry::Link(Box::new(Link {
                name: link,
                kind: LinkKind::Vxlan(Vxlan {
                    vni: self.vni,
                    port: self.port,
                    parent: node.underlay.link,
                    local,
                    learning: self.learning,
                    gbp: self.gbp,
                }),
                mac,
                mtu: self.device_mtu(outer, node),
            })),
            Entry::device_setting(Family::V6, link, "accept_ra", "0"),
        ];
        if node.kernel < FIRST_WITH_RIGHT_CHECKSUMS || node.answers.checksum_is_broken {
            entries.push(Entry::Offload(Offload { link, tx_checksum: false }));
        }
        Some(entries)
    }

    fn peer_of(
        &self,
        family: Family,
        node: &Node,
        own: &Lease,
        subnet: IpNet,
        peer: &Lease,
    ) -> Result<Vec<Entry>, PeerProblem> {
        let (outer, public) = node.way_to(peer, family)?;
        let direct = self.direct_routing && outer == family;
        if let Some(link) = node.direct_link(public).filter(|_| direct) {
            return Ok(vec![node.route(subnet, Some(public), link, false)]);
        }
        let mac = vtep_mac(peer.attrs.data(outer).ok_or_else(PeerProblem::no_data)?)?;
        let link = self.device(outer);
        let vtep = subnet.network();
        let mut entries = vec![
            Entry::Neighbour(Neighbour { link, ip: vtep, mac }),
            Entry::Fdb(Fdb { link, mac, dst: public }),
            node.route(subnet, Some(vtep), link, true),
        ];
        // The device may have no address of this family but for such peers.
        if let Some(own) = own.subnet.net(family).filter(|_| outer != family) {
            entries.extend(host_address(link, own));
        }
        Ok(entries)
    }
}

impl Backend for VxlanBackend {
    fn kind(&self) -> &'static str {
        "vxlan"
    }

    fn options(&self) -> &'static [&'static str] {
        &["VNI", "Port", "MTU", "GBP", "Learning", "DirectRouting"]
    }

    fn check_network(&self, network: &NetworkConfig) -> Result<(), BackendError> {
        if network.v6.is_some() && self.devices.v6.is_none() {
            return Err(self.name_too_long());
        }
        check_configured_mtu(network, self.mtu, OVERHEAD)
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        if self.devices.v6.is_none() && node.sends_over(Family::V6) {
            return Err(self.name_too_long());
        }
        node.check_mtu(self.outer_mtu(node), " or Backend.MTU", |family| {
            self.device_mtu(node.outer(family).unwrap_or(family), node)
        })
    }

    fn outer_mtu(&self, node: &Node) -> u32 {
        // No more than the card sends: the kernel keeps the device at that, whatever it is asked for.
        self.mtu.unwrap_or(node.underlay.mtu).min(node.underlay.mtu)
    }

    fn mtu(&self, node: &Node) -> u32 {
        // Pods have one MTU for both families: what fits through either tunnel.
        node.outers().map(|outer| self.device_mtu(outer, node)).min().unwrap_or_default()
    }

    fn remarks(&self, node: &Node) -> Vec<String> {
        let (carried, link) = (node.underlay.mtu, node.underlay.link);
        let remark = |asked| {
            format!(
                "Backend.MTU is {asked}, but {link} carries {carried}: using {carried}, which leaves {} for \
                 pods; raise the MTU of {link} on all nodes, or set Backend.MTU to {carried}",
                self.mtu(node)
            )
        };
        let remark = self.mtu.filter(|asked| *asked > carried).map(remark);
        remark.into_iter().chain(crate::family::remark_on_crossing(node)).collect()
    }

    fn announce(&self, node: &Node, memory: &NodeMemory<'_>) -> LeaseAttrs {
        let data =
            |family| node.sends_over(family).then(|| self.data(family, node, memory)).flatten();
        LeaseAttrs {
            backend_data: data(Family::V4),
            backend_v6_data: data(Family::V6),
            ..node.attrs(self.lease_type())
        }
    }

    fn link_identities(&self, announced: &LeaseAttrs) -> Vec<LinkIdentity> {
        if !announced.backend_type.eq_ignore_ascii_case(self.lease_type()) {
            return Vec::new();
        }
        let mac = |family: Family| vtep_mac(announced.data(family)?).ok();
        let identity = |family| mac(family).map(|mac| LinkIdentity::VtepMac(family, mac));
        Family::BOTH.into_iter().filter_map(identity).collect()
    }

    fn is_derived(&self, identity: &LinkIdentity, announced: &LeaseAttrs) -> bool {
        match *identity {
            LinkIdentity::VtepMac(family, mac) => {
                self.has_derived(mac, announced.public_address(family))
            }
            LinkIdentity::WireguardKey(_) => false,
        }
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        node.entries_of_families(|family| self.base_of(family, node, own)).into()
    }

    fn encapsulation(&self, stack: Stack) -> Encapsulation {
        let devices = |family: Family| [family, family.other()].map(|it| self.device(it)).to_vec();
        let port = self.port.unwrap_or(KERNEL_DEFAULT_PORT);
        Encapsulation::in_udp(port, stack, devices, KernelFeature::Vxlan)
    }

    fn peer(&self, node: &Node, own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        for_each_family(node, peer, |family, subnet| {
            self.peer_of(family, node, own, subnet, peer).map(Wishes::from)
        })
    }

    fn devices(&self, node: &Node) -> Vec<IfName> {
        node.outers().map(|outer| self.device(outer)).collect()
    }

    fn underlays(&self, network: &NetworkConfig) -> Vec<Stack> {
        Stack::any_for(network)
    }

    fn legacy_routes(&self, node: &Node) -> Vec<LegacyRoutes> {
        if self.direct_routing { crate::host_gw::legacy_routes(node, false) } else { Vec::new() }
    }

    fn wants_paths(&self) -> bool {
        self.direct_routing
    }
}

fn vtep_mac(data: &RawJson) -> Result<Mac, PeerProblem> {
    let data: VtepData = data.parse().map_err(PeerProblem::data)?;
    let mac: Mac = data.mac.parse().map_err(PeerProblem::data)?;
    if mac.is_unicast() {
        Ok(mac)
    } else {
        Err(PeerProblem::Data(format!("{mac} cannot be a VTEP's address")))
    }
}
