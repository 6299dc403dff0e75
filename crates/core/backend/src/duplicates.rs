//! Duplicates: leases of several nodes with one public address, MAC, key or machine id, which others take for one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use flannel_common::OperatorCommands;
use flannel_lease::Subnet;
use flannel_state::{Finding, Layer};

use crate::LinkIdentity;

const MAX_COMMANDS: usize = 10;

/// An identity that several leases share, and should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedIdentity {
    Address(IpAddr),
    Link(LinkIdentity),
    Machine,
}

/// Values that more than one lease has, with those leases.
pub fn shared_values<T: Copy + Ord>(
    claims: impl Iterator<Item = (T, Subnet)>,
) -> BTreeMap<T, Vec<Subnet>> {
    let mut first: BTreeMap<T, Subnet> = BTreeMap::new();
    let mut shared: BTreeMap<T, Vec<Subnet>> = BTreeMap::new();
    for (value, subnet) in claims {
        match first.get(&value) {
            None => drop(first.insert(value, subnet)),
            Some(one) if *one == subnet => {}
            Some(one) => {
                let subnets = shared.entry(value).or_insert_with(|| vec![*one]);
                if !subnets.contains(&subnet) {
                    subnets.push(subnet);
                }
            }
        }
    }
    shared
}

impl SharedIdentity {
    /// Finding about these leases. Which of the nodes is alive cannot be told from here, so it names no single lease
    /// to end. `owner` names a lease's node, where the store knows it.
    pub fn finding<'a>(
        &self,
        subnets: &[Subnet],
        owner: impl Fn(&Subnet) -> Option<&'a str>,
        commands: OperatorCommands,
    ) -> Finding {
        let names: Vec<String> = subnets.iter().map(lease_name).collect();
        let leases = format!("the leases {}", names.join(" and "));
        let release = || {
            let each = subnets.iter().map(|it| commands.release(lease_name(it), owner(it)));
            each.take(MAX_COMMANDS).collect::<Vec<_>>().join(" or ")
        };
        match self {
            Self::Address(ip) => Finding::broken(
                Layer::Lease,
                ip.to_string(),
                format!(
                    "{leases} announce one public address, {ip}: packets for all of them go to one node"
                ),
                format!(
                    "give each node its own address (`flanneld --public-ip`); if one of these nodes is gone for good, \
                     end its lease, and not that of a node that runs: {}",
                    release()
                ),
            ),
            Self::Link(identity) => Finding::broken(
                Layer::Lease,
                identity.to_string(),
                format!(
                    "{leases} announce it: packets go to the node that had it first, and the others get nothing; they \
                     are copies of one machine, or one announces what is not its own"
                ),
                format!(
                    "{}; of a copied machine: `rm /etc/machine-id; systemd-machine-id-setup` before",
                    identity.fix()
                ),
            ),
            Self::Machine => Finding::warning(
                Layer::Lease,
                format!("{leases} have one machine id"),
                SAME_MACHINE,
                machine_fix(&release()),
            ),
        }
    }
}

/// Consequence of nodes that are copies of one machine.
pub const SAME_MACHINE: &str = "copies of one machine, or a lease of this machine from before: DHCP gives copies one \
                                address, and flannel derives the MAC of its device from it, so others sooner or later take \
                                them for one node";

pub fn machine_fix(release: &str) -> String {
    format!(
        "on the copy: rm /etc/machine-id; systemd-machine-id-setup; reboot; if a lease is of a node that is gone: {release}"
    )
}

/// Name of a lease for `flannelctl`: the subnet of the first family.
pub fn lease_name(subnet: &Subnet) -> String {
    subnet.nets().next().map(|net| net.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_several_leases_are_found_with_each_lease_once() {
        let subnet =
            |number: u8| -> Subnet { format!("10.5.{number}.0-24").parse().expect("a key") };
        let claims = [(7, 1), (8, 2), (7, 3), (7, 1), (7, 3), (9, 9), (9, 9)];
        let shared = shared_values(claims.iter().map(|(value, of)| (*value, subnet(*of))));
        assert_eq!(shared, BTreeMap::from([(7, vec![subnet(1), subnet(3)])]));
    }
}
