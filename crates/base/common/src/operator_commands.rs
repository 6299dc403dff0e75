//! Commands that messages tell an operator to type. They depend on where leases are stored and on how daemons are
//! run: advice that does not work where it is given is worse than none.

use std::fmt::Display;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperatorCommands {
    /// Whether a lease is the podCIDR of a Node, and ends with it.
    pub leases_are_nodes: bool,
    pub in_pods: bool,
}

impl OperatorCommands {
    /// Commands for where this process runs; Kubernetes tells every pod where its API server is.
    pub fn here(leases_are_nodes: bool) -> Self {
        Self { leases_are_nodes, in_pods: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() }
    }

    /// Ends the lease of a node that is gone. A name that no Node can have is not repeated.
    pub fn release(self, subnet: impl Display, node: Option<&str>) -> String {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let may_be = |name: &&str| {
            name.len() <= 253 && name.bytes().all(|it| is_plain(it) || it == b'-' || it == b'.')
        };
        match node.filter(may_be) {
            _ if !self.leases_are_nodes => format!("`flannelctl release {subnet}`"),
            Some(node) => format!("`kubectl delete node {node}`"),
            None => format!(
                "`kubectl delete node NAME`, of the Node with the podCIDR {subnet} (`kubectl get nodes -o \
                 custom-columns=NAME:.metadata.name,CIDR:.spec.podCIDRs`)"
            ),
        }
    }

    pub fn restart(self, address: impl Display) -> String {
        match self.in_pods {
            false => format!("on {address}: `systemctl restart flanneld`"),
            true => format!("delete the pod of flannel there ({})", Self::find_pod(address)),
        }
    }

    pub fn restart_here(self) -> String {
        match self.in_pods {
            false => "`systemctl restart flanneld`".to_owned(),
            true => format!(
                "delete the pod of flannel on this node ({}): traffic goes on",
                Self::find_pod("NODE")
            ),
        }
    }

    /// Shows whether the daemon of the node at this address runs.
    pub fn show_daemon(self, address: impl Display) -> String {
        match self.in_pods {
            false => format!("on {address}: `systemctl status flanneld`"),
            true => Self::find_pod(address),
        }
    }

    /// Command that finds the flannel pod of a node: it has the node's address.
    fn find_pod(address: impl Display) -> String {
        format!("`kubectl get pods -A -o wide -l app=flannel | grep {address}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_by_what_its_store_knows() {
        let host = OperatorCommands::default();
        let kube = OperatorCommands { leases_are_nodes: true, in_pods: true };
        assert_eq!(host.release("10.5.1.0/24", Some("node-1")), "`flannelctl release 10.5.1.0/24`");
        assert_eq!(kube.release("10.5.1.0/24", Some("node-1")), "`kubectl delete node node-1`");
        let unnamed = kube.release("10.5.1.0/24", Some("x; rm -rf /"));
        assert!(unnamed.contains("10.5.1.0/24") && !unnamed.contains("rm -rf"), "{unnamed}");
    }

    #[test]
    fn a_daemon_is_restarted_by_who_runs_it() {
        let host = OperatorCommands::default();
        let kube = OperatorCommands { in_pods: true, ..host };
        for (said, in_pods) in [
            (host.restart("192.0.2.1"), false),
            (host.restart_here(), false),
            (host.show_daemon("192.0.2.1"), false),
            (kube.restart("192.0.2.1"), true),
            (kube.restart_here(), true),
            (kube.show_daemon("192.0.2.1"), true),
        ] {
            let (systemd, kubectl) = (said.contains("systemctl"), said.contains("kubectl"));
            assert_eq!((systemd, kubectl), (!in_pods, in_pods), "{said}");
        }
    }
}
