//! wireguard: pods' packets travel encrypted in UDP, by the kernel's WireGuard or, where it has none, by our own.
//!
//! Each peer's subnet is routed into the device; which peer a packet is for, and from which peer a packet
//! may come, the device knows by the peers' subnets too. In the mode `separate` each family has a device of
//! its own, whose packets travel in that family where both nodes have an address of it, else in the other; in the
//! other modes one device carries both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flannel_common::{IfName, PresharedKey, PublicKey};
use flannel_entries::devices::WIREGUARD_DEVICES;
use flannel_entries::kernel::{Blackhole, Entry, LinkKind, WireguardIdentity, WireguardPeer};
use flannel_entries::tunnel::{Features, OwnAddresses, TunnelDevice, TunnelEntry, WireguardDevice};
use flannel_lease::{BackendConfig, Lease, LeaseAttrs, NetworkConfig, RawJson};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::encapsulation::{
    Encapsulation, KernelFeature, OuterPackets, Tunnel, TunnelPath, udp_words,
};
use crate::family::{Family, check_configured_mtu, device, for_each_family, host_address};
use crate::{
    Backend, BackendError, LinkIdentity, Need, Node, NodeMemory, PeerProblem, Stack, WireguardBy,
    Wishes,
};

/// Bytes of the outer IP and UDP headers, and WireGuard's own 32 bytes.
const OVERHEAD: [u32; 2] = [60, 80];

/// Last metric, of the route that drops pods' packets without the device, lest they leave unencrypted.
const GUARD_METRIC: u32 = u32::MAX - 1;

