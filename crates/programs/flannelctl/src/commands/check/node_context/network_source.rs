//! Source of a network's config and leases: the store of the flanneld that runs here, or what the operator names.

use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use flannel_kube::api::Api;
use flannel_store::OperatorStore;

use super::ANSWER_TIMEOUT;
use crate::commands::daemon_process::DaemonProcess;
use crate::commands::store_args::{StoreArgs, block_on};
use crate::commands::stores::Stores;

/// Where the network is looked up
#[derive(Debug, Args)]
pub(crate) struct NetworkSource {
    /// A network config to judge this node by, where no flanneld runs that says which
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The daemon's socket, beside its subnet file
    #[arg(long, default_value = flannel_state::SOCKET)]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

impl NetworkSource {
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
        match self.store.is_named() {
            true => self.store.open(),
            false => self.store.open_network(&network.parse()?),
        }
    }

    /// The API server: the one that is named, else the one that the flanneld here uses, if it uses one.
    pub(crate) fn kubernetes_api(&self) -> anyhow::Result<Option<Api>> {
        self.store.stores()?.kubernetes_api()
    }

    /// The stores of the flanneld that runs here, whatever is named; else those that are named.
    pub(super) fn stores(&self, process: Option<DaemonProcess>) -> anyhow::Result<Option<Stores>> {
        match process {
            Some(process) => Stores::of(process, self.store.kube_config_map.clone()).map(Some),
            None => self.store.is_named().then(|| self.store.stores()).transpose(),
        }
    }

    /// The network configs, as they were written. There may be secrets in them.
    pub(crate) fn configs(&self) -> Vec<serde_json::Value> {
        let stores = self.stores(DaemonProcess::find().ok().flatten()).ok().flatten();
        let mut texts = Vec::new();
        if let Some(stores) = &stores {
            for joined in &stores.options.networks {
                let asked = block_on(async {
                    Ok(tokio::time::timeout(ANSWER_TIMEOUT, stores.ask(joined)).await??.config)
                });
                texts.extend(asked.ok().flatten());
            }
        }
        texts.extend(self.config.as_ref().and_then(|file| std::fs::read_to_string(file).ok()));
        texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
    }
}
