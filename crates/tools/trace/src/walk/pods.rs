//! Between a pod of this node and its bridge.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_common::Mac;
use flannel_kernel::look::Device;
use flannel_link::{AddressQuestion, AnswerTiming};
use flannel_state::{Finding, Layer};
use ipnet::IpNet;

use super::inside_pod::Leg;
use super::{Entrance, NEIGHBOUR_POLL_INTERVAL, NEIGHBOUR_TIMEOUT, Walk, nudge};
use crate::firewall::{Drop, Dropped, Hook, Packet};
use crate::judge::{self, PortFlags, may_drop, some_of_many};
use crate::pod_namespace::PodNamespace;
use crate::queues::Header;

/// A second answer is that of somebody who has the same address.
const ANSWER_TIMING: AnswerTiming =
    AnswerTiming { tries: 1, first: Duration::from_millis(300), more: Duration::from_millis(60) };

struct FoundPod {
    /// The port of its bridge, where that is known.
    port: Option<Device>,
}

impl Walk<'_> {
    /// Returns the device by which a packet comes out of the pod.
    pub(super) fn leave_pod(&mut self, pod: IpAddr, to: IpAddr) -> io::Result<Option<Entrance>> {
        let Some(bridge) = self.pods_device(pod) else {
            self.no_bridge();
            return Ok(None);
        };
        let Some(found) = self.on_the_bridge(pod, to, Leg::Leaves, &bridge)? else {
            return Ok(None);
        };
        let header = Header { src: pod, dst: to, protocol: None, port: None };
        let devices = found.port.iter().chain([&bridge]);
        for device in devices.collect::<Vec<_>>() {
            if !self.passes_queues(self.queues.coming_in(device, header)) {
                return Ok(None);
            }
        }
        let port = found.port.map(|port| port.name);
        if !self.passes_bridge_rules(Hook::BridgeIn, (pod, to), &bridge.name, port.clone()) {
            return Ok(None);
        }
        Ok(Some(Entrance { device: bridge.name, port }))
    }

    pub(super) fn enter_pod(
        &mut self,
        from: IpAddr,
        pod: IpAddr,
        bridge: &Device,
    ) -> io::Result<bool> {
        let Some(found) = self.on_the_bridge(pod, from, Leg::Arrives, bridge)? else {
            return Ok(false);
        };
        let header = Header { src: from, dst: pod, protocol: None, port: None };
        for device in [bridge].into_iter().chain(&found.port) {
            if !self.leaves_by(device, header) {
                return Ok(false);
            }
        }
        let port = found.port.map(|port| port.name);
        Ok(self.passes_bridge_rules(Hook::BridgeOut, (from, pod), &bridge.name, port))
    }

    /// Rules of the bridge, for packets and for the question who has an address.
    fn passes_bridge_rules(
        &mut self,
        hook: Hook,
        (src, dst): (IpAddr, IpAddr),
        bridge: &str,
        port: Option<String>,
    ) -> bool {
        let (iif, oif) = (bridge.to_owned(), bridge.to_owned());
        let bridge_ports = match hook {
            Hook::BridgeIn => [port, None],
            _ => [None, port],
        };
        let packet = Packet { iif, oif, bridge_ports, ..Packet::first(hook, src, dst, 0) };
        self.passes_arp(&packet, None) && self.judge_rules(&packet, "it", false)
    }

    /// Whether rules let the question who has an address, and its answer, through. `unanswered`: whom nobody answers for.
    pub(super) fn passes_arp(&mut self, packet: &Packet, unanswered: Option<IpAddr>) -> bool {
        if packet.dst.is_ipv6() {
            return true;
        }
        let mut dropped = Dropped::default();
        // The host's own rules for ARP are asked on either way.
        for hook in [packet.hook, Hook::In, Hook::Out] {
            let asks = Packet { is_arp: true, hook, ..packet.clone() };
            if !dropped.followed_by(self.rules.judge(&asks)) {
                break;
            }
        }
        if let Some(drop) = dropped.surely {
            let what = format!("{} drops the question who has an address (ARP)", drop.rule);
            self.hops.wrong("rules", Layer::Firewall, what, drop.fix);
            return false;
        }
        let mut named = some_of_many(dropped.perhaps);
        named.dedup();
        match (named.first(), unanswered) {
            (Some(drop), Some(ip)) => {
                let what = format!(
                    "nobody on {} answers for {ip}, and {} may drop the question who has it, or the answer (ARP)",
                    packet.iif, drop.rule
                );
                self.hops.wrong("rules", Layer::Firewall, what, &drop.fix);
                false
            }
            (None, _) => true,
            (Some(_), None) => {
                let of_arp = |drop: &Drop| {
                    let (rule, fix) = (format!("{}, of ARP,", drop.rule), drop.fix.clone());
                    may_drop(Layer::Firewall, &Drop { rule, fix, packets: drop.packets })
                };
                named.iter().for_each(|drop| self.hops.found("rules", of_arp(drop)));
                true
            }
        }
    }

    pub(super) fn no_bridge(&mut self) -> bool {
        let own: Vec<String> = self.node.own.iter().map(ToString::to_string).collect();
        let own = own.join(" ");
        let what =
            format!("no device of this node has an address of {own}, so pods have no gateway");
        let fix = "restart the pods of this node: the CNI plugin makes the bridge";
        self.hops.wrong("bridge", Layer::Bridge, what, fix);
        false
    }

    /// Whether the pod is there, and the bridge passes its packets on. `other`: the other end of the way.
    fn on_the_bridge(
        &mut self,
        pod: IpAddr,
        other: IpAddr,
        leg: Leg,
        bridge: &Device,
    ) -> io::Result<Option<FoundPod>> {
        let usual = self.node.mtu;
        let ports = self.ports_of(bridge);
        if !self.hops.take("bridge", judge::bridge(bridge))
            || !self.hops.passes("veth", judge::narrowing_port(bridge, &ports, usual))
            || !self.hops.passes("bridge", judge::bridge_mtu(bridge, usual))
            || !self.hops.passes("arp", judge::arp(bridge))
        {
            return Ok(None);
        }
        // Numbers of devices are alike on several machines: a pod is one of this node if its MAC is behind the veth.
        let mut namespaces = PodNamespace::find_all(pod);
        let mut behind = Vec::new();
        for namespace in &namespaces {
            let Some((veth, mac)) = namespace.veth.zip(namespace.mac) else { continue };
            if self.kernel.fdb(veth)?.iter().any(|entry| entry.mac == mac) {
                behind.push(mac);
            }
        }
        if let Some(fault) = judge::duplicates(&bridge.name, pod, &behind) {
            self.hops.take("pod", Err(fault));
            return Ok(None);
        }
        namespaces.sort_by_key(|one| !one.mac.is_some_and(|mac| behind.contains(&mac)));
        let own_mac = namespaces.first().and_then(|one| one.mac);
        let namespace = namespaces.into_iter().next();
        if let Some(namespace) = &namespace
            && !self.inside_pod(namespace, pod, other, leg, bridge)
        {
            return Ok(None);
        }
        let name = &bridge.name;
        let veth = namespace.and_then(|namespace| namespace.veth);
        // What keeps the pod from answering goes before that it does not.
        if let Some(veth) = veth.and_then(|index| self.kernel.by_index(index))
            && veth.master == Some(bridge.index)
            && veth.up
        {
            let (index, port) = (veth.index, veth.name.clone());
            let mut judged = port_of_bridge(name, &port, pod.is_ipv4());
            if let (Ok(()), Some(mac)) = (&judged, own_mac)
                && !self.kernel.fdb(index)?.iter().any(|entry| entry.mac == mac)
            {
                judged = judge::port_learning(name, &port, mac, port_flags(&port));
            }
            if !self.hops.passes("bridge", judged) {
                return Ok(None);
            }
        }
        let Some(found) = self.resolve(pod, bridge)? else {
            // A rule that drops the question goes before what follows from it.
            let passes = match leg {
                Leg::Leaves => self.passes_bridge_rules(Hook::BridgeIn, (pod, other), name, None),
                Leg::Arrives => self.passes_bridge_rules(Hook::BridgeOut, (other, pod), name, None),
            };
            let asked = Packet {
                iif: name.clone(),
                oif: name.clone(),
                ..Packet::first(Hook::BridgeOut, other, pod, 0)
            };
            if passes && self.passes_arp(&asked, Some(pod)) {
                self.hops.take("pod", Err(judge::no_answer(name, pod)));
            }
            return Ok(None);
        };
        let mut answering = self.who_answers(bridge, pod);
        if answering.is_empty() {
            // What the pod itself has says as much.
            answering.extend(own_mac);
        }
        if let Some(fault) = judge::duplicates(name, pod, &answering) {
            self.hops.take("pod", Err(fault));
            return Ok(None);
        }
        if !self
            .hops
            .passes("neighbour", judge::neighbour_on_wire(name, pod, found.mac, &answering))
        {
            return Ok(None);
        }
        let is_bridge = bridge.kind == "bridge";
        let mut port = self.port_of(&ports, found.mac)?;
        if port.is_none() && is_bridge {
            // A bridge forgets those who are silent, and all that is behind a port that goes down.
            nudge(pod);
            let deadline = Instant::now() + NEIGHBOUR_TIMEOUT;
            while port.is_none() && Instant::now() < deadline {
                std::thread::sleep(NEIGHBOUR_POLL_INTERVAL);
                port = self.port_of(&ports, found.mac)?;
            }
        }
        let leads_there = veth.and_then(|index| ports.iter().find(|port| port.index == index));
        match (port, leads_there) {
            (Some(port), Some(veth)) if port.index != veth.index => {
                let fault = judge::wrong_port(name, pod, found.mac, &port.name, &veth.name);
                self.hops.take("fdb", Err(fault));
                Ok(None)
            }
            // One with another MTU passes small packets all the same.
            (Some(port), _) => {
                self.hops.take("veth", judge::veth(port, pod, found.mac, usual));
                let forwards =
                    self.hops.passes("bridge", port_of_bridge(name, &port.name, pod.is_ipv4()));
                let passes = port.up && port.carrier && forwards;
                Ok(passes.then(|| FoundPod { port: Some(port.clone()) }))
            }
            (None, _) if is_bridge && found.learned => {
                self.hops.take("veth", Err(judge::no_veth(name, pod, found.mac, &ports)));
                Ok(None)
            }
            (None, _) => {
                let what = format!(
                    "{pod} is {}, and {name} does not know on which of its ports",
                    found.mac
                );
                self.hops.unknown("veth", what);
                Ok(Some(FoundPod { port: leads_there.cloned() }))
            }
        }
    }

    /// All that answer for an address, whatever the kernel believes; nobody where that cannot be asked.
    pub(super) fn who_answers(&self, device: &Device, ip: IpAddr) -> Vec<Mac> {
        let Some(own_mac) = device.mac.filter(|_| device.up && !device.noarp) else {
            return Vec::new();
        };
        let own = device.addresses.iter().map(|net| net.addr());
        let own = own.filter(|own| own.is_ipv4() == ip.is_ipv4() && *own != ip);
        // An answer to any other address of IPv6 may take another way than the link.
        let from = own.min_by_key(|ip| matches!(ip, IpAddr::V6(ip) if !ip.is_unicast_link_local()));
        // From no address it would be the question of one who wants the address, and might cost a pod its own.
        if from.is_none() {
            return Vec::new();
        }
        let question = AddressQuestion { link_index: device.index, own_mac, from, address: ip };
        question.ask(ANSWER_TIMING).unwrap_or_default()
    }

    pub(super) fn somebody_else_has(&mut self, ip: IpAddr) -> io::Result<()> {
        let own = self.node.own.iter().find(|own| own.addr().is_ipv4() == ip.is_ipv4());
        let Some(bridge) = own.and_then(|own| self.pods_device(own.hosts().nth(1)?)) else {
            return Ok(());
        };
        if let Some(mac) = self.who_answers(&bridge, ip).first() {
            self.hops.take("pod", Err(judge::has_address_of_others(&bridge.name, ip, *mac)));
        }
        Ok(())
    }

    fn ports_of(&self, bridge: &Device) -> Vec<Device> {
        let is_port = |device: &&Device| device.master == Some(bridge.index);
        self.kernel.devices.iter().filter(is_port).cloned().collect()
    }

    /// The port of the bridge behind which a pod is, if that is known at once.
    pub(super) fn known_port(&mut self, pod: IpAddr) -> io::Result<Option<String>> {
        let Some(bridge) = self.pods_device(pod) else { return Ok(None) };
        let mut known = self.kernel.neighbours(pod.is_ipv4(), bridge.index)?.into_iter();
        let mac = known.find(|one| one.ip == pod).and_then(|one| one.mac);
        let Some(mac) = mac else { return Ok(None) };
        let ports = self.ports_of(&bridge);
        Ok(self.port_of(&ports, mac)?.map(|port| port.name.clone()))
    }

    fn port_of<'d>(&mut self, ports: &'d [Device], mac: Mac) -> io::Result<Option<&'d Device>> {
        for port in ports {
            if self.kernel.fdb(port.index)?.iter().any(|entry| entry.mac == mac) {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }

    /// The bridge of pods, or whatever else has the gateway of this node's subnet.
    pub(super) fn pods_device(&self, pod: IpAddr) -> Option<Device> {
        let leads = |net: &&IpNet| net.contains(&pod) && net.prefix_len() < net.max_prefix_len();
        let ours = |device: &&Device| !self.node.devices.contains(&device.name);
        let mut devices = self.kernel.devices.iter().filter(ours);
        devices.find(|device| device.addresses.iter().any(|net| leads(&net))).cloned()
    }
}

/// Whether a port passes frames on, as the kernel says.
fn port_of_bridge(bridge: &str, port: &str, v4: bool) -> Result<(), Finding> {
    let state = port_setting(port, "state").and_then(|state| state.parse().ok());
    judge::port_state(bridge, port, state)?;
    judge::port_flood(bridge, port, v4, port_flags(port))
}

fn port_flags(port: &str) -> PortFlags {
    let flag = |name: &str| port_setting(port, name).map(|value| value != "0");
    PortFlags {
        broadcast_flood: flag("broadcast_flood"),
        multicast_flood: flag("multicast_flood"),
        unicast_flood: flag("unicast_flood"),
        learning: flag("learning"),
    }
}

fn port_setting(port: &str, name: &str) -> Option<String> {
    let value = std::fs::read_to_string(format!("/sys/class/net/{port}/brport/{name}")).ok()?;
    Some(value.trim().to_owned())
}
