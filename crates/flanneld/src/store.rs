//! The store that the options ask for.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use flannel_lease::Subnet;
use flannel_store::{EmbeddedStore, EtcdStore, RemoteStore, Store};

use crate::options::StoreOptions;
use crate::serve::Served;

pub fn open(
    options: &StoreOptions,
    previous: Option<Subnet>,
    seed: u64,
    own: Option<&Served>,
) -> anyhow::Result<Arc<dyn Store>> {
    match options {
        StoreOptions::Etcd(etcd) => Ok(Arc::new(EtcdStore::new(etcd, previous, seed)?)),
        StoreOptions::Remote(remote) => Ok(Arc::new(RemoteStore::new(remote.clone(), seed)?)),
        StoreOptions::Own(network) => match own.context("there is no lease server here")? {
            Served::Embedded(embedded) => {
                Ok(Arc::new(EmbeddedStore::new(embedded.clone(), network.clone())))
            }
            Served::Etcd(etcd) => Ok(Arc::new(EtcdStore::new(etcd, previous, seed)?)),
        },
        StoreOptions::Kube(_) => bail!(
            "--kube-subnet-mgr: the Kubernetes store is not part of this release; use etcd \
             (--etcd-endpoints)"
        ),
    }
}
