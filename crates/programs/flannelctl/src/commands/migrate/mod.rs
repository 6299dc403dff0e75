//! `flannelctl migrate --check`: what would change here if flannel-rs replaced the flannel that runs; a dry run.

mod cni;
mod kernel;
mod needs;
mod rules;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use flannel_backend::{Stack, UsableConfig};
use flannel_cli::table::line;
use flannel_entries::kernel::Entry;
use flannel_kube::ConfigMapName;
use flannel_lease::{Lease, SubnetFile};
use flannel_node::host_checks;
use flannel_node::options::Options;
use flannel_node::wanted_rules::{pod_links, wanted_rules};
use serde::Serialize;

use super::daemon_process::DaemonProcess;
use super::output::OutputArgs;
use super::store_args::block_on;
use super::stores::{StoredNetwork, Stores};
use super::this_host::ThisHost;

use MigrationVerdict::{Changes, InTheWay, NotKnown, Stays};

const CAN_BE_MOVED: u8 = 0;
const CANNOT: u8 = 1;
const NOT_KNOWN: u8 = 2;

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Look, and change nothing: status 0 if the node can be moved, 1 if something stands in the way, 2 if that
    /// could not be found out
    #[arg(long, required = true)]
    check: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Where the container runtime looks for CNI configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MigrationVerdict {
    Stays,
    Changes,
    NotKnown,
    InTheWay,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) part: &'static str,
    pub(super) verdict: MigrationVerdict,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(
        &mut self,
        part: &'static str,
        verdict: MigrationVerdict,
        text: impl Into<String>,
    ) {
        self.0.push(Finding { part, verdict, text: text.into() });
    }

    fn status(&self) -> u8 {
        match self.0.iter().map(|finding| finding.verdict).max() {
            Some(InTheWay) => CANNOT,
            Some(NotKnown) => NOT_KNOWN,
            _ => CAN_BE_MOVED,
        }
    }
}

fn read_subnet_file(path: &Path) -> anyhow::Result<SubnetFile> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("read {}", path.display()))?,
    };
    Ok(SubnetFile::parse(&text).0)
}

