//! The host's side: the bridge, its addresses, and forwarding.

use flannel_netlink::Mac;
use ipnet::IpNet;

use super::conf::BridgeConf;
use crate::kernel::{self, Change, Kernel, KernelError, Link};

#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("failed to create bridge {bridge:?}: {error}")]
    Bridge { bridge: String, error: KernelError },
    #[error("{0:?} already exists but is not a bridge")]
    NotABridge(String),
    #[error("failed to create bridge {0:?}: it vanished right after")]
    Vanished(String),
    #[error(
        "failed to set bridge addr: {bridge:?} already has an IP address different from {address}"
    )]
    OtherAddress { bridge: String, address: IpNet },
    #[error("failed to set bridge addr: {0}")]
    Address(KernelError),
    #[error("failed to enable forwarding: {0}")]
    Forwarding(std::io::Error),
}

/// The bridge, made if need be, and up.
pub(super) fn ensure_bridge(
    kernel: &mut Kernel,
    conf: &BridgeConf,
    rng: &mut fastrand::Rng,
) -> Result<Link, HostError> {
    let failed = |error| HostError::Bridge { bridge: conf.bridge.clone(), error };
    let found = match kernel.link(&conf.bridge).map_err(failed)? {
        Some(link) => Some(link),
        None => {
            kernel
                .apply(vec![Change::make_bridge(&conf.bridge, Mac::random(rng), conf.mtu)])
                .map_err(failed)?;
            // Routers of the pods' making shall not set the host's routes.
            let _ = kernel::set(&format!("net/ipv6/conf/{}/accept_ra", conf.bridge), "0");
            kernel.link(&conf.bridge).map_err(failed)?
        }
    };
    let link = found.ok_or_else(|| HostError::Vanished(conf.bridge.clone()))?;
    if link.kind != "bridge" {
        return Err(HostError::NotABridge(conf.bridge.clone()));
    }
    let mut changes = Vec::new();
    if conf.promiscuous && !link.promiscuous {
        changes.push(Change::set_promiscuous(link.index, &conf.bridge));
    }
    if !link.up {
        changes.push(Change::set_up(link.index, &conf.bridge));
    }
    if !changes.is_empty() {
        kernel.apply(changes).map_err(failed)?;
    }
    Ok(link)
}

/// Gives the bridge the gateways' addresses. One that does not fit is replaced if that is wanted, and
/// a reason to refuse if it is not.
pub(super) fn ensure_addresses(
    kernel: &mut Kernel,
    conf: &BridgeConf,
    bridge: &Link,
    wanted: &[IpNet],
) -> Result<(), HostError> {
    let present = kernel.addresses(Some(bridge.index)).map_err(HostError::Address)?;
    let mut changes = Vec::new();
    for address in wanted.iter().filter(|address| !present.contains(address)) {
        for other in present.iter().filter(|other| are_rivals(other, address)) {
            if !conf.force_address {
                return Err(HostError::OtherAddress {
                    bridge: conf.bridge.clone(),
                    address: *address,
                });
            }
            changes.push(Change::delete_address(bridge.index, &conf.bridge, *other));
        }
        // Its own network begins here: nobody else can have its gateway's address.
        changes.push(Change::add_address(bridge.index, &conf.bridge, *address, false).or_exists());
        // A bridge that was made without one of its own takes the lowest among its ports', and none
        // when it has no port.
        let own = bridge.mac.filter(Mac::is_unicast);
        changes.extend(own.map(|mac| Change::set_mac(bridge.index, &conf.bridge, mac)));
    }
    if !changes.is_empty() {
        kernel.apply(changes).map_err(HostError::Address)?;
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

pub(super) fn enable_forwarding(addresses: &[IpNet]) -> Result<(), HostError> {
    for (ipv4, path) in [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")] {
        if addresses.iter().any(|address| address.addr().is_ipv4() == ipv4) {
            kernel::enable(path).map_err(HostError::Forwarding)?;
        }
    }
    Ok(())
}

impl From<HostError> for crate::protocol::Error {
    fn from(error: HostError) -> Self {
        let told = Self::internal(&error);
        match error {
            HostError::OtherAddress { bridge, .. } => told.with_details(format!(
                "the node has another subnet now: once the pods of the old one are gone, ip link del {bridge}"
            )),
            _ => told,
        }
    }
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
