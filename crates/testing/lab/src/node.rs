//! A node: a network namespace with one underlay device, its own files and its own daemon.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flannel_lease::SubnetFile;
use ipnet::Ipv4Net;

use crate::daemon::Daemon;
use crate::error::{Context, LabError, Result};
use crate::namespace::Namespace;
use crate::plan::Nic;
use crate::pod::PodBridge;
use crate::process::{Output, Process};
use crate::subnet_env::{SUBNET_ENV, SubnetEnv};
use crate::underlay::{self, Switch};

/// Something with addresses that can be pinged and ping.
pub trait Place {
    /// What people call it.
    fn label(&self) -> String {
        self.namespace().label().to_owned()
    }

    /// Where it is.
    fn namespace(&self) -> &Namespace;

    /// Under which addresses others know it.
    fn addresses(&self) -> Vec<IpAddr>;
}

/// One node of the lab.
#[derive(Debug)]
pub struct Node {
    number: u16,
    namespace: Namespace,
    daemon: Daemon,
    pub(crate) switch: Arc<Switch>,
    pub(crate) nic: Mutex<Nic>,
    /// Commands for lasting neighbour entries; few labs are large enough to need any.
    neighbours: Vec<String>,
    pub(crate) bridge: Mutex<Option<PodBridge>>,
}

impl Node {
    pub(crate) fn new(
        number: u16,
        namespace: Namespace,
        switch: &Arc<Switch>,
        nic: Nic,
        neighbours: Vec<String>,
        daemon: Daemon,
    ) -> Self {
        let (nic, bridge) = (Mutex::new(nic), Mutex::default());
        Self { number, namespace, daemon, switch: Arc::clone(switch), nic, neighbours, bridge }
    }

    /// Its number, from 1.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its daemon.
    pub fn flanneld(&self) -> &Daemon {
        &self.daemon
    }

    /// Its underlay device as the lab wants it.
    pub fn nic(&self) -> Nic {
        self.nic_mut().clone()
    }

    /// Runs a command on the node and returns what it printed; a failing status is an error.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        self.namespace.exec(words)
    }

    /// As [`Self::exec`], for a command that may take longer (or must take less) than a minute.
    pub fn exec_within(&self, limit: Duration, words: &[&str]) -> Result<String> {
        self.namespace.exec_within(limit, words)
    }

    /// Runs a command on the node and returns status and output whatever they are.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        self.namespace.output(words)
    }

    /// Runs `ip` with these words on the node.
    pub fn ip(&self, words: &str) -> Result<String> {
        self.namespace.ip(words)
    }

    /// Starts a command on the node that runs until the handle is dropped or the lab ends.
    pub fn spawn(&self, command: Command) -> Result<Process> {
        self.namespace.spawn(command)
    }

    /// Runs a closure on a thread inside the node's namespaces; see [`Namespace::run`].
    pub fn in_netns<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        self.namespace.run(work)
    }

    /// Reads a file as the node sees it.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        self.namespace
            .run(|| std::fs::read_to_string(path))?
            .context(|| format!("{}: read {}", self.namespace.label(), path.display()))
    }

    /// Writes a file as the node sees it. Only `/run`, `/var/lib/cni`, `/var/lib/flannel`
    /// and `/etc/cni` are its own.
    pub fn write_file(&self, path: impl AsRef<Path>, text: &str) -> Result<()> {
        let path = path.as_ref();
        self.namespace
            .run(|| std::fs::write(path, text))?
            .context(|| format!("{}: write {}", self.namespace.label(), path.display()))
    }

    /// Writes what a daemon would for a node with the subnet 10.244.`number`.0/24 of 10.244.0.0/16.
    pub fn write_subnet_env(&self, mtu: u32) -> Result<()> {
        let subnet = Ipv4Net::new_assert([10, 244, self.number() as u8, 0].into(), 24);
        let file = SubnetFile {
            networks: vec![Ipv4Net::new_assert([10, 244, 0, 0].into(), 16)],
            subnet: Some(subnet),
            mtu: Some(mtu),
            ip_masq: Some(false),
            ..SubnetFile::default()
        };
        self.write_file(SUBNET_ENV, &file.render())
    }

    /// What the daemon has written for the node.
    pub fn subnet_env(&self) -> Result<SubnetEnv> {
        let text = self.read_file(SUBNET_ENV)?;
        SubnetEnv::parse(&text)
            .map_err(|reason| LabError::Spec(format!("{}: {reason}", self.namespace.label())))
    }

    pub(crate) fn configure(&self) -> Result<()> {
        self.namespace.sysctls(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/conf/default/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
        ])?;
        self.configure_nic()
    }

    pub(crate) fn configure_nic(&self) -> Result<()> {
        underlay::configure(&self.namespace, &self.nic(), &self.neighbours)
    }

    pub(crate) fn nic_mut(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place for Node {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.nic_mut().addresses()
    }
}
