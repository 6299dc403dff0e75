//! What this node does with a packet, in both directions.

mod dropping;
mod inside_pod;
mod pods;
mod tunnel;

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use flannel_common::{Family, Mac};
use flannel_kernel::look::{Device, Kernel, RouteQuery};
use flannel_state::{Finding, Layer};
use netlink_packet_route::neighbour::NeighbourState;

use crate::firewall::{Rules, TCP};
use crate::hop::{Hop, Hops, Way};
use crate::ipsec_policies::IpsecPolicies;
use crate::judge::{self, HopJudgement, broken};
use crate::queues::Queues;
use crate::settings::{in_words, is_reverse_path_strict, setting};
use crate::{End, NodeInNetwork};

pub(crate) use self::inside_pod::InsidePod;

/// How long somebody on a wire may take to answer who he is.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_millis(1500);
const NEIGHBOUR_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Port that nobody listens at, as a rule.
const DISCARD_PORT: u16 = 9;

/// Walks both directions in the thread's network namespace. Asks by ARP and an empty datagram; takes up to seconds.
pub fn walk(
    node: &NodeInNetwork,
    from: (IpAddr, End<'_>),
    to: (IpAddr, End<'_>),
) -> io::Result<Vec<Hop>> {
    let mut kernel = Kernel::open()?;
    let queues = Queues::read(&mut kernel);
    let policies = IpsecPolicies::read();
    let (rules, hops) = (Rules::read(), Hops::new(Way::There));
    let mut walk = Walk { kernel, rules, queues, policies, node, hops };
    walk.direction(from, to)?;
    walk.hops.way = Way::Back;
    walk.direction(to, from)?;
    Ok(walk.hops.all)
}

struct Walk<'a> {
    kernel: Kernel,
    rules: Rules,
    queues: Queues,
    policies: IpsecPolicies,
    node: &'a NodeInNetwork,
    hops: Hops,
}

/// Device by which a packet has come into this node, out of a pod or out of the tunnel.
#[derive(Clone, Debug)]
struct Entrance {
    device: String,
    /// The port of the bridge, where it is known.
    port: Option<String>,
}

struct Resolved {
    mac: Mac,
    /// He has answered, and nobody has written it by hand.
    learned: bool,
}

impl Walk<'_> {
    fn direction(&mut self, from: (IpAddr, End<'_>), to: (IpAddr, End<'_>)) -> io::Result<()> {
        let entered = match from.1 {
            End::Pod => self.leave_pod(from.0, to.0)?,
            End::Host => None,
            End::Peer(peer) => self.leave_tunnel(peer, from.0, to.0)?,
            // Whence it comes into the pod network is not flannel's business.
            End::World => {
                if let (End::Pod, Some(bridge)) = (to.1, self.pods_device(to.0)) {
                    self.enter_pod(from.0, to.0, &bridge)?;
                }
                return Ok(());
            }
        };
        // It comes no further, so nobody looks behind that.
        if entered.is_none() && !matches!(from.1, End::Host) {
            return Ok(());
        }
        // A device that is down has no routes: it is named, and not what follows from it.
        let leads_out = match to.1 {
            End::Peer(_) => self.node.tunnel_device(Family::of(to.0)).is_none_or(|tunnel| {
                self.hops.take(
                    "tunnel",
                    judge::tunnel(self.node, Family::of(to.0), tunnel, self.kernel.device(tunnel)),
                )
            }),
            End::Pod => match self.pods_device(to.0).map(|bridge| judge::bridge(&bridge)) {
                Some(Err(fault)) => self.hops.take("bridge", Err(fault)),
                Some(Ok(_)) => true,
                None => self.no_bridge(),
            },
            End::Host | End::World => true,
        };
        if !leads_out {
            return Ok(());
        }
        let by = entered.as_ref().map(|entered| entered.device.as_str());
        let Some((link, via)) = self.route(from.0, to, by)? else {
            return Ok(());
        };
        let goes_to = match to.1 {
            End::Pod => self.known_port(to.0)?,
            End::Peer(_) | End::Host | End::World => None,
        };
        if !self.passes_rules((from.0, to.0), entered.as_ref(), &link, goes_to) {
            return Ok(());
        }
        match to.1 {
            End::Peer(peer) => {
                self.somebody_else_has(to.0)?;
                self.enter_tunnel(peer, (from.0, to.0), &link, via)?;
            }
            End::Pod => {
                if let Some(bridge) = self.kernel.device(&link).cloned() {
                    self.enter_pod(from.0, to.0, &bridge)?;
                }
            }
            End::Host | End::World => {}
        }
        Ok(())
    }

    /// Returns the device and the gateway that the kernel chooses.
    fn route(
        &mut self,
        from: IpAddr,
        (to, end): (IpAddr, End<'_>),
        entered: Option<&str>,
    ) -> io::Result<Option<(String, Option<IpAddr>)>> {
        if let Some(entered) = entered
            && let Some(off) = forwarding_off(from.is_ipv4(), entered)
        {
            let what = format!("{off} is 0: this host forwards nothing");
            self.hops.wrong("forwarding", Layer::Forwarding, what, format!("sysctl -w {off}=1"));
            return Ok(None);
        }
        let index = entered.and_then(|name| self.kernel.device(name)).map(|device| device.index);
        let from_device = index.map(|index| (from, index));
        let asked = RouteQuery { dst: to, from: from_device, protocol: Some(TCP) };
        let way = match self.kernel.decide(asked)? {
            Ok(way) => way,
            Err(error) => {
                if let Some(entered) = entered
                    && let Some(fault) = self.refused_by_rp_filter(from, entered)?
                {
                    self.hops.take("rp_filter", Err(fault));
                    return Ok(None);
                }
                let see = match entered {
                    Some(entered) => {
                        format!("ip route get {to} from {from} iif {entered} ipproto tcp")
                    }
                    None => format!("ip route get {to} ipproto tcp"),
                };
                self.hops.take("route", judge::no_route(&error, &see));
                return Ok(None);
            }
        };
        let bridge = self.pods_device(to).map(|bridge| bridge.name);
        let judged = judge::route(self.node, end, &way, to, bridge.as_deref());
        Ok(self.hops.take("route", judged).then_some((way.link, way.via)))
    }

    /// With a strict `rp_filter` the kernel drops what it would answer by another device.
    fn refused_by_rp_filter(&mut self, from: IpAddr, entered: &str) -> io::Result<Option<Finding>> {
        if !from.is_ipv4() || !is_reverse_path_strict(entered) {
            return Ok(None);
        }
        let back = self.kernel.decide(RouteQuery { dst: from, from: None, protocol: None })?;
        let elsewhere = match back {
            Ok(way) if way.link == entered => return Ok(None),
            Ok(way) => format!("would answer by {}", way.link),
            Err(error) => format!("has no way to answer: {error}"),
        };
        Ok(Some(broken(
            Layer::ReversePath,
            format!("rp_filter drops what comes from {from} by {entered}: this node {elsewhere}"),
            format!(
                "ip route get {from}; or sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{entered}.rp_filter=2"
            ),
        )))
    }

    fn resolve(&mut self, ip: IpAddr, device: &Device) -> io::Result<Option<Resolved>> {
        let deadline = Instant::now() + NEIGHBOUR_TIMEOUT;
        let mut asked = false;
        loop {
            let known = self.kernel.neighbours(ip.is_ipv4(), device.index)?;
            let entry = known.into_iter().find(|entry| entry.ip == ip);
            let usable =
                |state: NeighbourState| state == NeighbourState::Reachable || is_written(state);
            match entry {
                Some(entry) if usable(entry.state) || asked && Instant::now() > deadline => {
                    let gone =
                        matches!(entry.state, NeighbourState::Failed | NeighbourState::Incomplete);
                    let learned = !is_written(entry.state);
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
            std::thread::sleep(NEIGHBOUR_POLL_INTERVAL);
        }
    }
}

/// Whether somebody has written an entry, and nobody has answered for it.
fn is_written(state: NeighbourState) -> bool {
    matches!(state, NeighbourState::Permanent | NeighbourState::Noarp)
}

impl Hops {
    /// Whether it passes; nothing is said if it does.
    fn passes(&mut self, hop: &str, judged: Result<(), Finding>) -> bool {
        judged.map_err(|finding| self.found(hop, finding)).is_ok()
    }

    fn take(&mut self, hop: &str, judged: HopJudgement) -> bool {
        let passes = judged.is_ok();
        match judged {
            Ok(what) => self.good(hop, what),
            Err(finding) => self.found(hop, finding),
        }
        passes
    }
}

/// Whatever is sent makes the kernel ask who has an address, and who has it answer that nobody listens.
fn nudge(ip: IpAddr) {
    let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(b"", (ip, DISCARD_PORT)));
}

/// The setting by which nothing that comes in by a device is forwarded.
fn forwarding_off(v4: bool, device: &str) -> Option<String> {
    let of_device = format!("net/ipv4/conf/{device}/forwarding");
    let names: &[&str] = match v4 {
        true => &["net/ipv4/ip_forward", &of_device],
        false => &["net/ipv6/conf/all/forwarding"],
    };
    names.iter().find(|name| setting(name).as_deref() == Some("0")).map(|name| in_words(name))
}
