//! What there is in the kernel beside what flannel-rs would want there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context as _;
use flannel_kernel::{Entry, IfName, Link, LinkKind, ROUTE_PROTOCOL, Route};
use flannel_netlink::{Connection, Protocol};
use ipnet::IpNet;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Findings, Verdict};

/// So many are named.
const NAMED: usize = 5;

struct Device {
    kind: Option<InfoKind>,
    vni: Option<u32>,
    mtu: Option<u32>,
}

struct Found {
    via: Option<IpAddr>,
    link: String,
    metric: u32,
    protocol: RouteProtocol,
}

pub(super) fn look(
    findings: &mut Findings,
    wanted: &[Entry],
    networks: &[IpNet],
    ours: &[IfName],
) -> anyhow::Result<()> {
    let mut connection = Connection::open(Protocol::Route).context("talk to the kernel")?;
    let (devices, names) = devices(&mut connection)?;
    for entry in wanted {
        if let Entry::Link(link) = entry {
            device(findings, link, devices.get(link.name.as_str()));
        }
    }
    let routes = routes(&mut connection, &names)?;
    let mut changes = Changes::default();
    let mut wished: Vec<IpNet> = Vec::new();
    for entry in wanted {
        if let Entry::Route(route) = entry {
            wished.push(route.dst);
            changes.compare(route, routes.get(&route.dst).map_or(&[][..], Vec::as_slice));
        }
    }
    let is_ours = |link: &str| ours.iter().any(|name| name.as_str() == link);
    for (net, found) in &routes {
        let inside = networks.iter().any(|network| network.contains(net));
        for route in found.iter().filter(|_| inside && !wished.contains(net)) {
            if is_ours(&route.link) && route.protocol != RouteProtocol::Kernel {
                changes.stale.push(format!("{net} dev {}", route.link));
            }
        }
    }
    changes.tell(findings);
    Ok(())
}

fn device(findings: &mut Findings, link: &Link, found: Option<&Device>) {
    let (name, kind) = (link.name, link.kind.kind());
    let Some(found) = found else {
        let text = format!("{name} is not there, and is made");
        return findings.add("devices", Verdict::Changes, text);
    };
    let has = found.kind.as_ref().map(|kind| kind.to_string()).unwrap_or_default();
    if has != kind {
        let text = format!(
            "{name} is wanted as a {kind} device, and is {}: rename or remove it, it is not flannel's",
            if has.is_empty() { "no such device".to_owned() } else { format!("a {has}") }
        );
        return findings.add("devices", Verdict::InTheWay, text);
    }
    if let LinkKind::Vxlan(vxlan) = &link.kind
        && found.vni.is_some_and(|vni| vni != vxlan.vni)
    {
        let text = format!("{name} has another VNI and is made anew, with the same address");
        return findings.add("devices", Verdict::Changes, text);
    }
    match found.mtu {
        Some(mtu) if mtu != link.mtu => {
            let text = format!("{name} is kept, and its MTU becomes {} instead of {mtu}", link.mtu);
            findings.add("devices", Verdict::Changes, text);
        }
        _ => findings.add("devices", Verdict::Stays, format!("{name} is kept, with its address")),
    }
}

#[derive(Default)]
struct Changes {
    kept: usize,
    marked: usize,
    metric: Vec<String>,
    added: Vec<String>,
    stale: Vec<String>,
    foreign: Vec<String>,
}

impl Changes {
    fn compare(&mut self, wanted: &Route, found: &[Found]) {
        let dst = wanted.dst;
        let same = found.iter().find(|it| it.link == wanted.link.as_str() && it.via == wanted.via);
        match same {
            Some(route) if route.metric != wanted.metric => {
                self.metric.push(format!("{dst} ({} → {})", route.metric, wanted.metric));
            }
            Some(route) if u8::from(route.protocol) == ROUTE_PROTOCOL => self.kept += 1,
            Some(_) => self.marked += 1,
            None => match found.iter().find(|it| it.protocol != RouteProtocol::Kernel) {
                Some(other) => {
                    let via = other.via.map(|via| format!(" via {via}")).unwrap_or_default();
                    self.foreign.push(format!("{dst}{via} dev {}", other.link));
                }
                None => self.added.push(dst.to_string()),
            },
        }
    }

