//! `flannelctl ipam`: the addresses of this node that pods were given, and whether they still use them.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use flannel_cni::ipam::audit::{self, Evidence, Finding, State};
use flannel_cni::ipam::{Holder, Store};
use serde::Serialize;

use super::output::OutputArgs;
use flannel_cli::table::{Colour, Paint, Table};

const SHOWN_OF_ID: usize = 20;

#[derive(Debug, Subcommand)]
pub(crate) enum IpamCommand {
    /// Find addresses that are reserved for pods that are gone; status 1 if any stays reserved
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Set leaked addresses free
    #[arg(long)]
    fix: bool,
    /// Look at this network alone (its name in the CNI configuration), instead of all
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    /// Where host-local keeps its reservations (`dataDir` of the CNI configuration)
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni/networks")]
    data_dir: PathBuf,
}

impl IpamCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Self::Check(args) = self;
        args.run()
    }
}

struct InspectedNetwork {
    name: String,
    store: Store,
    findings: Vec<Finding>,
}

impl InspectedNetwork {
    fn leaked(&self) -> usize {
        self.findings.iter().filter(|finding| finding.state == State::Stale).count()
    }
}

impl CheckArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = io::stdout().lock();
        let networks = self.inspect()?;
        let leaked: usize = networks.iter().map(InspectedNetwork::leaked).sum();
        if !self.output.output.is_for_people() {
            self.output.output.show(&rows(&networks), |_| String::new())?;
            if self.fix {
                fix(&networks)?;
            }
            let stays = leaked > 0 && !self.fix;
            return Ok(if stays { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        let reserved: usize = networks.iter().map(|network| network.findings.len()).sum();
        if reserved == 0 {
            writeln!(out, "no addresses are reserved in {}", self.data_dir.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        let paint = Paint::for_stdout();
        table(&rows(&networks)).write(&mut out, paint)?;
        if leaked == 0 {
            let text = format!("{reserved} reserved, none leaked");
            writeln!(out, "{}", paint.text(Colour::Good, &text))?;
            return Ok(ExitCode::SUCCESS);
        }
        if !self.fix {
            let text = format!("{reserved} reserved, {leaked} leaked");
            let text = paint.text(Colour::Bad, &text);
            writeln!(out, "{text}; `flannelctl ipam check --fix` sets leaked ones free")?;
            return Ok(ExitCode::FAILURE);
        }
        let freed = fix(&networks)?;
        writeln!(out, "{reserved} reserved, {leaked} leaked, {freed} set free")?;
        Ok(ExitCode::SUCCESS)
    }

    fn inspect(&self) -> anyhow::Result<Vec<InspectedNetwork>> {
        let names = match &self.network {
            Some(name) => vec![name.clone()],
            None => names_in(&self.data_dir)?,
        };
        let mut networks = Vec::new();
        for name in names {
            let Some(store) = Store::open(&self.data_dir.join(&name))? else {
                let known = names_in(&self.data_dir)?.join(", ");
                let known = if known.is_empty() { "none".to_owned() } else { known };
                bail!("no network {name} in {}; there are: {known}", self.data_dir.display());
            };
            networks.push((name, store));
        }
        if networks.is_empty() {
            return Ok(Vec::new());
        }
        let evidence = Evidence::gather().context(
            "this command cannot see some network namespaces of this host, so nothing can be \
             said of their addresses: run it as root, on the host itself and not in a container",
        )?;
        let judge = |(name, store): (String, Store)| {
            let mut findings = audit::inspect(&store, &name, &evidence, SystemTime::now())?;
            findings.sort_by_key(|finding| finding.reservation.ip);
            Ok(InspectedNetwork { name, store, findings })
        };
        networks.into_iter().map(judge).collect()
    }
}

/// Sets free what has leaked, and returns how many addresses that were.
fn fix(networks: &[InspectedNetwork]) -> anyhow::Result<usize> {
    let mut freed = 0;
    for network in networks.iter().filter(|network| network.leaked() > 0) {
        freed += audit::fix(&network.store, &network.name, &network.findings)
            .with_context(|| format!("set addresses of {} free", network.name))?
            .len();
    }
    Ok(freed)
}

#[derive(Serialize)]
struct Row<'a> {
    network: &'a str,
    address: IpAddr,
    container: Option<&'a str>,
    interface: Option<&'a str>,
    state: &'static str,
}

fn rows(networks: &[InspectedNetwork]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for network in networks {
        for Finding { reservation, state } in &network.findings {
            let (container, interface) = match &reservation.owner {
                Holder::Attachment { container_id, ifname } => (Some(container_id), Some(ifname)),
                Holder::Container { container_id } => (Some(container_id), None),
                Holder::Nobody => (None, None),
            };
            rows.push(Row {
                network: &network.name,
                address: reservation.ip,
                container: container.map(String::as_str),
                interface: interface.map(String::as_str),
                state: match state {
                    State::InUse => "in-use",
                    State::Recent => "recent",
                    State::Stale => "leaked",
                },
            });
        }
    }
    rows
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::new(&["network", "address", "container", "interface", "state"]);
    for row in rows {
        let container = row.container.unwrap_or("-").chars().take(SHOWN_OF_ID).collect();
        let (colour, state) = match row.state {
            "in-use" => (Colour::Good, "in use"),
            "recent" => (Colour::Plain, "too new to tell"),
            leaked => (Colour::Bad, leaked),
        };
        table.row(vec![
            (Colour::Plain, row.network.to_owned()),
            (Colour::Bold, row.address.to_string()),
            (Colour::Plain, container),
            (Colour::Plain, row.interface.unwrap_or("-").to_owned()),
            (colour, state.to_owned()),
        ]);
    }
    table
}

fn names_in(data_dir: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(data_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.with_context(|| format!("list the networks in {}", data_dir.display()))?
        }
    };
    let directories = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}
