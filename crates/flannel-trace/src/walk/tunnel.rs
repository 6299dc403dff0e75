//! Between this node and another one.

use std::io;
use std::net::IpAddr;

use flannel_kernel::look::Asked;
use ipnet::IpNet;

use super::Walk;
use crate::Peer;
use crate::firewall::{Hook, Packet};
use crate::hop::Hops;
use crate::judge;

impl Walk<'_> {
    /// By which device a peer's packets come out.
    pub(super) fn leave_tunnel(
        &mut self,
        hops: &mut Hops,
        peer: &Peer,
        v4: bool,
    ) -> io::Result<Option<String>> {
        let Some(underlay) = &self.node.underlay else {
            hops.unknown("underlay", "the interface to other nodes is not known");
            return Ok(None);
        };
        let card = underlay.link.to_string();
        let own = [underlay.v4.map(IpAddr::from), underlay.v6.map(IpAddr::from)];
        for public in &peer.public {
            let Some(own) = own.iter().flatten().find(|ip| ip.is_ipv4() == public.is_ipv4()) else {
                continue;
            };
            let Some(index) = self.kernel.device(&card).map(|device| device.index) else {
                continue;
            };
            let asked = Asked { dst: *own, from: Some((*public, index)) };
            match self.kernel.decide(asked)? {
                Ok(_) => hops.good("underlay", format!("{public} is taken in by {card}")),
                Err(error) => {
                    hops.wrong(
                        "underlay",
                        format!("the kernel drops what comes from {public} by {card}: {error}; it would answer elsewhere"),
                        format!("ip route get {public}; or sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{card}.rp_filter=2"),
                    );
                    return Ok(None);
                }
            }
            if let Some((protocol, port)) = self.node.tunnel.on_the_wire() {
                let (iif, oif) = (card.clone(), card.clone());
                let packet =
                    Packet { hook: Hook::In, src: *public, dst: *own, protocol, port, iif, oif };
                if let Some(drop) = self.rules.drops(&packet) {
                    hops.wrong(
                        "rules",
                        format!("{} drops the tunnel of {public}", drop.rule),
                        drop.fix,
                    );
                    return Ok(None);
                }
            }
        }
        let Some(name) = self.node.tunnel_device(v4) else { return Ok(Some(card)) };
        let judged = judge::tunnel(self.node, name, self.kernel.device(name));
        Ok(hops.take("tunnel", judged).then(|| name.to_owned()))
    }

    /// To the peer, by what the backend has put there.
    pub(super) fn enter_tunnel(
        &mut self,
        hops: &mut Hops,
        peer: &Peer,
        link: &str,
        via: Option<IpAddr>,
    ) -> io::Result<()> {
        let mut public = peer.public.first().copied();
        let tunnelled = self.node.devices.iter().any(|device| device == link);
        if tunnelled && self.node.backend == "vxlan" {
            let Some(found) = self.vxlan(hops, peer, link, via)? else { return Ok(()) };
            public = Some(found);
        }
        let Some(public) = public else {
            hops.unknown("underlay", "the peer has told no address");
            return Ok(());
        };
        self.underlay(hops, public)
    }

    /// Where vxlan sends it: by the neighbour's MAC, and what is known of that.
    fn vxlan(
        &mut self,
        hops: &mut Hops,
        peer: &Peer,
        link: &str,
        via: Option<IpAddr>,
    ) -> io::Result<Option<IpAddr>> {
        let Some(index) = self.kernel.device(link).map(|device| device.index) else {
            return Ok(None);
        };
        let Some(via) = via else {
            hops.wrong(
                "route",
                format!("it names no gateway on {link}, so nobody is found behind it"),
                "flannelctl repair",
            );
            return Ok(None);
        };
        let neighbours = self.kernel.neighbours(via.is_ipv4(), index)?;
        let mac = neighbours.into_iter().find(|entry| entry.ip == via).and_then(|entry| entry.mac);
        let judged = judge::neighbour(peer, link, via, mac);
        let (true, Some(mac)) = (hops.take("neighbour", judged), mac) else { return Ok(None) };
        let mut entries = self.kernel.fdb(index)?.into_iter();
        let public = entries.find(|entry| entry.mac == mac && entry.dst.is_some());
        let public = public.and_then(|entry| entry.dst);
        let passes = hops.take("fdb", judge::fdb(peer, link, mac, public));
        Ok(public.filter(|_| passes))
    }

    /// From node to node.
    fn underlay(&mut self, hops: &mut Hops, public: IpAddr) -> io::Result<()> {
        let way = match self.kernel.decide(Asked { dst: public, from: None })? {
            Ok(way) => way,
            Err(error) => {
                hops.wrong(
                    "underlay",
                    format!("this node has no way to {public}: {error}"),
                    format!("ip route get {public}"),
                );
                return Ok(());
            }
        };
        let Some(device) = self.kernel.device(&way.link).cloned() else { return Ok(()) };
        let by = match judge::underlay(public, &way, &device) {
            Ok(by) => by,
            fault => {
                hops.take("underlay", fault);
                return Ok(());
            }
        };
        if let Some((protocol, port)) = self.node.tunnel.on_the_wire() {
            let own = device
                .addresses
                .iter()
                .map(IpNet::addr)
                .find(|ip| ip.is_ipv4() == public.is_ipv4());
            let packet = Packet {
                hook: Hook::Out,
                src: own.unwrap_or(public),
                dst: public,
                protocol,
                port,
                iif: String::new(),
                oif: device.name.clone(),
            };
            if let Some(drop) = self.rules.drops(&packet) {
                hops.wrong(
                    "rules",
                    format!("{} drops the tunnel to {public}", drop.rule),
                    drop.fix,
                );
                return Ok(());
            }
        }
        let next = way.via.unwrap_or(public);
        if !device.kind.starts_with("tun") && self.resolve(next, &device)?.is_none() {
            hops.wrong(
                "underlay",
                format!("nobody on {} answers for {next}, on the way to {public}", device.name),
                format!(
                    "look whether that node runs, and at cables and switches between: ping {public}"
                ),
            );
            return Ok(());
        }
        let card = self.node.underlay.as_ref().map(|underlay| underlay.link.to_string());
        match card.filter(|card| *card != device.name) {
            Some(card) => {
                hops.unknown("underlay", format!("{by}, though {card} was chosen to reach others"))
            }
            None => hops.good("underlay", by),
        }
        Ok(())
    }
}