    fn tell(self, findings: &mut Findings) {
        let Self { kept, marked, metric, added, stale, foreign } = self;
        if kept > 0 {
            findings.add("routes", Verdict::Stays, format!("{kept} are kept as they are"));
        }
        if marked > 0 {
            let text = format!(
                "{marked} are kept and get the protocol {ROUTE_PROTOCOL}, by which they are known"
            );
            findings.add("routes", Verdict::Changes, text);
        }
        let mut tell = |verdict, what: &str, all: &[String]| {
            if !all.is_empty() {
                findings.add("routes", verdict, format!("{} {what}: {}", all.len(), few(all)));
            }
        };
        tell(Verdict::Changes, "are kept with another metric", &metric);
        tell(Verdict::Changes, "are missing and are made", &added);
        tell(Verdict::Changes, "lead to no node and are removed", &stale);
        let why = "lead peers' packets elsewhere, and are not flannel's: remove them";
        tell(Verdict::InTheWay, why, &foreign);
    }
}

fn few(all: &[String]) -> String {
    let shown = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > NAMED { format!("{shown}, …") } else { shown }
}

fn devices(
    connection: &mut Connection,
) -> anyhow::Result<(BTreeMap<String, Device>, BTreeMap<u32, String>)> {
    let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let links = connection.dump(&all, |message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    let (mut devices, mut names) = (BTreeMap::new(), BTreeMap::new());
    for link in links.context("list the devices")? {
        let (mut name, mut device) = (None, Device { kind: None, vni: None, mtu: None });
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(found) => name = Some(found),
                LinkAttribute::Mtu(mtu) => device.mtu = Some(mtu),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(kind) => device.kind = Some(kind),
                            LinkInfo::Data(InfoData::Vxlan(vxlan)) => {
                                device.vni = vxlan.iter().find_map(|info| match info {
                                    InfoVxlan::Id(vni) => Some(*vni),
                                    _ => None,
                                });
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let Some(name) = name else { continue };
        names.insert(link.header.index, name.clone());
        devices.insert(name, device);
    }
    Ok((devices, names))
}

/// Of the main table.
fn routes(
    connection: &mut Connection,
    names: &BTreeMap<u32, String>,
) -> anyhow::Result<BTreeMap<IpNet, Vec<Found>>> {
    let mut all: BTreeMap<IpNet, Vec<Found>> = BTreeMap::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut asked = RouteMessage::default();
        asked.header.address_family = family;
        let dumped =
            connection.dump(&RouteNetlinkMessage::GetRoute(asked), |message| match message {
                RouteNetlinkMessage::NewRoute(route) => read(&route, names),
                _ => None,
            });
        match dumped {
            Ok(found) => {
                found.into_iter().for_each(|(net, route)| all.entry(net).or_default().push(route));
            }
            // A kernel without IPv6 has no such table.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error).context("list the routes"),
        }
    }
    Ok(all)
}

fn read(route: &RouteMessage, names: &BTreeMap<u32, String>) -> Option<(IpNet, Found)> {
    let (mut destination, mut via, mut link, mut metric) = (None, None, String::new(), 0);
    let mut table = u32::from(route.header.table);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Gateway(address) => via = ip(address),
            RouteAttribute::Oif(index) => link = names.get(index).cloned().unwrap_or_default(),
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Table(number) => table = *number,
            _ => {}
        }
    }
    let main = table == u32::from(RouteHeader::RT_TABLE_MAIN);
    let net = IpNet::new(destination?, route.header.destination_prefix_length).ok()?;
    main.then_some((net, Found { via, link, metric, protocol: route.header.protocol }))
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
