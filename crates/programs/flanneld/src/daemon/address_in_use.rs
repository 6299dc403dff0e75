//! Whether another machine lives at this node's public address. A lease that bears it is this node's own, of some time
//! before, or another node's: with one address and one subnet neither could be relied upon, and nobody would see why.
//!
//! Nobody is asked when this node wrote the lease itself, or when its device is still there. Else whoever has the
//! address is asked: its flanneld by a probe, its kernel by ARP or neighbour discovery. Where neither answers, the machine is
//! gone or cannot be asked, and the lease goes to this node, as with every flannel.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use flannel_common::{Mac, Task};
use flannel_entries::facts::{Facts, Interface};
use flannel_lease::{Lease, LeaseAttrs, Subnet};
use flannel_link::{AddressQuestion, AnswerTiming};
use flannel_probe::ask_once;
use flannel_probe::verdict::AskOutcome;
use ipnet::IpNet;

use super::identity::{address, own_addresses};
use super::network::JoinedNetwork;
use super::probing::known_by;

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
    let mut shared =
        lease.attrs.public_addresses().filter(|ip| now.public_addresses().any(|own| own == *ip));
    let ip = shared.next()?;
    let how = match own_addresses(facts).any(|own| own == ip) {
        true => answers_beside_us(facts, ip).await,
        false => answers_elsewhere(network, facts, lease, ip).await,
    }?;
    let (subnet, address) = (lease.subnet, address(&lease.attrs));
    let machine = machine_words(lease.attrs.machine, now.machine);
    Some(AddressInUse { subnet, address, how, machine })
}

/// This node has the address, and so may another one on the link.
async fn answers_beside_us(facts: &Facts, ip: IpAddr) -> Option<String> {
    match answers_on_link(facts, ip, |found| found.addr() == ip).await {
        Some(how) => Some(how),
        None => found_by_kernel(facts, ip),
    }
}

/// The kernel asks by itself before it uses an address of IPv6, and remembers that another machine has it.
fn found_by_kernel(facts: &Facts, ip: IpAddr) -> Option<String> {
    let has_duplicate = |link: &&Interface| {
        link.addresses.iter().any(|found| found.addr.addr() == ip && found.duplicate)
    };
    let link = facts.interfaces.iter().find(has_duplicate)?;
    Some(format!("the kernel found it on another machine of {} (dadfailed)", link.name))
}

/// Another machine on the link whose network holds the address.
async fn answers_on_link(
    facts: &Facts,
    ip: IpAddr,
    holds: impl Fn(&IpNet) -> bool,
) -> Option<String> {
    let is_near = |link: &&Interface| {
        link.up && !link.loopback && link.addresses.iter().any(|found| holds(&found.addr))
    };
    let link = facts.interfaces.iter().find(is_near)?;
    let other = find_on_link(link, ip).await.unwrap_or_else(|error| {
        tracing::debug!("cannot ask on {} who else has {ip}: {error}", link.name);
        None
    })?;
    Some(format!("the machine with the hardware address {other} on {} has it", link.name))
}

/// The hardware address of another machine on the link that has this address.
pub(super) async fn find_on_link(link: &Interface, address: IpAddr) -> io::Result<Option<Mac>> {
    let own_mac = link.mac.ok_or(io::ErrorKind::Unsupported)?;
    let question =
        AddressQuestion { link_index: link.index, own_mac, from: source(link, address), address };
    let asked =
        Task::spawn_blocking("address-question", move || question.ask(AnswerTiming::ANYBODY));
    Ok(asked.await.map_err(io::Error::other)??.first().copied())
}

/// The address to ask from. In IPv6, asking from none would make a machine that is about to use the address give it up.
fn source(link: &Interface, address: IpAddr) -> Option<IpAddr> {
    let own = link.addresses.iter().map(|found| found.addr.addr());
    own.into_iter().find(|own| match own {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() && address.is_ipv6() && *own != address,
    })
}

async fn answers_elsewhere(
    network: &JoinedNetwork,
    facts: &Facts,
    lease: &Lease,
    ip: IpAddr,
) -> Option<String> {
    let Some(port) = lease.attrs.probe_port else {
        // The Go flannel answers no probes, but its machine's kernel answers.
        return answers_on_link(facts, ip, |found| found.contains(&ip)).await;
    };
    let underlay = network.underlay();
    let from = match ip {
        IpAddr::V4(_) => underlay.v4.map(IpAddr::V4),
        IpAddr::V6(_) => underlay.v6.map(IpAddr::V6),
    };
    let to = SocketAddr::new(ip, port.get());
    match ask_once(from?, to, known_by(&lease.subnet)?).await {
        AskOutcome::Answered(_) => Some(format!("its flanneld answers at {to}")),
        AskOutcome::Refused | AskOutcome::Silent | AskOutcome::Unsent(_) => None,
    }
}

fn machine_words(theirs: Option<NonZeroU64>, ours: Option<NonZeroU64>) -> &'static str {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) if theirs != ours => " (the lease has another machine id)",
        (Some(_), Some(_)) => " (it has this node's machine id, as a copy of one machine has)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use flannel_entries::facts::InterfaceAddress;

    use super::*;

    fn card(addresses: &[(&str, bool)]) -> Interface {
        let address = |(text, duplicate): &(&str, bool)| InterfaceAddress {
            addr: text.parse().expect("an address"),
            permanent: true,
            temporary: false,
            deprecated: false,
            duplicate: *duplicate,
        };
        Interface {
            index: 2,
            name: "eth0".parse().expect("a name"),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            mtu: 1500,
            up: true,
            loopback: false,
            master: None,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    #[test]
    fn an_address_that_the_kernel_found_on_another_machine_is_in_use() {
        let card = card(&[("fd00:100::1/64", true), ("fd00:100::2/64", false)]);
        let facts = Facts { interfaces: vec![card], ..Facts::default() };
        let found = |text: &str| found_by_kernel(&facts, text.parse().expect("an address"));
        assert!(found("fd00:100::1").is_some_and(|how| how.contains("eth0 (dadfailed)")));
        assert_eq!(found("fd00:100::2"), None);
    }

    #[test]
    fn an_ipv6_address_is_asked_for_from_the_links_own_and_an_ipv4_one_from_none() {
        let card =
            card(&[("192.0.2.1/24", false), ("fd00:100::1/64", false), ("fe80::1/64", false)]);
        let from = |text: &str| source(&card, text.parse().expect("an address"));
        assert_eq!(from("192.0.2.9"), None);
        assert_eq!(from("fd00:100::1"), Some("fe80::1".parse().expect("an address")));
        assert_eq!(from("fe80::1"), None, "not from the address in question");
    }
}
