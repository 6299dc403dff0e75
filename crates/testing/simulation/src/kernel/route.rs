//! Addresses, and the routes of the main table.

use std::net::IpAddr;

use flannel_entries::kernel::ROUTE_PROTOCOL;
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Kernel, State, local_address};

/// Metric of IPv6 routes that are made without one.
const IPV6_METRIC: u32 = 1_024;

type Errno = i32;

/// A route that flannel has written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlannelRoute {
    pub(crate) dst: IpNet,
    pub(crate) via: Option<IpAddr>,
    pub(crate) link: Option<u32>,
}

/// All routes with flannel's mark, in order.
pub(crate) fn flannel_routes(state: &State) -> Vec<FlannelRoute> {
    let ours = state.routes.iter().filter(|it| is_flannels(it));
    let mut routes: Vec<FlannelRoute> = ours.filter_map(flannel_route).collect();
    routes.sort();
    routes
}

fn is_flannels(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::from(ROUTE_PROTOCOL)
}

fn flannel_route(route: &RouteMessage) -> Option<FlannelRoute> {
    Some(FlannelRoute { dst: destination(route)?, via: gateway(route), link: device(route) })
}

pub(crate) fn destination(route: &RouteMessage) -> Option<IpNet> {
    let found = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    });
    let any = match route.header.address_family {
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => IpAddr::from([0; 4]),
    };
    let ip = found.unwrap_or(any);
    IpNet::new(ip, route.header.destination_prefix_length).ok()
}

fn gateway(route: &RouteMessage) -> Option<IpAddr> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

fn device(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

fn metric(route: &RouteMessage) -> u32 {
    let found = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    });
    found.unwrap_or(0)
}

impl Kernel {
    pub(super) fn add_address(&self, mut address: AddressMessage, by: u32) {
        let index = address.header.index;
        let Some(ip) = local_address(&address) else { return };
        address.header.flags |= AddressHeaderFlags::Permanent;
        if ip.is_ipv6() {
            // The kernel names an IPv6 address once.
            address.attributes.retain(|it| !matches!(it, AddressAttribute::Local(_)));
        }
        {
            let mut state = self.state.borrow_mut();
            state.addresses.retain(|it| (it.header.index, local_address(it)) != (index, Some(ip)));
            state.addresses.push(address.clone());
        }
        let length = address.header.prefix_len;
        let group =
            if ip.is_ipv4() { libc::RTNLGRP_IPV4_IFADDR } else { libc::RTNLGRP_IPV6_IFADDR };
        self.announce(group, &RouteNetlinkMessage::NewAddress(address), by);
        let Ok(net) = IpNet::new(ip, length) else { return };
        if length < net.max_prefix_len() {
            let protocol = RouteProtocol::Kernel;
            let mut route = flannel_netlink::verbs::route(net.trunc(), protocol, Some(index), None);
            if let IpAddr::V4(ip) = ip {
                route.attributes.push(RouteAttribute::PrefSource(RouteAddress::Inet(ip)));
            }
            let _ = self.add_route(route, true, 0);
        }
    }

    pub(super) fn remove_address(&self, asked: AddressMessage, by: u32) -> Result<(), Errno> {
        let index = asked.header.index;
        let ip = local_address(&asked);
        let gone = {
            let mut state = self.state.borrow_mut();
            let is_it = |it: &AddressMessage| it.header.index == index && local_address(it) == ip;
            let at = state.addresses.iter().position(is_it).ok_or(libc::EADDRNOTAVAIL)?;
            let gone = state.addresses.remove(at);
            // The connected route goes, and with it, without a word, those whose gateway is behind it.
            let net = ip.and_then(|ip| IpNet::new(ip, gone.header.prefix_len).ok());
            let family = gone.header.family;
            let mut others = state.addresses.iter().filter(|it| it.header.index == index);
            let is_last = !others.any(|it| it.header.family == family);
            state.routes.retain(|route| {
                let over = device(route) == Some(index) && route.header.address_family == family;
                let source = route.attributes.iter().any(|it| match it {
                    RouteAttribute::PrefSource(RouteAddress::Inet(source)) => {
                        Some(IpAddr::V4(*source)) == ip
                    }
                    _ => false,
                });
                let behind =
                    gateway(route).is_some_and(|via| net.is_some_and(|net| net.contains(&via)));
                let onlink = route.header.flags.contains(RouteFlags::Onlink);
                // Of IPv6 the prefix alone goes.
                let is_prefix = route.header.protocol == RouteProtocol::Kernel
                    && gateway(route).is_none()
                    && destination(route) == net.map(|net| net.trunc());
                match family {
                    AddressFamily::Inet6 => !(over && is_prefix),
                    _ => !(over && (source || is_last || behind && !onlink)),
                }
            });
            gone
        };
        let is_v4 = ip.is_none_or(|ip| ip.is_ipv4());
        let group = if is_v4 { libc::RTNLGRP_IPV4_IFADDR } else { libc::RTNLGRP_IPV6_IFADDR };
        self.announce(group, &RouteNetlinkMessage::DelAddress(gone), by);
        Ok(())
    }

