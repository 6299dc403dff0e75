//! Rules of this host that drop flannel's packets: what peers send in the tunnel, and what pods send each other.
//!
//! Packets as flannel sends them are taken through the rules of nftables and iptables. What is dropped whatever cannot
//! be told from outside (a mark, a limit, a set that changes) is a finding here, and what may be is one of `way`.

use std::net::IpAddr;

use flannel_backend::OuterPackets;
use flannel_common::Family;
use flannel_trace::firewall::{Drop, Hook, Packet, Rules, TCP};

use super::node_context::{MAX_PEERS, Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Firewall;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    TunnelIn,
    TunnelOut,
    FromPods,
    ToPods,
}

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let rules = Rules::read();
    let unread = rules.unread().iter().map(|program| {
        let what = format!("rules cannot be read by `{program}`");
        let why = "what they drop is not known; is it installed on this host, or in this image?";
        Finding::note(LAYER, what, why)
    });
    unread.chain(context.networks.iter().flat_map(|network| judge(network, &rules))).collect()
}

fn judge(network: &Network, rules: &Rules) -> Vec<Finding> {
    let mut dropped: Vec<(Role, Drop, Packet, usize)> = Vec::new();
    for (role, packet) in packets(network) {
        let Some(drop) = rules.judge(&packet).surely else { continue };
        match dropped.iter_mut().find(|(of, by, ..)| *of == role && by.rule == drop.rule) {
            Some((.., count)) => *count += 1,
            None => dropped.push((role, drop, packet, 1)),
        }
    }
    dropped
        .into_iter()
        .map(|(role, drop, packet, count)| say(network, role, &drop, &packet, count))
        .collect()
}

fn packets(network: &Network) -> Vec<(Role, Packet)> {
    let Some(underlay) = &network.underlay else { return Vec::new() };
    let card = underlay.link.to_string();
    let own = underlay.addresses();
    // Where no peer is known, some address of nobody's.
    let nobody: Vec<IpAddr> = vec![[192, 0, 2, 1].into()];
    let publics = network.peers.iter().take(MAX_PEERS).flat_map(|peer| peer.public.iter().copied());
    let mut publics: Vec<IpAddr> = publics.collect();
    if publics.is_empty() {
        publics = nobody;
    }
    let mut packets = Vec::new();
    let tunnels = publics.iter().flat_map(|peer| {
        let outer = network.encapsulation.outer_between(Family::of(*peer));
        outer.into_iter().map(move |packets| (peer, packets.on_the_wire()))
    });
    for (peer, (protocol, port)) in tunnels {
        let Some(own) = own.iter().find(|ip| ip.is_ipv4() == peer.is_ipv4()) else {
            continue;
        };
        let packet = |hook, src, dst| Packet {
            port,
            iif: card.clone(),
            oif: card.clone(),
            ..Packet::first(hook, src, dst, protocol)
        };
        packets.push((Role::TunnelIn, packet(Hook::In, *peer, *own)));
        packets.push((Role::TunnelOut, packet(Hook::Out, *own, *peer)));
    }
    // Between pods, by what the bridge is called as a rule.
    for peer in network.peers.iter().take(MAX_PEERS) {
        for theirs in &peer.subnets {
            let tunnel = network.tunnel_device(Family::of(theirs.addr())).unwrap_or(&card);
            let ours =
                network.own.iter().find(|own| own.addr().is_ipv4() == theirs.addr().is_ipv4());
            let (Some(ours), Some(theirs)) =
                (ours.and_then(|own| own.hosts().nth(1)), theirs.hosts().nth(1))
            else {
                continue;
            };
            let packet = |src, dst, iif: &str, oif: &str| Packet {
                iif: iif.to_owned(),
                oif: oif.to_owned(),
                ..Packet::first(Hook::Forward, src, dst, TCP)
            };
            packets.push((Role::FromPods, packet(ours, theirs, "cni0", tunnel)));
            packets.push((Role::ToPods, packet(theirs, ours, tunnel, "cni0")));
        }
    }
    packets
}

