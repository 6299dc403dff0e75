//! Nodes on one machine: each a network namespace with its own files, joined by a switch, with a
//! private etcd and a flanneld on every node. For people (`flannel-lab`), for end-to-end tests and
//! for benchmarks.
//!
//! ```no_run
//! use std::time::Duration;
//! use flannel_lab::Lab;
//!
//! # fn main() -> flannel_lab::Result<()> {
//! let lab = Lab::builder().nodes(3).backend("vxlan").ipv6(true).flag("--ip-masq").start()?;
//! let (one, two) = (lab.pod(1)?, lab.pod(2)?);
//! lab.ping(&one, &two)?;
//!
//! lab.node(1).exec(&["ip", "link", "del", "flannel.1"])?;
//! lab.wait_until("the tunnel to be repaired", Duration::from_secs(5), || lab.ping(&one, &two))?;
//!
//! lab.node(2).flanneld().kill9();
//! lab.node(2).flanneld().restart()?;
//! assert_eq!(lab.leases()?.len(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! What one can do, and where it is said:
//!
//! | | |
//! |---|---|
//! | describe and start | [`Lab::builder`] → [`LabBuilder`]; [`Lab::start`] with a [`LabSpec`] |
//! | nodes | [`Lab::node`] → [`Node`]: `exec`, `ip`, `spawn`, `in_netns`, `read_file`, `subnet_env` |
//! | daemons | [`Node::flanneld`] → [`Daemon`]: `start`, `stop`, `kill9`, `restart`, `restart_with`, `pause`, `log` |
//! | the store | [`Lab::etcd`] → [`Etcd`]: `put`, `get`, `list`, `delete`, `kill`, `stop`, `restart`, `pause`, `snapshot`, `restore`; [`Lab::put_config`], [`Lab::leases`] |
//! | pods | [`Lab::pod`], [`Lab::pod_on_every_node`] → [`Pod`] |
//! | reachability | [`Lab::ping`], [`Lab::ping_with`], [`Lab::ping_address`], [`Lab::matrix`] |
//! | traffic | [`Lab::stream`] → [`Stream`] → [`StreamReport`]; [`Lab::tcp_transfer`] |
//! | underlay faults | [`Lab::partition`], [`Lab::partition_from_store`], [`Lab::cut`], [`Lab::loss`], [`Lab::delay`], [`Lab::heal`], [`Lab::replace_nic`], [`Lab::change_address`]; [`Node::unplug`], [`Node::plug`], [`Node::nic_down`], [`Node::nic_up`], [`Node::set_underlay_mtu`] |
//! | vandalism | [`Node::vandalize`], [`Node::vandalize_at_random`] with a [`Vandalism`] |
//! | a real cluster | [`LabBuilder::kubernetes`], [`Lab::kubernetes`] → [`Kubernetes`]: `kubectl`, `apply`, `import`; [`Lab::reboot`] |
//! | waiting | [`Lab::wait_until`] |
//!
//! Addresses follow from numbers: node *i* has `eth0` with `192.168.100.i/24` and `fd00:100::i/64`
//! and its default routes through the switch (`.254`, `::fe`); etcd is at `192.168.100.253:2379`.
//! A second segment is `192.168.101.0/24` and `fd00:101::/64`, reached through the switch. Beyond 250
//! nodes the underlay is `192.168.0.0/16`.
//!
//! # Nothing stays behind
//!
//! Dropping a [`Lab`] removes everything, and so does the death of its process, `kill -9` included:
//! namespaces have no names and are held by open files of the process; all commands run in one PID
//! namespace that ends with it; logs and etcd's data are in memory (with `FLANNEL_LAB_LOGS=DIR` in
//! the environment, logs are kept below that directory). Nothing of the host's network or
//! files is touched, so any number of labs run side by side.
//!
//! # What a node sees
//!
//! The host's files, except that `/run`, `/var/lib/cni` and `/etc/cni` are its own and begin empty
//! (`/run/flannel/subnet.env` is per node), `/sys/class/net` shows its own devices, and `/proc` shows
//! the lab's processes. Daemons are given `--iface=eth0 --etcd-endpoints=… --etcd-prefix=…
//! --healthz-port=8081`, then the flags of the description. Closures that run inside (`in_netns`)
//! belong to no process of the lab, so they must not use `/proc/self`.

mod builder;
mod cgroups;
mod daemon;
mod error;
mod etcd;
mod fault;
mod filter;
mod http;
mod keys;
mod kubernetes;
mod lab;
mod lease_server;
mod logs;
mod matrix;
mod mounts;
mod namespace;
mod node;
mod offload;
mod parallel;
mod pid_namespace;
mod ping;
mod plan;
mod pod;
mod process;
mod programs;
mod realtime;
mod spec;
mod stream;
mod subnet_env;
mod transfer;
mod underlay;
mod vandal;
mod wait;

pub use builder::LabBuilder;
pub use cgroups::Cgroups;
pub use daemon::Daemon;
pub use error::{LabError, Result};
pub use etcd::{Etcd, Snapshot};
pub use fault::Participant;
pub use http::HttpAnswer;
pub use kubernetes::{Kubernetes, KubernetesSpec, ProxyMode};
pub use lab::Lab;
pub use matrix::{Matrix, PlaceRef};
pub use namespace::{Namespace, NamespacePaths};
pub use node::{Node, Place};
pub use ping::PingOptions;
pub use plan::Nic;
pub use pod::Pod;
pub use process::{Output, Process};
pub use programs::{
    check_host, etcd as find_etcd, flanneld as find_flanneld, go_flanneld as find_go_flanneld,
};
pub use spec::{DaemonSpec, EtcdSpec, Families, LabSpec, NodeSpec};
pub use stream::{Stream, StreamOptions, StreamReport};
pub use subnet_env::{SUBNET_ENV, SubnetEnv};
pub use transfer::Transfer;
pub use vandal::Vandalism;
pub use wait::{Condition, wait_until};
