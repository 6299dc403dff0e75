//! The store that the options ask for, for each network.

use flannel_server::EmbeddedStore;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use flannel_kube::{KubeOptions, KubeStore};
use flannel_lease::Subnet;
use flannel_node::options::{Joined, StoreOptions};
use flannel_store::{EtcdStore, NodeStore, RemoteOptions, RemoteStore};

use crate::serve::Served;
use crate::{etcd_cluster, node_secret};

pub async fn open(
    network: &Joined,
    previous: Option<Subnet>,
    seed: u64,
    own: Option<&Served>,
    data_dir: &Path,
) -> anyhow::Result<Arc<dyn NodeStore>> {
    match &network.store {
        StoreOptions::Etcd(etcd) => {
            Ok(Arc::new(EtcdStore::new(&etcd_cluster::pinned(etcd, data_dir), previous, seed)?))
        }
        StoreOptions::Remote(remote) => {
            let remote = RemoteOptions {
                node_secret: node_secret::read_or_make(data_dir),
                ..remote.clone()
            };
            Ok(Arc::new(RemoteStore::new(remote, seed)?))
        }
        StoreOptions::Own => match own.context("there is no lease server here")? {
            Served::Embedded(embedded) => {
                Ok(Arc::new(EmbeddedStore::new(embedded.clone(), network.name.clone())))
            }
            Served::Etcd(etcd) => {
                let etcd = etcd_cluster::pinned(etcd, data_dir).of_network(&network.name);
                Ok(Arc::new(EtcdStore::new(&etcd, previous, seed)?))
            }
            Served::Kube(kube) => open_kube(kube, seed).await,
        },
        StoreOptions::Kube(kube) => open_kube(kube, seed).await,
    }
}

async fn open_kube(options: &KubeOptions, seed: u64) -> anyhow::Result<Arc<dyn NodeStore>> {
    let variable = |name: &str| std::env::var(name).ok();
    Ok(Arc::new(KubeStore::open(options, variable, seed).await?))
}