fn say(network: &Network, role: Role, drop: &Drop, packet: &Packet, count: usize) -> Finding {
    let by = format!("{} drops", drop.rule);
    let more = if count > 1 { format!(" (and of {} more)", count - 1) } else { String::new() };
    let outer = match packet.port {
        Some(port) => OuterPackets::Udp(port),
        None => OuterPackets::Ipv4Protocol(packet.protocol),
    };
    let (src, dst, backend) = (packet.src, packet.dst, &network.backend);
    let what = match role {
        Role::TunnelIn => {
            format!("{by} what comes from {src}{more} on {outer}, the {backend} tunnel")
        }
        Role::TunnelOut => {
            format!("{by} what is sent to {dst}{more} on {outer}, the {backend} tunnel")
        }
        Role::FromPods => format!("{by} what pods of this node send to {dst}{more}"),
        Role::ToPods => format!("{by} what comes from pods of {src}{more} for those of this node"),
    };
    let why =
        "pods of this node and of others do not reach each other, though all entries are in place";
    let range_of = |ip: &IpAddr| {
        let range = network.ranges.iter().find(|range| range.contains(ip));
        range.map_or_else(|| ip.to_string(), ToString::to_string)
    };
    let range = range_of(&packet.src);
    let forwarded = matches!(role, Role::FromPods | Role::ToPods);
    // What lets one pair of pods through is to let all of them through.
    let of_all = |fix: &str| {
        let ranged = |word: &str| word.parse().map_or_else(|_| word.to_owned(), |ip| range_of(&ip));
        fix.split(' ').map(ranged).collect::<Vec<_>>().join(" ")
    };
    let fix = match drop.manager() {
        Some("firewalld") if forwarded => format!(
            "firewall-cmd --permanent --zone=trusted --add-source={range} && firewall-cmd --reload"
        ),
        Some("firewalld") => match outer {
            OuterPackets::Udp(port) => {
                format!("firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload")
            }
            OuterPackets::Ipv4Protocol(number) => {
                format!("firewall-cmd --permanent --add-protocol={number} && firewall-cmd --reload")
            }
        },
        Some("ufw") if forwarded => format!("ufw route allow from {range} to {range}"),
        Some("ufw") => match outer {
            OuterPackets::Udp(port) => format!("ufw allow {port}/udp"),
            OuterPackets::Ipv4Protocol(_) => drop.fix.clone(),
        },
        None if forwarded => of_all(&drop.fix),
        _ => drop.fix.clone(),
    };
    Finding::broken(LAYER, what, why, fix)
}

#[cfg(test)]
mod tests {
    use flannel_backend::{Encapsulation, Stack};
    use flannel_lease::BackendConfig;
    use flannel_trace::Peer;

    use super::*;

    /// What is asked of rules for a peer that has both addresses.
    fn on_the_wire(backend: &BackendConfig) -> Vec<(IpAddr, u8, Option<u16>)> {
        let stack = Stack { v4: true, v6: true };
        let mut network = Network::sample();
        network.encapsulation = flannel_backend::create(backend)
            .map_or(Encapsulation::Unknown, |backend| backend.encapsulation(stack));
        if let Some(underlay) = &mut network.underlay {
            underlay.v6 = "2001:db8::1".parse().ok();
        }
        let public = vec![[192, 0, 2, 2].into(), "2001:db8::2".parse().unwrap()];
        network.peers = vec![Peer { public, ..Peer::default() }];
        let incoming = packets(&network).into_iter().filter(|(role, _)| *role == Role::TunnelIn);
        incoming.map(|(_, packet)| (packet.src, packet.protocol, packet.port)).collect()
    }

    #[test]
    fn rules_are_asked_about_wireguards_port_of_each_family() {
        let config = BackendConfig::new("wireguard").with("ListenPortV6", 51999);
        let (v4, v6) = ([192, 0, 2, 2].into(), "2001:db8::2".parse().unwrap());
        assert_eq!(on_the_wire(&config), [(v4, 17, Some(51820)), (v6, 17, Some(51999))]);
    }

    #[test]
    fn rules_are_asked_about_both_protocols_of_ipip() {
        let node = IpAddr::from([192, 0, 2, 2]);
        let both = [(node, 4, None), (node, 41, None)];
        assert_eq!(on_the_wire(&BackendConfig::new("ipip")), both);
    }
}
