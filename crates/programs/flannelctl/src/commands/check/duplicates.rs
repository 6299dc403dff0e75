//! Nodes that others take for one. Where no daemon runs that reports them, the leases of the store are judged.

use flannel_backend::{
    SAME_MACHINE, SharedIdentity, lease_name, link_identities, machine_fix, shared_values,
};
use flannel_common::OperatorCommands;
use flannel_lease::{Subnet, parse_machine_id};
use flannel_state::{Finding, Layer};

use super::node_context::{Network, NodeContext};

const LAYER: Layer = Layer::Lease;

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let unreported = context.networks.iter().filter(|network| !context.reports(network));
    let mut findings: Vec<Finding> =
        unreported.flat_map(|network| judge(network, context.commands)).collect();
    findings.extend(machine_id(id.as_deref().map(str::trim)));
    findings
}

fn judge(network: &Network, commands: OperatorCommands) -> Vec<Finding> {
    let come = || network.leases.iter().filter(|lease| !lease.attrs.backend_type.is_empty());
    let of =
        |shared: SharedIdentity, subnets: &[Subnet]| shared.finding(subnets, |_| None, commands);
    let mut findings = Vec::new();
    if !network.encapsulation.tells_nodes_apart() {
        let addresses = come().flat_map(|it| it.attrs.public_addresses().map(|ip| (ip, it.subnet)));
        let shared = shared_values(addresses);
        findings.extend(shared.iter().map(|(ip, nets)| of(SharedIdentity::Address(*ip), nets)));
    }
    let links =
        come().flat_map(|it| link_identities(&it.attrs).into_iter().map(|id| (id, it.subnet)));
    let links = shared_values(links);
    findings.extend(links.iter().map(|(link, nets)| of(SharedIdentity::Link(*link), nets)));
    let machines = shared_values(come().filter_map(|it| Some((it.attrs.machine?, it.subnet))));
    findings.extend(machines.values().map(|nets| of(SharedIdentity::Machine, nets)));
    let former = network
        .own_machine
        .filter(|machine| network.own.is_empty() && !machines.contains_key(machine));
    let mut leases = network.leases.iter();
    let former = former.and_then(|id| leases.find(|lease| lease.attrs.machine == Some(id)));
    findings.extend(former.map(|lease| {
        let name = lease_name(&lease.subnet);
        let fix = machine_fix(&commands.release(&name, None));
        let about = format!("the lease {name} is of a node with this machine's id");
        Finding::warning(LAYER, about, SAME_MACHINE, fix)
    }));
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
    let why = "the node's MAC in the tunnel is another one after each boot, if the store has forgotten it";
    Some(Finding::warning(LAYER, what, why, "systemd-machine-id-setup"))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use flannel_lease::{Lease, LeaseAttrs};

    use super::*;

    #[test]
    fn leases_of_one_machine_are_named_also_before_this_node_has_one() {
        let lease = |subnet: &str, machine| Lease {
            subnet: subnet.parse().unwrap(),
            attrs: LeaseAttrs {
                machine: NonZeroU64::new(machine),
                backend_type: "vxlan".into(),
                ..LeaseAttrs::default()
            },
        };
        let others =
            [lease("10.244.2.0-24", 2), lease("10.244.3.0-24", 3), lease("10.244.4.0-24", 0)];
        let found = |own_machine, has_lease: bool| {
            let own_lease = has_lease.then(|| lease("10.244.1.0-24", own_machine));
            let network = Network {
                own: if has_lease { Network::sample().own } else { Vec::new() },
                own_machine: NonZeroU64::new(own_machine),
                leases: own_lease.into_iter().chain(others.clone()).collect(),
                ..Network::sample()
            };
            let found = judge(&network, OperatorCommands::default());
            found.into_iter().map(|one| one.about).collect::<Vec<_>>()
        };
        assert!(found(1, true).is_empty());
        assert!(found(0, true).is_empty(), "what is not told is not the same");
        assert_eq!(
            found(2, true),
            ["the leases 10.244.1.0/24 and 10.244.2.0/24 have one machine id"]
        );
        let former = "the lease 10.244.3.0/24 is of a node with this machine's id";
        assert_eq!(found(3, false), [former]);
        assert!(found(1, false).is_empty());
    }

    #[test]
    fn a_machine_id_that_is_none_is_said() {
        assert_eq!(machine_id(Some("3d1219c7c4c5404aaa1f6d2a48adfda4")), None);
        assert!(machine_id(Some("uninitialized")).is_some());
        assert!(machine_id(None).is_some());
    }
}
