//! vxlan: pods' packets travel in UDP between the nodes' VTEPs, in the kernel.
//!
//! One device for each family that packets travel in. Each peer's subnet is routed to the peer's VTEP, known by the
//! first address of that subnet; a neighbour entry gives its MAC, a forwarding entry the node to send that MAC's
//! frames to. With DirectRouting, peers on the same link are reached without any of it. Where a node has no address
//! of a family that pods have, their packets of that family go through the device of the other one.

use flannel_kernel::{
    Address, Entry, Fdb, IfName, KernelVersion, LegacyRoutes, Link, LinkKind, Mac, Neighbour,
    Offload, Route, Sysctl, VXLAN_DEVICES, Vxlan,
};
use flannel_lease::{BackendConfig, Lease, LeaseAttrs, NetworkConfig, RawJson};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::family::{Family, PerFamily as _};
use crate::{
    Backend, BackendError, Carriage, LinkIdentity, Node, NodeMemory, PeerProblem, Stack, Wishes,
};

/// Before this, the kernel sends vxlan packets with a wrong outer checksum when they were also
/// masqueraded, and whoever receives them waits a minute for the retransmission.
const CHECKSUMS_MENDED: KernelVersion = KernelVersion { major: 5, minor: 7 };
/// What the kernel takes if it is told none.
pub(crate) const KERNELS_PORT: u16 = 8472;
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;

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

