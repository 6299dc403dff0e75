//! The lab itself: made from a description, gone when dropped.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::daemon::Daemon;
use crate::error::{LabError, Result};
use crate::etcd::Etcd;
use crate::kubernetes::Kubernetes;
use crate::lease_server;
use crate::logs::LogDir;
use crate::namespace::{Namespace, View};
use crate::node::{Node, Place as _};
use crate::parallel::parallel;
use crate::pid_namespace::PidNamespace;
use crate::plan::Plan;
use crate::pod::Pod;
use crate::programs;
use crate::spec::{DaemonSpec, LabSpec};
use crate::underlay::Switch;

/// Nodes that are worked on at the same time; the kernel does much of that work under one lock.
const AT_ONCE: usize = 8;

/// A running lab. Dropping it, or the end of its process in whatever way, removes everything.
#[derive(Debug)]
pub struct Lab {
    spec: LabSpec,
    nodes: Vec<Node>,
    etcd: Option<Etcd>,
    pub(crate) kubernetes: Option<Kubernetes>,
    pods: Mutex<Vec<Pod>>,
    pub(crate) switch: Arc<Switch>,
    pid_namespace: Arc<PidNamespace>,
    _logs: LogDir,
}

impl Lab {
    /// Starts what the description says. `progress` is told of every step.
    pub fn start(spec: LabSpec, progress: &dyn Fn(&str)) -> Result<Self> {
        programs::check_host()?;
        spec.check()?;
        let plan = Plan::new(&spec)?;
        let binaries = binaries(&spec)?;
        raise_file_limit(spec.nodes);
        let pid_namespace = PidNamespace::start()?;
        let logs = LogDir::new(spec.log_dir.as_deref())?;
        let switch = Arc::new(Switch::new(&pid_namespace, &plan)?);

        let count = spec.nodes;
        progress(&format!("making {count} {}", if count == 1 { "node" } else { "nodes" }));
        let (etcd, namespaces) = std::thread::scope(|scope| {
            // The store takes longest to come up: it starts while the nodes are made.
            let etcd = scope.spawn(|| {
                let wanted = spec.etcd.members > 0;
                let start = || Etcd::start(&pid_namespace, &plan, &switch, &spec.etcd, &logs);
                wanted.then(start).transpose()
            });
            let namespaces = make_nodes(&pid_namespace, &plan, &switch, count);
            (etcd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), namespaces)
        });
        let (etcd, namespaces) = (etcd?, namespaces?);

        let mut nodes = Vec::new();
        for (number, (namespace, binary)) in (1..).zip(namespaces.into_iter().zip(binaries)) {
            let log = logs.log(namespace.label());
            let daemon = daemon_of(&spec, number, binary, etcd.as_ref(), &plan);
            let daemon = Daemon::new(&namespace, log, &daemon);
            let nic = plan.node(number);
            let neighbours = plan.neighbours(&nic, spec.etcd.members);
            nodes.push(Node::new(number, namespace, &switch, nic, neighbours, daemon));
        }
        parallel(&nodes, AT_ONCE, Node::configure)?;

