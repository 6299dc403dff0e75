//! ADD: a pair of interfaces, one end on the bridge, the other, with addresses, in the container.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use flannel_common::Mac;
use ipnet::IpNet;

use super::conf::BridgeConf;
use super::{gateways, host, ipam, spoof, vlan};
use crate::ipam::AllocatedAddresses;
use crate::kernel::{self, Change, Kernel, Link, Veth};
use crate::masquerade;
use crate::netns::Netns;
use crate::protocol::{Call, Error, ErrorContext, Interface, Outcome, Result, internal};

/// Which of the result's interfaces the container's is.
const CONTAINER: i64 = 2;
const NAME_TRIES: usize = 10;
/// How long a port may take to let frames pass. Without a reason, it takes no time.
const PORT_FORWARDING_TIMEOUT: Duration = Duration::from_millis(2500);
/// How often routes are tried while the kernel has yet to take note that their interface is up, and the pauses between.
const ROUTE_TRIES: u32 = 500;
const ROUTE_PAUSE: Duration = Duration::from_millis(5);
const DUPLICATE_DETECTION_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn add(call: &Call) -> Result<Outcome> {
    let conf = BridgeConf::supported(call)?;
    let netns = open_netns(call)?;
    let mut container = look_into(&netns)?;
    if is_attached(&mut container, &call.ifname)? {
        return Err(attached(call));
    }
    let given = ipam::add(call, &conf.ipam)?;
    let mut attachment = Attachment {
        call,
        conf: &conf,
        netns: &netns,
        container,
        host_name: None,
        given: given.outcome.ips.iter().map(|ip| ip.address.addr()).collect(),
        is_masqueraded: false,
        rng: generator().or_cni("could not get random bytes")?,
    };
    let made = attachment.make(given);
    if made.is_err() {
        attachment.undo();
    }
    made
}

pub(super) fn open_netns(call: &Call) -> Result<Netns> {
    Netns::open(&call.netns).or_cni(format_args!("failed to open netns {:?}", call.netns))
}

fn look_into(netns: &Netns) -> Result<Kernel> {
    const ATTEMPTED: &str = "could not look into the container";
    netns.inside(Kernel::open).or_cni(ATTEMPTED)?.or_cni(ATTEMPTED)
}

/// A pod that is attached is left as it is.
pub(crate) fn refuse_attached(call: &Call, netns: &Netns) -> Result<()> {
    match is_attached(&mut look_into(netns)?, &call.ifname)? {
        true => Err(attached(call)),
        false => Ok(()),
    }
}

/// An ADD sets the interface up and gives it an address last: one that was cut short did neither.
fn is_attached(container: &mut Kernel, name: &str) -> Result<bool> {
    let Some(link) = container.link(name)? else { return Ok(false) };
    Ok(link.up || !container.addresses(Some(link.index))?.is_empty())
}

fn attached(call: &Call) -> Error {
    let (id, name) = (&call.container_id, &call.ifname);
    internal!("container {id} is attached: {name:?} already exists")
        .with_details("it is left as it is; to attach it again, DEL comes first")
}

/// An attachment in the making.
struct Attachment<'a> {
    call: &'a Call,
    conf: &'a BridgeConf,
    netns: &'a Netns,
    /// As seen from inside.
    container: Kernel,
    /// The name of the pair's end on the host, once there is a pair.
    host_name: Option<String>,
    given: Vec<IpAddr>,
    is_masqueraded: bool,
    rng: fastrand::Rng,
}

