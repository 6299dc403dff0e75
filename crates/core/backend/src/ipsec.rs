//! ipsec: pods' packets travel encrypted as ESP, by the kernel; strongSwan's charon negotiates keys.
//!
//! Policies, three for each peer, select the packets. The whole pod network is routed into a device that drops
//! everything: a packet that a policy selects never gets there, and any other must not leave this node unencrypted.

use std::path::PathBuf;

use flannel_common::xfrm::{Direction, ESP_REQID, EspTunnel, Policy};
use flannel_common::{IfName, Secret};
use flannel_entries::devices::IPSEC_DEVICE;
use flannel_entries::ipsec::{Connection, ConnectionName, IpsecEntry, SharedSecret};
use flannel_entries::kernel::{Entry, LinkKind, Route};
use flannel_lease::{BackendConfig, Lease, NetworkConfig};

use crate::encapsulation::{Encapsulation, KernelFeature, OuterPackets, Tunnel, TunnelPath};
use crate::family::{Family, device, host_address};
use crate::{Backend, BackendError, Need, Node, PeerProblem, Stack, Wishes};

pub(crate) const KIND: &str = "ipsec";
const ESP: u8 = 50;
/// Shortest secret, as for the Go flannel. Shorter ones are guessed.
const MIN_PSK_BYTES: usize = 96;
/// Longest secret that fits into charon's messages.
const MAX_PSK_BYTES: usize = 8192;
const DEFAULT_PROPOSAL: &str = "aes128gcm16-sha256-prfsha256-ecp256";

/// Bytes of the outer IPv4 header, of ESP's own, and the most of any cipher's vector, padding and checksum.
const OVERHEAD: u32 = 77;
/// Bytes of a UDP header around it.
const ENCAP_OVERHEAD: u32 = 8;

pub(crate) struct IpsecBackend {
    device: IfName,
    psk: Psk,
    proposal: String,
    udp_encap: bool,
}

enum Psk {
    /// In the network config, where everybody who may read the config can read it.
    InConfig(Secret),
    /// In a file of this path on every node.
    InFile(PathBuf),
}

const HOW_TO_MAKE: &str =
    "for example by `dd if=/dev/urandom count=48 bs=1 status=none | xxd -p -c 48`";

/// Checks the length of a secret. The error is the problem and the fix.
fn check_length(psk: &str) -> Result<(), (String, String)> {
    match psk.len() {
        MIN_PSK_BYTES..=MAX_PSK_BYTES => Ok(()),
        short if short < MIN_PSK_BYTES => Err((
            format!("is too short ({short} bytes)"),
            format!("write {MIN_PSK_BYTES} or more characters, made {HOW_TO_MAKE}"),
        )),
        _ => Err((
            "is too long".to_owned(),
            format!("write {MIN_PSK_BYTES} to {MAX_PSK_BYTES} characters"),
        )),
    }
}

impl Psk {
    fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let given = |key: &str| -> Result<Option<String>, BackendError> {
            Ok(config.string(key)?.filter(|text| !text.is_empty()))
        };
        let (psk, file) = (given("PSK")?, given("PSKFile")?.map(PathBuf::from));
        match (psk, file) {
            (Some(_), Some(_)) => Err(config
                .invalid("PSKFile", "is given beside PSK", "leave one of them out")
                .into()),
            (None, Some(file)) if !file.is_absolute() => {
                let fix = "write it with every directory, such as /etc/flannel/psk";
                Err(config.invalid("PSKFile", "is not a whole path", fix).into())
            }
            (None, Some(file)) => Ok(Self::InFile(file)),
            (Some(psk), None) => match check_length(&psk) {
                Ok(()) => Ok(Self::InConfig(Secret::new(psk))),
                Err((problem, fix)) => Err(config.invalid("PSK", problem, fix).into()),
            },
            (None, None) => {
                let fix = format!(
                    "write a secret of {MIN_PSK_BYTES} or more characters, made {HOW_TO_MAKE}; or put it into a \
                     file on every node and name that in PSKFile"
                );
                Err(config.missing("PSK", fix).into())
            }
        }
    }
}

impl IpsecBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let device = IfName::new(IPSEC_DEVICE)?;
        let psk = Psk::new(config)?;
        let proposal = config.string("ESPProposal")?.filter(|text| !text.is_empty());
        let proposal = proposal.unwrap_or_else(|| DEFAULT_PROPOSAL.to_owned());
        // Only charon knows which proposals are valid.
        if proposal.len() > 255
            || !proposal.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
        {
            let fix = format!("write one as strongSwan names them, for example {DEFAULT_PROPOSAL}");
            return Err(config.invalid("ESPProposal", "is not a proposal", fix).into());
        }
        let udp_encap = config.bool("UDPEncap", false)?;
        Ok(Self { device, psk, proposal, udp_encap })
    }

    /// The secret; `None` until the daemon has read its file.
    fn psk<'a>(&'a self, node: &'a Node) -> Option<&'a Secret> {
        match &self.psk {
            Psk::InConfig(psk) => Some(psk),
            Psk::InFile(file) => node.answers.secret(file),
        }
    }

    fn secret(&self, node: &Node, owner: std::net::IpAddr) -> Option<IpsecEntry> {
        let secret = self.psk(node)?.clone();
        Some(IpsecEntry::Secret(SharedSecret { owner, secret }))
    }
}

