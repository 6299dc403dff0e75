//! What may drop a packet on its way over this node: rules, queues and filters, policies of IPsec.

use std::net::IpAddr;

use flannel_backend::TunnelPath;
use flannel_common::Family;
use flannel_common::xfrm::Direction;
use flannel_kernel::look::Device;
use flannel_state::{Finding, Layer};

use super::{Entrance, Walk};
use crate::firewall::{Conversation, Drop, Dropped, Hook, ICMP, ICMPV6, Packet, Rules, TCP, UDP};
use crate::judge::{may_drop, some_of_many};
use crate::queues::{self, Header};
use crate::settings::{more_connections, tracked_connections};

pub(super) struct Outer<'a> {
    pub(super) hook: Hook,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) card: &'a str,
    pub(super) inner: Family,
}

impl Walk<'_> {
    /// Whether a packet from pod to pod passes what is asked between its device and the next.
    pub(super) fn passes_rules(
        &mut self,
        (src, dst): (IpAddr, IpAddr),
        entered: Option<&Entrance>,
        link: &str,
        goes_to: Option<String>,
    ) -> bool {
        if !self.has_room_for_connections() {
            return false;
        }
        let hook = if entered.is_some() { Hook::Forward } else { Hook::Out };
        let directions: &[Direction] = match hook {
            Hook::Forward => &[Direction::Forward, Direction::Out],
            _ => &[Direction::Out],
        };
        if let Some(fault) = self.policies.blocking(directions, src, dst, None) {
            return self.hops.take("policy", Err(fault));
        }
        let packet = Packet {
            iif: entered.map(|entered| entered.device.clone()).unwrap_or_default(),
            oif: link.to_owned(),
            bridge_ports: [entered.and_then(|entered| entered.port.clone()), goes_to],
            ..Packet::first(hook, src, dst, TCP)
        };
        if !self.judge_rules(&packet, "it", true) {
            return false;
        }
        // What is not TCP may be dropped on purpose.
        let icmp = if dst.is_ipv4() { ICMP } else { ICMPV6 };
        for (protocol, name) in [(icmp, "ICMP (ping)"), (UDP, "UDP")] {
            let other = Packet { protocol, ..packet.clone() };
            if let Some(drop) = self.rules.judge(&other).surely {
                let what = format!("{} drops {name}, and not TCP", drop.rule);
                self.hops.found("rules", Finding::warning(Layer::Firewall, what, "", drop.fix));
            }
        }
        if !self.rules.unread().is_empty() {
            let what = format!(
                "rules cannot be read by {}: what they drop is not known",
                self.rules.unread().join(", ")
            );
            self.hops.unknown("rules", what);
        }
        true
    }

    fn has_room_for_connections(&mut self) -> bool {
        let full = tracked_connections().filter(|(count, most)| *most > 0 && count >= most);
        let Some((count, most)) = full else { return true };
        let what = format!(
            "the kernel tracks {count} connections and has room for {most}: new ones are dropped"
        );
        self.hops.wrong("connections", Layer::Connections, what, more_connections(most));
        false
    }

    /// Whether a packet of the tunnel passes what is asked at the card.
    pub(super) fn passes_on_the_wire(&mut self, outer: &Outer<'_>) -> bool {
        let Outer { hook, src, dst, card, inner } = *outer;
        let path = self.node.encapsulation.path(inner);
        // What is around the packets of a family may always be of one family: others are not sent there.
        let fits = |path: &&TunnelPath| path.outer_family.is_none_or(|it| it == Family::of(dst));
        let Some(path) = path.filter(fits) else { return true };
        let (protocol, port) = path.outer.on_the_wire();
        let (direction, tunnel) = match hook {
            Hook::In => (Direction::In, format!("the tunnel of {src}")),
            _ => (Direction::Out, format!("the tunnel to {dst}")),
        };
        if let Some(fault) = self.policies.blocking(&[direction], src, dst, Some(protocol)) {
            return self.hops.take("policy", Err(fault));
        }
        let packet = Packet {
            port,
            iif: card.to_owned(),
            oif: card.to_owned(),
            ..Packet::first(hook, src, dst, protocol)
        };
        if !self.judge_rules(&packet, &tunnel, false) {
            return false;
        }
        let header = Header { src, dst, protocol: Some(protocol), port };
        let Some(device) = self.kernel.device(card).cloned() else { return true };
        match hook {
            Hook::In => self.passes_queues(self.queues.coming_in(&device, header)),
            _ => self.leaves_by(&device, header),
        }
    }

    /// Whether a packet passes the filters and the queue of the device that it leaves by; what delays it there is told.
    pub(super) fn leaves_by(&mut self, device: &Device, header: Header) -> bool {
        self.queues.delays(device).into_iter().for_each(|delay| self.hops.found("queue", delay));
        self.passes_queues(self.queues.going_out(device, header))
    }

    /// Takes a packet through rules as [`judge_kinds`] does. `say`: also where nothing drops it.
    pub(super) fn judge_rules(&mut self, packet: &Packet, it: &str, say: bool) -> bool {
        let largest = match packet.hook {
            Hook::In | Hook::Out if packet.protocol != TCP => {
                self.node.underlay.as_ref().map(|underlay| underlay.mtu)
            }
            _ => self.node.mtu,
        };
        let (surely, perhaps) = judge_kinds(&self.rules, packet, largest);
        if let Some((drop, when)) = surely {
            let what = format!("{} drops {it}{when}", drop.rule);
            self.hops.wrong("rules", Layer::Firewall, what, drop.fix);
            return !when.is_empty();
        }
        let named = some_of_many(perhaps);
        let none = named.is_empty();
        named.iter().for_each(|drop| self.hops.found("rules", may_drop(Layer::Firewall, drop)));
        if say && none && self.rules.unread().is_empty() {
            self.hops.good("rules", "nothing that can be told from outside drops it");
        }
        true
    }

    pub(super) fn passes_queues(&mut self, dropped: Dropped) -> bool {
        if let Some(drop) = dropped.surely {
            return self.hops.take("queue", Err(queues::finding(drop)));
        }
        let perhaps = dropped.perhaps.iter();
        perhaps.for_each(|drop| self.hops.found("queue", may_drop(Layer::Queues, drop)));
        true
    }
}

/// Takes a packet through rules as it is, as large as it may be, and as a later one of its conversation. What drops one of
/// them comes with the words for which, empty for the first; without that, what may drop them.
pub(super) fn judge_kinds(
    rules: &Rules,
    packet: &Packet,
    largest: Option<u32>,
) -> (Option<(Drop, String)>, Vec<Drop>) {
    let full = largest.map(|length| {
        (Packet { length, ..packet.clone() }, format!(" where it has {length} bytes"))
    });
    let later = Packet { conversation: Conversation::Established, ..packet.clone() };
    let later = (later, " once its connection is made".to_owned());
    let mut perhaps: Vec<Drop> = Vec::new();
    for (kind, when) in [(packet.clone(), String::new())].into_iter().chain(full).chain([later]) {
        let dropped = rules.judge(&kind);
        if let Some(drop) = dropped.surely {
            return (Some((drop, when)), Vec::new());
        }
        let new = dropped.perhaps.into_iter();
        perhaps.extend(new.filter(|drop| !perhaps.contains(drop)).collect::<Vec<_>>());
    }
    (None, perhaps)
}