    pub(super) fn add_route(
        &self,
        mut route: RouteMessage,
        may_replace: bool,
        by: u32,
    ) -> Result<(), Errno> {
        let dst = destination(&route).ok_or(libc::EINVAL)?;
        if dst.addr().is_ipv6() && metric(&route) == 0 {
            route.attributes.retain(|it| !matches!(it, RouteAttribute::Priority(_)));
            route.attributes.push(RouteAttribute::Priority(IPV6_METRIC));
        }
        {
            let mut state = self.state.borrow_mut();
            if route.header.kind == RouteType::Unicast {
                let link = device(&route).ok_or(libc::ENODEV)?;
                if !state.links.contains_key(&link) {
                    return Err(libc::ENODEV);
                }
                let onlink = route.header.flags.contains(RouteFlags::Onlink);
                if let Some(via) = gateway(&route)
                    && !onlink
                    && !state.routes.iter().any(|it| {
                        gateway(it).is_none()
                            && device(it) == Some(link)
                            && destination(it).is_some_and(|net| net.contains(&via))
                    })
                {
                    return Err(libc::ENETUNREACH);
                }
            }
            let same =
                |it: &RouteMessage| destination(it) == Some(dst) && metric(it) == metric(&route);
            match state.routes.iter().position(same) {
                Some(_) if !may_replace => return Err(libc::EEXIST),
                Some(at) => state.routes[at] = route.clone(),
                None => state.routes.push(route.clone()),
            }
        }
        if is_flannels(&route) {
            self.note(format_args!("route {dst} via {:?}", gateway(&route)));
        }
        self.announce(group_of(&dst), &RouteNetlinkMessage::NewRoute(route), by);
        Ok(())
    }

    pub(super) fn remove_route(&self, asked: &RouteMessage, by: u32) -> Result<(), Errno> {
        let dst = destination(asked).ok_or(libc::EINVAL)?;
        let gone = {
            let mut state = self.state.borrow_mut();
            let header = &asked.header;
            let is_it = |it: &RouteMessage| {
                let fits = |own: bool, equal: bool| !own || equal;
                destination(it) == Some(dst)
                    && fits(metric(asked) != 0, metric(it) == metric(asked))
                    && fits(
                        header.protocol != RouteProtocol::Unspec,
                        it.header.protocol == header.protocol,
                    )
                    && fits(header.kind != RouteType::Unspec, it.header.kind == header.kind)
                    && fits(header.scope != RouteScope::NoWhere, it.header.scope == header.scope)
                    && fits(device(asked).is_some(), device(it) == device(asked))
                    && fits(gateway(asked).is_some(), gateway(it) == gateway(asked))
            };
            let at = state.routes.iter().position(is_it).ok_or(libc::ESRCH)?;
            state.routes.remove(at)
        };
        if is_flannels(&gone) {
            self.note(format_args!("route {dst} via {:?} is removed", gateway(&gone)));
            if by != 0 {
                self.removed_routes.borrow_mut().extend(flannel_route(&gone));
            }
        }
        self.announce(group_of(&dst), &RouteNetlinkMessage::DelRoute(gone), by);
        Ok(())
    }

    /// How this kernel would send to an address.
    pub(super) fn look_up(&self, asked: &RouteMessage) -> Result<RouteMessage, Errno> {
        let to = destination(asked).ok_or(libc::EINVAL)?.addr();
        let state = self.state.borrow();
        let leads = |it: &&RouteMessage| {
            it.header.kind == RouteType::Unicast
                && destination(it).is_some_and(|net| net.contains(&to))
        };
        let best = state
            .routes
            .iter()
            .filter(leads)
            .max_by_key(|it| (it.header.destination_prefix_length, u32::MAX - metric(it)))
            .ok_or(libc::ENETUNREACH)?;
        let mut answer = best.clone();
        answer.attributes.retain(|it| !matches!(it, RouteAttribute::Destination(_)));
        answer.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        answer.attributes.push(RouteAttribute::Destination(to.into()));
        Ok(answer)
    }
}

fn group_of(dst: &IpNet) -> u32 {
    if dst.addr().is_ipv4() { libc::RTNLGRP_IPV4_ROUTE } else { libc::RTNLGRP_IPV6_ROUTE }
}