pub(crate) struct WireguardBackend {
    mode: Mode,
    ports: [u16; 2],
    mtu: Option<u32>,
    preshared_key: Option<PresharedKey>,
    keepalive: u16,
    devices: [IfName; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A device for each family of pods.
    Separate,
    /// One device, over the family that leads to the peer.
    Auto,
    Ipv4,
    Ipv6,
}

impl Mode {
    /// Family in which all packets travel; `None` where that depends on the peer.
    fn outer(self) -> Option<Family> {
        match self {
            Self::Separate | Self::Auto => None,
            Self::Ipv4 => Some(Family::V4),
            Self::Ipv6 => Some(Family::V6),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct PeerData {
    #[serde(rename = "PublicKey")]
    public_key: String,
    // Leases of old versions lack it.
    #[serde(rename = "Port", default)]
    port: u16,
    /// Port of a node that shares its public address with others: it is identified by both.
    #[serde(rename = "PublicPort", default, skip_serializing_if = "Option::is_none")]
    public_port: Option<u16>,
}

impl WireguardBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let mode = match config.string("Mode")?.as_deref() {
            None | Some("" | "separate") => Mode::Separate,
            Some("auto") => Mode::Auto,
            Some("ipv4") => Mode::Ipv4,
            Some("ipv6") => Mode::Ipv6,
            Some(_) => {
                let fix = "write separate, auto, ipv4 or ipv6";
                return Err(config.invalid("Mode", "is not a mode of wireguard", fix).into());
            }
        };
        let preshared_key = match config.string("PSK")?.filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| {
                let fix = "write what `wg genpsk` prints, the same for all nodes";
                config.invalid("PSK", "is not 32 bytes as base64", fix)
            })?),
        };
        let mtu = config.int("MTU", 0, 0..=65535)? as u32;
        let [v4, v6] = WIREGUARD_DEVICES.map(IfName::new);
        Ok(Self {
            mode,
            ports: [
                config.int("ListenPort", 51820, 1..=65535)? as u16,
                config.int("ListenPortV6", 51821, 1..=65535)? as u16,
            ],
            mtu: (mtu != 0).then_some(mtu),
            preshared_key,
            keepalive: config.int("PersistentKeepaliveInterval", 0, 0..=65535)? as u16,
            devices: [v4?, v6?],
        })
    }

    /// What one device has, or the device of this family.
    fn of_device<T: Copy>(&self, family: Family, of: [T; 2]) -> T {
        if self.mode == Mode::Separate { family.choose(of) } else { of[0] }
    }

    fn device(&self, family: Family) -> IfName {
        self.of_device(family, self.devices)
    }

    fn port(&self, family: Family) -> u16 {
        self.of_device(family, self.ports)
    }

    fn device_mtu(&self, family: Family, node: &Node) -> u32 {
        let outer = match self.mode {
            Mode::Separate => node.outer(family),
            // The peer decides which of both it is.
            Mode::Auto => node.outers().last(),
            Mode::Ipv4 | Mode::Ipv6 => self.mode.outer(),
        };
        self.outer_mtu(node).saturating_sub(outer.unwrap_or(family).choose(OVERHEAD))
    }

    fn data(&self, family: Family, peer: &LeaseAttrs) -> Result<(PublicKey, u16), PeerProblem> {
        let data = peer.data(family).ok_or_else(PeerProblem::no_data)?;
        let data: PeerData = data.parse().map_err(PeerProblem::data)?;
        let key =
            data.public_key.parse().map_err(|e| PeerProblem::data(format!("PublicKey: {e}")))?;
        Ok((key, if data.port == 0 { self.port(family) } else { data.port }))
    }

    fn entries(
        &self,
        node: &Node,
        link: IfName,
        public_key: PublicKey,
        endpoint: SocketAddr,
        allowed: Vec<IpNet>,
    ) -> Wishes {
        let route = |dst: &IpNet| node.route(*dst, None, link, false);
        let mut wishes = Wishes::from(allowed.iter().map(route).collect::<Vec<_>>());
        let (preshared_key, keepalive) = (self.preshared_key.clone(), self.keepalive);
        match node.answers.wireguard_by() {
            WireguardBy::Kernel => {
                wishes.kernel.push(Entry::WireguardPeer(Box::new(WireguardPeer {
                    link,
                    public_key,
                    preshared_key,
                    endpoint,
                    // The peer decides which of both it is.
                    any_family: self.mode == Mode::Auto,
                    keepalive,
                    allowed,
                })));
            }
            WireguardBy::Process => {
                let peer = flannel_entries::tunnel::WireguardPeer {
                    public_key,
                    preshared_key,
                    endpoint,
                    keepalive,
                    allowed,
                };
                let device = link.as_str().into();
                wishes.tunnel.push(TunnelEntry::WireguardPeer(device, Box::new(peer)));
            }
        }
        wishes
    }

    fn in_its_own_device(
        &self,
        node: &Node,
        family: Family,
        subnet: IpNet,
        peer: &Lease,
    ) -> Result<Wishes, PeerProblem> {
        let (key, port) = self.data(family, &peer.attrs)?;
        not_ours(node, key)?;
        let (_, public) = node.way_to(peer, family)?;
        let endpoint = SocketAddr::new(public, port);
        Ok(self.entries(node, self.device(family), key, endpoint, vec![subnet]))
    }

    fn in_one_device(&self, node: &Node, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let allowed: Vec<IpNet> =
            node.families().filter_map(|family| peer.subnet.net(family)).collect();
        let datas = node.families().map(|family| self.data(family, &peer.attrs));
        let (key, _) = datas
            .reduce(Result::or)
            .unwrap_or_else(|| Err(PeerProblem::Data("it has none".to_owned())))?;
        not_ours(node, key)?;
        let outer = self.outer_family(node, &peer.attrs);
        let public = node.address_of(peer, outer)?;
        if !node.sends_over(outer) {
            return Err(PeerProblem::Apart(outer));
        }
        let endpoint = SocketAddr::new(public, self.single_port(&peer.attrs));
        Ok(self.entries(node, self.devices[0], key, endpoint, allowed))
    }

    /// Port of a node with one device. The Go flannel announces ListenPortV6 for IPv6, on which nobody listens then.
    fn single_port(&self, peer: &LeaseAttrs) -> u16 {
        let v4 = self.data(Family::V4, peer).map(|(_, port)| port);
        let v6 = self.data(Family::V6, peer).map(|(_, port)| port);
        let [own, own_v6] = self.ports;
        v4.or(v6.map(|port| if port == own_v6 { own } else { port })).unwrap_or(own)
    }

    /// Family in which the packets of a single device travel to a peer.
    fn outer_family(&self, node: &Node, peer: &LeaseAttrs) -> Family {
        if let Some(outer) = self.mode.outer() {
            return outer;
        }
        let ours = &node.underlay;
        match (peer.public_ip, peer.public_ipv6) {
            (_, None) => Family::V4,
            (None, Some(_)) => Family::V6,
            (Some(_), Some(_)) if ours.public_v4.is_none() => Family::V6,
            (Some(_), Some(_)) if ours.public_v6.is_none() => Family::V4,
            (Some(v4), Some(_)) if is_public(v4) => Family::V4,
            (Some(_), Some(v6)) => {
                let both_global = !is_local(v6) && ours.public_v6.is_some_and(|v6| !is_local(v6));
                if both_global { Family::V6 } else { Family::V4 }
            }
        }
    }

    /// Device of a family, for our own process.
    fn tunnel(&self, family: Family, node: &Node, own: &Lease) -> Option<TunnelEntry> {
        let link = self.device(family);
        let carried = |family: Family| self.device(family) == link;
        // It listens on every address, like the kernel's, in both families unless the mode names one: peers that lack an
        // address of one are reached in the other.
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let listens = |over: &Family| {
            let is_announced = node.underlay.announced(*over).is_some();
            is_announced && self.mode.outer().is_none_or(|outer| outer == *over)
        };
        let bind = Family::BOTH.into_iter().filter(listens).map(|over| over.choose(any));
        Some(TunnelEntry::Device(Box::new(TunnelDevice {
            device: link.to_string(),
            bind: bind.map(|ip| SocketAddr::new(ip, self.port(family))).collect(),
            own: OwnAddresses {
                v4: own.subnet.v4().filter(|_| carried(Family::V4)).map(|net| net.network()),
                v6: own.subnet.v6().filter(|_| carried(Family::V6)).map(|net| net.network()),
            },
            features: Features::default(),
            wireguard: Some(WireguardDevice {
                private_key: node.answers.private_key.clone()?,
                mtu: self.smallest_mtu_on(link, node),
            }),
        })))
    }

    fn base_of(&self, family: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let link = self.device(family);
        let subnet = own.subnet.net(family)?;
        let dst = node.network.network(family)?;
        let private_key = node.answers.private_key.clone()?;
        let kind = match node.answers.wireguard_by() {
            WireguardBy::Kernel => LinkKind::Wireguard,
            WireguardBy::Process => LinkKind::Tun,
        };
        let mut entries = vec![device(link, kind, self.smallest_mtu_on(link, node))];
        if node.answers.wireguard_by() == WireguardBy::Kernel {
            let port = self.port(family);
            let identity = WireguardIdentity { link, private_key, port };
            entries.push(Entry::WireguardIdentity(Box::new(identity)));
        }
        entries.extend(host_address(link, subnet));
        entries.push(Entry::Blackhole(Blackhole { dst, metric: GUARD_METRIC }));
        Some(entries)
    }

    fn smallest_mtu_on(&self, link: IfName, node: &Node) -> u32 {
        let on_it = node.families().filter(|family| self.device(*family) == link);
        on_it.map(|family| self.device_mtu(family, node)).min().unwrap_or_default()
    }
}

