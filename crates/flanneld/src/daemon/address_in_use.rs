//! Whether another machine lives at this node's public address. A lease that bears it is this node's own, of some time
//! before, or another node's: with one address and one subnet neither could be relied upon, and nobody would see why.
//!
//! Nobody is asked when this node wrote the lease itself, or when its device is still there. Else whoever has the
//! address is asked: its flanneld by a probe, its kernel by ARP. Where neither answers, the machine is gone or cannot be
//! asked, and the lease goes to this node, as with every flannel.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use flannel_kernel::{Facts, Interface, Mac};
use flannel_lease::{Lease, LeaseAttrs, Subnet};
use flannel_probe::verdict::Outcome;
use flannel_probe::{ask_once, duplicate_address};
use ipnet::IpNet;

use super::identity::{address, own_addresses};
use super::network::JoinedNetwork;
use super::probing::known_by;

/// Another node that runs and has the same public address.
#[derive(Debug, thiserror::Error)]
#[error(
    "the lease {subnet:#} with this node's public address {address} is of another node that is running: {how}{machine}; \
     two nodes cannot share one address. Give this node its own (--public-ip or --iface); if it is to replace that node, \
     stop flanneld there first"
)]
pub(super) struct AddressInUse {
    pub(super) subnet: Subnet,
    pub(super) address: String,
    how: String,
    machine: &'static str,
}

/// Asks whoever has this node's public address, which `lease` bears too.
pub(super) async fn find_other_machine(
    network: &JoinedNetwork,
    facts: &Facts,
    now: &LeaseAttrs,
    lease: &Lease,
) -> Option<AddressInUse> {
    let mut shared = flannel_backend::public_addresses(&lease.attrs)
        .filter(|ip| flannel_backend::public_addresses(now).any(|own| own == *ip));
    let ip = shared.next()?;
    let how = match is_on_this_host(facts, ip) {
        true => answers_arp_beside_us(facts, ip).await,
        false => answers_elsewhere(network, facts, lease, ip).await,
    }?;
    Some(AddressInUse {
        subnet: lease.subnet,
        address: address(&lease.attrs),
        how,
        machine: machine_words(lease.attrs.machine, now.machine),
    })
}

fn is_on_this_host(facts: &Facts, ip: IpAddr) -> bool {
    own_addresses(facts).any(|own| own == ip)
}

/// This node has the address, and so may another one on the link.
async fn answers_arp_beside_us(facts: &Facts, ip: IpAddr) -> Option<String> {
    answers_arp(facts, ip, |found| found.addr() == ip).await
}

/// Another machine on the link whose network holds the address.
async fn answers_arp(facts: &Facts, ip: IpAddr, holds: impl Fn(&IpNet) -> bool) -> Option<String> {
    let IpAddr::V4(v4) = ip else { return None };
    let is_near = |link: &&Interface| {
        link.up && !link.loopback && link.addresses.iter().any(|found| holds(&found.addr))
    };
    let link = facts.interfaces.iter().find(is_near)?;
    let other = Mac(duplicate_address(link.index, link.mac?.0, v4).await?);
    Some(format!("the machine with the hardware address {other} on {} has it", link.name))
}

/// The address is not on this host: it is a NAT's, or another machine's.
async fn answers_elsewhere(
    network: &JoinedNetwork,
    facts: &Facts,
    lease: &Lease,
    ip: IpAddr,
) -> Option<String> {
    let Some(port) = lease.attrs.probe_port else {
        // The Go flannel answers no probes, but its machine answers ARP.
        return answers_arp(facts, ip, |found| found.contains(&ip)).await;
    };
    let underlay = network.underlay();
    let from = match ip {
        IpAddr::V4(_) => underlay.v4.map(IpAddr::V4),
        IpAddr::V6(_) => underlay.v6.map(IpAddr::V6),
    };
    let to = SocketAddr::new(ip, port.get());
    match ask_once(from?, to, known_by(&lease.subnet)?).await {
        Outcome::Answered(_) => Some(format!("its flanneld answers at {to}")),
        Outcome::Refused | Outcome::Silent | Outcome::Unsent(_) => None,
    }
}

fn machine_words(theirs: Option<NonZeroU64>, ours: Option<NonZeroU64>) -> &'static str {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) if theirs != ours => " (the lease has another machine id)",
        (Some(_), Some(_)) => " (it has this node's machine id, as a copy of one machine has)",
        _ => "",
    }
}
