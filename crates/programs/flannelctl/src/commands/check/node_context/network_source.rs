//! Where the config and the leases of a network come from: the store of the flanneld that runs here, or what the
//! operator names.

use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use flannel_backend::UsableConfig;
use flannel_kube::api::Api;
use flannel_lease::{Lease, NetworkName, SubnetOrigin};
use flannel_node::options::Serve;
use flannel_state::{Finding, Layer};
use flannel_store::OperatorStore;

use super::ANSWER_TIMEOUT;
use crate::commands::daemon_process::{self, DaemonProcess};
use crate::commands::store_args::{StoreArgs, block_on};

/// Where the network is looked up
#[derive(Debug, Args)]
pub(crate) struct NetworkSource {
    /// A network config to judge this node by, where no flanneld runs that says which
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's socket, beside its subnet file
    #[arg(long, default_value = flannel_state::SOCKET)]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// A network as far as it is known by its config.
pub(super) struct JudgedNetwork {
    pub(super) name: String,
    pub(super) judged: UsableConfig,
    pub(super) leases: Vec<Lease>,
}

impl NetworkSource {
    /// As the daemon that runs here knows it.
    pub(crate) fn of_daemon(socket: &Path) -> Self {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            source: NetworkSource,
        }
        let none: [&str; 0] = [];
        let mut source = Flags::parse_from(none).source;
        source.socket = socket.to_owned();
        source
    }

    /// The store of a network, for an operator: the one that is named, else the one that the flanneld here uses.
    pub(crate) fn operators_store(&self, network: &str) -> anyhow::Result<Box<dyn OperatorStore>> {
        if self.store.is_named() {
            return self.store.open();
        }
        self.store.open_network(network.parse()?)
    }

    /// The API server: the one that is named, else the one that the flanneld here uses, if it uses one.
    pub(crate) fn kubernetes_api(&self) -> anyhow::Result<Option<Api>> {
        if let Some(named) = self.store.named_kubernetes()? {
            return Ok(Some(named));
        }
        let Some(process) = DaemonProcess::find()? else { return Ok(None) };
        process.kubernetes_api(&process.options()?)
    }

    /// The network configs, as they were written. There may be secrets in them.
    pub(crate) fn configs(&self) -> Vec<serde_json::Value> {
        let process = DaemonProcess::find().ok().flatten();
        let stores = process.as_ref().and_then(|process| Some((process, process.options().ok()?)));
        let mut texts = Vec::new();
        for (process, joined) in stores
            .iter()
            .flat_map(|(process, options)| options.networks.iter().map(move |it| (process, it)))
        {
            let asked = block_on(async {
                Ok(tokio::time::timeout(ANSWER_TIMEOUT, process.ask(&joined.store)).await??.0)
            });
            texts.extend(asked.ok());
        }
        if process.is_none() && self.store.is_named() {
            let asked = block_on(async {
                let store = self.store.open()?;
                Ok(tokio::time::timeout(ANSWER_TIMEOUT, store.config_as_written()).await??)
            });
            texts.extend(asked.ok().flatten());
        }
        texts.extend(self.config.as_ref().and_then(|file| std::fs::read_to_string(file).ok()));
        texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
    }

    /// By a file, or by a store that the operator names.
    pub(super) fn named(&self) -> Result<Option<JudgedNetwork>, Finding> {
        if let Some(file) = &self.config {
            let text = std::fs::read_to_string(file).map_err(|error| {
                let what = format!("{} cannot be read: {error}", file.display());
                Finding::broken(
                    Layer::Config,
                    what,
                    "nothing is known of the network",
                    "name another file",
                )
            })?;
            let origin = self.store.subnets().unwrap_or(SubnetOrigin::Pool);
            return judged(&text, origin, "_", Vec::new()).map(Some);
        }
        if !self.store.is_named() {
            return Ok(None);
        }
        let asked = self.store.open().and_then(ask_admin);
        let why = "a node that joins waits for it";
        let fix = "look whether it runs and whether a firewall is between, and at the flags";
        let (config, leases, origin) = asked.map_err(|error| {
            Finding::broken(Layer::Store, format!("the store cannot be asked: {error:#}"), why, fix)
        })?;
        let config = config.ok_or_else(|| {
            let what = "there is no network config in the store";
            Finding::broken(Layer::Config, what, "nodes wait for it", "flannelctl config set FILE")
        })?;
        judged(&config, origin, "_", leases).map(Some)
    }
}

/// Config, leases, and whence nodes have their subnets.
fn ask_admin(
    store: Box<dyn OperatorStore>,
) -> anyhow::Result<(Option<String>, Vec<Lease>, SubnetOrigin)> {
    block_on(async {
        let asked = async {
            let config = store.config_as_written().await?;
            let leases = store.snapshot().await?.leases;
            let leases = leases.into_iter().map(|stored| stored.lease).collect();
            Ok::<_, anyhow::Error>((config, leases, store.subnets()))
        };
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        asked.unwrap_or_else(|_| anyhow::bail!("it does not answer within {ANSWER_TIMEOUT:?}"))
    })
}

/// The lease server in the daemon itself. Where it answers operators alone, the daemon's word must do.
pub(super) fn ask_own_server(
    serve: &Serve,
    name: &NetworkName,
) -> Result<Option<JudgedNetwork>, Finding> {
    match daemon_process::own_server(serve, name.clone()).and_then(ask_admin) {
        Ok((Some(config), leases, origin)) => {
            judged(&config, origin, name.as_str(), leases).map(Some)
        }
        Ok((None, ..)) | Err(_) => Ok(None),
    }
}

/// Decides whether nodes can use a config.
pub(super) fn judged(
    text: &str,
    origin: SubnetOrigin,
    name: &str,
    leases: Vec<Lease>,
) -> Result<JudgedNetwork, Finding> {
    let judged = flannel_backend::judge_config(text, origin).map_err(|error| {
        Finding::broken(
            Layer::Config,
            format!("no node can use the network config: {error}"),
            "a node that starts waits for one that it can use",
            "correct it in a file, then flannelctl config set FILE",
        )
    })?;
    Ok(JudgedNetwork { name: name.to_owned(), judged, leases })
}
