//! What this node does with a packet, in both directions.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use flannel_kernel::look::{Asked, Decision, Device, Kernel};
use ipnet::IpNet;
use netlink_packet_route::neighbour::NeighbourState;
use netlink_packet_route::route::RouteType;

use super::ends::{End, Ends};
use super::hop::{Hop, Hops};
use crate::commands::check::firewall::{Hook, Packet, Rules};
use crate::commands::check::surroundings::{Network, Peer, Tunnel};

/// How long somebody on a wire may take to answer who he is.
const ARP: Duration = Duration::from_millis(1500);
const POLL: Duration = Duration::from_millis(20);
/// Nobody listens there, as a rule, and nobody minds.
const DISCARD: u16 = 9;
const UDP: u8 = 17;
const TCP: u8 = 6;

pub(super) fn walk(ends: &Ends<'_>) -> anyhow::Result<Vec<Hop>> {
    let mut node = Node { kernel: Kernel::open()?, rules: Rules::read(), network: ends.network };
    let mut hops = node.direction("there", ends.from, ends.to)?;
    hops.extend(node.direction("back", ends.to, ends.from)?);
    Ok(hops)
}

struct Node<'a> {
    kernel: Kernel,
    rules: Rules,
    network: &'a Network,
}

impl Node<'_> {
    fn direction(
        &mut self,
        way: &'static str,
        from: (IpAddr, End<'_>),
        to: (IpAddr, End<'_>),
    ) -> anyhow::Result<Vec<Hop>> {
        let mut hops = Hops::new(way);
        let entered = match from.1 {
            End::Pod => self.leave_pod(&mut hops, from.0)?,
            End::Host => None,
            End::Peer(peer) => self.leave_tunnel(&mut hops, peer, from.0.is_ipv4())?,
            // Whence it comes into the pod network is not flannel's business.
            End::World => return Ok(hops.all),
        };
        // What a broken hop lets nobody pass is not looked behind.
        if entered.is_none() && !matches!(from.1, End::Host) {
            return Ok(hops.all);
        }
        // A device that is down has no routes: it is named, and not what follows from it.
        if let (End::Peer(_), Some(tunnel)) = (to.1, self.network.tunnel_device(to.0.is_ipv4()))
            && !self.tunnel_is_up(&mut hops, tunnel)
        {
            return Ok(hops.all);
        }
        let Some((link, via)) = self.route(&mut hops, from.0, to, entered.as_deref())? else {
            return Ok(hops.all);
        };
        self.drops(&mut hops, from.0, to.0, entered.as_deref(), &link);
        match to.1 {
            End::Peer(peer) => self.enter_tunnel(&mut hops, peer, &link, via)?,
            End::Pod => self.enter_pod(&mut hops, to.0, &link)?,
            End::Host | End::World => {}
        }
        Ok(hops.all)
    }

    /// By which device it comes in.
    fn leave_pod(&mut self, hops: &mut Hops, pod: IpAddr) -> anyhow::Result<Option<String>> {
        let Some(bridge) = self.pods_device(pod) else {
            let own: Vec<String> = self.network.own.iter().map(ToString::to_string).collect();
            hops.wrong(
                "bridge",
                format!(
                    "no device of this node has an address of {}, so pods have no gateway",
                    own.join(" ")
                ),
                "restart the pods of this node: the CNI plugin makes the bridge",
            );
            return Ok(None);
        };
        if !self.on_the_bridge(hops, pod, &bridge)? {
            return Ok(None);
        }
        Ok(Some(bridge.name))
    }

    /// Whether the pod is there, and the bridge passes its packets on.
    fn on_the_bridge(
        &mut self,
        hops: &mut Hops,
        pod: IpAddr,
        bridge: &Device,
    ) -> anyhow::Result<bool> {
        let name = &bridge.name;
        if !bridge.up || !bridge.carrier {
            let what = if bridge.up { "has nobody on it" } else { "is down" };
            hops.wrong("bridge", format!("{name} {what}"), format!("ip link set {name} up"));
            return Ok(false);
        }
        hops.good("bridge", format!("{name} is up, MTU {}", bridge.mtu));
        let Some(mac) = self.resolve(pod, bridge)? else {
            hops.wrong(
                "pod",
                format!(
                    "nobody on {name} answers for {pod}: the pod is gone, or its interface is down"
                ),
                "look for the pod (crictl pods, kubectl get pod -o wide), and restart it",
            );
            return Ok(false);
        };
        let ports: Vec<Device> = self
            .kernel
            .devices
            .iter()
            .filter(|port| port.master == Some(bridge.index))
            .cloned()
            .collect();
        for port in ports {
            if self.kernel.fdb(port.index)?.iter().any(|entry| entry.mac == mac) {
                let large = self.network.mtu.filter(|mtu| port.mtu > *mtu);
                match (port.up && port.carrier, large) {
                    (false, _) => {
                        let fix = format!("ip link set {} up", port.name);
                        hops.wrong("veth", format!("{} of {pod} is down", port.name), fix);
                        return Ok(false);
                    }
                    (true, Some(mtu)) => hops.wrong(
                        "veth",
                        format!(
                            "{} of {pod} has an MTU of {}, and the network carries {mtu}",
                            port.name, port.mtu
                        ),
                        "restart the pod: it takes the MTU that fits",
                    ),
                    (true, None) => hops
                        .good("veth", format!("{pod} is {mac} on {}, MTU {}", port.name, port.mtu)),
                }
                return Ok(true);
            }
        }
        hops.unknown(
            "veth",
            format!("{pod} is {mac}, and {name} does not know on which of its ports"),
        );
        Ok(true)
    }

    /// The bridge of pods, or whatever else has the gateway of this node's subnet.
    fn pods_device(&self, pod: IpAddr) -> Option<Device> {
        let leads = |net: &&IpNet| net.contains(&pod) && net.prefix_len() < net.max_prefix_len();
        let ours = |device: &&Device| !self.network.devices.contains(&device.name);
        let mut devices = self.kernel.devices.iter().filter(ours);
        devices.find(|device| device.addresses.iter().any(|net| leads(&net))).cloned()
    }

    /// What is known of a neighbour, after it was asked.
    fn resolve(
        &mut self,
        ip: IpAddr,
        device: &Device,
    ) -> anyhow::Result<Option<flannel_kernel::Mac>> {
        let deadline = Instant::now() + ARP;
        let mut asked = false;
        loop {
            let known = self.kernel.neighbours(ip.is_ipv4(), device.index)?;
            let entry = known.into_iter().find(|entry| entry.ip == ip);
            let usable = |state: NeighbourState| {
                matches!(
                    state,
                    NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp
                )
            };
            match entry {
                Some(entry) if usable(entry.state) || asked && Instant::now() > deadline => {
                    let gone =
                        matches!(entry.state, NeighbourState::Failed | NeighbourState::Incomplete);
                    return Ok(entry.mac.filter(|_| !gone));
                }
                None if Instant::now() > deadline => return Ok(None),
                _ => {}
            }
            if !asked {
                // Whatever is sent makes the kernel ask.
                let any: SocketAddr = match ip {
                    IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                    IpAddr::V6(_) => ([0u16; 8], 0).into(),
                };
                let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(b"", (ip, DISCARD)));
                asked = true;
            }
            std::thread::sleep(POLL);
        }
    }

    /// By which device a peer's packets come out.
    fn leave_tunnel(
        &mut self,
        hops: &mut Hops,
        peer: &Peer,
        v4: bool,
    ) -> anyhow::Result<Option<String>> {
        let Some(underlay) = &self.network.underlay else {
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
            if let Some((protocol, port)) = carried(self.network.tunnel) {
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
        let Some(name) = self.network.tunnel_device(v4) else { return Ok(Some(card)) };
        Ok(self.tunnel_is_up(hops, name).then(|| name.to_owned()))
    }

    fn tunnel_is_up(&self, hops: &mut Hops, name: &str) -> bool {
        match self.kernel.device(name) {
            None => hops.wrong(
                "tunnel",
                format!("{name} is not there"),
                "flannelctl repair; if no flanneld runs, start it",
            ),
            Some(device) if !device.up => {
                hops.wrong(
                    "tunnel",
                    format!("{name} is down"),
                    format!("ip link set {name} up, then flannelctl repair"),
                );
            }
            Some(device) if self.network.mtu.is_some_and(|mtu| device.mtu < mtu) => {
                let mtu = self.network.mtu.unwrap_or_default();
                hops.wrong(
                    "tunnel",
                    format!("{name} has an MTU of {}, and pods have {mtu}", device.mtu),
                    format!("ip link set {name} mtu {mtu}"),
                );
            }
            Some(device) => {
                hops.good("tunnel", format!("{name} is up, MTU {}", device.mtu));
                return true;
            }
        }
        false
    }

    /// Where it goes.
    fn route(
        &mut self,
        hops: &mut Hops,
        from: IpAddr,
        (to, end): (IpAddr, End<'_>),
        entered: Option<&str>,
    ) -> anyhow::Result<Option<(String, Option<IpAddr>)>> {
        let index = entered.and_then(|name| self.kernel.device(name)).map(|device| device.index);
        if let Some(entered) = entered
            && let Some(off) = forwarding_off(from.is_ipv4(), entered)
        {
            hops.wrong(
                "forwarding",
                format!("{off} is 0: this host forwards nothing"),
                format!("sysctl -w {off}=1"),
            );
            return Ok(None);
        }
        let asked = Asked { dst: to, from: index.map(|index| (from, index)) };
        let way = match self.kernel.decide(asked)? {
            Ok(way) => way,
            Err(error) => {
                let see = match entered {
                    Some(entered) => format!("ip route get {to} from {from} iif {entered}"),
                    None => format!("ip route get {to}"),
                };
                hops.wrong(
                    "route",
                    format!("the kernel sends it nowhere: {error}"),
                    format!("{see}; flannelctl repair"),
                );
                return Ok(None);
            }
        };
        let said = match way.via {
            Some(via) => format!("{to} via {via} dev {}", way.link),
            None => format!("{to} dev {}", way.link),
        };
        let see = format!("ip route get {to}; ip rule; flannelctl repair puts flannel's own back");
        let Some(problem) = self.misled(end, &way, to) else {
            hops.good("route", said);
            return Ok(Some((way.link, way.via)));
        };
        hops.wrong("route", format!("{said}: {problem}"), see);
        Ok(None)
    }

    /// What is wrong with that way.
    fn misled(&self, end: End<'_>, way: &Decision, to: IpAddr) -> Option<String> {
        let (link, kind) = (way.link.as_str(), way.kind);
        if matches!(kind, RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit) {
            return Some("a route that leads nowhere on purpose".to_owned());
        }
        match end {
            End::Peer(peer) => {
                let card = self.network.underlay.as_ref().map(|underlay| underlay.link.to_string());
                let devices = &self.network.devices;
                let ours = devices.iter().any(|device| device == link);
                // With host-gw, and with DirectRouting, the peer itself is the gateway; a cloud knows the way by its
                // own table.
                let clouds = devices.is_empty() && self.network.backend != "host-gw";
                let to_peer = way.via.is_some_and(|via| peer.public.contains(&via));
                let direct = card.as_deref() == Some(link) && (clouds || to_peer);
                let by =
                    devices.first().or(card.as_ref()).map_or("flannel's device", String::as_str);
                (!ours && !direct || kind == RouteType::Local)
                    .then(|| format!("flannel's route, by {by}, is not the one that is taken"))
            }
            End::Pod => {
                let bridge = self.pods_device(to)?;
                (bridge.name != link)
                    .then(|| format!("not to {}, where this node's pods are", bridge.name))
            }
            End::Host => (kind != RouteType::Local).then(|| "not to this node itself".to_owned()),
            End::World => None,
        }
    }

    fn drops(
        &mut self,
        hops: &mut Hops,
        src: IpAddr,
        dst: IpAddr,
        entered: Option<&str>,
        link: &str,
    ) {
        let hook = if entered.is_some() { Hook::Forward } else { Hook::Out };
        let (iif, oif) = (entered.unwrap_or_default().to_owned(), link.to_owned());
        let packet = Packet { hook, src, dst, protocol: TCP, port: 80, iif, oif };
        match self.rules.drops(&packet) {
            Some(drop) => hops.wrong("rules", format!("{} drops it", drop.rule), drop.fix),
            None => hops.good("rules", "nothing that can be told from outside drops it"),
        }
    }

    /// To the peer, by what the backend has put there.
    fn enter_tunnel(
        &mut self,
        hops: &mut Hops,
        peer: &Peer,
        link: &str,
        via: Option<IpAddr>,
    ) -> anyhow::Result<()> {
        let mut public = peer.public.first().copied();
        let tunnelled = self.network.devices.iter().any(|device| device == link);
        if tunnelled && self.network.backend == "vxlan" {
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
    ) -> anyhow::Result<Option<IpAddr>> {
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
        let entry = neighbours.into_iter().find(|entry| entry.ip == via);
        let Some(mac) = entry.as_ref().and_then(|entry| entry.mac) else {
            hops.wrong(
                "neighbour",
                format!("{link} has no MAC for {via}"),
                format!("flannelctl repair (ip neigh show {via} dev {link})"),
            );
            return Ok(None);
        };
        if !peer.macs.is_empty() && !peer.macs.contains(&mac.to_string()) {
            let wanted = peer.macs.join(" or ");
            hops.wrong(
                "neighbour",
                format!("{via} is {mac} on {link}, and the peer says it is {wanted}"),
                format!("flannelctl repair (ip neigh replace {via} lladdr {wanted} dev {link} nud permanent)"),
            );
            return Ok(None);
        }
        hops.good("neighbour", format!("{via} is {mac} on {link}"));
        let entry = self
            .kernel
            .fdb(index)?
            .into_iter()
            .find(|entry| entry.mac == mac && entry.dst.is_some());
        let Some(public) = entry.and_then(|entry| entry.dst) else {
            hops.wrong(
                "fdb",
                format!("{link} does not know behind which node {mac} is"),
                format!("flannelctl repair (bridge fdb show dev {link})"),
            );
            return Ok(None);
        };
        if !peer.public.is_empty() && !peer.public.contains(&public) {
            let wanted: Vec<String> = peer.public.iter().map(ToString::to_string).collect();
            hops.wrong(
                "fdb",
                format!(
                    "{link} sends to {mac} at {public}, and the peer is at {}",
                    wanted.join(" or ")
                ),
                format!(
                    "flannelctl repair (bridge fdb replace {mac} dev {link} dst {} self)",
                    wanted.join(" ")
                ),
            );
            return Ok(None);
        }
        hops.good("fdb", format!("{mac} is behind {public}"));
        Ok(Some(public))
    }

    /// From node to node.
    fn underlay(&mut self, hops: &mut Hops, public: IpAddr) -> anyhow::Result<()> {
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
        let card = self.network.underlay.as_ref().map(|underlay| underlay.link.to_string());
        let next = way.via.unwrap_or(public);
        let Some(device) = self.kernel.device(&way.link).cloned() else { return Ok(()) };
        if matches!(
            way.kind,
            RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit | RouteType::Local
        ) {
            let what = format!("what is sent to {public} stays on this node ({:?})", way.kind);
            hops.wrong("underlay", what, format!("ip route get {public}"));
            return Ok(());
        }
        if !device.up || !device.carrier {
            let fix = format!("ip link set {} up, and look at its cable", device.name);
            hops.wrong("underlay", format!("{} towards {public} is down", device.name), fix);
            return Ok(());
        }
        if let Some((protocol, port)) = carried(self.network.tunnel) {
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
        let by = match way.via {
            Some(via) => format!("{public} via {via} dev {}", device.name),
            None => format!("{public} dev {}", device.name),
        };
        match card.filter(|card| *card != device.name) {
            Some(card) => {
                hops.unknown("underlay", format!("{by}, though {card} was chosen to reach others"))
            }
            None => hops.good("underlay", by),
        }
        Ok(())
    }

    fn enter_pod(&mut self, hops: &mut Hops, pod: IpAddr, link: &str) -> anyhow::Result<()> {
        let Some(bridge) = self.kernel.device(link).cloned() else { return Ok(()) };
        self.on_the_bridge(hops, pod, &bridge)?;
        Ok(())
    }
}

/// What the tunnel's packets are on the wire.
fn carried(tunnel: Tunnel) -> Option<(u8, u16)> {
    match tunnel {
        Tunnel::Udp(port) => Some((UDP, port)),
        Tunnel::Protocol(protocol) => Some((protocol, 0)),
        Tunnel::None => None,
    }
}

/// The setting by which nothing that comes in by a device is forwarded.
fn forwarding_off(v4: bool, device: &str) -> Option<String> {
    let names = match v4 {
        true => {
            vec!["net/ipv4/ip_forward".to_owned(), format!("net/ipv4/conf/{device}/forwarding")]
        }
        false => vec!["net/ipv6/conf/all/forwarding".to_owned()],
    };
    let off = |name: &String| {
        std::fs::read_to_string(format!("/proc/sys/{name}")).is_ok_and(|value| value.trim() == "0")
    };
    let name = names.into_iter().find(off)?;
    Some(if name.contains('.') { name } else { name.replace('/', ".") })
}
