//! The store to talk to: named by the daemon's own flags and variables, else that of the flanneld of this node.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Context as _;
use clap::Args;
use flannel_kube::ConfigMapName;
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_node::options::{self, Options, Parsed, Remark, StoreOptions};
use flannel_store::{OperatorStore, SubnetPool};

use super::daemon_process::DaemonProcess;
use super::stores::Stores;
use super::usage;

/// Connection flags; each can also be given as the daemon's environment variable, FLANNELD_REMOTE and
/// so on. Where no store is named, it is the one of the flanneld that runs on this node.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    /// Lease servers, each host:port; without any, Kubernetes or etcd is used
    #[arg(long, value_name = "ADDR,…", global = true)]
    remote: Option<String>,
    /// Certificate authorities the lease server is checked against
    #[arg(long, value_name = "FILE", global = true)]
    remote_cafile: Option<String>,
    /// Certificate to show to the lease server
    #[arg(long, value_name = "FILE", global = true)]
    remote_certfile: Option<String>,
    /// Its private key
    #[arg(long, value_name = "FILE", global = true)]
    remote_keyfile: Option<String>,
    /// Token for the lease server; prefer FLANNELD_REMOTE_TOKEN or the file
    #[arg(long, value_name = "TOKEN", global = true)]
    remote_token: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE", global = true)]
    remote_token_file: Option<String>,
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
    kubeconfig_file: Option<String>,
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
    pub(crate) kube_config_map: ConfigMapName,
    /// Prefix of flannel's keys in etcd
    #[arg(long, value_name = "KEY", global = true)]
    etcd_prefix: Option<String>,
    /// Certificate authorities etcd is checked against
    #[arg(long, value_name = "FILE", global = true)]
    etcd_cafile: Option<String>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", global = true)]
    etcd_certfile: Option<String>,
    /// Its private key
    #[arg(long, value_name = "FILE", global = true)]
    etcd_keyfile: Option<String>,
    /// etcd user
    #[arg(long, value_name = "NAME", global = true)]
    etcd_username: Option<String>,
    /// etcd password; prefer FLANNELD_ETCD_PASSWORD
    #[arg(long, value_name = "PASSWORD", global = true)]
    etcd_password: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Any,
    LeaseServer,
    Etcd,
}

impl StoreArgs {
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn OperatorStore>> {
        self.open_network(&self.network()?)
    }

    pub(crate) fn open_network(
        &self,
        network: &NetworkName,
    ) -> anyhow::Result<Box<dyn OperatorStore>> {
        let stores = self.stores()?;
        if stores.process.is_none() && !self.is_named() {
            let text = "no store is named (--remote, --kubeconfig-file or --etcd-endpoints) and no flanneld runs here: \
                        asking etcd where it is by default";
            writeln!(std::io::stderr(), "flannelctl: {text}")?;
        }
        stores.open(network)
    }

    /// The stores that are named, else those of the flanneld that runs here, else etcd where it is by default.
    pub(crate) fn stores(&self) -> anyhow::Result<Stores> {
        let config_map = || self.kube_config_map.clone();
        if !self.is_named() {
            let daemons = || -> anyhow::Result<_> {
                DaemonProcess::find()?.map(|process| Stores::of(process, config_map())).transpose()
            };
            let daemons = daemons().context(
                "cannot tell which store the flanneld of this node uses; run this as root, or name the store with --remote, \
                 --kubeconfig-file or --etcd-endpoints",
            )?;
            if let Some(stores) = daemons {
                return Ok(stores);
            }
        }
        Ok(Stores::named(self.read(Kind::Any)?, config_map()))
    }

    pub(crate) fn is_named(&self) -> bool {
        given(&self.remote, "REMOTE").is_some()
            || given(&self.etcd_endpoints, "ETCD_ENDPOINTS").is_some()
            || self.read(Kind::Any).map_or(true, |options| {
                Stores::named(options, self.kube_config_map.clone()).subnets()
                    == SubnetOrigin::Store
            })
    }

    pub(crate) fn open_lease_server(&self) -> anyhow::Result<Box<dyn SubnetPool>> {
        if given(&self.remote, "REMOTE").is_none() {
            return Err(usage("name the lease server: --remote"));
        }
        self.open_pool(Kind::LeaseServer)
    }

    pub(crate) fn open_etcd(&self) -> anyhow::Result<Box<dyn SubnetPool>> {
        self.open_pool(Kind::Etcd)
    }

    fn open_pool(&self, kind: Kind) -> anyhow::Result<Box<dyn SubnetPool>> {
        self.network()?;
        Stores::named(self.read(kind)?, self.kube_config_map.clone()).open_pool()
    }

    pub(crate) fn network(&self) -> anyhow::Result<NetworkName> {
        if let Some(names) = given(&self.networks, "NETWORKS").filter(|names| names.contains(',')) {
            return Err(usage(format!("--networks {names}: name one of them")));
        }
        Ok(self.all_networks()?.swap_remove(0))
    }