impl Attachment<'_> {
    fn make(&mut self, given: AllocatedAddresses) -> Result<Outcome> {
        let AllocatedAddresses { mut outcome, earlier } = given;
        let (call, conf) = (self.call, self.conf);
        let own_addresses = gateways::complete(&mut outcome, conf, CONTAINER);
        let mut host = Kernel::open()?;
        let bridge = host::ensure_bridge(&mut host, conf, &mut self.rng)?;
        vlan::filter(&mut host, conf, &bridge)?;
        let mut vlan_gateway = None;
        if conf.is_gateway && !own_addresses.is_empty() {
            vlan_gateway = vlan::gateway(&mut host, conf, &bridge, &mut self.rng)?;
            let gateway = vlan_gateway.as_ref().unwrap_or(&bridge);
            host::ensure_gateway(&mut host, conf, gateway, &own_addresses)?;
        }
        if conf.ip_masq && !outcome.ips.is_empty() {
            self.is_masqueraded = true;
            let addresses: Vec<IpNet> = outcome.ips.iter().map(|ip| ip.address).collect();
            masquerade::set_up(call, conf.ip_masq_backend, &addresses)?;
        }
        let macs =
            [port_mac(&mut self.rng), conf.mac.unwrap_or_else(|| Mac::random(&mut self.rng))];
        let host_name = self.make_pair(&mut host, &bridge, macs, earlier)?;
        // A frame may get past the bridge.
        host::ignore_routers(&host_name);
        vlan::join(&mut host, conf, &host_name)?;
        if conf.no_spoofing {
            spoof::forbid(call, &host_name, macs[1])?;
        }
        // Last, because by this everybody knows that the container is attached.
        if conf.container_interface_down {
            host.apply(vec![Change::set_up(&host_name)])?;
        } else {
            let container = &mut self.container;
            self.netns
                .inside(|| {
                    configure_container(call, conf, &outcome, container, &mut host, &host_name)
                })
                .or_cni("could not configure the container's interface")??;
            wait_for_port(&mut host, &host_name)?;
        }
        // A bridge without a MAC address of its own takes the lowest of its ports'.
        let bridge = match bridge.mac {
            Some(mac) if bridge.operational && mac.0 <= macs[0].0 => bridge,
            _ => host.link(&conf.bridge)?.unwrap_or(bridge),
        };
        let of_link = |link: Link| Interface::new(&link.name, link.mac, "");
        outcome.interfaces = vec![
            Interface::new(&conf.bridge, bridge.mac, ""),
            Interface::new(&host_name, Some(macs[0]), ""),
            Interface::new(&call.ifname, Some(macs[1]), &call.netns),
        ];
        outcome.interfaces.extend(vlan_gateway.map(of_link));
        if !conf.dns.is_empty() {
            outcome.dns = conf.dns.clone();
        }
        Ok(outcome)
    }

    /// Returns the name of the host's end. `earlier`: an interrupted ADD may have left a pair.
    fn make_pair(
        &mut self,
        host: &mut Kernel,
        bridge: &Link,
        macs: [Mac; 2],
        mut earlier: bool,
    ) -> Result<String> {
        let (ifname, conf) = (&self.call.ifname, self.conf);
        for _ in 0..NAME_TRIES {
            let name = format!("veth{:08x}", self.rng.u32(..));
            let pair = Veth {
                name: &name,
                mac: macs[0],
                bridge: bridge.index,
                peer_name: ifname,
                peer_mac: macs[1],
                peer_netns: self.netns.as_fd(),
                mtu: conf.mtu,
            };
            let port = Change::set_port(&name, conf.hairpin, conf.isolated);
            match host.apply(vec![Change::make_veth(&pair), port]) {
                Ok(()) => {
                    self.host_name = Some(name.clone());
                    return Ok(name);
                }
                Err(error) if error.errno() != Some(libc::EEXIST) => {
                    return Err(internal!("failed to make veth pair: {error}"));
                }
                Err(_) => {}
            }
            // Either the name on the host is taken, by chance, or the container's is.
            match self.container.link(ifname)? {
                None => {}
                Some(link) if earlier && link.kind == "veth" => {
                    kernel::remove_link_of(self.netns, ifname)?;
                    earlier = false;
                }
                Some(_) => {
                    return Err(internal!(
                        "container veth name ({ifname:?}) peer provided ({name:?}) already exists"
                    ));
                }
            }
        }
        Err(Error::internal("failed to find a unique veth name"))
    }

    /// Takes back what was made, as far as it got.
    fn undo(&self) {
        if self.host_name.is_some() {
            let _ = kernel::remove_link_of(self.netns, &self.call.ifname);
        }
        if self.is_masqueraded {
            let _ = masquerade::tear_down(self.call);
        }
        if self.conf.no_spoofing {
            let _ = spoof::allow(self.call);
        }
        let _ = ipam::take_back(self.call, &self.conf.ipam, &self.given);
    }
}

