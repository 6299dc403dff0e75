//! What a lab shall look like: plain data, so that it can be handed to another process.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{LabError, Result};
use crate::kubernetes::KubernetesSpec;

/// Address families of an underlay or an overlay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// Both.
    #[default]
    Dual,
}

impl Families {
    /// Whether IPv4 is in it.
    pub fn v4(self) -> bool {
        self != Self::Ipv6
    }

    /// Whether IPv6 is in it.
    pub fn v6(self) -> bool {
        self != Self::Ipv4
    }
}

/// A whole lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabSpec {
    /// How many nodes.
    pub nodes: u16,
    /// How many underlay networks, joined by the switch as a router.
    pub segments: u8,
    /// Nodes that are not in the segment that their number gives them.
    pub segment_of: BTreeMap<u16, u8>,
    /// Address families of the underlay.
    pub underlay: Families,
    /// MTU of the underlay.
    pub underlay_mtu: u32,
    /// Whether cables carry packets of their MTU only, as between real machines.
    pub wire: bool,
    /// Address families of the overlay.
    pub overlay: Families,
    /// The `Backend` object of the network config.
    pub backend: Value,
    /// The whole network config instead of one made from `overlay` and `backend`.
    pub config: Option<Value>,
    /// The last IPv4 subnet that nodes take: those after it are free for leases that a test writes.
    #[serde(default)]
    pub subnet_max: Option<Ipv4Addr>,
    /// Where the config lies in the store.
    pub etcd_prefix: String,
    /// The store.
    pub etcd: EtcdSpec,
    /// Node 1 serves leases to all of them; there is no etcd then.
    #[serde(default)]
    pub lease_server: bool,
    /// The daemon on every node.
    pub daemon: DaemonSpec,
    /// A real cluster on the nodes, which then have no daemon but what is applied to it.
    #[serde(default)]
    pub kubernetes: Option<KubernetesSpec>,
    /// What single nodes have different.
    pub node: BTreeMap<u16, NodeSpec>,
    /// Where logs go; in memory if not given.
    pub log_dir: Option<PathBuf>,
}

/// The store of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdSpec {
    /// How many members; none means that the lab has no store.
    pub members: u8,
    /// The program.
    pub binary: Option<PathBuf>,
    /// More flags for it.
    pub flags: Vec<String>,
}

/// The daemon of every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonSpec {
    /// Whether nodes run one from the beginning.
    pub run: bool,
    /// The program.
    pub binary: Option<PathBuf>,
    /// More flags for it.
    pub flags: Vec<String>,
    /// Variables that it finds in its environment besides ours.
    pub env: BTreeMap<String, String>,
    /// The port of its health server, 0 for none.
    pub healthz_port: u16,
    /// How long it may take until it is ready.
    pub ready_limit: Duration,
    /// Whether one that ends before it is ready is started again, as a service manager does.
    pub respawn: bool,
    /// Whether it gets the processor as soon as it wants it.
    pub realtime: bool,
}

/// What one node has different from the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Another program.
    pub binary: Option<PathBuf>,
    /// Flags besides those that all have.
    pub flags: Vec<String>,
    /// Variables besides those that all have.
    pub env: BTreeMap<String, String>,
}

impl LabSpec {
    /// Makes it a cluster's, whose nodes run no daemon but what is applied to the cluster.
    pub fn run_kubernetes(&mut self, cluster: KubernetesSpec) {
        self.etcd.members = 1;
        self.etcd.binary = Some(cluster.programs.join("etcd"));
        self.etcd.flags.push("--unsafe-no-fsync".into());
        self.lease_server = false;
        self.daemon.run = false;
        self.kubernetes = Some(cluster);
    }
}

impl Default for LabSpec {
    fn default() -> Self {
        Self {
            nodes: 3,
            segments: 1,
            segment_of: BTreeMap::new(),
            underlay: Families::Dual,
            underlay_mtu: 1500,
            wire: false,
            overlay: Families::Ipv4,
            backend: json!({"Type": "vxlan"}),
            config: None,
            subnet_max: None,
            etcd_prefix: "/coreos.com/network".into(),
            etcd: EtcdSpec { members: 1, binary: None, flags: Vec::new() },
            lease_server: false,
            kubernetes: None,
            daemon: DaemonSpec {
                run: true,
                binary: None,
                flags: Vec::new(),
                env: BTreeMap::new(),
                healthz_port: 8081,
                ready_limit: Duration::from_secs(30),
                respawn: false,
                realtime: false,
            },
            node: BTreeMap::new(),
            log_dir: None,
        }
    }
}

impl LabSpec {
    /// The network config that is put into the store.
    pub fn network_config(&self) -> Value {
        if let Some(config) = &self.config {
            return config.clone();
        }
        let mut config = serde_json::Map::new();
        if self.overlay.v4() {
            config.insert("Network".into(), json!("10.244.0.0/16"));
            if let Some(last) = self.subnet_max {
                config.insert("SubnetMax".into(), json!(last));
            }
        } else {
            config.insert("EnableIPv4".into(), json!(false));
        }
        if self.overlay.v6() {
            config.insert("EnableIPv6".into(), json!(true));
            config.insert("IPv6Network".into(), json!("fd00:244::/48"));
        }
        config.insert("Backend".into(), self.backend.clone());
        Value::Object(config)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if ![0, 1, 3].contains(&self.etcd.members) {
            let members = self.etcd.members;
            return Err(LabError::Spec(format!(
                "{members} members of etcd: 0, 1 or 3 are possible"
            )));
        }
        let elsewhere = self.lease_server || !self.daemon.flags.is_empty();
        if self.daemon.run && self.etcd.members == 0 && !elsewhere {
            let hint = "ask for etcd, for no daemons, or give flags that name another store";
            return Err(LabError::Spec(format!("daemons need a store: {hint}")));
        }
        if let Some(&number) =
            self.node.keys().chain(self.segment_of.keys()).find(|&&n| n == 0 || n > self.nodes)
        {
            return Err(LabError::NoSuchNode { number, nodes: self.nodes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_names_the_families_that_are_wanted() {
        let config = |overlay| LabSpec { overlay, ..LabSpec::default() }.network_config();
        assert_eq!(
            config(Families::Ipv4),
            json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}})
        );
        assert_eq!(
            config(Families::Ipv6),
            json!({"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:244::/48",
                   "Backend": {"Type": "vxlan"}})
        );
        assert_eq!(config(Families::Dual)["Network"], "10.244.0.0/16");
        assert_eq!(config(Families::Dual)["IPv6Network"], "fd00:244::/48");
    }

    #[test]
    fn a_whole_config_is_taken_as_it_is() {
        let config = json!({"Network": "10.1.0.0/16", "Backend": {"Type": "host-gw"}});
        let spec = LabSpec { config: Some(config.clone()), ..LabSpec::default() };
        assert_eq!(spec.network_config(), config);
    }

    #[test]
    fn a_flag_for_a_node_that_does_not_exist_is_refused() {
        let spec = LabSpec { node: [(4, NodeSpec::default())].into(), ..LabSpec::default() };
        assert!(matches!(spec.check(), Err(LabError::NoSuchNode { number: 4, nodes: 3 })));
    }
}
