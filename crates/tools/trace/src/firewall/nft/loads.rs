//! What rules load of a packet into registers.

use std::net::IpAddr;

use flannel_nft::{ConnectionKey, Header, HookPoint, MetaKey, TableFamily};

use super::super::path::{Conversation, Hook, Packet};
use super::registers::{PartialByte, known, unknown};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const NAME_LEN: usize = 16;
const IPV6_HEADER_LEN: u32 = 40;
const LOOPBACK_LINK: u32 = 1;
/// TCP, UDP, DCCP, SCTP and UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
const ESTABLISHED: u32 = 2;
const NEW: u32 = 8;
const UNTRACKED: u32 = 64;

#[derive(Clone, Copy)]
pub(super) struct RuleContext {
    pub(super) family: TableFamily,
    pub(super) point: HookPoint,
}

/// `None`: the packet has no such thing, and the rule is not for it.
pub(super) fn meta(key: MetaKey, packet: &Packet, place: RuleContext) -> Option<Vec<PartialByte>> {
    let [came, goes] = &packet.bridge_ports;
    // `None` where it is not known; nothing comes in by a device when the host sends it.
    let input = match packet.hook {
        Hook::Out | Hook::BridgeOut => Some(""),
        Hook::BridgeIn | Hook::BridgeForward => came.as_deref(),
        Hook::In | Hook::Forward => Some(packet.iif.as_str()),
    };
    let output = match packet.hook {
        Hook::In | Hook::BridgeIn => Some(""),
        Hook::BridgeOut | Hook::BridgeForward => goes.as_deref(),
        Hook::Out | Hook::Forward if place.point == HookPoint::Prerouting => Some(""),
        Hook::Out | Hook::Forward => Some(packet.oif.as_str()),
    };
    let link = |name: Option<&str>| {
        let index = match name? {
            "" => Some(0),
            "lo" => Some(LOOPBACK_LINK),
            name => packet.host.links.get(name).copied(),
        };
        index.map(|index| known(&index.to_ne_bytes()))
    };
    Some(match key {
        MetaKey::Length => known(&packet.length.to_ne_bytes()),
        MetaKey::EtherType => known(&ethertype(packet).to_be_bytes()),
        MetaKey::Mark => unknown(4),
        MetaKey::InputLink => link(input).unwrap_or_else(|| unknown(4)),
        MetaKey::OutputLink => link(output).unwrap_or_else(|| unknown(4)),
        MetaKey::InputName => name(input),
        MetaKey::OutputName => name(output),
        MetaKey::InputBridge => name(Some(&packet.iif)),
        MetaKey::OutputBridge => name(Some(&packet.oif)),
        MetaKey::NetworkProtocol => known(&[match place.family {
            TableFamily::Inet => TableFamily::of(packet.dst) as u8,
            other => other as u8,
        }]),
        MetaKey::TransportProtocol if packet.is_arp => return None,
        MetaKey::TransportProtocol => known(&[packet.protocol]),
    })
}

fn name(name: Option<&str>) -> Vec<PartialByte> {
    let Some(name) = name else { return unknown(NAME_LEN) };
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NAME_LEN, 0);
    known(&bytes)
}

fn ethertype(packet: &Packet) -> u16 {
    match packet.dst {
        _ if packet.is_arp => ETHERTYPE_ARP,
        IpAddr::V4(_) => ETHERTYPE_IPV4,
        IpAddr::V6(_) => ETHERTYPE_IPV6,
    }
}

/// `None`: the packet has no such thing, and the rule is not for it.
pub(super) fn payload(
    header: Header,
    offset: u32,
    len: u32,
    packet: &Packet,
) -> Option<Vec<PartialByte>> {
    let has_ports = WITH_PORTS.contains(&packet.protocol);
    let bytes = match header {
        Header::Link => [unknown(12), known(&ethertype(packet).to_be_bytes())].concat(),
        Header::Network => network_header(packet),
        Header::Transport if packet.is_arp => return None,
        Header::Transport if !has_ports && (offset, len) == (2, 2) => return None,
        Header::Transport => {
            let port = packet.port.filter(|_| has_ports);
            port.map_or(Vec::new(), |port| [unknown(2), known(&port.to_be_bytes())].concat())
        }
    };
    let rest = std::iter::repeat(PartialByte::UNKNOWN);
    Some(bytes.into_iter().chain(rest).skip(offset as usize).take(len as usize).collect())
}

fn network_header(packet: &Packet) -> Vec<PartialByte> {
    let (src, dst) = (octets(packet.src), octets(packet.dst));
    let length = |len: u32| known(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    let parts = match packet.dst {
        // Who asks, who answers, and in between their MAC addresses.
        _ if packet.is_arp => vec![unknown(14), known(&src), unknown(6), known(&dst)],
        IpAddr::V4(_) => vec![
            known(&[0x45]),
            unknown(1),
            length(packet.length),
            unknown(5),
            known(&[packet.protocol]),
            unknown(2),
            known(&src),
            known(&dst),
        ],
        IpAddr::V6(_) => vec![
            unknown(4),
            length(packet.length.saturating_sub(IPV6_HEADER_LEN)),
            known(&[packet.protocol]),
            unknown(1),
            known(&src),
            known(&dst),
        ],
    };
    parts.concat()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Any length will do for what is not known: more is never compared.
pub(super) fn connection(key: ConnectionKey, packet: &Packet) -> Vec<PartialByte> {
    if key != ConnectionKey::State {
        return unknown(16);
    }
    let state = if packet.conversation == Conversation::New { NEW } else { ESTABLISHED };
    let unsure = if packet.host.may_untrack { UNTRACKED } else { 0 };
    let bytes = state.to_ne_bytes().into_iter().zip((!unsure).to_ne_bytes());
    bytes.map(|(value, known)| PartialByte::masked(value, known)).collect()
}