/// Names and MAC addresses must differ between processes that start at the same moment.
fn generator() -> std::io::Result<fastrand::Rng> {
    Ok(fastrand::Rng::with_seed(u64::from_ne_bytes(flannel_common::random_bytes()?)))
}

/// Of a bridge's port: so high that no bridge takes it for its own.
fn port_mac(rng: &mut fastrand::Rng) -> Mac {
    let mut mac = Mac::random(rng);
    mac.0[0] = 0xfe;
    mac
}

/// Sets both ends up, too, one right after the other: of an end that is up while the other is not, the
/// kernel soon takes note, at length and with everybody else waiting.
fn configure_container(
    call: &Call,
    conf: &BridgeConf,
    outcome: &Outcome,
    kernel: &mut Kernel,
    host: &mut Kernel,
    host_name: &str,
) -> Result<()> {
    let name = &call.ifname;
    let index = kernel.index_of(name).or_cni(format_args!("failed to lookup {name:?}"))?;
    let has_ipv6 = outcome.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    set_switches(name, conf, has_ipv6);
    let mut changes = Vec::new();
    for ip in &outcome.ips {
        changes.push(Change::add_address(index, name, ip.address, conf.duplicate_detection));
    }
    changes.push(Change::set_up(name));
    let routes = || {
        outcome.routes.iter().map(|route| {
            Change::add_route(index, name, route, gateways::gateway_of(outcome, route))
        })
    };
    changes.extend(routes());
    host.apply(vec![Change::set_up(host_name)])?;
    let mut made = kernel.apply(changes);
    // Tries are counted and not time: where others hold the kernel's lock of all interfaces, one may take seconds.
    let mut tries = ROUTE_TRIES;
    while let Err(error) = &made
        && matches!(error.errno(), Some(libc::EHOSTUNREACH | libc::ENETUNREACH))
        && tries > 0
    {
        tries -= 1;
        // IPv6 waits until the kernel has noted that the interface is up, which a question makes it do.
        kernel.link(name)?;
        made = kernel.apply(routes().collect());
        if made.is_err() {
            std::thread::sleep(ROUTE_PAUSE);
        }
    }
    made?;
    if conf.duplicate_detection && has_ipv6 {
        wait_for_detection(kernel, index, name)?;
    }
    Ok(())
}

/// Settings that netlink has no word for. Where the kernel has no IPv6, some are not there.
fn set_switches(name: &str, conf: &BridgeConf, has_ipv6: bool) {
    let detection = if conf.duplicate_detection { "1" } else { "0" };
    let _ = kernel::set(&format!("net/ipv6/conf/{name}/accept_dad"), detection);
    if conf.duplicate_detection {
        let _ = kernel::set(&format!("net/ipv6/conf/{name}/enhanced_dad"), "1");
    }
    // Neighbours that knew the address by another MAC address hear of the new one.
    let _ = kernel::set(&format!("net/ipv4/conf/{name}/arp_notify"), "1");
    if has_ipv6 {
        for interface in ["lo", name] {
            let _ = kernel::set(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "0");
        }
        let _ = kernel::set(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), "1");
    }
}

/// Wait for duplicate address detection only if it was requested.
fn wait_for_detection(kernel: &mut Kernel, link: u32, name: &str) -> Result<()> {
    let deadline = Instant::now() + DUPLICATE_DETECTION_TIMEOUT;
    while kernel.is_tentative(link)? {
        if Instant::now() > deadline {
            return Err(internal!(
                "failed to settle addresses for {name:?}: still tentative, or somebody has them"
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The kernel opens the port as soon as it is asked about it; older ones take a moment of their own.
fn wait_for_port(host: &mut Kernel, name: &str) -> Result<()> {
    let deadline = Instant::now() + PORT_FORWARDING_TIMEOUT;
    let mut pause = Duration::from_micros(200);
    loop {
        if host.link_made(name)?.operational {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(internal!("bridge port in error state: {name} lets no frames pass"));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
