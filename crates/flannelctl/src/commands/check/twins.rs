//! Nodes that are one to the others: with the same public address, the same MAC in the tunnel, or the same machine id,
//! as copies of one machine have them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU64;

use flannel_common::OperatorCommands;
use flannel_lease::parse_machine_id;

use super::finding::Finding;
use super::surroundings::{Network, Surroundings};

const SUBJECT: &str = "twins";

pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let mut findings: Vec<Finding> =
        around.networks.iter().flat_map(|it| judge(it, around.commands)).collect();
    findings.extend(machine_id(id.as_deref().map(str::trim)));
    findings
}

fn judge(network: &Network, commands: OperatorCommands) -> Vec<Finding> {
    let mut by_address: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    let mut by_mac: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut by_machine: BTreeMap<NonZeroU64, Vec<String>> = BTreeMap::new();
    let of =
        |subnets: &[ipnet::IpNet]| subnets.first().map(ToString::to_string).unwrap_or_default();
    for ip in network.public().into_iter().filter(|_| !network.own.is_empty()) {
        by_address.entry(ip).or_default().push(of(&network.own));
    }
    for mac in &network.own_macs {
        by_mac.entry(mac).or_default().push(of(&network.own));
    }
    if let Some(machine) = network.own_machine {
        by_machine.entry(machine).or_default().extend(network.own.first().map(ToString::to_string));
    }
    for peer in network.peers.iter().filter(|peer| !peer.backend.is_empty()) {
        for ip in &peer.public {
            by_address.entry(*ip).or_default().push(of(&peer.subnets));
        }
        for mac in &peer.macs {
            by_mac.entry(mac).or_default().push(of(&peer.subnets));
        }
        if let Some(machine) = peer.machine {
            by_machine.entry(machine).or_default().push(of(&peer.subnets));
        }
    }
    let mut findings = Vec::new();
    // Nodes behind one NAT are told apart by their keys.
    for (ip, subnets) in by_address.iter().filter(|_| network.backend != "wireguard") {
        if let [_, _, ..] = &subnets[..] {
            let releases: Vec<String> =
                subnets.iter().map(|it| commands.release(it, None)).collect();
            findings.push(Finding::broken(
                SUBJECT,
                format!("the leases {} have one public address, {ip}", subnets.join(" and ")),
                "others send the packets of all of them to one node: two nodes announce one address, or a lease is of a \
                 node that is gone",
                format!(
                    "give each node its own address (flanneld --public-ip); if one of these nodes is gone for good, end its \
                     lease, and not that of a node that runs: {}",
                    releases.join(" or ")
                ),
            ));
        }
    }
    for (mac, subnets) in &mut by_mac {
        // One node may have one for both families.
        subnets.dedup();
        if subnets.len() > 1 {
            findings.push(Finding::broken(
                SUBJECT,
                format!("the leases {} have one MAC in the tunnel, {mac}", subnets.join(" and ")),
                "others send to the one that had it first, and nothing to the others: they are copies of one machine, or one \
                 announces what is not its own",
                format!(
                    "NODE is the one that came second: {}, which gives its device another MAC; of a copied machine: rm \
                     /etc/machine-id; systemd-machine-id-setup before",
                    commands.restart("NODE")
                ),
            ));
        }
    }
    for (machine, subnets) in &by_machine {
        let what = match &subnets[..] {
            // This node has no lease.
            [one] if network.own.is_empty() && network.own_machine == Some(*machine) => {
                format!("the lease {one} is of a node with this machine's id")
            }
            [_, _, ..] => format!("the leases {} have one machine id", subnets.join(" and ")),
            _ => continue,
        };
        findings.push(Finding::warning(
            SUBJECT,
            format!("{what}: copies of one machine, or a lease of this machine from before"),
            "DHCP gives copies one address, and flannel makes the address of its device from it: sooner or later others \
             take them for one node",
            format!(
                "on the copy: rm /etc/machine-id; systemd-machine-id-setup; reboot; if a lease is of a node that is gone: \
                 {}",
                commands.release("SUBNET", None)
            ),
        ));
    }
    findings
}

fn machine_id(id: Option<&str>) -> Option<Finding> {
    if id.is_some_and(|id| parse_machine_id(id).is_some()) {
        return None;
    }
    let what = match id {
        None => "this machine has no /etc/machine-id".to_owned(),
        Some(id) => format!("/etc/machine-id is {id:?}, which is not a machine id"),
    };
    Some(Finding::warning(
        SUBJECT,
        what,
        "the node's MAC in the tunnel is another one after each boot, if the store has forgotten it",
        "systemd-machine-id-setup",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_trace::Peer;

    #[test]
    fn leases_of_one_machine_are_named_also_before_this_node_has_one() {
        let peer = |subnet: &str, machine| Peer {
            subnets: vec![subnet.parse().unwrap()],
            public: Vec::new(),
            macs: Vec::new(),
            machine: NonZeroU64::new(machine),
            probe_port: None,
            backend: "vxlan".to_owned(),
        };
        let peers =
            || vec![peer("10.244.2.0/24", 2), peer("10.244.3.0/24", 3), peer("10.244.4.0/24", 0)];
        let network = |own_machine, own| Network {
            own,
            own_machine: NonZeroU64::new(own_machine),
            peers: peers(),
            ..Network::sample()
        };
        let own = || Network::sample().own;
        assert_eq!(judge(&network(1, own()), OperatorCommands::default()), []);
        assert_eq!(
            judge(&network(0, own()), OperatorCommands::default()),
            [],
            "what is not told is not the same"
        );
        let found = judge(&network(2, own()), OperatorCommands::default());
        assert!(
            found[0].what.starts_with("the leases 10.244.1.0/24 and 10.244.2.0/24 have one"),
            "{found:?}"
        );
        let found = judge(&network(3, Vec::new()), OperatorCommands::default());
        assert!(
            found[0].what.starts_with("the lease 10.244.3.0/24 is of a node with"),
            "{found:?}"
        );
        assert_eq!(judge(&network(1, Vec::new()), OperatorCommands::default()), []);
    }

    #[test]
    fn a_machine_id_that_is_none_is_said() {
        assert_eq!(machine_id(Some("3d1219c7c4c5404aaa1f6d2a48adfda4")), None);
        assert!(machine_id(Some("uninitialized")).is_some());
        assert!(machine_id(None).is_some());
    }
}
