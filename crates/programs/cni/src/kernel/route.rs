//! Routes.

use std::net::{IpAddr, Ipv4Addr};

use flannel_netlink::{AttributeWriter, Attributes, RawRequest, Request, ip, verbs};
use ipnet::IpNet;
use libc::{RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_DELROUTE, RTM_GETROUTE};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMetric, RouteProtocol, RouteScope,
};

use super::query::number;
use super::{Change, Kernel, KernelError};
use crate::protocol::Route;

/// Of a route that a router has announced.
const ANNOUNCED: u8 = 9;
const ROUTE_HEADER: usize = 12;

/// A route as it was found, in whichever table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteEntry {
    pub(crate) dst: IpNet,
    pub(crate) gateway: Option<IpAddr>,
}

impl Kernel {
    pub(crate) fn routes(&mut self, ipv4: bool) -> Result<Vec<RouteEntry>, KernelError> {
        let mut header = [0; ROUTE_HEADER];
        header[0] = if ipv4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
        self.ask_all(RTM_GETROUTE, &header, |payload| entry(payload, ipv4))
    }

    /// Removes the routes through a link that routers announced. One may have ended by itself.
    pub(crate) fn forget_announced_routes(&mut self, link: u32) -> Result<(), KernelError> {
        let mut header = [0; ROUTE_HEADER];
        header[0] = libc::AF_INET6 as u8;
        let announced = self.ask_all(RTM_GETROUTE, &header, |payload| {
            let (header, attributes) = payload.split_at_checked(ROUTE_HEADER)?;
            let through = Attributes(attributes).get(RTA_OIF).and_then(number);
            (header[5] == ANNOUNCED && through == Some(link)).then(|| payload.to_vec())
        })?;
        for route in announced {
            let what = || "forget a route that a router has announced".to_owned();
            let request = RawRequest::new(RTM_DELROUTE, route, AttributeWriter::default());
            let _ = self.change(request, what);
        }
        Ok(())
    }

    /// The index of the link through which packets to `ip` leave. `None`: there is no way.
    pub(crate) fn link_towards(&mut self, ip: Ipv4Addr) -> Result<Option<u32>, KernelError> {
        let mut header = [0; ROUTE_HEADER];
        header[0] = libc::AF_INET as u8;
        header[1] = 32;
        let wanted = AttributeWriter::default().bytes(RTA_DST, &ip.octets());
        let question = RawRequest::new(RTM_GETROUTE, header, wanted);
        let answer = self.connection.ask(&question, |message| {
            Attributes(message.payload.get(ROUTE_HEADER..)?).get(RTA_OIF).and_then(number)
        })?;
        Ok(answer.ok().flatten())
    }
}

impl Change {
    /// Adds it beside others of the same destination, which an IPAM plugin may ask for.
    pub(crate) fn add_route(link: u32, name: &str, route: &Route, gateway: Option<IpAddr>) -> Self {
        let mut message = verbs::route(route.dst, RouteProtocol::Boot, Some(link), gateway);
        let table = route.table.map_or(u32::from(RouteHeader::RT_TABLE_MAIN), |table| table as u32);
        message.header.table = u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
        message.header.scope = RouteScope::from(route.scope.unwrap_or_default() as u8);
        message.attributes.push(RouteAttribute::Table(table));
        if route.priority != 0 {
            message.attributes.push(RouteAttribute::Priority(route.priority as u32));
        }
        let metrics: Vec<RouteMetric> =
            [(route.mtu, RouteMetric::Mtu as fn(u32) -> _), (route.advmss, RouteMetric::Advmss)]
                .into_iter()
                .filter(|(value, _)| *value > 0)
                .map(|(value, metric)| metric(value as u32))
                .collect();
        if !metrics.is_empty() {
            message.attributes.push(RouteAttribute::Metrics(metrics));
        }
        let via = gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        let what = format!("add the route to {}{via} through {name}", route.dst);
        Self::new(what, Request::add_route(message)).unless(&[libc::EEXIST])
    }
}

fn entry(payload: &[u8], ipv4: bool) -> Option<RouteEntry> {
    let (header, attributes) = payload.split_at_checked(ROUTE_HEADER)?;
    let everywhere = if ipv4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let attributes = Attributes(attributes);
    let dst = match attributes.get(RTA_DST) {
        Some(bytes) => ip(bytes)?,
        None => everywhere,
    };
    Some(RouteEntry {
        dst: IpNet::new(dst, header[1]).ok()?,
        gateway: attributes.get(RTA_GATEWAY).and_then(ip),
    })
}