        let kubernetes = match (&spec.kubernetes, &etcd) {
            (Some(wanted), Some(etcd)) => {
                Some(Kubernetes::start(wanted, &nodes, etcd, &logs, progress)?)
            }
            _ => None,
        };
        let pods = Mutex::default();
        let lab = Self { spec, nodes, etcd, kubernetes, pods, switch, pid_namespace, _logs: logs };
        if let Some(etcd) = lab.etcd.as_ref().filter(|_| lab.kubernetes.is_none()) {
            progress(&format!("etcd runs at {}", etcd.endpoints()));
            lab.put_config(&lab.spec.network_config().to_string())?;
        }
        if lab.spec.lease_server {
            let config = lab.spec.network_config().to_string();
            lease_server::write_config(lab.try_node(1)?.namespace(), &config)?;
            progress("node 1 serves leases to all");
        }
        if lab.spec.daemon.run {
            progress("starting flanneld on every node");
            lab.start_daemons()?;
        }
        Ok(lab)
    }

    /// What the lab was made from.
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// A node by its number.
    ///
    /// # Panics
    /// If there is no such node; [`Self::try_node`] is for numbers that come from outside.
    pub fn node(&self, number: u16) -> &Node {
        match self.try_node(number) {
            Ok(node) => node,
            Err(error) => panic!("{error}"),
        }
    }

    /// A node by its number, if there is one.
    pub fn try_node(&self, number: u16) -> Result<&Node> {
        let index = usize::from(number).checked_sub(1);
        let missing = LabError::NoSuchNode { number, nodes: self.spec.nodes };
        index.and_then(|index| self.nodes.get(index)).ok_or(missing)
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The store.
    pub fn etcd(&self) -> Result<&Etcd> {
        self.etcd.as_ref().ok_or_else(|| LabError::Spec("the lab was made without a store".into()))
    }

    /// Writes the network config into the store.
    pub fn put_config(&self, config: &str) -> Result<()> {
        if self.spec.lease_server {
            return lease_server::put_config(self.try_node(1)?.namespace(), config);
        }
        self.etcd()?.put(&format!("{}/config", self.spec.etcd_prefix), config)
    }

    /// The leases in the store: their keys (without prefix) and values.
    pub fn leases(&self) -> Result<Vec<(String, String)>> {
        if self.spec.lease_server {
            return lease_server::leases(self.try_node(1)?.namespace());
        }
        let prefix = format!("{}/subnets/", self.spec.etcd_prefix);
        let pairs = self.etcd()?.list(&prefix)?;
        let short = |key: String| key.strip_prefix(&prefix).map(str::to_owned).unwrap_or(key);
        Ok(pairs.into_iter().map(|(key, value)| (short(key), value)).collect())
    }

    /// Starts the daemon of every node that has none running, and waits until all are ready.
    pub fn start_daemons(&self) -> Result<()> {
        parallel(&self.nodes, AT_ONCE, |node| node.flanneld().start())?;
        parallel(&self.nodes, AT_ONCE, |node| node.flanneld().wait_ready())?;
        Ok(())
    }

    /// Makes a pod on a node, whose daemon must have told its subnet.
    pub fn pod(&self, node: u16) -> Result<Pod> {
        let pod = Pod::new(&self.pid_namespace, self.try_node(node)?)?;
        self.pods_mut().push(pod.clone());
        Ok(pod)
    }

    /// Makes one pod on every node, in parallel.
    pub fn pod_on_every_node(&self) -> Result<Vec<Pod>> {
        let pods = parallel(&self.nodes, AT_ONCE, |node| Pod::new(&self.pid_namespace, node))?;
        self.pods_mut().extend(pods.iter().cloned());
        Ok(pods)
    }

    /// All pods that were made.
    pub fn pods(&self) -> Vec<Pod> {
        self.pods_mut().clone()
    }

    /// The namespace of the switch, for experiments with the underlay itself.
    pub fn switch(&self) -> &Namespace {
        &self.switch.namespace
    }

    /// Ends all processes of the lab at once. What is left goes with the lab's value.
    pub fn end(&self) {
        self.pid_namespace.end();
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.sweep();
        }
    }

    fn pods_mut(&self) -> MutexGuard<'_, Vec<Pod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.end();
    }
}

fn make_nodes(
    pid_namespace: &Arc<PidNamespace>,
    plan: &Plan,
    switch: &Switch,
    count: u16,
) -> Result<Vec<Namespace>> {
    let numbers: Vec<u16> = (1..=count).collect();
    let namespaces = parallel(&numbers, AT_ONCE, |number| {
        Namespace::new(pid_namespace, &format!("node{number}"), View::Node)
    })?;
    let nics: Vec<_> = numbers.iter().map(|&number| plan.node(number)).collect();
    switch.plug(nics.iter().zip(&namespaces))?;
    Ok(namespaces)
}

/// The program of every node; found before anything is made, so that a missing one costs nothing.
fn binaries(spec: &LabSpec) -> Result<Vec<Option<PathBuf>>> {
    let asked = |number: u16| -> Option<&Path> {
        let own = spec.node.get(&number).and_then(|node| node.binary.as_deref());
        own.or(spec.daemon.binary.as_deref())
    };
    (1..=spec.nodes)
        .map(|number| match asked(number) {
            Some(path) => programs::executable(path).map(Some),
            None if spec.daemon.run => programs::flanneld(None).map(Some),
            None => Ok(None),
        })
        .collect()
}

/// What the daemon of one node is given: what the lab is, then what all have, then its own.
fn daemon_of(
    spec: &LabSpec,
    number: u16,
    binary: Option<PathBuf>,
    etcd: Option<&Etcd>,
    plan: &Plan,
) -> DaemonSpec {
    let mut daemon = DaemonSpec { binary, ..spec.daemon.clone() };
    let mut flags = vec!["--iface=eth0".to_owned()];
    if let Some(etcd) = etcd {
        flags.push(format!("--etcd-endpoints={}", etcd.endpoints()));
        flags.push(format!("--etcd-prefix={}", spec.etcd_prefix));
    }
    if spec.lease_server {
        flags.extend(lease_server::flags(number, &plan.node(1)));
    }
    if daemon.healthz_port > 0 {
        flags.push(format!("--healthz-port={}", daemon.healthz_port));
    }
    flags.append(&mut daemon.flags);
    if let Some(own) = spec.node.get(&number) {
        flags.extend(own.flags.iter().cloned());
        daemon.env.extend(own.env.clone());
    }
    daemon.flags = flags;
    daemon
}

/// Every namespace is kept by its open files, and large labs have more than the usual limit.
fn raise_file_limit(nodes: u16) {
    let limit = getrlimit(Resource::Nofile);
    let needed = 256 + 8 * u64::from(nodes);
    if limit.current.is_some_and(|current| current < needed) {
        let raised = limit.maximum.map_or(needed, |maximum| needed.min(maximum));
        // If it fails, opening a file will, and says so.
        let _ =
            setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(raised), ..limit });
    }
}
