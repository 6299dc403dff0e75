//! The host's side: the bridge, its addresses, and forwarding.

use flannel_common::Mac;
use ipnet::IpNet;

use super::conf::BridgeConf;
use crate::kernel::{self, Change, Kernel, KernelError, Link};
use crate::protocol::{ErrorContext as _, Result, internal};

/// What every ADD must find true of the bridge, or make true: it may be new, an earlier ADD may have
/// been killed half way, and others may have made or changed it.
///
/// - It is there, and a bridge.
/// - No pod is believed that says it is a router; what was believed is forgotten.
/// - It is promiscuous if that is asked for.
/// - It is up.
///
/// Where it is the pods' gateway, [`ensure_gateway`] adds to it.
pub(super) fn ensure_bridge(
    kernel: &mut Kernel,
    conf: &BridgeConf,
    rng: &mut fastrand::Rng,
) -> Result<Link> {
    let name = &conf.bridge;
    let attempted = format!("failed to create bridge {name:?}");
    let failed = |error: KernelError| internal!("{attempted}: {error}");
    let mut found = kernel.link(name).map_err(failed)?;
    if found.is_none() {
        let bridge = Change::make_bridge(name, Mac::random(rng), conf.mtu);
        kernel.apply(vec![bridge]).map_err(failed)?;
        found = kernel.link(name).map_err(failed)?;
    }
    let Some(link) = found else {
        return Err(internal!("{attempted}: it vanished right after"));
    };
    if link.kind != "bridge" {
        return Err(internal!("{name:?} already exists but is not a bridge"));
    }
    match link.settings.accepts_routers {
        Some(false) => {}
        Some(true) => forget_routers(kernel, &link).map_err(failed)?,
        None => ignore_routers(&link.name),
    }
    let mut changes = Vec::new();
    if conf.promiscuous && !link.promiscuous {
        changes.push(Change::set_promiscuous(name));
    }
    if !link.up {
        changes.push(Change::set_up(name));
    }
    if !changes.is_empty() {
        kernel.apply(changes).map_err(failed)?;
    }
    Ok(link)
}

/// Whoever is on a link that is not a bridge's port, or gets past the bridge to the port, shall not set
/// the host's routes. Without IPv6 in the kernel there is no such setting.
pub(super) fn ignore_routers(name: &str) {
    let _ = kernel::set(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
}

fn forget_routers(kernel: &mut Kernel, link: &Link) -> Result<(), KernelError> {
    ignore_routers(&link.name);
    if !link.up {
        // Nobody can have told it anything.
        return Ok(());
    }
    kernel.forget_announced_routes(link.index)?;
    let made_up = kernel.announced_addresses(link.index)?;
    let remove = |address: &IpNet| Change::delete_address(link.index, &link.name, *address);
    kernel.apply(made_up.iter().map(remove).collect())
}

/// What every ADD must find true of a bridge that is its pods' gateway, or make true: it has the gateways'
/// addresses, and both the host and the bridge forward.
pub(super) fn ensure_gateway(
    kernel: &mut Kernel,
    conf: &BridgeConf,
    bridge: &Link,
    addresses: &[IpNet],
) -> Result<()> {
    ensure_addresses(kernel, conf, bridge, addresses)
        .map_err(|error| error.context("failed to set bridge addr"))?;
    enable_forwarding(bridge, addresses).or_cni("failed to enable forwarding")
}

/// Gives the bridge the gateways' addresses. One that does not fit is replaced or refused.
fn ensure_addresses(
    kernel: &mut Kernel,
    conf: &BridgeConf,
    bridge: &Link,
    wanted: &[IpNet],
) -> Result<()> {
    let present = kernel.addresses(Some(bridge.index))?;
    let (name, mut changes) = (&bridge.name, Vec::new());
    let missing = |address: &&IpNet| !present.contains(address);
    if bridge.settings.ipv6_disabled == Some(true)
        && wanted.iter().filter(missing).any(|address| address.addr().is_ipv6())
    {
        // Without that it takes no address. What comes of it, the next change tells.
        let _ = kernel::set(&format!("net/ipv6/conf/{}/disable_ipv6", bridge.name), "0");
    }
    for address in wanted.iter().filter(missing) {
        for other in present.iter().filter(|other| are_rivals(other, address)) {
            if !conf.force_address {
                return Err(internal!("{name:?} already has an IP address different from {address}").with_details(format!(
                    "the node has another subnet now: once the pods of the old one are gone, ip link del {name}"
                )));
            }
            changes.push(Change::delete_address(bridge.index, name, *other));
        }
        // Its own network begins here: nobody else can have its gateway's address.
        let add = Change::add_address(bridge.index, name, *address, false);
        changes.push(add.unless(&[libc::EEXIST]));
        // A bridge that was made without one has the lowest of its ports', and none without a port.
        let own = bridge.mac.filter(Mac::is_unicast);
        changes.extend(own.map(|mac| Change::set_mac(name, mac)));
    }
    if !changes.is_empty() {
        kernel.apply(changes)?;
    }
    Ok(())
}

/// IPv4 has one network on a bridge, IPv6 several as long as they do not overlap.
fn are_rivals(present: &IpNet, wanted: &IpNet) -> bool {
    match (present, wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.addr()) || b.contains(&a.addr()),
        _ => false,
    }
}

fn enable_forwarding(bridge: &Link, addresses: &[IpNet]) -> std::io::Result<()> {
    let settings = bridge.settings;
    for (ipv4, family, of_host, of_bridge) in [
        (true, "ipv4", "net/ipv4/ip_forward", settings.ipv4_forwarding),
        (false, "ipv6", "net/ipv6/conf/all/forwarding", settings.ipv6_forwarding),
    ] {
        if !addresses.iter().any(|address| address.addr().is_ipv4() == ipv4) {
            continue;
        }
        // The host's switch moves those of all its links.
        let moved = kernel::enable(of_host)?;
        if !moved && of_bridge == Some(false) {
            kernel::enable(&format!("net/{family}/conf/{}/forwarding", bridge.name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_allows_one_network_and_ipv6_several_that_do_not_overlap() {
        let rivals = |a: &str, b: &str| are_rivals(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(rivals("10.1.2.1/24", "10.1.3.1/24"));
        assert!(rivals("fd00::1/64", "fd00::2/64"));
        assert!(!rivals("fd00::1/64", "fd00:0:0:1::1/64"));
        assert!(!rivals("10.1.2.1/24", "fd00::1/64"));
        assert!(!rivals("fe80::1/64", "fd00::1/64"));
    }
}
