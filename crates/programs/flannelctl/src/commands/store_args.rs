//! Which store to talk to: the one that is named by the daemon's own flags and variables, else the one that the flanneld
//! of this node uses.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use flannel_kube::api::Api;
use flannel_kube::{ConfigMapName, KubeOperator, KubeOptions, ProbePorts};
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_node::options::{Options, StoreOptions};
use flannel_store::{
    ClusterPin, EtcdOptions, EtcdStore, OperatorStore, RemoteOptions, RemoteStore, Secret,
    SubnetPool,
};

use super::daemon_process::{self, DaemonProcess};
use super::usage;

/// Connection flags; each can also be given as the daemon's environment variable, FLANNELD_REMOTE and
/// so on. Where no store is named, it is the one of the flanneld that runs on this node.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    /// Lease servers, each host:port; without any, Kubernetes or etcd is used
    #[arg(long, value_name = "ADDR,…", global = true)]
    pub(crate) remote: Option<String>,
    /// Certificate authorities the lease server is checked against
    #[arg(long, value_name = "FILE", global = true)]
    remote_cafile: Option<PathBuf>,
    /// Certificate to show to the lease server
    #[arg(long, value_name = "FILE", global = true)]
    remote_certfile: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", global = true)]
    remote_keyfile: Option<PathBuf>,
    /// Token for the lease server; prefer FLANNELD_REMOTE_TOKEN or the file
    #[arg(long, value_name = "TOKEN", global = true)]
    remote_token: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE", global = true)]
    remote_token_file: Option<PathBuf>,
    /// Allow the token to be sent to other machines without TLS
    #[arg(long, global = true)]
    remote_insecure: bool,
    /// Name of the network; `page` takes several
    #[arg(long, value_name = "NAME", global = true)]
    networks: Option<String>,
    /// etcd's endpoints
    #[arg(long, value_name = "URL,…", global = true)]
    etcd_endpoints: Option<String>,
    /// Look at the Nodes of Kubernetes, by this kubeconfig
    #[arg(long, visible_alias = "kubeconfig", value_name = "FILE", global = true)]
    kubeconfig_file: Option<PathBuf>,
    /// Look at the Nodes of Kubernetes, in a pod by its service account
    #[arg(long, global = true)]
    kube_subnet_mgr: bool,
    /// URL of the Kubernetes API server, instead of the kubeconfig's
    #[arg(long, value_name = "URL", global = true)]
    kube_api_url: Option<String>,
    /// Prefix of flannel's annotations of Nodes
    #[arg(long, value_name = "PREFIX", global = true)]
    kube_annotation_prefix: Option<String>,
    /// The ConfigMap with the network config
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "kube-flannel/kube-flannel-cfg",
        global = true
    )]
    kube_config_map: ConfigMapName,
    /// Prefix of flannel's keys in etcd
    #[arg(long, value_name = "KEY", global = true)]
    etcd_prefix: Option<String>,
    /// Certificate authorities etcd is checked against
    #[arg(long, value_name = "FILE", global = true)]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", global = true)]
    etcd_certfile: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", global = true)]
    etcd_keyfile: Option<PathBuf>,
    /// etcd user
    #[arg(long, value_name = "NAME", global = true)]
    etcd_username: Option<String>,
    /// etcd password; prefer FLANNELD_ETCD_PASSWORD
    #[arg(long, value_name = "PASSWORD", global = true)]
    etcd_password: Option<String>,
}

/// The flanneld of this node, whose store is meant where none is named.
struct LocalDaemon {
    process: DaemonProcess,
    options: Options,
}

impl StoreArgs {
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn OperatorStore>> {
        self.open_network(self.network()?)
    }

    /// One of several.
    pub(crate) fn open_network(
        &self,
        network: NetworkName,
    ) -> anyhow::Result<Box<dyn OperatorStore>> {
        if let Some(LocalDaemon { process, options }) = self.local_daemon()? {
            return process.operators_store(&options, &network, &self.kube_config_map);
        }
        if let Some(remote) = given(&self.remote, "REMOTE") {
            return Ok(Box::new(self.lease_server(&remote, network)?));
        }
        if self.is_kubernetes()? {
            return Ok(Box::new(self.kubernetes()?));
        }
        if !self.is_named() {
            let text = "no store is named (--remote, --kubeconfig-file or --etcd-endpoints) and no flanneld runs here: \
                        asking etcd where it is by default";
            writeln!(std::io::stderr(), "flannelctl: {text}")?;
        }
        Ok(Box::new(self.etcd(&network)?))
    }