    pub(crate) fn all_networks(&self) -> anyhow::Result<Vec<NetworkName>> {
        let named = given(&self.networks, "NETWORKS").unwrap_or_default();
        let names = named.split(',').map(str::trim).filter(|name| !name.is_empty());
        let read =
            |name: &str| name.parse().map_err(|error| usage(format!("--networks {name}: {error}")));
        let mut names: Vec<NetworkName> = names.map(read).collect::<anyhow::Result<_>>()?;
        if names.is_empty() {
            let joined = self.stores()?.options.networks.into_iter();
            names.extend(joined.map(|joined| joined.name));
        }
        Ok(if names.is_empty() { vec![NetworkName::default()] } else { names })
    }

    fn read(&self, kind: Kind) -> anyhow::Result<Options> {
        let kubeconfig = self.kubeconfig();
        let api_url = given(&self.kube_api_url, "KUBE_API_URL");
        let is_remote = kind != Kind::Etcd && given(&self.remote, "REMOTE").is_some();
        let asks_kube = self.kube_subnet_mgr || kubeconfig.is_some() || api_url.is_some();
        let mut words = vec!["flannelctl".to_owned()];
        if is_remote || kind != Kind::Any {
            words.push("--kube-subnet-mgr=false".to_owned());
        } else if asks_kube {
            words.push("--kube-subnet-mgr=true".to_owned());
        }
        if kind == Kind::Etcd {
            words.push("--remote=".to_owned());
        }
        if self.remote_insecure {
            words.push("--remote-insecure".to_owned());
        }
        let flags = [
            ("remote", &self.remote.clone().filter(|_| is_remote)),
            ("remote-cafile", &self.remote_cafile),
            ("remote-certfile", &self.remote_certfile),
            ("remote-keyfile", &self.remote_keyfile),
            ("remote-token", &self.remote_token),
            ("remote-token-file", &self.remote_token_file),
            ("etcd-endpoints", &self.etcd_endpoints),
            ("etcd-prefix", &self.etcd_prefix),
            ("etcd-cafile", &self.etcd_cafile),
            ("etcd-certfile", &self.etcd_certfile),
            ("etcd-keyfile", &self.etcd_keyfile),
            ("etcd-username", &self.etcd_username),
            ("etcd-password", &self.etcd_password),
            ("kubeconfig-file", &kubeconfig),
            ("kube-api-url", &api_url),
            ("kube-annotation-prefix", &self.kube_annotation_prefix),
        ];
        let named = flags.iter().filter_map(|(flag, value)| Some((flag, value.as_ref()?)));
        // An empty one is as none.
        let named = named.filter(|(_, value)| !value.is_empty());
        words.extend(named.map(|(flag, value)| format!("--{flag}={value}")));
        let options = read_as_daemon(&words)?;
        // Kubernetes keeps one network, which has no name.
        let is_kube =
            options.networks.iter().any(|joined| matches!(joined.store, StoreOptions::Kube(_)));
        match given(&self.networks, "NETWORKS").filter(|_| !is_kube) {
            Some(names) => {
                words.push(format!("--networks={names}"));
                read_as_daemon(&words)
            }
            None => Ok(options),
        }
    }

    /// As a plugin of kubectl, the cluster is the one that kubectl asks, unless another store is named.
    fn kubeconfig(&self) -> Option<String> {
        let named = given(&self.kubeconfig_file, "KUBECONFIG_FILE");
        let etcd = given(&self.etcd_endpoints, "ETCD_ENDPOINTS").is_some();
        let kubectls =
            || crate::called_as().kubeconfig().filter(|_| !etcd)?.to_str().map(str::to_owned);
        named.or_else(kubectls)
    }
}

fn read_as_daemon(words: &[String]) -> anyhow::Result<Options> {
    let is_of_stores = |name: &OsString| {
        let kinds = ["FLANNELD_REMOTE", "FLANNELD_ETCD_", "FLANNELD_KUBE"];
        name.to_str().is_some_and(|name| kinds.iter().any(|kind| name.starts_with(kind)))
    };
    let variables = std::env::vars_os().filter(|(name, _)| is_of_stores(name));
    match options::parse(words.iter().map(OsString::from), variables) {
        Ok(Parsed::Run { options, remarks, .. }) => {
            let bad = remarks.into_iter().find_map(|remark| match remark {
                Remark::BadVariable(bad) => Some(usage(bad.to_string())),
                _ => None,
            });
            bad.map_or(Ok(*options), Err)
        }
        Ok(Parsed::Help(_) | Parsed::Version) => Err(usage("which store?")),
        Err(error) => Err(usage(error.to_string())),
    }
}

fn given(flag: &Option<String>, variable: &str) -> Option<String> {
    let variable = || std::env::var(format!("FLANNELD_{variable}")).ok();
    flag.clone().or_else(variable).filter(|text| !text.is_empty())
}

pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
