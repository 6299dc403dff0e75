//! `flannelctl cleanup`: a node without flannel, as it was before.
//!
//! What belongs to pods (the bridge `cni0`, addresses, published ports) the container runtime removes with the pods;
//! what is left of it, and what installing the plugin has put into the runtime's directories, goes if these are named.

mod cni;
mod host_ports;
mod ipsec;
mod kernel;
mod tunnel;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use flannel_cloud::{OwnRoute, recorded, remove_recorded};
use flannel_netlink::{Connection, Writable};

use self::cni::CniArgs;
use super::daemon_process;
use super::store_args::block_on;

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    /// Really remove it; without this, it is only shown
    #[arg(long)]
    yes: bool,
    /// What flanneld has written for the node
    #[arg(long, value_name = "FILE", default_value = "/run/flannel/subnet.env")]
    subnet_file: PathBuf,
    /// What it has written of networks that have a name
    #[arg(long, value_name = "DIR", default_value = "/run/flannel/networks")]
    subnet_dir: PathBuf,
    /// What it keeps of the node over reboots
    #[arg(long, value_name = "DIR", default_value = "/var/lib/flannel/nodes")]
    node_dir: PathBuf,
    /// The node's WireGuard key
    #[arg(long, value_name = "FILE", default_value = "/run/flannel/wgkey")]
    wireguard_key: PathBuf,
    #[command(flatten)]
    cni: CniArgs,
}

/// What went, or would go, and what could not be looked at or removed.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) removes: bool,
    pub(crate) things: Vec<String>,
    pub(crate) failures: Vec<String>,
}

impl CleanupArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !rustix::process::geteuid().is_root() {
            bail!("only root can remove rules, devices and routes: run this as root");
        }
        let running = daemon_process::running();
        if self.yes
            && let Some(pid) = running
        {
            bail!(
                "flanneld is running here (pid {pid}) and would put everything back: stop it first"
            );
        }
        let report = self.clean();
        report.show()?;
        if let Some(pid) = running {
            writeln!(io::stdout(), "flanneld is running here (pid {pid}): stop it first")?;
        }
        Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Goes on past what fails: the less stays behind the better.
    fn clean(&self) -> Report {
        let mut report = Report { removes: self.yes, ..Report::default() };
        let rules = if self.yes {
            flannel_traffic::cleanup(None)
        } else {
            flannel_traffic::leftovers(None)
        };
        match rules {
            Ok(rules) => report.things.extend(rules),
            Err(error) => report.failures.push(error.to_string()),
        }
        // What lives as long as the machine is up. Programs go before devices, which they would make again.
        let beside = self.subnet_file.parent();
        for directory in beside.into_iter().chain([self.subnet_dir.as_path()]) {
            tunnel::clean(&mut report, directory);
            report.clean_cloud(directory, |_| true);
            let (charons, failures) = match self.yes {
                true => flannel_ipsec::remove_leftovers(directory),
                false => (flannel_ipsec::find_leftovers(directory), Vec::new()),
            };
            report.things.extend(charons);
            report.failures.extend(failures);
        }
        let kernel = kernel::clean(&mut report, self.cni.of_pods());
        report.note(kernel);
        // After the route that sends pods' packets to where unencrypted ones are dropped: nobody is left to send any.
        let policies = ipsec::clean(&mut report);
        report.note(policies);
        if self.cni.of_pods() {
            let ports = host_ports::clean(&mut report);
            report.note(ports);
        }
        for file in self.files() {
            report.clean(file.display().to_string(), || {
                let is_dir = file.symlink_metadata().is_ok_and(|it| it.is_dir());
                let removed =
                    if is_dir { fs::remove_dir_all(&file) } else { fs::remove_file(&file) };
                Ok(removed?)
            });
        }
        report
    }

    /// Files that exist. The secret for the lease server stays: without it a reinstalled node would not get its lease.
    fn files(&self) -> Vec<PathBuf> {
        let within = |dir: &PathBuf, kind: &'static str| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let files = entries.map(|entry| entry.path());
            files.filter(move |file| file.extension().is_some_and(|found| found == kind))
        };
        let mut next_key = self.wireguard_key.clone().into_os_string();
        next_key.push(".next");
        let mut files = vec![self.subnet_file.clone(), self.wireguard_key.clone(), next_key.into()];
        files.push(self.subnet_file.with_extension("config"));
        files.extend(within(&self.subnet_dir, "env"));
        files.extend(within(&self.subnet_dir, "config"));
        files.extend(within(&self.node_dir, "json"));
        files.extend(within(&self.node_dir.with_file_name("link-holders"), "json"));
        files.push(self.node_dir.with_file_name("etcd-cluster.json"));
        // Beside it: where plugins and operators ask flanneld, and what it showed to container runtimes.
        for name in [
            flannel_cni::deferred_kernel_work::SOCKET,
            flannel_state::SOCKET_NAME,
            flannel_cni::flannel::ABSENCE_NOTE,
        ] {
            files.push(self.subnet_file.with_file_name(name));
        }
        if let Some(beside) = self.subnet_file.parent() {
            files.extend(within(&beside.to_owned(), "conflist"));
        }
        files.retain(|file| file.exists());
        files.sort();
        files.dedup();
        files.extend(self.cni.paths());
        files
    }
}

impl Report {
    /// This node's routes in a cloud's table, as flanneld has noted them; removed with the credentials found here.
    pub(crate) fn clean_cloud(&mut self, directory: &Path, wanted: impl Fn(&OwnRoute) -> bool) {
        for own in recorded(directory).into_iter().filter(|own| wanted(own)) {
            let remove = || block_on(async { Ok(remove_recorded(directory, &own).await?) });
            self.clean(own.to_string(), remove);
        }
    }

    /// Removes something, or only notes that it is there.
    fn clean(&mut self, thing: String, remove: impl FnOnce() -> anyhow::Result<()>) {
        match if self.removes { remove() } else { Ok(()) } {
            Ok(()) => self.things.push(thing),
            Err(error) => self.failures.push(format!("remove {thing}: {error:#}")),
        }
    }

    fn note(&mut self, looked: anyhow::Result<()>) {
        self.failures.extend(looked.err().map(|error| format!("{error:#}")));
    }

    fn show(&self) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match (self.removes, self.things.is_empty()) {
            (_, true) if self.failures.is_empty() => {
                writeln!(out, "nothing of flannel is on this node")?;
            }
            (_, true) => {}
            (true, false) => writeln!(out, "removed:")?,
            (false, false) => writeln!(out, "would remove:")?,
        }
        for thing in &self.things {
            writeln!(out, "  {thing}")?;
        }
        if !self.removes && !self.things.is_empty() {
            writeln!(out, "nothing was changed; `flannelctl cleanup --yes` removes it")?;
        }
        drop(out);
        for failure in &self.failures {
            writeln!(io::stderr(), "flannelctl: {failure}").context("say what failed")?;
        }
        Ok(())
    }
}

/// Has the kernel remove something. Somebody else may be faster.
fn remove_one<W: Writable>(kernel: &mut Connection, request: W) -> anyhow::Result<()> {
    let mut refused = None;
    kernel.apply([request], |_, error| refused = Some(error))?;
    let gone = [libc::ENODEV, libc::ENOENT, libc::ESRCH];
    match refused.filter(|error| !gone.contains(&error.errno)) {
        Some(error) => Err(anyhow::anyhow!("{error}")),
        None => Ok(()),
    }
}