/// Encapsulation under any config: pods' IPv4 in ESP, and keys negotiated by UDP.
pub(crate) fn encapsulation() -> Encapsulation {
    let devices = IfName::new(IPSEC_DEVICE).into_iter().collect();
    let outer = OuterPackets::Ipv4Protocol(ESP);
    Encapsulation::Tunnel(Box::new(Tunnel {
        name: "IPsec (ESP, and UDP ports 500 and 4500)".to_owned(),
        allow: vec!["-p esp".to_owned(), "-p udp -m multiport --dports 500,4500".to_owned()],
        paths: [Some(TunnelPath { devices, outer, outer_family: None }), None],
        entrances: [500, 4500].map(OuterPackets::Udp).to_vec(),
        encrypted: true,
        tells_nodes_apart: false,
        needs: KernelFeature::Ipsec,
    }))
}

impl Backend for IpsecBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn options(&self) -> &'static [&'static str] {
        &["PSK", "PSKFile", "UDPEncap", "ESPProposal"]
    }

    fn check_network(&self, network: &NetworkConfig) -> Result<(), BackendError> {
        if network.v6.is_some() {
            return Err(BackendError::Unfit(
                "Backend.Type ipsec carries IPv4 alone, and this network has IPv6 too: use wireguard, or set \
                 EnableIPv6 to false"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn needs(&self) -> Vec<Need> {
        match &self.psk {
            Psk::InConfig(_) => Vec::new(),
            Psk::InFile(file) => vec![Need::SecretFile(file.clone())],
        }
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        if let (Psk::InFile(file), Some(psk)) = (&self.psk, self.psk(node))
            && let Err((problem, fix)) = check_length(psk.reveal())
        {
            let file = file.display();
            return Err(BackendError::Unfit(format!(
                "the secret in {file} (Backend.PSKFile) {problem}: {fix}"
            )));
        }
        node.check_mtu(node.underlay.mtu, "", |_| self.mtu(node))
    }

    fn mtu(&self, node: &Node) -> u32 {
        let encap = if self.udp_encap { ENCAP_OVERHEAD } else { 0 };
        node.underlay.mtu.saturating_sub(OVERHEAD + encap)
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let link = self.device;
        let subnet = own.subnet.net(Family::V4);
        let network = node.network.network(Family::V4);
        let public = node.underlay.announced(Family::V4);
        let (Some(subnet), Some(dst), Some(public)) = (subnet, network, public) else {
            return Wishes::default();
        };
        let mut kernel = vec![device(link, LinkKind::Dummy, self.mtu(node))];
        // This node's own packets to pods get this address, to which the policies apply as to pods'.
        kernel.extend(host_address(link, subnet));
        kernel.push(Entry::Route(Route { dst, metric: 0, via: None, link, onlink: false }));
        let ipsec = [IpsecEntry::Daemon].into_iter().chain(self.secret(node, public)).collect();
        Wishes { kernel, ipsec, ..Wishes::default() }
    }

    fn encapsulation(&self, _stack: Stack) -> Encapsulation {
        encapsulation()
    }

    fn peer(&self, node: &Node, own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let (ours, theirs) = (own.subnet.net(Family::V4), peer.subnet.net(Family::V4));
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            return Ok(Wishes::default());
        };
        let remote = node.address_of(peer, Family::V4)?;
        let public = node.underlay.announced(Family::V4);
        let source = node.underlay.source(Family::V4);
        let (Some(local), Some(source)) = (public, source) else {
            return Err(PeerProblem::NoAddress(Family::V4));
        };
        let outward = EspTunnel { src: source, dst: remote, reqid: ESP_REQID };
        let inward = EspTunnel { src: remote, dst: source, reqid: ESP_REQID };
        let policy = |direction, src, dst, tunnel| {
            Entry::Policy(Box::new(Policy { direction, src, dst, tunnel }))
        };
        let kernel = vec![
            policy(Direction::Out, ours, theirs, outward),
            policy(Direction::In, theirs, ours, inward),
            policy(Direction::Forward, theirs, ours, inward),
        ];
        let name = ConnectionName { local, local_subnet: ours, remote_subnet: theirs, remote };
        let connection = IpsecEntry::Connection(Box::new(Connection {
            name,
            source,
            esp_proposal: self.proposal.clone(),
            udp_encap: self.udp_encap,
        }));
        let ipsec = self.secret(node, remote).into_iter().chain([connection]).collect();
        Ok(Wishes { kernel, ipsec, ..Wishes::default() })
    }

    fn devices(&self, _node: &Node) -> Vec<IfName> {
        vec![self.device]
    }
}
