//! A real Kubernetes cluster on the lab's nodes: an API server with its helpers beside the lab's etcd, and
//! containerd, kubelet and kube-proxy on every node. It begins as kubeadm leaves it: without a network
//! for pods.
//!
//! The control plane is the place `etcd`: cut it off, or stop it, as any other.

mod agents;
mod certificates;
mod control_plane;
mod forward;
mod spec;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::agents::Agents;
use self::certificates::Authority;
use self::control_plane::ControlPlane;
use self::forward::Forward;
pub use self::spec::{KubernetesSpec, ProxyMode};

use crate::error::{Context, LabError, Result};
use crate::etcd::Etcd;
use crate::lab::Lab;
use crate::logs::LogDir;
use crate::namespace::Namespace;
use crate::node::{Node, Place as _};
use crate::parallel::parallel;
use crate::wait::wait_until;

/// How long one call of kubectl may take, which may itself be told to wait.
const KUBECTL_LIMIT: Duration = Duration::from_secs(300);
const NODES_LIMIT: Duration = Duration::from_secs(60);
const LOG_LINES: usize = 5;

/// The cluster of a lab.
#[derive(Debug)]
pub struct Kubernetes {
    plane: ControlPlane,
    agents: Vec<Agents>,
    forward: Forward,
    authority: String,
}

impl Kubernetes {
    pub(crate) fn start(
        spec: &KubernetesSpec,
        nodes: &[Node],
        etcd: &Etcd,
        logs: &LogDir,
        progress: &dyn Fn(&str),
    ) -> Result<Self> {
        let authority = Authority::new()?;
        let address = etcd.participants().next().and_then(|nic| nic.addresses().first().copied());
        let address =
            address.ok_or_else(|| LabError::Spec("no place for the API server".into()))?;
        progress("starting the API server");
        let namespace = etcd.namespace(0)?;
        let store = etcd.endpoints();
        let plane = ControlPlane::start(namespace, spec, &store, address, &authority, logs)?;

        progress("starting containerd, kubelet and kube-proxy on every node");
        let dual = spec.pods.contains(',');
        let agents = parallel(nodes, nodes.len(), |node| {
            let addresses = node.addresses().into_iter().filter(|one| dual || one.is_ipv4());
            let addresses: Vec<String> = addresses.map(|one| one.to_string()).collect();
            let (place, url) = (node.namespace(), plane.url());
            let agents = Agents::new(place, spec, &addresses, &url, &authority, logs)?;
            agents.start()?;
            Ok(agents)
        })?;
        let server = SocketAddr::new(address, control_plane::PORT);
        let forward = Forward::start(namespace, server)?;
        let cluster = Self { plane, agents, forward, authority: authority.certificate() };
        cluster.wait_until("all nodes to be registered", NODES_LIMIT, || {
            let names = cluster.kubectl(&["get", "nodes", "-o", "name"])?;
            let count = names.lines().count();
            if count == nodes.len() { Ok(Ok(())) } else { Ok(Err(format!("{count} nodes"))) }
        })?;
        cluster.install(&spec.manifests, progress)?;
        Ok(cluster)
    }

    fn install(&self, manifests: &[PathBuf], progress: &dyn Fn(&str)) -> Result<()> {
        for path in manifests {
            progress(&format!("kubectl apply -f {}", path.display()));
            let text = std::fs::read_to_string(path);
            self.apply(&text.context(|| format!("read {}", path.display()))?)?;
        }
        if manifests.is_empty() {
            return Ok(());
        }
        progress("waiting until all nodes are ready");
        let wait = ["wait", "nodes", "--all", "--for=condition=Ready", "--timeout=120s"];
        self.kubectl(&wait).map(drop)
    }

    /// Runs kubectl as the cluster's administrator and returns what it printed.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.plane.kubectl(words, None)
    }

    /// `kubectl apply -f -` with this text.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.plane.kubectl(&["apply", "-f", "-"], Some(manifest))
    }

    /// `kubectl delete -f -` with this text; it is not an error if something is not there.
    pub fn delete(&self, manifest: &str) -> Result<String> {
        self.plane.kubectl(&["delete", "--ignore-not-found", "-f", "-"], Some(manifest))
    }

    /// Gives all nodes an image from an archive.
    pub fn import(&self, archive: &Path) -> Result<()> {
        parallel(&self.agents, self.agents.len(), |agents| agents.import(archive)).map(drop)
    }

    /// Gives an image of all nodes another name besides.
    pub fn tag(&self, image: &str, name: &str) -> Result<()> {
        let full = |name: &str| format!("docker.io/{name}");
        let tag = |agents: &Agents| agents.ctr(&["images", "tag", &full(image), &full(name)]);
        parallel(&self.agents, self.agents.len(), tag).map(drop)
    }

    /// Where the control plane is.
    pub fn control_plane(&self) -> &Namespace {
        &self.plane.namespace
    }

    /// The administrator's kubeconfig as the control plane and the nodes' places read it.
    pub fn admin_kubeconfig(&self) -> &'static str {
        control_plane::ADMIN
    }

    /// A kubeconfig by which programs of the host reach the API server, as long as this process lives.
    pub fn kubeconfig_of_host(&self) -> Result<String> {
        let text = self.plane.namespace.run(|| std::fs::read_to_string(control_plane::ADMIN))?;
        let text = text.context(|| "read the administrator's kubeconfig".into())?;
        Ok(text.replace(&self.plane.url(), &format!("https://{}", self.forward.address())))
    }

    /// The certificate of the authority that everything in the cluster trusts.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// As [`wait_until`], with the ends of the agents' logs when it takes too long. The outer result ends
    /// the wait at once only by its value: errors are tried again.
    pub fn wait_until<T, E: std::fmt::Display>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<std::result::Result<T, E>>,
    ) -> Result<T> {
        let looked = wait_until(what, limit, || match look() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(state)) => Err(state.to_string()),
            Err(error) => Err(error.to_string()),
        });
        looked.map_err(|error| match error {
            LabError::Timeout { what, waited, state, .. } => {
                let logs = self.agents.iter().map(|agents| agents.log_tail(LOG_LINES));
                LabError::Timeout {
                    what,
                    waited,
                    state,
                    logs: format!("\n{}", logs.collect::<String>()),
                }
            }
            other => other,
        })
    }

    pub(crate) fn agents(&self, node: u16) -> Result<&Agents> {
        let missing = LabError::NoSuchNode { number: node, nodes: 0 };
        self.agents.get(usize::from(node).wrapping_sub(1)).ok_or(missing)
    }

    /// Removes what stays of a cluster whose processes have ended.
    pub(crate) fn sweep(&self) {
        self.agents.iter().for_each(Agents::sweep);
    }
}

impl Lab {
    /// The cluster on the lab's nodes.
    pub fn kubernetes(&self) -> Result<&Kubernetes> {
        let missing = || LabError::Spec("the lab was made without Kubernetes".into());
        self.kubernetes.as_ref().ok_or_else(missing)
    }

    /// A node of the cluster loses its power and comes back: no process, no network namespace, nothing
    /// in `/run`. What is on its disks stays.
    pub fn reboot(&self, number: u16) -> Result<()> {
        let (node, agents) = (self.try_node(number)?, self.kubernetes()?.agents(number)?);
        agents.power_off()?;
        node.namespace().renew()?;
        self.replace_nic(number)?;
        node.configure()?;
        agents.start()
    }
}