impl Backend for WireguardBackend {
    fn kind(&self) -> &'static str {
        "wireguard"
    }

    fn options(&self) -> &'static [&'static str] {
        &["ListenPort", "ListenPortV6", "MTU", "PSK", "PersistentKeepaliveInterval", "Mode"]
    }

    fn check_network(&self, network: &NetworkConfig) -> Result<(), BackendError> {
        let (v4, v6) = (network.v4.is_some(), network.v6.is_some());
        if self.mode == Mode::Separate && v4 && v6 && self.ports[0] == self.ports[1] {
            return Err(BackendError::Unfit(format!(
                "Backend.ListenPort and Backend.ListenPortV6 are both {}, and the two devices of Backend.Mode \
                 separate need one each: write another, or use auto",
                self.ports[0]
            )));
        }
        check_configured_mtu(network, self.mtu, OVERHEAD)
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::WireguardKey, Need::WireguardBy]
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        node.check_mtu(self.outer_mtu(node), " or Backend.MTU", |family| {
            self.smallest_mtu_on(self.device(family), node)
        })
    }

    fn outer_mtu(&self, node: &Node) -> u32 {
        self.mtu.unwrap_or(node.underlay.mtu).min(node.underlay.mtu)
    }

    fn mtu(&self, node: &Node) -> u32 {
        // Pods have one MTU for both families: what fits through either tunnel.
        node.families().map(|family| self.device_mtu(family, node)).min().unwrap_or_default()
    }

    fn announce(&self, node: &Node, _past: &NodeMemory<'_>) -> LeaseAttrs {
        let key = node.answers.private_key.as_ref().map(|key| key.public().to_string());
        let data = |family| {
            let used = node.families().any(|used| used == family);
            let public_key = key.clone().filter(|_| used)?;
            // Nodes share an IPv4 address, and its port leads to the first device.
            let first = node.families().next() == Some(family);
            let shared = first && node.outer(family) == Some(Family::V4);
            let public_port = node.answers.public_port.filter(|_| shared);
            let port = public_port.unwrap_or_else(|| self.port(family));
            RawJson::encode(&PeerData { public_key, port, public_port }).ok()
        };
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
        let keys = Family::BOTH.into_iter().filter_map(|family| self.data(family, announced).ok());
        let mut identities: Vec<_> = keys.map(|(key, _)| LinkIdentity::WireguardKey(key)).collect();
        identities.dedup();
        identities
    }

    fn is_own(&self, node: &Node, lease: &Lease) -> bool {
        let ours = node.answers.private_key.as_ref().map(|key| key.public());
        let key = |family| self.data(family, &lease.attrs).ok().map(|(key, _)| key);
        let theirs = key(Family::V4).or(key(Family::V6));
        theirs.is_none() || theirs == ours
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let kernel = node.entries_of_families(|family| self.base_of(family, node, own));
        let mut tunnel = Vec::new();
        if node.answers.wireguard_by() == WireguardBy::Process {
            tunnel.extend(node.families().filter_map(|family| self.tunnel(family, node, own)));
            tunnel.dedup();
        }
        Wishes { kernel, tunnel, ..Wishes::default() }
    }

    fn encapsulation(&self, stack: Stack) -> Encapsulation {
        let path = |family: Family| {
            let separate = (self.mode == Mode::Separate).then_some(family);
            let outer_family = separate.or(self.mode.outer());
            let outer = OuterPackets::Udp(self.port(family));
            TunnelPath { devices: vec![self.device(family)], outer, outer_family }
        };
        let ports = stack.each(|family| self.port(family));
        let mut ports: Vec<u16> = ports.into_iter().flatten().collect();
        ports.dedup();
        let (name, allow) = udp_words(&ports);
        Encapsulation::Tunnel(Box::new(Tunnel {
            name,
            allow,
            paths: stack.each(path),
            entrances: ports.into_iter().map(OuterPackets::Udp).collect(),
            encrypted: true,
            // By their keys.
            tells_nodes_apart: true,
            needs: KernelFeature::Wireguard,
        }))
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        if self.mode != Mode::Separate {
            return self.in_one_device(node, peer);
        }
        for_each_family(node, peer, |family, subnet| {
            self.in_its_own_device(node, family, subnet, peer)
        })
    }

    fn underlays(&self, network: &NetworkConfig) -> Vec<Stack> {
        let mut any = Stack::any_for(network);
        any.retain(|stack| self.mode.outer().is_none_or(|outer| stack.has(outer)));
        any
    }

    fn remarks(&self, node: &Node) -> Vec<String> {
        crate::family::remark_on_crossing(node).into_iter().collect()
    }

    fn devices(&self, node: &Node) -> Vec<IfName> {
        let mut devices: Vec<IfName> = node.families().map(|family| self.device(family)).collect();
        devices.dedup();
        devices
    }
}

/// Refuses a node that has our key: nobody could tell the two apart.
fn not_ours(node: &Node, key: PublicKey) -> Result<(), PeerProblem> {
    match node.answers.private_key.as_ref() {
        Some(own) if own.public() == key => Err(PeerProblem::Data(
            "it has the key of this node, as clones of one machine do: remove the key file (see \
             WIREGUARD_KEY_FILE) on one of them and restart its flanneld"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Whether an address is not one that is used again in every other network.
fn is_public(ip: Ipv4Addr) -> bool {
    !ip.is_private()
}

fn is_local(ip: Ipv6Addr) -> bool {
    ip.octets()[0] & 0xfe == 0xfc
}
