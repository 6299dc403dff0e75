//! Stores that the daemon's options name: of the daemon that runs here, with its rights, or as an operator's flags.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use flannel_kube::access::Access;
use flannel_kube::annotations::AnnotationPrefix;
use flannel_kube::api::Api;
use flannel_kube::net_config::NetConfigFile;
use flannel_kube::{ConfigMapName, KubeOperator, KubeOptions, ProbePorts};
use flannel_lease::{Lease, NetworkName, SubnetOrigin};
use flannel_node::options::{Joined, Options, Serve, StoreOptions};
use flannel_store::remote::Listen;
use flannel_store::{
    EtcdOptions, EtcdStore, OperatorStore, RemoteOptions, RemoteStore, SubnetPool,
};

use super::daemon_process::DaemonProcess;

pub(crate) struct Stores {
    pub(crate) options: Options,
    pub(crate) process: Option<DaemonProcess>,
    config_map: ConfigMapName,
}

pub(crate) struct StoredNetwork {
    pub(crate) config: Option<String>,
    pub(crate) leases: Vec<Lease>,
}

impl Stores {
    pub(crate) fn of(process: DaemonProcess, config_map: ConfigMapName) -> anyhow::Result<Self> {
        Ok(Self { options: process.options()?, process: Some(process), config_map })
    }

    pub(crate) fn named(options: Options, config_map: ConfigMapName) -> Self {
        Self { options, process: None, config_map }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self.first() {
            Some(StoreOptions::Etcd(_)) => "etcd",
            Some(StoreOptions::Kube(_)) => "Kubernetes",
            Some(StoreOptions::Remote(_) | StoreOptions::Own) | None => "lease server",
        }
    }

    pub(crate) fn subnets(&self) -> SubnetOrigin {
        match self.first() {
            Some(StoreOptions::Kube(_)) => SubnetOrigin::Store,
            Some(StoreOptions::Etcd(_) | StoreOptions::Remote(_) | StoreOptions::Own) | None => {
                SubnetOrigin::Pool
            }
        }
    }

    fn first(&self) -> Option<&StoreOptions> {
        self.options.networks.first().map(|joined| &joined.store)
    }

    pub(crate) fn open(&self, network: &NetworkName) -> anyhow::Result<Box<dyn OperatorStore>> {
        // Kubernetes keeps one network, whatever it is called.
        let is_it = |joined: &&Joined| {
            joined.name == *network || matches!(joined.store, StoreOptions::Kube(_))
        };
        let joined = self.options.networks.iter().find(is_it).map(|joined| &joined.store);
        match (joined, &self.options.serve) {
            // A daemon that only serves leases has joined none.
            (Some(StoreOptions::Own) | None, Some(serve)) => {
                Ok(Box::new(own_server(serve, network.clone())?))
            }
            (Some(StoreOptions::Etcd(etcd)), _) => Ok(Box::new(self.etcd(etcd)?)),
            (Some(StoreOptions::Remote(remote)), _) => Ok(Box::new(self.lease_server(remote)?)),
            (Some(StoreOptions::Kube(kube)), _) => {
                let map = self.config_map.clone();
                Ok(Box::new(KubeOperator::new(self.api(kube)?, map, fastrand::u64(..))))
            }
            (Some(StoreOptions::Own) | None, None) => {
                let names = self.options.networks.iter().map(|joined| joined.name.as_str());
                bail!(
                    "{} has not joined the network {network}, but {}: name one with --networks, or the store",
                    self.process.as_ref().map_or("flanneld".to_owned(), DaemonProcess::describe),
                    names.collect::<Vec<_>>().join(", ")
                )
            }
        }
    }

    pub(crate) fn open_pool(&self) -> anyhow::Result<Box<dyn SubnetPool>> {
        match self.first() {
            Some(StoreOptions::Etcd(etcd)) => Ok(Box::new(self.etcd(etcd)?)),
            Some(StoreOptions::Remote(remote)) => Ok(Box::new(self.lease_server(remote)?)),
            Some(StoreOptions::Kube(_) | StoreOptions::Own) | None => {
                bail!("{} hands out no subnets", self.kind())
            }
        }
    }