impl MigrateArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.look() {
            Ok(findings) => {
                self.output.output.show(&document(&findings), |_| screen(&findings))?;
                Ok(ExitCode::from(findings.status()))
            }
            Err(error) => {
                writeln!(std::io::stderr(), "flannelctl: {error:#}")?;
                Ok(ExitCode::from(NOT_KNOWN))
            }
        }
    }

    fn look(&self) -> anyhow::Result<Findings> {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "this looks at another process and its network: run it as root, on the node itself"
            );
        }
        let mut findings = Findings::default();
        let former = DaemonProcess::find()?.context(
            "no flanneld runs in this network namespace: run this on the node itself, while the flannel that is to be \
             replaced is running",
        )?;
        let text = format!("{} is replaced; traffic goes on meanwhile", former.describe());
        findings.add("daemon", Changes, text);
        let cni_conf_dir = former.inside(&self.cni_conf_dir);
        let stores = match Stores::of(former, ConfigMapName::default()) {
            Ok(stores) => stores,
            Err(error) => {
                let text = format!("flannel-rs does not start with these flags: {error}");
                findings.add("flags", InTheWay, text);
                return Ok(findings);
            }
        };
        findings.add("flags", Stays, "all are understood, and mean the same");
        for joined in &stores.options.networks {
            let previous = read_subnet_file(&stores.inside(&joined.subnet_file))?;
            // All else hangs on what the store says.
            let known = block_on(async {
                let StoredNetwork { config, leases } = stores.ask(joined).await?;
                Ok((config.context("there is no network config in the store")?, leases))
            });
            let (config, leases) = match known {
                Ok(known) => known,
                Err(error) => {
                    findings.add("store", NotKnown, format!("{error:#}"));
                    continue;
                }
            };
            let judged = match flannel_backend::judge_config(&config, stores.subnets()) {
                Ok(judged) => judged,
                Err(error) => {
                    let text = format!("flannel-rs cannot use the network config: {error}");
                    findings.add("config", InTheWay, text);
                    continue;
                }
            };
            for remark in &judged.remarks {
                findings.add("config", Stays, remark.to_string());
            }
            self.look_at(&mut findings, &stores.options, &judged, &previous, &leases)?;
        }
        cni::look(&mut findings, &cni_conf_dir);
        Ok(findings)
    }

    fn look_at(
        &self,
        findings: &mut Findings,
        options: &Options,
        judged: &UsableConfig,
        previous: &SubnetFile,
        leases: &[Lease],
    ) -> anyhow::Result<()> {
        let (config, backend) = (&judged.config, &judged.backend);
        let stack = Stack::of(config);
        if let Err(error) = host_checks::bridge_filter(stack, config.nftables) {
            findings.add("host", InTheWay, error);
        }
        let host = ThisHost::look()?;
        let underlay = match host.select(&options.underlay, &backend.underlays(config), stack) {
            Ok(underlay) => underlay,
            Err(error) => {
                findings.add("interface", InTheWay, error);
                return Ok(());
            }
        };
        let (mut node, devices) = host.node(judged, underlay);
        let networks: Vec<_> = node.network.networks().collect();
        if let Err(error) = backend.check(&node) {
            findings.add("backend", InTheWay, error.to_string());
            return Ok(());
        }
        let mtu = backend.mtu(&node);
        let Some(own) = self.own(findings, previous, mtu, leases) else { return Ok(()) };
        let pod_links = pod_links(&host.facts, &own.subnet, &devices);
        let wanted = wanted_rules(&options.traffic, &**backend, &node, own.subnet, &pod_links);
        rules::look(findings, &wanted);
        let Some(answers) = needs::find_out(findings, backend.needs()) else { return Ok(()) };
        node.answers = answers;
        let mut wanted: Vec<Entry> = backend.base(&node, own).kernel;
        for peer in leases.iter().filter(|lease| lease.subnet != own.subnet) {
            match backend.peer(&node, own, peer) {
                Ok(wishes) => wanted.extend(wishes.kernel),
                Err(problem) if problem.is_expected() => {}
                Err(problem) => {
                    let text = format!("the lease {} is not sent to: {problem}", peer.subnet);
                    let clash = problem.is_clash();
                    let verdict = if clash { InTheWay } else { Stays };
                    findings.add("peers", verdict, text);
                }
            }
        }
        kernel::look(findings, &wanted, &networks, &devices)
    }

    fn own<'a>(
        &self,
        findings: &mut Findings,
        previous: &SubnetFile,
        mtu: u32,
        leases: &'a [Lease],
    ) -> Option<&'a Lease> {
        let Some(subnet) = previous.lease_subnet() else {
            let text =
                "the flannel that runs here has written no subnet file yet: wait until it is ready";
            findings.add("subnet", NotKnown, text);
            return None;
        };
        let Some(own) = leases.iter().find(|lease| lease.subnet == subnet) else {
            let text = format!(
                "the subnet file says {subnet}, and no lease in the store is on it: the node would get another one, and \
                 its pods with it; find out why before you move it"
            );
            findings.add("subnet", InTheWay, text);
            return None;
        };
        findings.add("subnet", Stays, format!("the lease {subnet} is kept"));
        match previous.mtu {
            Some(now) if now == mtu => {
                findings.add("mtu", Stays, format!("pods have an MTU of {mtu}"));
            }
            now => {
                let now = now.map_or("none".to_owned(), |now| now.to_string());
                let text = format!(
                    "the MTU of new pods is {mtu} instead of {now}; those that run keep theirs"
                );
                findings.add("mtu", Changes, text);
            }
        }
        Some(own)
    }
}

fn screen(findings: &Findings) -> String {
    let mut text = String::new();
    for Finding { part, verdict, text: said } in &findings.0 {
        let verdict = match verdict {
            Stays => "stays",
            Changes => "changes",
            NotKnown => "NOT KNOWN",
            InTheWay => "IN THE WAY",
        };
        text += &line(&[(verdict, 11), (part, 10), (said, 0)]);
        text.push('\n');
    }
    let conclusion = match findings.status() {
        CAN_BE_MOVED => "nothing stands in the way: this node can be moved",
        CANNOT => "something is in the way: fix it first, and check again",
        _ => "not all could be looked at: see what is not known",
    };
    format!("{text}{conclusion}\n")
}

fn document(findings: &Findings) -> serde_json::Value {
    let verdict = match findings.status() {
        CAN_BE_MOVED => "can-be-moved",
        CANNOT => "in-the-way",
        _ => "not-known",
    };
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    serde_json::json!({"node": node, "verdict": verdict, "findings": findings.0})
}
