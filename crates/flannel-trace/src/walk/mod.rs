//! What this node does with a packet, in both directions.

mod pods;
mod tunnel;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use flannel_kernel::Mac;
use flannel_kernel::look::{Asked, Device, Kernel};
use netlink_packet_route::neighbour::NeighbourState;

use crate::firewall::{Hook, Packet, Rules, TCP};
use crate::hop::{Hop, Hops, Way};
use crate::judge::{self, Fault, Judged};
use crate::{End, NodeInNetwork};

/// How long somebody on a wire may take to answer who he is.
const ARP: Duration = Duration::from_millis(1500);
const POLL: Duration = Duration::from_millis(20);
/// Nobody listens there, as a rule, and nobody minds.
const DISCARD: u16 = 9;

/// It sends an empty datagram to whom it looks for, and waits up to some seconds. In the network namespace of the
/// calling thread.
pub fn walk(
    node: &NodeInNetwork,
    from: (IpAddr, End<'_>),
    to: (IpAddr, End<'_>),
) -> io::Result<Vec<Hop>> {
    let mut walk = Walk { kernel: Kernel::open()?, rules: Rules::read(), node };
    let mut hops = walk.direction(Way::There, from, to)?;
    hops.extend(walk.direction(Way::Back, to, from)?);
    Ok(hops)
}

struct Walk<'a> {
    kernel: Kernel,
    rules: Rules,
    node: &'a NodeInNetwork,
}

/// What is known of somebody on a wire.
struct Resolved {
    mac: Mac,
    /// He has answered, and nobody has written it by hand.
    learned: bool,
}

impl Walk<'_> {
    fn direction(
        &mut self,
        way: Way,
        from: (IpAddr, End<'_>),
        to: (IpAddr, End<'_>),
    ) -> io::Result<Vec<Hop>> {
        let mut hops = Hops::new(way);
        let entered = match from.1 {
            End::Pod => self.leave_pod(&mut hops, from.0)?,
            End::Host => None,
            End::Peer(peer) => self.leave_tunnel(&mut hops, peer, from.0.is_ipv4())?,
            // Whence it comes into the pod network is not flannel's business.
            End::World => {
                if let (End::Pod, Some(bridge)) = (to.1, self.pods_device(to.0)) {
                    self.on_the_bridge(&mut hops, to.0, &bridge)?;
                }
                return Ok(hops.all);
            }
        };
        // It comes no further, so nobody looks behind that.
        if entered.is_none() && !matches!(from.1, End::Host) {
            return Ok(hops.all);
        }
        // A device that is down has no routes: it is named, and not what follows from it.
        let leads_out = match to.1 {
            End::Peer(_) => self.node.tunnel_device(to.0.is_ipv4()).is_none_or(|tunnel| {
                hops.take("tunnel", judge::tunnel(self.node, tunnel, self.kernel.device(tunnel)))
            }),
            End::Pod => match self.pods_device(to.0).map(|bridge| judge::bridge(&bridge)) {
                Some(Err(fault)) => hops.take("bridge", Err(fault)),
                Some(Ok(_)) => true,
                None => self.no_bridge(&mut hops),
            },
            End::Host | End::World => true,
        };
        if !leads_out {
            return Ok(hops.all);
        }
        let Some((link, via)) = self.route(&mut hops, from.0, to, entered.as_deref())? else {
            return Ok(hops.all);
        };
        self.drops(&mut hops, from.0, to.0, entered.as_deref(), &link);
        match to.1 {
            End::Peer(peer) => self.enter_tunnel(&mut hops, peer, &link, via)?,
            End::Pod => {
                if let Some(bridge) = self.kernel.device(&link).cloned() {
                    self.on_the_bridge(&mut hops, to.0, &bridge)?;
                }
            }
            End::Host | End::World => {}
        }
        Ok(hops.all)
    }

    /// Where it goes.
    fn route(
        &mut self,
        hops: &mut Hops,
        from: IpAddr,
        (to, end): (IpAddr, End<'_>),
        entered: Option<&str>,
    ) -> io::Result<Option<(String, Option<IpAddr>)>> {
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
        let index = entered.and_then(|name| self.kernel.device(name)).map(|device| device.index);
        let asked = Asked { dst: to, from: index.map(|index| (from, index)) };
        let way = match self.kernel.decide(asked)? {
            Ok(way) => way,
            Err(error) => {
                if let Some(entered) = entered
                    && let Some(fault) = self.refused_by_rp_filter(from, entered)?
                {
                    hops.take("rp_filter", Err(fault));
                    return Ok(None);
                }
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
        let bridge = self.pods_device(to).map(|bridge| bridge.name);
        let judged = judge::route(self.node, end, &way, to, bridge.as_deref());
        Ok(hops.take("route", judged).then_some((way.link, way.via)))
    }

    /// With a strict `rp_filter` the kernel drops what it would answer by another device.
    fn refused_by_rp_filter(&mut self, from: IpAddr, entered: &str) -> io::Result<Option<Fault>> {
        if !from.is_ipv4() || !is_strict(entered) {
            return Ok(None);
        }
        let back = self.kernel.decide(Asked { dst: from, from: None })?;
        let elsewhere = match back {
            Ok(way) if way.link == entered => return Ok(None),
            Ok(way) => format!("would answer by {}", way.link),
            Err(error) => format!("has no way to answer: {error}"),
        };
        Ok(Some(Fault {
            what: format!(
                "rp_filter drops what comes from {from} by {entered}: this node {elsewhere}"
            ),
            fix: format!(
                "ip route get {from}; or sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{entered}.rp_filter=2"
            ),
        }))
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
            None if !self.rules.unread().is_empty() => hops.unknown(
                "rules",
                format!(
                    "rules cannot be read by {}: what they drop is not known",
                    self.rules.unread().join(", ")
                ),
            ),
            None => hops.good("rules", "nothing that can be told from outside drops it"),
        }
    }

    /// What is known of a neighbour, after it was asked.
    fn resolve(&mut self, ip: IpAddr, device: &Device) -> io::Result<Option<Resolved>> {
        let deadline = Instant::now() + ARP;
        let mut asked = false;
        loop {
            let known = self.kernel.neighbours(ip.is_ipv4(), device.index)?;
            let entry = known.into_iter().find(|entry| entry.ip == ip);
            let written = |state: NeighbourState| {
                matches!(state, NeighbourState::Permanent | NeighbourState::Noarp)
            };
            let usable =
                |state: NeighbourState| state == NeighbourState::Reachable || written(state);
            match entry {
                Some(entry) if usable(entry.state) || asked && Instant::now() > deadline => {
                    let gone =
                        matches!(entry.state, NeighbourState::Failed | NeighbourState::Incomplete);
                    let learned = !written(entry.state);
                    let mac = entry.mac.filter(|_| !gone);
                    return Ok(mac.map(|mac| Resolved { mac, learned }));
                }
                None if Instant::now() > deadline => return Ok(None),
                _ => {}
            }
            if !asked {
                nudge(ip);
                asked = true;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Hops {
    /// Whether it passes.
    fn take(&mut self, hop: &str, judged: Judged) -> bool {
        let passes = judged.is_ok();
        match judged {
            Ok(what) => self.good(hop, what),
            Err(Fault { what, fix }) => self.wrong(hop, what, fix),
        }
        passes
    }
}

/// Whatever is sent makes the kernel ask who has an address, and who has it answer that nobody listens.
fn nudge(ip: IpAddr) {
    let any: SocketAddr = match ip {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(b"", (ip, DISCARD)));
}

fn setting(name: &str) -> Option<String> {
    let value = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(value.trim().to_owned())
}

/// The setting by which nothing that comes in by a device is forwarded.
fn forwarding_off(v4: bool, device: &str) -> Option<String> {
    let names = match v4 {
        true => {
            vec!["net/ipv4/ip_forward".to_owned(), format!("net/ipv4/conf/{device}/forwarding")]
        }
        false => vec!["net/ipv6/conf/all/forwarding".to_owned()],
    };
    let name = names.into_iter().find(|name| setting(name).as_deref() == Some("0"))?;
    Some(if name.contains('.') { name } else { name.replace('/', ".") })
}

/// The larger value of the two counts, and 2 is looser than 1.
fn is_strict(device: &str) -> bool {
    let of = |name: &str| setting(&format!("net/ipv4/conf/{name}/rp_filter"));
    let larger = of("all").max(of(device));
    larger.as_deref() == Some("1")
}
