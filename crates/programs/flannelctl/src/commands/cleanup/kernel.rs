//! Flannel's devices and routes in the kernel: found by what marks them as flannel's, and removed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use flannel_entries::kernel::ROUTE_PROTOCOL;
use flannel_kernel::is_flannel_device;
use flannel_netlink::{Connection, Protocol, Request};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

/// What the plugin calls it unless it is told otherwise.
const POD_BRIDGE: &str = "cni0";

pub(super) struct Kernel {
    connection: Connection,
}

/// Something of flannel's: in words, and how to remove it.
struct Thing {
    words: String,
    removal: Request,
}

impl Kernel {
    pub(super) fn open() -> anyhow::Result<Self> {
        Ok(Self { connection: Connection::open(Protocol::Route).context("talk to the kernel")? })
    }

    /// What there is of flannel, in words. `pods`: also the bridge of pods, if none is on it.
    pub(super) fn find(&mut self, pods: bool) -> anyhow::Result<Vec<String>> {
        Ok(self.things(pods)?.into_iter().map(|thing| thing.words).collect())
    }

    /// Removes it, and says what that was and what would not go.
    pub(super) fn remove(&mut self, pods: bool) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let (words, removals): (Vec<_>, Vec<_>) =
            self.things(pods)?.into_iter().map(|thing| (thing.words, thing.removal)).unzip();
        let mut refused = BTreeMap::new();
        self.connection
            .apply(removals, |at, error| {
                // Somebody else was faster.
                if ![libc::ENODEV, libc::ESRCH].contains(&error.errno) {
                    refused.insert(at, error.to_string());
                }
            })
            .context("remove devices and routes")?;
        let (mut removed, mut failures) = (Vec::new(), Vec::new());
        for (at, words) in words.into_iter().enumerate() {
            match refused.remove(&at) {
                None => removed.push(words),
                Some(error) => failures.push(format!("remove {words}: {error}")),
            }
        }
        Ok((removed, failures))
    }

    /// Routes before the devices that would take them along.
    fn things(&mut self, pods: bool) -> anyhow::Result<Vec<Thing>> {
        let mut names = BTreeMap::new();
        let mut devices = Vec::new();
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let links = self.connection.dump(&all, |message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        let links = links.context("list the devices")?;
        let used: Vec<u32> = links.iter().filter_map(bridge_of).collect();
        for link in links {
            let Some(name) = name_of(&link) else { continue };
            names.insert(link.header.index, name.to_owned());
            // A bridge of such a name would be somebody else's.
            let of_pods = pods
                && name == POD_BRIDGE
                && is_bridge(&link)
                && !used.contains(&link.header.index);
            if of_pods || is_flannel_device(link.clone()) {
                let removal = Request::delete_link(link.header.index);
                devices.push(Thing { words: format!("device {name}"), removal });
            }
        }
        let mut things = self.routes(&names)?;
        things.extend(devices);
        Ok(things)
    }

    fn routes(&mut self, names: &BTreeMap<u32, String>) -> anyhow::Result<Vec<Thing>> {
        let mut things = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut all = RouteMessage::default();
            all.header.address_family = family;
            let ours = |message| match message {
                RouteNetlinkMessage::NewRoute(route)
                    if u8::from(route.header.protocol) == ROUTE_PROTOCOL =>
                {
                    let words = in_words(&route, names);
                    Some(Thing { words, removal: del_route(route) })
                }
                _ => None,
            };
            match self.connection.dump(&RouteNetlinkMessage::GetRoute(all), ours) {
                Ok(found) => things.extend(found),
                // A kernel without IPv6 has no such table.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error).context("list the routes"),
            }
        }
        Ok(things)
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

fn bridge_of(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Controller(index) => Some(*index),
        _ => None,
    })
}

fn is_bridge(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Bridge)),
        _ => false,
    })
}

/// The same route, without what the kernel only tells and does not want to hear.
fn del_route(mut route: RouteMessage) -> Request {
    route.header.flags = RouteFlags::empty();
    route.attributes.retain(|attribute| {
        matches!(
            attribute,
            RouteAttribute::Destination(_)
                | RouteAttribute::Table(_)
                | RouteAttribute::Priority(_)
                | RouteAttribute::Gateway(_)
                | RouteAttribute::Oif(_)
        )
    });
    Request::delete_route(route)
}

fn in_words(route: &RouteMessage, names: &BTreeMap<u32, String>) -> String {
    let (mut destination, mut hop) = (None, String::new());
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = text(address),
            RouteAttribute::Gateway(gateway) => {
                let _ = write!(hop, " via {}", text(gateway).unwrap_or_default());
            }
            RouteAttribute::Oif(index) => {
                let _ = match names.get(index) {
                    Some(name) => write!(hop, " dev {name}"),
                    None => write!(hop, " dev {index}"),
                };
            }
            _ => {}
        }
    }
    let kind = if route.header.kind == RouteType::BlackHole { "blackhole " } else { "" };
    match destination {
        Some(address) => {
            format!("route {kind}{address}/{}{hop}", route.header.destination_prefix_length)
        }
        None => format!("route {kind}default{hop}"),
    }
}

fn text(address: &RouteAddress) -> Option<String> {
    match address {
        RouteAddress::Inet(address) => Some(address.to_string()),
        RouteAddress::Inet6(address) => Some(address.to_string()),
        _ => None,
    }
}