    /// Whether a store was named at all, by a flag or a variable.
    pub(crate) fn is_named(&self) -> bool {
        given(&self.remote, "REMOTE").is_some()
            || given(&self.etcd_endpoints, "ETCD_ENDPOINTS").is_some()
            || self.is_kubernetes().unwrap_or(true)
    }

    /// `None` if a store is named, or if no flanneld runs here.
    fn local_daemon(&self) -> anyhow::Result<Option<LocalDaemon>> {
        if self.is_named() {
            return Ok(None);
        }
        let find = || -> anyhow::Result<Option<LocalDaemon>> {
            let Some(process) = DaemonProcess::find()? else { return Ok(None) };
            let options = process.options()?;
            Ok(Some(LocalDaemon { process, options }))
        };
        find().context(
            "cannot tell which store the flanneld of this node uses; run this as root, or name the store with --remote, \
             --kubeconfig-file or --etcd-endpoints",
        )
    }

    /// What people call the store that [`Self::open`] opens.
    pub(crate) fn kind(&self) -> anyhow::Result<&'static str> {
        if let Some(daemon) = self.local_daemon()? {
            return Ok(match daemon.options.networks.first().map(|joined| &joined.store) {
                Some(StoreOptions::Etcd(_)) => "etcd",
                Some(StoreOptions::Kube(_)) => "Kubernetes",
                Some(StoreOptions::Remote(_) | StoreOptions::Own) | None => "lease server",
            });
        }
        Ok(match given(&self.remote, "REMOTE") {
            Some(_) => "lease server",
            None if self.is_kubernetes()? => "Kubernetes",
            None => "etcd",
        })
    }

    /// Whether subnets are taken from a pool or assigned, as far as the flags say.
    pub(crate) fn subnets(&self) -> anyhow::Result<SubnetOrigin> {
        if let Some(daemon) = self.local_daemon()? {
            let joined = daemon.options.networks.first();
            return Ok(joined.map_or(SubnetOrigin::Pool, |it| daemon_process::subnets(&it.store)));
        }
        let server = given(&self.remote, "REMOTE").is_some();
        let assigned = !server && self.is_kubernetes()?;
        Ok(if assigned { SubnetOrigin::Store } else { SubnetOrigin::Pool })
    }

    fn is_kubernetes(&self) -> anyhow::Result<bool> {
        Ok(self.kube_subnet_mgr
            || is_set("KUBE_SUBNET_MGR")?
            || self.kubeconfig().is_some()
            || given(&self.kube_api_url, "KUBE_API_URL").is_some())
    }

    /// As a plugin of kubectl, the cluster is the one that kubectl asks, unless another store is named.
    fn kubeconfig(&self) -> Option<PathBuf> {
        let named = file(&self.kubeconfig_file, "KUBECONFIG_FILE");
        let etcd = given(&self.etcd_endpoints, "ETCD_ENDPOINTS").is_some();
        named.or_else(|| crate::called_as().kubeconfig().filter(|_| !etcd))
    }

    fn kubernetes(&self) -> anyhow::Result<KubeOperator> {
        let api = self.kubernetes_api()?;
        Ok(KubeOperator::new(api, self.kube_config_map.clone(), fastrand::u64(..)))
    }

    /// The probe ports of flannel's pods, where the store is Kubernetes.
    pub(crate) fn probe_ports(&self) -> anyhow::Result<Option<ProbePorts>> {
        let namespace = &self.kube_config_map.namespace;
        if let Some(LocalDaemon { process, options }) = self.local_daemon()? {
            return process
                .kubernetes_api(&options)
                .map(|api| api.map(|it| ProbePorts::new(&it, namespace)));
        }
        if given(&self.remote, "REMOTE").is_some() || !self.is_kubernetes()? {
            return Ok(None);
        }
        Ok(Some(ProbePorts::new(&self.kubernetes_api()?, namespace)))
    }

    /// The API server, where one is named.
    pub(crate) fn named_kubernetes(&self) -> anyhow::Result<Option<Api>> {
        if self.is_kubernetes()? { self.kubernetes_api().map(Some) } else { Ok(None) }
    }

    fn kubernetes_api(&self) -> anyhow::Result<Api> {
        let prefix = given(&self.kube_annotation_prefix, "KUBE_ANNOTATION_PREFIX");
        let options = KubeOptions {
            api_url: given(&self.kube_api_url, "KUBE_API_URL"),
            kubeconfig: self.kubeconfig(),
            annotation_prefix: prefix.unwrap_or_else(|| "flannel.alpha.coreos.com".to_owned()),
            net_config: PathBuf::new(),
            set_node_network_unavailable: false,
        };
        Ok(options.api(|name| std::env::var(name).ok())?)
    }

    /// The lease server, whichever store would be used otherwise.
    pub(crate) fn open_lease_server(&self) -> anyhow::Result<Box<dyn SubnetPool>> {
        let missing = || usage("name the lease server: --remote");
        let remote = given(&self.remote, "REMOTE").ok_or_else(missing)?;
        Ok(Box::new(self.lease_server(&remote, self.network()?)?))
    }

    pub(crate) fn open_etcd(&self) -> anyhow::Result<Box<dyn SubnetPool>> {
        Ok(Box::new(self.etcd(&self.network()?)?))
    }

    fn lease_server(&self, remote: &str, network: NetworkName) -> anyhow::Result<RemoteStore> {
        let options = RemoteOptions {
            addresses: list(remote),
            network,
            ca: file(&self.remote_cafile, "REMOTE_CAFILE"),
            cert: file(&self.remote_certfile, "REMOTE_CERTFILE"),
            key: file(&self.remote_keyfile, "REMOTE_KEYFILE"),
            token: given(&self.remote_token, "REMOTE_TOKEN").map(Secret::new),
            token_file: file(&self.remote_token_file, "REMOTE_TOKEN_FILE"),
            node_secret: None,
            insecure: self.remote_insecure || is_set("REMOTE_INSECURE")?,
        };
        Ok(RemoteStore::new(options, fastrand::u64(..))?)
    }

    fn etcd(&self, network: &NetworkName) -> anyhow::Result<EtcdStore> {
        let endpoints = given(&self.etcd_endpoints, "ETCD_ENDPOINTS")
            .unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
        let prefix = given(&self.etcd_prefix, "ETCD_PREFIX");
        let options = EtcdOptions {
            endpoints: list(&endpoints),
            prefix: prefix.unwrap_or_else(|| "/coreos.com/network".to_owned()),
            ca: file(&self.etcd_cafile, "ETCD_CAFILE"),
            cert: file(&self.etcd_certfile, "ETCD_CERTFILE"),
            key: file(&self.etcd_keyfile, "ETCD_KEYFILE"),
            username: given(&self.etcd_username, "ETCD_USERNAME"),
            password: given(&self.etcd_password, "ETCD_PASSWORD").map(Secret::new),
            cluster: ClusterPin::default(),
        };
        Ok(EtcdStore::new(&options.of_network(network), None, fastrand::u64(..))?)
    }

    pub(crate) fn network(&self) -> anyhow::Result<NetworkName> {
        match given(&self.networks, "NETWORKS") {
            Some(names) if names.contains(',') => {
                Err(usage(format!("--networks {names}: name one of them")))
            }
            Some(name) => read_name(&name),
            None => Ok(self.all_networks()?.swap_remove(0)),
        }
    }

    /// All that are named, as a daemon joins them.
    pub(crate) fn all_networks(&self) -> anyhow::Result<Vec<NetworkName>> {
        let names = given(&self.networks, "NETWORKS").map(|names| list(&names)).unwrap_or_default();
        if names.is_empty() {
            let daemons = self.local_daemon()?.map(|daemon| daemon.options.networks);
            let joined =
                daemons.into_iter().flatten().map(|joined| joined.name).collect::<Vec<_>>();
            return Ok(if joined.is_empty() { vec![NetworkName::default()] } else { joined });
        }
        names.iter().map(|name| read_name(name)).collect()
    }
}

fn read_name(name: &str) -> anyhow::Result<NetworkName> {
    name.parse().map_err(|error| usage(format!("--networks {name}: {error}")))
}

fn given(flag: &Option<String>, variable: &str) -> Option<String> {
    let variable = || std::env::var(format!("FLANNELD_{variable}")).ok();
    flag.clone().or_else(variable).filter(|text| !text.is_empty())
}

/// A variable as the daemon reads those of its boolean flags.
fn is_set(variable: &str) -> anyhow::Result<bool> {
    let text = given(&None, variable).unwrap_or_default();
    match text.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(usage(format!("FLANNELD_{variable}={text}: use true or false"))),
    }
}

fn file(flag: &Option<PathBuf>, variable: &str) -> Option<PathBuf> {
    let variable = || std::env::var_os(format!("FLANNELD_{variable}")).map(PathBuf::from);
    flag.clone().or_else(variable).filter(|path| !path.as_os_str().is_empty())
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Runs what talks to a store.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
