//! The flannel that runs in this network namespace now, of whatever make: how it was started, and what its store says.

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use flannel_common::OperatorCommands;
use flannel_kube::access::Access;
use flannel_kube::annotations::AnnotationPrefix;
use flannel_kube::api::Api;
use flannel_kube::net_config::NetConfigFile;
use flannel_kube::{ConfigMapName, KubeOperator, KubeOptions};
use flannel_lease::{Lease, NetworkName, SubnetOrigin};
use flannel_node::options::{self, Options, Parsed, Serve, StoreOptions};
use flannel_store::remote::Listen;
use flannel_store::{EtcdOptions, EtcdStore, OperatorStore, RemoteOptions, RemoteStore};

use crate::commands::running_daemon;

pub(crate) struct DaemonProcess {
    pid: u32,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

/// What an operator of this node types: by the daemon that runs here, else by what this host is.
pub(crate) fn operator_commands() -> OperatorCommands {
    match DaemonProcess::find() {
        Ok(Some(process)) => process.operator_commands(),
        Ok(None) | Err(_) => {
            let here = OperatorCommands::here(false);
            OperatorCommands { in_pods: here.in_pods || is_run_by_kubelet(Path::new("/")), ..here }
        }
    }
}

/// Whether a daemon that does not run now is one of a kubelet's pods: a kubelet is here, and no unit of systemd.
fn is_run_by_kubelet(root: &Path) -> bool {
    let units = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
    let is_unit = units.iter().any(|it| root.join(it).join("flanneld.service").exists());
    root.join("var/lib/kubelet/pods").is_dir() && !is_unit
}

pub(crate) fn subnets(store: &StoreOptions) -> SubnetOrigin {
    match store {
        StoreOptions::Kube(_) => SubnetOrigin::Store,
        StoreOptions::Etcd(_) | StoreOptions::Remote(_) | StoreOptions::Own => SubnetOrigin::Pool,
    }
}

impl DaemonProcess {
    /// `None` if none runs here.
    pub(crate) fn find() -> anyhow::Result<Option<Self>> {
        let Some(pid) = running_daemon::running() else { return Ok(None) };
        let read = |name: &str| {
            let file = format!("/proc/{pid}/{name}");
            fs::read(&file).with_context(|| format!("read {file}"))
        };
        let split = |bytes: Vec<u8>| -> Vec<OsString> {
            let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            parts.map(|part| OsString::from_vec(part.to_vec())).collect()
        };
        let pair = |variable: OsString| {
            let bytes = variable.into_vec();
            let at = bytes.iter().position(|byte| *byte == b'=')?;
            let value = OsString::from_vec(bytes[at + 1..].to_vec());
            Some((OsString::from_vec(bytes[..at].to_vec()), value))
        };
        Ok(Some(Self {
            pid,
            arguments: split(read("cmdline")?),
            environment: split(read("environ")?).into_iter().filter_map(pair).collect(),
        }))
    }

    /// Without values of flags: there may be secrets among them.
    pub(crate) fn describe(&self) -> String {
        let program = fs::read_link(format!("/proc/{}/exe", self.pid));
        let program = program.map_or("flanneld".to_owned(), |path| path.display().to_string());
        format!("{program} (pid {})", self.pid)
    }

    /// Its flags and variables, by name. There may be secrets among them.
    pub(crate) fn given(&self) -> Vec<(String, String)> {
        let mut given = Vec::new();
        let mut words = self.arguments.iter().skip(1).map(|word| word.to_string_lossy()).peekable();
        while let Some(word) = words.next() {
            let name = word.trim_start_matches('-');
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                // A flag of two words.
                None => match words.next_if(|next| !next.starts_with('-')) {
                    Some(value) => (name.to_owned(), value.into_owned()),
                    None => (name.to_owned(), "true".to_owned()),
                },
            };
            given.push((format!("--{name}"), value));
        }
        let variables = self.environment.iter();
        let variables =
            variables.map(|(name, value)| (name.to_string_lossy(), value.to_string_lossy()));
        given.extend(variables.map(|(name, value)| (name.into_owned(), value.into_owned())));
        given
    }

