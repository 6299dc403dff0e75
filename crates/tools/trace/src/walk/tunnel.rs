//! Between this node and another one.

use std::io;
use std::net::IpAddr;

use flannel_common::Family;
use flannel_kernel::look::RouteQuery;
use flannel_state::Layer;
use ipnet::IpNet;

use super::dropping::Outer;
use super::{Entrance, Walk};
use crate::firewall::{Hook, Packet};
use crate::queues::Header;
use crate::{Peer, judge};

impl Walk<'_> {
    /// Returns the device by which a peer's packets come out of the tunnel.
    pub(super) fn leave_tunnel(
        &mut self,
        peer: &Peer,
        from: IpAddr,
        to: IpAddr,
    ) -> io::Result<Option<Entrance>> {
        let Some(underlay) = &self.node.underlay else {
            self.hops.unknown("underlay", "the interface to other nodes is not known");
            return Ok(None);
        };
        let (card, inner) = (underlay.link.to_string(), Family::of(from));
        let own = underlay.addresses();
        for public in &peer.public {
            let Some(own) = own.iter().find(|ip| ip.is_ipv4() == public.is_ipv4()) else {
                continue;
            };
            let Some(index) = self.kernel.device(&card).map(|device| device.index) else {
                continue;
            };
            let asked = RouteQuery { dst: *own, from: Some((*public, index)), protocol: None };
            match self.kernel.decide(asked)? {
                Ok(_) => self.hops.good("underlay", format!("{public} is taken in by {card}")),
                Err(error) => {
                    let what = format!(
                        "the kernel drops what comes from {public} by {card}: {error}; it would answer elsewhere"
                    );
                    let fix = format!(
                        "ip route get {public}; or sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{card}.rp_filter=2"
                    );
                    self.hops.wrong("underlay", Layer::Underlay, what, fix);
                    return Ok(None);
                }
            }
            let outer = Outer { hook: Hook::In, src: *public, dst: *own, card: &card, inner };
            if !self.passes_on_the_wire(&outer) {
                return Ok(None);
            }
        }
        let entered = |device: String| Entrance { device, port: None };
        let Some(name) = self.node.tunnel_device(inner) else {
            return Ok(Some(entered(card)));
        };
        let judged = judge::tunnel(self.node, inner, name, self.kernel.device(name));
        if !self.hops.take("tunnel", judged) {
            return Ok(None);
        }
        let header = Header { src: from, dst: to, protocol: None, port: None };
        let device = self.kernel.device(name);
        let dropped = device.map(|device| self.queues.coming_in(device, header));
        let passes = dropped.is_none_or(|dropped| self.passes_queues(dropped));
        Ok(passes.then(|| entered(name.to_owned())))
    }

    /// Follows a packet to the peer, by what the backend has put there.
    pub(super) fn enter_tunnel(
        &mut self,
        peer: &Peer,
        (from, to): (IpAddr, IpAddr),
        link: &str,
        via: Option<IpAddr>,
    ) -> io::Result<()> {
        let header = Header { src: from, dst: to, protocol: None, port: None };
        let device = self.kernel.device(link).cloned();
        if device.is_some_and(|device| !self.leaves_by(&device, header)) {
            return Ok(());
        }
        let inner = Family::of(to);
        let outer_family = self.node.encapsulation.path(inner).and_then(|path| path.outer_family);
        let fits = |ip: &&IpAddr| outer_family.is_none_or(|family| family == Family::of(**ip));
        let mut public = peer.public.iter().find(fits).or(peer.public.first()).copied();
        let tunnelled = self.node.devices.iter().any(|device| device == link);
        if tunnelled && self.kernel.device(link).is_some_and(|device| device.vxlan.is_some()) {
            let Some(found) = self.vxlan(peer, link, via)? else { return Ok(()) };
            public = Some(found);
        }
        let Some(public) = public else {
            self.hops.unknown("underlay", "the peer has told no address");
            return Ok(());
        };
        self.underlay(public, inner)
    }

    /// Returns the node that vxlan sends a packet to, by the neighbour's MAC and the FDB.
    fn vxlan(
        &mut self,
        peer: &Peer,
        link: &str,
        via: Option<IpAddr>,
    ) -> io::Result<Option<IpAddr>> {
        let Some(index) = self.kernel.device(link).map(|device| device.index) else {
            return Ok(None);
        };
        let Some(via) = via else {
            let what = format!("it names no gateway on {link}, so nobody is found behind it");
            self.hops.wrong("route", Layer::Entries, what, "flannelctl repair");
            return Ok(None);
        };
        let neighbours = self.kernel.neighbours(via.is_ipv4(), index)?;
        let mac = neighbours.into_iter().find(|entry| entry.ip == via).and_then(|entry| entry.mac);
        let judged = judge::neighbour(peer, link, via, mac);
        let (true, Some(mac)) = (self.hops.take("neighbour", judged), mac) else { return Ok(None) };
        let mut entries = self.kernel.fdb(index)?.into_iter();
        let public = entries.find(|entry| entry.mac == mac && entry.dst.is_some());
        let public = public.and_then(|entry| entry.dst);
        let passes = self.hops.take("fdb", judge::fdb(peer, link, mac, public));
        Ok(public.filter(|_| passes))
    }

    fn underlay(&mut self, public: IpAddr, inner: Family) -> io::Result<()> {
        let way =
            match self.kernel.decide(RouteQuery { dst: public, from: None, protocol: None })? {
                Ok(way) => way,
                Err(error) => {
                    let what = format!("this node has no way to {public}: {error}");
                    let fix = format!("ip route get {public}");
                    self.hops.wrong("underlay", Layer::Underlay, what, fix);
                    return Ok(());
                }
            };
        let Some(device) = self.kernel.device(&way.link).cloned() else { return Ok(()) };
        let by = match judge::underlay(public, &way, &device) {
            Ok(by) => by,
            fault => {
                self.hops.take("underlay", fault);
                return Ok(());
            }
        };
        let own = device.addresses.iter().map(IpNet::addr);
        let own = own.into_iter().find(|ip| ip.is_ipv4() == public.is_ipv4()).unwrap_or(public);
        let card = device.name.as_str();
        let outer = Outer { hook: Hook::Out, src: own, dst: public, card, inner };
        if !self.passes_on_the_wire(&outer) || !self.hops.passes("arp", judge::arp(&device)) {
            return Ok(());
        }
        let asked = Packet {
            iif: card.to_owned(),
            oif: card.to_owned(),
            ..Packet::first(Hook::Out, own, public, 0)
        };
        if !self.passes_arp(&asked, None) {
            return Ok(());
        }
        let next = way.via.unwrap_or(public);
        let has_neighbours = !device.kind.starts_with("tun") && device.mac.is_some();
        match self.resolve(next, &device).map(|found| found.filter(|_| has_neighbours))? {
            Some(found) => {
                let answering = self.who_answers(&device, next);
                let judged = judge::neighbour_on_wire(&device.name, next, found.mac, &answering);
                if !self.hops.passes("neighbour", judged) {
                    return Ok(());
                }
                if let Some(said) = judge::answers_twice(&device.name, next, &answering) {
                    self.hops.unknown("neighbour", said);
                }
            }
            None if !has_neighbours => {}
            None if !self.passes_arp(&asked, Some(next)) => return Ok(()),
            None => {
                let fix = match way.via {
                    Some(via) => format!(
                        "ip route get {public}: look whether {via} is the gateway to it, and runs; ip route del what is not meant to be there"
                    ),
                    None => format!(
                        "look whether that node runs, and at cables and switches between: ping {public}"
                    ),
                };
                let what =
                    format!("nobody on {} answers for {next}, on the way to {public}", device.name);
                self.hops.wrong("underlay", Layer::Underlay, what, fix);
                return Ok(());
            }
        }
        let card = self.node.underlay.as_ref().map(|underlay| underlay.link.to_string());
        match card.filter(|card| *card != device.name) {
            Some(card) => self
                .hops
                .unknown("underlay", format!("{by}, though {card} was chosen to reach others")),
            None => self.hops.good("underlay", by),
        }
        Ok(())
    }
}