    pub(crate) async fn ask(&self, joined: &Joined) -> anyhow::Result<StoredNetwork> {
        let store = self.open(&joined.name)?;
        let config = match (&joined.store, &self.process) {
            (StoreOptions::Kube(kube), Some(process)) => {
                let file = NetConfigFile::new(process.inside(&kube.net_config)).read();
                let config = file.context("read the network config")?;
                let missing =
                    || format!("there is no network config in {}", kube.net_config.display());
                Some(config.with_context(missing)?)
            }
            _ => store.config_as_written().await?,
        };
        let leases = store.snapshot().await?.leases;
        Ok(StoredNetwork { config, leases: leases.into_iter().map(|it| it.lease).collect() })
    }

    fn etcd(&self, etcd: &EtcdOptions) -> anyhow::Result<EtcdStore> {
        let etcd = EtcdOptions {
            ca: self.file(&etcd.ca),
            cert: self.file(&etcd.cert),
            key: self.file(&etcd.key),
            ..etcd.clone()
        };
        Ok(EtcdStore::new(&etcd, None, fastrand::u64(..))?)
    }

    fn lease_server(&self, remote: &RemoteOptions) -> anyhow::Result<RemoteStore> {
        let remote = RemoteOptions {
            ca: self.file(&remote.ca),
            cert: self.file(&remote.cert),
            key: self.file(&remote.key),
            token_file: self.file(&remote.token_file),
            ..remote.clone()
        };
        Ok(RemoteStore::new(remote, fastrand::u64(..))?)
    }

    fn file(&self, file: &Option<PathBuf>) -> Option<PathBuf> {
        file.as_deref().map(|file| self.inside(file))
    }

    /// A file as whoever was given its name sees it.
    pub(crate) fn inside(&self, file: &Path) -> PathBuf {
        self.process.as_ref().map_or_else(|| file.to_owned(), |process| process.inside(file))
    }

    pub(crate) fn kubernetes_api(&self) -> anyhow::Result<Option<Api>> {
        let kube = self.options.networks.iter().find_map(|joined| match &joined.store {
            StoreOptions::Kube(kube) => Some(kube),
            _ => None,
        });
        kube.map(|kube| self.api(kube)).transpose()
    }

    pub(crate) fn probe_ports(&self) -> anyhow::Result<Option<ProbePorts>> {
        let api = self.kubernetes_api()?;
        Ok(api.map(|api| ProbePorts::new(&api, &self.config_map.namespace)))
    }

    fn api(&self, kube: &KubeOptions) -> anyhow::Result<Api> {
        let kubeconfig = self.file(&kube.kubeconfig);
        let access = Access::find(kubeconfig.as_deref(), kube.api_url.as_deref(), |name| {
            let own = || std::env::var(name).ok();
            self.process.as_ref().map_or_else(own, |process| process.variable(name))
        });
        let access = match access.map_err(anyhow::Error::msg)? {
            Access::Pod { host, port, account } => {
                Access::Pod { host, port, account: self.inside(&account) }
            }
            other => other,
        };
        Ok(Api::new(access, AnnotationPrefix::parse(&kube.annotation_prefix)?))
    }
}

/// The lease server of the flanneld that runs here, which asks nobody who he is if it has no tokens.
fn own_server(serve: &Serve, network: NetworkName) -> anyhow::Result<RemoteStore> {
    let Listen::Address { host, port } = &serve.listen else {
        bail!("say where this node's lease server listens: --remote")
    };
    anyhow::ensure!(
        serve.tokens.is_none() && serve.tls.is_none(),
        "this node's lease server listens to operators only: give --remote, and --remote-token-file or --remote-certfile"
    );
    let host = match host.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() => ip.to_string(),
        Err(_) if !host.is_empty() => host.clone(),
        Ok(_) | Err(_) => "127.0.0.1".to_owned(),
    };
    let address = Listen::Address { host, port: *port }.to_string();
    let options = RemoteOptions { addresses: vec![address], network, ..RemoteOptions::default() };
    Ok(RemoteStore::new(options, fastrand::u64(..))?)
}