    /// What this flannel makes of its flags.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let parsed =
            options::parse(self.arguments.iter().cloned(), self.environment.iter().cloned());
        match parsed? {
            Parsed::Run { options, .. } => Ok(*options),
            Parsed::Help(_) | Parsed::Version => {
                bail!("it only prints help or its version, and ends")
            }
        }
    }

    /// What its operator types.
    fn operator_commands(&self) -> OperatorCommands {
        let is_kube = |options: Options| {
            options.networks.iter().any(|it| subnets(&it.store) == SubnetOrigin::Store)
        };
        OperatorCommands {
            leases_are_nodes: self.options().is_ok_and(is_kube),
            in_pods: self.variable("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }

    /// A file as that process sees it: it may have a file system of its own.
    pub(crate) fn inside(&self, file: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let file = match file.is_relative() {
            true => fs::read_link(format!("/proc/{}/cwd", self.pid)).unwrap_or_default().join(file),
            false => file.to_owned(),
        };
        root.join(file.strip_prefix("/").unwrap_or(&file))
    }

    fn variable(&self, name: &str) -> Option<String> {
        let found = self.environment.iter().find(|(found, _)| found.as_os_str() == name)?;
        found.1.to_str().map(str::to_owned)
    }

    /// The network config and all leases.
    pub(crate) async fn ask(&self, store: &StoreOptions) -> anyhow::Result<(String, Vec<Lease>)> {
        let config = match store {
            StoreOptions::Kube(kube) => {
                let config = NetConfigFile::new(self.inside(&kube.net_config)).read();
                let config = config.context("read the network config")?;
                Some(config.with_context(|| {
                    format!("there is no network config in {}", kube.net_config.display())
                })?)
            }
            StoreOptions::Etcd(_) | StoreOptions::Remote(_) | StoreOptions::Own => None,
        };
        let store = self.store(store)?;
        let config = match config {
            Some(config) => config,
            None => {
                let missing = "there is no network config in the store";
                store.config_as_written().await?.context(missing)?
            }
        };
        let leases = store.snapshot().await?.leases;
        Ok((config, leases.into_iter().map(|stored| stored.lease).collect()))
    }

    /// Its store of one of its networks, for an operator: with the rights that it has there.
    pub(crate) fn operators_store(
        &self,
        options: &Options,
        network: &NetworkName,
        config_map: &ConfigMapName,
    ) -> anyhow::Result<Box<dyn OperatorStore>> {
        let joined = options.networks.iter().find(|joined| joined.name == *network);
        match (joined.map(|joined| &joined.store), &options.serve) {
            // A daemon that only serves leases has joined none.
            (Some(StoreOptions::Own) | None, Some(serve)) => own_server(serve, network.clone()),
            (Some(StoreOptions::Kube(kube)), _) => {
                let api = self.api(kube)?;
                Ok(Box::new(KubeOperator::new(api, config_map.clone(), fastrand::u64(..))))
            }
            (Some(store), _) => self.store(store),
            (None, None) => {
                let names: Vec<&str> = options.networks.iter().map(|it| it.name.as_str()).collect();
                bail!(
                    "{} has not joined the network {network}, but {}: name one with --networks, or the store",
                    self.describe(),
                    names.join(", ")
                )
            }
        }
    }

    /// Its store, with the rights that it has there.
    fn store(&self, store: &StoreOptions) -> anyhow::Result<Box<dyn OperatorStore>> {
        let inside = |file: &Option<PathBuf>| file.as_deref().map(|it| self.inside(it));
        Ok(match store {
            StoreOptions::Etcd(etcd) => {
                let etcd = EtcdOptions {
                    ca: inside(&etcd.ca),
                    cert: inside(&etcd.cert),
                    key: inside(&etcd.key),
                    ..etcd.clone()
                };
                Box::new(EtcdStore::new(&etcd, None, fastrand::u64(..))?)
            }
            StoreOptions::Remote(remote) => {
                let remote = RemoteOptions {
                    ca: inside(&remote.ca),
                    cert: inside(&remote.cert),
                    key: inside(&remote.key),
                    token_file: inside(&remote.token_file),
                    ..remote.clone()
                };
                Box::new(RemoteStore::new(remote, fastrand::u64(..))?)
            }
            StoreOptions::Own => bail!("the flanneld that runs here is the lease server itself"),
            StoreOptions::Kube(kube) => {
                let map = ConfigMapName { namespace: String::new(), name: String::new() };
                Box::new(KubeOperator::new(self.api(kube)?, map, fastrand::u64(..)))
            }
        })
    }

    /// The API server that it uses, if one of its networks is kept there.
    pub(crate) fn kubernetes_api(&self, options: &Options) -> anyhow::Result<Option<Api>> {
        let kube = options.networks.iter().find_map(|joined| match &joined.store {
            StoreOptions::Kube(kube) => Some(kube),
            _ => None,
        });
        kube.map(|kube| self.api(kube)).transpose()
    }

    /// The API server, with the rights that it has there.
    pub(crate) fn api(&self, kube: &KubeOptions) -> anyhow::Result<Api> {
        let kubeconfig = kube.kubeconfig.as_deref().map(|file| self.inside(file));
        let access = Access::find(kubeconfig.as_deref(), kube.api_url.as_deref(), |name| {
            self.variable(name)
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
pub(crate) fn own_server(
    serve: &Serve,
    network: NetworkName,
) -> anyhow::Result<Box<dyn OperatorStore>> {
    let open = serve.tokens.is_none() && serve.tls.is_none();
    let Listen::Address { host, port } = &serve.listen else {
        anyhow::bail!("say where this node's lease server listens: --remote")
    };
    anyhow::ensure!(
        open,
        "this node's lease server listens to operators only: give --remote, and --remote-token-file or --remote-certfile"
    );
    let host = match host.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() => ip.to_string(),
        Err(_) if !host.is_empty() => host.clone(),
        Ok(_) | Err(_) => "127.0.0.1".to_owned(),
    };
    let address = Listen::Address { host, port: *port }.to_string();
    let options = RemoteOptions { addresses: vec![address], network, ..RemoteOptions::default() };
    Ok(Box::new(RemoteStore::new(options, fastrand::u64(..))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_run_is_a_pod_where_a_kubelet_is_and_no_unit() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_run_by_kubelet(root.path()));
        fs::create_dir_all(root.path().join("var/lib/kubelet/pods")).unwrap();
        assert!(is_run_by_kubelet(root.path()));
        let units = root.path().join("etc/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::write(units.join("flanneld.service"), "").unwrap();
        assert!(!is_run_by_kubelet(root.path()));
    }
}
