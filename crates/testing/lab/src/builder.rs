//! A lab described step by step.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{LabError, Result};
use crate::kubernetes::KubernetesSpec;
use crate::lab::Lab;
use crate::spec::{Families, LabSpec};

/// Says what a lab shall be, then starts it.
#[derive(Clone, Debug, Default)]
pub struct LabBuilder {
    spec: LabSpec,
    fault: Option<String>,
}

impl Lab {
    /// Three nodes, vxlan, IPv4, one etcd, until told otherwise.
    pub fn builder() -> LabBuilder {
        LabBuilder::default()
    }
}

impl LabBuilder {
    /// How many nodes.
    pub fn nodes(mut self, count: u16) -> Self {
        self.spec.nodes = count;
        self
    }

    /// A real cluster on the nodes. They run no daemon but what is applied to the cluster.
    pub fn kubernetes(mut self, spec: KubernetesSpec) -> Self {
        self.spec.run_kubernetes(spec);
        self
    }

    /// The type of the backend: `vxlan`, `host-gw`, …
    pub fn backend(mut self, kind: &str) -> Self {
        self.spec.backend = json!({"Type": kind});
        self
    }

    /// The whole `Backend` object.
    pub fn backend_json(mut self, backend: Value) -> Self {
        self.spec.backend = backend;
        self
    }

    /// The whole network config, as text.
    pub fn config_json(mut self, config: &str) -> Self {
        match serde_json::from_str(config) {
            Ok(config) => self.spec.config = Some(config),
            Err(error) => self.fault = Some(format!("network config: {error}")),
        }
        self
    }

    /// The last IPv4 subnet that nodes take, of a network config that is not given whole.
    pub fn subnet_max(mut self, last: Ipv4Addr) -> Self {
        self.spec.subnet_max = Some(last);
        self
    }

    /// The overlay has IPv6 besides IPv4.
    pub fn ipv6(mut self, yes: bool) -> Self {
        self.spec.overlay = if yes { Families::Dual } else { Families::Ipv4 };
        self
    }

    /// The overlay's address families.
    pub fn overlay(mut self, families: Families) -> Self {
        self.spec.overlay = families;
        self
    }

    /// The underlay's address families; both by default.
    pub fn underlay(mut self, families: Families) -> Self {
        self.spec.underlay = families;
        self
    }

    /// The underlay's MTU.
    pub fn underlay_mtu(mut self, mtu: u32) -> Self {
        self.spec.underlay_mtu = mtu;
        self
    }

    /// Cables carry packets of their MTU only, as between real machines: for measurements.
    pub fn wire(mut self, yes: bool) -> Self {
        self.spec.wire = yes;
        self
    }

    /// Splits the underlay into networks with a router between them; nodes fill them in blocks.
    pub fn segments(mut self, count: u8) -> Self {
        self.spec.segments = count;
        self
    }

    /// Puts a node into a certain segment (from 0).
    pub fn segment_of(mut self, node: u16, segment: u8) -> Self {
        self.spec.segment_of.insert(node, segment);
        self
    }

    /// How many members the store has: 1 or 3, or 0 for none.
    pub fn etcd_members(mut self, count: u8) -> Self {
        self.spec.etcd.members = count;
        self
    }

    /// Node 1 serves leases to all, and there is no etcd.
    pub fn lease_server(mut self) -> Self {
        self.spec.lease_server = true;
        self.etcd_members(0)
    }

    /// The etcd to run.
    pub fn etcd_binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.spec.etcd.binary = Some(path.into());
        self
    }

    /// One more flag for etcd.
    pub fn etcd_flag(mut self, flag: impl Into<String>) -> Self {
        self.spec.etcd.flags.push(flag.into());
        self
    }

    /// Nodes without a daemon; [`Lab::start_daemons`] can start them later.
    pub fn no_daemons(mut self) -> Self {
        self.spec.daemon.run = false;
        self
    }

    /// Neither daemons nor a store.
    pub fn bare(self) -> Self {
        self.no_daemons().etcd_members(0)
    }

    /// The flanneld of all nodes.
    pub fn flanneld(mut self, path: impl Into<PathBuf>) -> Self {
        self.spec.daemon.binary = Some(path.into());
        self
    }

    /// The flanneld of one node.
    pub fn node_flanneld(mut self, node: u16, path: impl Into<PathBuf>) -> Self {
        self.spec.node.entry(node).or_default().binary = Some(path.into());
        self
    }

    /// One more flag for every flanneld.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.spec.daemon.flags.push(flag.into());
        self
    }

    /// One more flag for the flanneld of one node.
    pub fn node_flag(mut self, node: u16, flag: impl Into<String>) -> Self {
        self.spec.node.entry(node).or_default().flags.push(flag.into());
        self
    }

    /// A variable in the environment of every flanneld.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.daemon.env.insert(name.into(), value.into());
        self
    }

    /// A variable in the environment of the flanneld of one node.
    pub fn node_env(
        mut self,
        node: u16,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        self.spec.node.entry(node).or_default().env.insert(name.into(), value.into());
        self
    }

    /// The port of the daemons' health server; 0 for none.
    pub fn healthz_port(mut self, port: u16) -> Self {
        self.spec.daemon.healthz_port = port;
        self
    }

    /// How long a daemon may take until it is ready.
    pub fn ready_limit(mut self, limit: Duration) -> Self {
        self.spec.daemon.ready_limit = limit;
        self
    }

    /// Daemons get the processor as soon as they want it: for tests that count packets which a process carries.
    pub fn realtime(mut self) -> Self {
        self.spec.daemon.realtime = true;
        self
    }

    /// Daemons that end before they are ready are started again, as a service manager does.
    pub fn respawn(mut self) -> Self {
        self.spec.daemon.respawn = true;
        self
    }

    /// Where logs go; in memory by default.
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.spec.log_dir = Some(dir.into());
        self
    }

    /// The description so far.
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// Starts the lab; returns when its nodes are ready.
    pub fn start(self) -> Result<Lab> {
        if let Some(fault) = self.fault {
            return Err(LabError::Spec(fault));
        }
        Lab::start(self.spec, &|step| tracing::debug!(step))
    }
}
