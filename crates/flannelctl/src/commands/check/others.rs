//! What other pod networks have left on this node.

use super::finding::Finding;
use super::surroundings::Surroundings;

const SUBJECT: &str = "others";

/// Whose devices begin like this, and what removes them.
const OTHERS: [(&str, &str, &str); 12] = [
    ("cilium_", "Cilium", "cilium-cleanup, or: ip link del "),
    ("lxc_health", "Cilium", "ip link del "),
    ("vxlan.calico", "Calico", "ip link del "),
    ("wireguard.cali", "Calico", "ip link del "),
    ("cali", "Calico", "restart that pod, or: ip link del "),
    ("weave", "Weave Net", "weave reset, or: ip link del "),
    ("vethwe-", "Weave Net", "weave reset, or: ip link del "),
    ("kube-bridge", "kube-router", "kube-router --cleanup-config, or: ip link del "),
    ("antrea-gw", "Antrea", "ovs-vsctl del-br br-int, or: ip link del "),
    ("genev_sys_", "Antrea or OVN", "ip link del "),
    ("ovn-k8s-", "OVN-Kubernetes", "ovs-vsctl del-br br-int, or: ip link del "),
    ("ovn0", "Kube-OVN", "ip link del "),
];
/// Their programs: what belongs to one that is running here is not left over.
const AGENTS: [(&str, &str); 7] = [
    ("cilium-agent", "Cilium"),
    ("calico-node", "Calico"),
    ("weaver", "Weave Net"),
    ("kube-router", "kube-router"),
    ("antrea-agent", "Antrea"),
    ("ovnkube", "OVN-Kubernetes"),
    ("kube-ovn-daemon", "Kube-OVN"),
];

pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let devices: Vec<&str> =
        around.facts.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    judge(&devices, &super::managers::running())
}

fn judge(devices: &[&str], programs: &[String]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (prefix, whose, fix) in OTHERS {
        let Some(first) = devices.iter().find(|name| name.starts_with(prefix)) else { continue };
        if findings.iter().any(|finding| finding.what.contains(whose)) {
            continue;
        }
        let runs = AGENTS.iter().any(|(agent, of)| {
            *of == whose && programs.iter().any(|program| program.starts_with(agent))
        });
        findings.push(match runs {
            true => Finding::warning(
                SUBJECT,
                format!("{whose} runs on this node beside flannel (device {first})"),
                "two pod networks write routes and rules, each for itself",
                "take one of them off this node",
            ),
            false => Finding::warning(
                SUBJECT,
                format!("the device {first} is of {whose}, which does not run here"),
                "its routes and rules may lead packets of pods elsewhere, or drop them",
                format!("{fix}{first}; a restart of the machine removes its rules, too"),
            ),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_other_networks_are_named_once_and_ours_never() {
        assert_eq!(
            judge(
                &["lo", "eth0", "flannel.1", "cni0", "veth1", "docker0", "calibration"][..6],
                &[]
            ),
            []
        );
        let found = judge(&["cali12345", "vxlan.calico", "eth0"], &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].fix.contains("ip link del vxlan.calico"), "{found:?}");
        let found = judge(&["cilium_host", "cilium_net"], &["cilium-agent".to_owned()]);
        assert!(found[0].what.contains("runs on this node"), "{found:?}");
    }
}
