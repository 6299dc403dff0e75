//! What other pod networks have left on this node.

use flannel_nft::{SavedLine, read_saved};
use flannel_trace::firewall::output;

use super::node_context::NodeContext;
use crate::commands::daemon_process::processes;
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Others;

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

const CHAINS: [(&str, &str); 6] = [
    ("CILIUM_", "Cilium"),
    ("cali-", "Calico"),
    ("WEAVE", "Weave Net"),
    ("KUBE-ROUTER", "kube-router"),
    ("KUBE-NWPLCY", "kube-router"),
    ("ANTREA-", "Antrea"),
];

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let devices: Vec<&str> =
        context.host.facts.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let programs: Vec<String> = processes().map(|(_, name)| name).collect();
    let mut findings = judge(&devices, &programs);
    for tool in ["iptables", "ip6tables"] {
        let rules = output(&format!("{tool}-save"), &[]).unwrap_or_default();
        let found = chains(tool, &rules, &programs);
        // Of one network one finding.
        let is_new = |one: &(&str, Finding)| !findings.iter().any(|it| it.about.contains(one.0));
        let new: Vec<Finding> = found.into_iter().filter(is_new).map(|(_, it)| it).collect();
        findings.extend(new);
    }
    findings
}

fn runs(whose: &str, programs: &[String]) -> bool {
    let mut agents = AGENTS.iter().filter(|(_, of)| *of == whose);
    agents.any(|(agent, _)| programs.iter().any(|program| program.starts_with(agent)))
}

/// `rules`: as `iptables-save` writes them. With each finding, whose rules they are.
fn chains(tool: &str, rules: &str, programs: &[String]) -> Vec<(&'static str, Finding)> {
    let chain = |line| match line {
        SavedLine::Chain { name, .. } => Some(name),
        SavedLine::Table(_) | SavedLine::Rule(_) => None,
    };
    let names: Vec<&str> = read_saved(rules).filter_map(chain).collect();
    let mut findings = Vec::new();
    for (prefix, whose) in CHAINS {
        let Some(first) = names.iter().find(|name| name.starts_with(prefix)) else { continue };
        if !runs(whose, programs) {
            let what =
                format!("the chain {first} of {tool} is of {whose}, which does not run here");
            let why = "its rules may drop packets of pods, or lead them elsewhere";
            let fix = format!("{tool}-save | grep -v {prefix} | {tool}-restore");
            let finding = Finding::warning(LAYER, what, why, fix);
            findings.push((whose, finding));
        }
    }
    findings
}

fn judge(devices: &[&str], programs: &[String]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (prefix, whose, fix) in OTHERS {
        let Some(first) = devices.iter().find(|name| name.starts_with(prefix)) else { continue };
        if findings.iter().any(|finding| finding.about.contains(whose)) {
            continue;
        }
        findings.push(match runs(whose, programs) {
            true => Finding::warning(
                LAYER,
                format!("{whose} runs on this node beside flannel (device {first})"),
                "two pod networks write routes and rules, each for itself",
                "take one of them off this node",
            ),
            false => Finding::warning(
                LAYER,
                format!("the device {first} is of {whose}, which does not run here"),
                "its routes and rules may lead packets of pods elsewhere, or drop them",
                format!("{fix}{first}"),
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
        assert!(found[0].about.contains("runs on this node"), "{found:?}");
    }

    #[test]
    fn chains_of_other_networks_are_named_unless_they_run_here_and_ours_never() {
        let ours = "*filter\n:FORWARD ACCEPT [0:0]\n:FLANNEL-FWD - [0:0]\n:KUBE-FORWARD - [0:0]\n";
        assert_eq!(chains("iptables", ours, &[]), []);
        let theirs = format!(
            "{ours}:cali-FORWARD - [0:0]\n:cali-INPUT - [0:0]\n-A FORWARD -j cali-FORWARD\n"
        );
        let found = chains("ip6tables", &theirs, &[]);
        let [(whose, finding)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(*whose, "Calico");
        assert!(finding.about.starts_with("the chain cali-FORWARD of ip6tables"), "{finding:?}");
        assert_eq!(finding.fix, "ip6tables-save | grep -v cali- | ip6tables-restore");
        assert_eq!(chains("iptables", &theirs, &["calico-node".to_owned()]), []);
    }
}