/// `BackendData` of a lease.
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

    /// The device whose packets travel in this family.
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
        let overhead = match outer {
            Family::V4 => OVERHEAD_V4,
            Family::V6 => OVERHEAD_V6,
        };
        self.outer_mtu(node).saturating_sub(overhead)
    }

    /// The MAC this node's VTEP had, else has, else always gets on this machine; another one if that is taken.
    fn mac(&self, family: Family, node: &Node, memory: &NodeMemory<'_>) -> Mac {
        let device = self.device(family);
        let announced = memory
            .announced
            .filter(|attrs| attrs.backend_type.eq_ignore_ascii_case(self.kind()))
            .and_then(|attrs| vtep_mac(family.data(attrs)?).ok());
        let existing = memory.facts.interface(device).and_then(|interface| interface.mac);
        let is_free = |mac: &Mac| {
            mac.is_unicast() && !memory.taken.contains(&LinkIdentity::VtepMac(family, *mac))
        };
        let derived = |attempt: usize| {
            // The address takes part so that clones of one machine image differ.
            let mut salt = format!("{device} {:?}", family.announced_by(&node.underlay));
            if attempt > 0 {
                salt += &format!(" {attempt}");
            }
            Mac::random(&mut fastrand::Rng::with_seed(fnv1a(memory.machine, salt.as_bytes())))
        };
        let kept = announced.or(existing).filter(is_free);
        kept.or_else(|| (0..=memory.taken.len()).map(derived).find(is_free))
            .unwrap_or_else(|| derived(0))
    }

    fn data(&self, outer: Family, node: &Node, memory: &NodeMemory<'_>) -> Option<RawJson> {
        outer.announced_by(&node.underlay)?;
        let data = VtepData { vni: self.vni, mac: self.mac(outer, node, memory).to_string() };
        RawJson::encode(&data).ok()
    }

    fn base_of(&self, family: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let subnet = family.subnet(&own.subnet)?;
        let outer = family.outer(node)?;
        let mut entries = self.device_entries(outer, node, own)?;
        entries.extend(self.address(family, outer, subnet));
        Some(entries)
    }

    /// What this node sends to pods from, on the device through which it does.
    fn address(&self, family: Family, outer: Family, subnet: IpNet) -> Vec<Entry> {
        let link = self.device(outer);
        let address = Entry::Address(Address { link, addr: Family::host(subnet) });
        let path = format!("net/ipv6/conf/{link}/disable_ipv6");
        match family {
            Family::V4 => vec![address],
            // Without it the device can have no address.
            Family::V6 => vec![address, Entry::Sysctl(Sysctl { path, value: "0".to_owned() })],
        }
    }

    fn device_entries(&self, outer: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let link = self.device(outer);
        let local = outer.source(&node.underlay)?;
        let mac = outer.data(&own.attrs).and_then(|data| vtep_mac(data).ok());
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
            Entry::Sysctl(Sysctl {
                path: format!("net/ipv6/conf/{link}/accept_ra"),
                value: "0".to_owned(),
            }),
        ];
        if node.kernel < CHECKSUMS_MENDED || node.answers.checksum_is_broken() {
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
        let (outer, public) = family.way_to(node, peer)?;
        let metric = family.metric(node, subnet);
        let direct = self.direct_routing && outer == family;
        if let Some(link) = node.direct_link(public).filter(|_| direct) {
            let via = Some(public);
            return Ok(vec![Entry::Route(Route { dst: subnet, metric, via, link, onlink: false })]);
        }
        let data = outer
            .data(&peer.attrs)
            .ok_or_else(|| PeerProblem::Data("it has none; is it still starting?".to_owned()))?;
        let mac = vtep_mac(data)?;
        let link = self.device(outer);
        let vtep = subnet.network();
        let mut entries = vec![
            Entry::Neighbour(Neighbour { link, ip: vtep, mac }),
            Entry::Fdb(Fdb { link, mac, dst: public }),
            Entry::Route(Route { dst: subnet, metric, via: Some(vtep), link, onlink: true }),
        ];
        // The device may have no address of this family but for such peers.
        if let Some(own) = family.subnet(&own.subnet).filter(|_| outer != family) {
            entries.extend(self.address(family, outer, own));
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
        let (overhead, family) = match network.v6 {
            Some(_) => (OVERHEAD_V6, Family::V6),
            None => (OVERHEAD_V4, Family::V4),
        };
        let least = family.least_mtu();
        match self.mtu {
            Some(mtu) if mtu < least + overhead => Err(BackendError::Unfit(format!(
                "Backend.MTU {mtu} leaves {} bytes for pods, less than the {least} that {family} needs: \
                 raise it to {} or more, or leave it out",
                mtu.saturating_sub(overhead),
                least + overhead
            ))),
            _ => Ok(()),
        }
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        if self.devices.v6.is_none() && Family::outers(node).any(|outer| outer == Family::V6) {
            return Err(self.name_too_long());
        }
        let raise = format!("the MTU of {} or Backend.MTU", node.underlay.link);
        Family::used_by(node).try_for_each(|family| {
            let mtu = self.device_mtu(family.outer(node).unwrap_or(family), node);
            family.check_mtu(mtu, self.outer_mtu(node), &raise)
        })
    }

    fn outer_mtu(&self, node: &Node) -> u32 {
        // What the packets on the wire may have: no more than the card sends. The kernel would keep the device
        // at that, whatever it is asked for.
        self.mtu.unwrap_or(node.underlay.mtu).min(node.underlay.mtu)
    }

    fn mtu(&self, node: &Node) -> u32 {
        // Pods have one MTU for both families: what fits through either tunnel.
        Family::outers(node).map(|outer| self.device_mtu(outer, node)).min().unwrap_or_default()
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
        let sends = |family| Family::outers(node).any(|outer| outer == family);
        let data = |family| sends(family).then(|| self.data(family, node, memory)).flatten();
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
        let mac = |family: Family| vtep_mac(family.data(announced)?).ok();
        let identity = |family| mac(family).map(|mac| LinkIdentity::VtepMac(family, mac));
        Family::BOTH.into_iter().filter_map(identity).collect()
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let of = Family::used_by(node).filter_map(|family| self.base_of(family, node, own));
        let mut entries: Vec<Entry> = Vec::new();
        // Two families on one device want it once.
        for entry in of.flatten() {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        entries.into()
    }

    fn carriage(&self, node: &Node) -> Carriage {
        let overhead = self.outer_mtu(node).saturating_sub(self.mtu(node));
        Carriage::udp(&[self.port.unwrap_or(KERNELS_PORT)], overhead, true)
    }

    fn peer(&self, node: &Node, own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let mut entries = Vec::new();
        let mut problem = None;
        for family in Family::used_by(node) {
            let Some(subnet) = family.subnet(&peer.subnet) else { continue };
            match self.peer_of(family, node, own, subnet, peer) {
                // What both families of a device share is wanted once.
                Ok(more) => {
                    let new = |entry: &Entry| !entries.contains(entry);
                    let more: Vec<Entry> = more.into_iter().filter(new).collect();
                    entries.extend(more);
                }
                Err(error) => problem = Some(error),
            }
        }
        // One family that works is better than none.
        match problem {
            Some(problem) if entries.is_empty() => Err(problem),
            _ => Ok(entries.into()),
        }
    }

    fn devices(&self, node: &Node) -> Vec<IfName> {
        Family::outers(node).map(|outer| self.device(outer)).collect()
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

/// Stable over builds, which the standard library's hasher does not promise to be.
fn fnv1a(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
