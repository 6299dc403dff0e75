//! Rules of this host that drop flannel's packets: what peers send in the tunnel, and what pods send each other.
//!
//! The rules of nftables and of iptables are read, and packets as flannel sends them are taken through them. What
//! cannot be told from outside (a mark, a limit, a set that changes) may match or not: only what is dropped either way
//! is a finding.

mod iptables;
mod nft;
mod path;

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use flannel_common::run_program;

use super::finding::Finding;
use super::surroundings::{Network, PEERS, Surroundings, Tunnel};
pub(crate) use path::{Drop, Hook, Packet};

const SUBJECT: &str = "firewall";
const PATIENCE: Duration = Duration::from_secs(5);
const UDP: u8 = 17;
const TCP: u8 = 6;

/// All rules of this host, as far as they can be read.
#[derive(Default)]
pub(crate) struct Rules {
    nft: nft::Ruleset,
    v4: iptables::Tables,
    v6: iptables::Tables,
    /// Programs that could not say them.
    unread: Vec<&'static str>,
}

/// What a packet is to flannel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    TunnelIn,
    TunnelOut,
    FromPods,
    ToPods,
}

pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let rules = Rules::read();
    let unread = rules.unread.iter().map(|program| {
        let what = format!("rules cannot be read by `{program}`");
        Finding::note(
            SUBJECT,
            what,
            "what they drop is not known; is it installed on this host, or in this image?",
        )
    });
    unread.chain(around.networks.iter().flat_map(|network| judge(network, &rules))).collect()
}

fn judge(network: &Network, rules: &Rules) -> Vec<Finding> {
    let mut dropped: Vec<(Role, Drop, Packet, usize)> = Vec::new();
    for (role, packet) in packets(network) {
        let Some(drop) = rules.drops(&packet) else { continue };
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

impl Rules {
    /// Of this host, as they are now.
    pub(crate) fn read() -> Self {
        let mut unread = Vec::new();
        let mut said = |program: &'static str, arguments: &[&str]| {
            output(program, arguments).unwrap_or_else(|| {
                unread.push(program);
                String::new()
            })
        };
        let nft = nft::Ruleset::read(&said("nft", &["-j", "list", "ruleset"]));
        let v4 = iptables::Tables::read(&said("iptables-save", &[]));
        let v6 = iptables::Tables::read(&said("ip6tables-save", &[]));
        Self { nft, v4, v6, unread }
    }

    /// Who drops such a packet, whatever is not known of it.
    pub(crate) fn drops(&self, packet: &Packet) -> Option<Drop> {
        let (tables, program) = match packet.dst.is_ipv4() {
            true => (&self.v4, "iptables"),
            false => (&self.v6, "ip6tables"),
        };
        let by_iptables = tables.drops(packet, program);
        // Those that iptables has made are read by it; nft shows them without their meaning.
        by_iptables.or_else(|| self.nft.drops(packet, !tables.is_empty()))
    }
}

/// As flannel sends and gets them.
fn packets(network: &Network) -> Vec<(Role, Packet)> {
    let Some(underlay) = &network.underlay else { return Vec::new() };
    let card = underlay.link.to_string();
    let own = [underlay.v4.map(IpAddr::from), underlay.v6.map(IpAddr::from)];
    // Where no peer is known, some address of nobody's.
    let nobody: Vec<IpAddr> = vec![[192, 0, 2, 1].into()];
    let publics = network.peers.iter().take(PEERS).flat_map(|peer| peer.public.iter().copied());
    let mut publics: Vec<IpAddr> = publics.collect();
    if publics.is_empty() {
        publics = nobody;
    }
    let (protocol, port) = match network.tunnel {
        Tunnel::Udp(port) => (UDP, port),
        Tunnel::Protocol(protocol) => (protocol, 0),
        Tunnel::None => (0, 0),
    };
    let mut packets = Vec::new();
    for peer in publics.iter().filter(|_| network.tunnel != Tunnel::None) {
        let Some(own) = own.iter().flatten().find(|ip| ip.is_ipv4() == peer.is_ipv4()) else {
            continue;
        };
        let packet = |hook, src, dst| Packet {
            hook,
            src,
            dst,
            protocol,
            port,
            iif: card.clone(),
            oif: card.clone(),
        };
        packets.push((Role::TunnelIn, packet(Hook::In, *peer, *own)));
        packets.push((Role::TunnelOut, packet(Hook::Out, *own, *peer)));
    }
    // Between pods, by what the bridge is called as a rule.
    for peer in network.peers.iter().take(PEERS) {
        for theirs in &peer.subnets {
            let tunnel = network.tunnel_device(theirs.addr().is_ipv4()).unwrap_or(&card);
            let ours =
                network.own.iter().find(|own| own.addr().is_ipv4() == theirs.addr().is_ipv4());
            let (Some(ours), Some(theirs)) =
                (ours.and_then(|own| own.hosts().nth(1)), theirs.hosts().nth(1))
            else {
                continue;
            };
            let packet = |src, dst, iif: &str, oif: &str| Packet {
                hook: Hook::Forward,
                src,
                dst,
                protocol: TCP,
                port: 80,
                iif: iif.to_owned(),
                oif: oif.to_owned(),
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
    let carried = match network.tunnel {
        Tunnel::Udp(port) => format!("UDP port {port}"),
        Tunnel::Protocol(number) => format!("IP protocol {number}"),
        Tunnel::None => "packets".to_owned(),
    };
    let cut =
        "pods of this node and of others do not reach each other, though all entries are in place";
    let (what, why) = match role {
        Role::TunnelIn => (
            format!(
                "{by} what comes from {}{more} on {carried}, the {} tunnel",
                packet.src, network.backend
            ),
            cut,
        ),
        Role::TunnelOut => (
            format!(
                "{by} what is sent to {}{more} on {carried}, the {} tunnel",
                packet.dst, network.backend
            ),
            cut,
        ),
        Role::FromPods => {
            (format!("{by} what pods of this node send to {}{more}", packet.dst), cut)
        }
        Role::ToPods => (
            format!("{by} what comes from pods of {}{more} for those of this node", packet.src),
            cut,
        ),
    };
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
        Some("firewalld") => match network.tunnel {
            Tunnel::Udp(port) => {
                format!("firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload")
            }
            Tunnel::Protocol(number) => {
                format!("firewall-cmd --permanent --add-protocol={number} && firewall-cmd --reload")
            }
            Tunnel::None => drop.fix.clone(),
        },
        Some("ufw") if forwarded => format!("ufw route allow from {range} to {range}"),
        Some("ufw") => match network.tunnel {
            Tunnel::Udp(port) => format!("ufw allow {port}/udp"),
            _ => drop.fix.clone(),
        },
        None if forwarded => of_all(&drop.fix),
        _ => drop.fix.clone(),
    };
    Finding::broken(SUBJECT, what, why, fix)
}

pub(super) fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut text = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/sbin"].map(std::path::PathBuf::from));
    let found =
        directories.iter().map(|directory| directory.join(program)).find(|path| path.is_file())?;
    let ended = run_program(Command::new(found).args(arguments), b"", PATIENCE, |piece| {
        text.extend_from_slice(piece)
    });
    ended.ok()?.status.success().then(|| String::from_utf8_lossy(&text).into_owned())
}
