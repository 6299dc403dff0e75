//! CHECK: is everything as the ADD's result says?

use ipnet::IpNet;

use super::add::open_netns;
use super::conf::BridgeConf;
use super::ipam;
use crate::kernel::{Kernel, Link};
use crate::masquerade;
use crate::protocol::{
    Call, Error, ErrorContext, Interface, IpConfig, Outcome, Result, Route, internal,
};

pub(super) fn check(call: &Call) -> Result<()> {
    let conf = BridgeConf::read(call)?;
    let netns = open_netns(call)?;
    ipam::run(call, &conf.ipam)?;
    let result = previous_result(call)?;
    let mut host = Kernel::open()?;
    let bridge = check_bridge(&mut host, &conf, &result)?;
    let inside = || -> Result<Link> {
        let mut kernel = Kernel::open()?;
        let link = check_container(&mut kernel, call, &result)?;
        check_addresses(&mut kernel, &link, call, &result.ips)?;
        check_routes(&mut kernel, &result.routes)?;
        Ok(link)
    };
    let container = netns.inside(inside).or_cni("could not look into the container")??;
    check_pair(&mut host, &conf, &result, &bridge, &container)?;
    if conf.ip_masq && !conf.ipam.is_empty() {
        let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        masquerade::check(call, &addresses)?;
    }
    Ok(())
}

pub(crate) fn previous_result(call: &Call) -> Result<Outcome> {
    call.previous_result()?.ok_or_else(|| Error::config("Required prevResult missing"))
}

fn check_bridge(host: &mut Kernel, conf: &BridgeConf, result: &Outcome) -> Result<Link> {
    let name = &conf.bridge;
    let recorded = result.interfaces.iter().find(|it| it.name == *name && it.sandbox.is_empty());
    let Some(recorded) = recorded else {
        return Err(internal!("the result knows no bridge {name} on the host"));
    };
    let link = host.link(name)?.ok_or_else(|| internal!("Interface name {name} not found"))?;
    if link.kind != "bridge" {
        return Err(internal!("Interface {name} does not have link type of bridge"));
    }
    check_mac(recorded, &link)?;
    if conf.promiscuous && !link.promiscuous {
        return Err(internal!("Bridge interface {name} is not promiscuous"));
    }
    Ok(link)
}

fn check_container(kernel: &mut Kernel, call: &Call, result: &Outcome) -> Result<Link> {
    let name = &call.ifname;
    let recorded = result.interfaces.iter().find(|it| it.name == *name && it.sandbox == call.netns);
    let Some(recorded) = recorded else {
        return Err(internal!("the result knows no interface {name} in {}", call.netns));
    };
    let link = kernel.link(name)?.ok_or_else(|| internal!("Interface name {name} not found"))?;
    if link.kind != "veth" {
        return Err(internal!("Error: Container interface {name} not of type veth"));
    }
    check_mac(recorded, &link)?;
    if !link.up {
        return Err(internal!("Interface {name} is down"));
    }
    Ok(link)
}

/// Among the result's interfaces on the host must be the container's other end, on the bridge.
fn check_pair(
    host: &mut Kernel,
    conf: &BridgeConf,
    result: &Outcome,
    bridge: &Link,
    container: &Link,
) -> Result<()> {
    for recorded in
        result.interfaces.iter().filter(|it| it.sandbox.is_empty() && it.name != conf.bridge)
    {
        let Some(link) = host.link(&recorded.name)? else { continue };
        let is_pair = link.peer == Some(container.index) && container.peer == Some(link.index);
        if link.kind == "veth" && is_pair && link.master == Some(bridge.index) {
            return check_mac(recorded, &link);
        }
    }
    Err(internal!("CNI veth created for bridge {} was not found", conf.bridge))
}

fn check_mac(recorded: &Interface, link: &Link) -> Result<()> {
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if recorded.mac.is_empty() || recorded.mac.eq_ignore_ascii_case(&mac) {
        return Ok(());
    }
    let name = &recorded.name;
    Err(internal!("Interface {name} Mac doesn't match: it is {mac}, not {}", recorded.mac))
}

fn check_addresses(kernel: &mut Kernel, link: &Link, call: &Call, ips: &[IpConfig]) -> Result<()> {
    let present = kernel.addresses(Some(link.index))?;
    match ips.iter().find(|ip| !present.contains(&ip.address)) {
        None => Ok(()),
        Some(ip) => {
            Err(internal!("Failed to match addr {} on interface {}", ip.address, call.ifname))
        }
    }
}

fn check_routes(kernel: &mut Kernel, routes: &[Route]) -> Result<()> {
    for ipv4 in [true, false] {
        let wanted: Vec<&Route> =
            routes.iter().filter(|route| route.dst.addr().is_ipv4() == ipv4).collect();
        if wanted.is_empty() {
            continue;
        }
        let present = kernel.routes(ipv4)?;
        let missing = wanted.into_iter().find(|route| {
            !present.iter().any(|it| {
                it.dst == route.dst.trunc() && (route.gw.is_none() || it.gateway == route.gw)
            })
        });
        if let Some(route) = missing {
            return Err(internal!("Expected Route to {} not found in routing table", route.dst));
        }
    }
    Ok(())
}
