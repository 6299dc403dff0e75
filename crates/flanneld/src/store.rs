//! The store that the options ask for.

use std::sync::Arc;

use anyhow::bail;
use flannel_lease::Subnet;
use flannel_store::{EtcdStore, Store};

use crate::options::StoreOptions;

pub fn open(
    options: &StoreOptions,
    previous: Option<Subnet>,
    seed: u64,
) -> anyhow::Result<Arc<dyn Store>> {
    match options {
        StoreOptions::Etcd(etcd) => Ok(Arc::new(EtcdStore::new(etcd, previous, seed)?)),
        StoreOptions::Kube(_) => bail!(
            "--kube-subnet-mgr: the Kubernetes store is not part of this release; use etcd \
             (--etcd-endpoints)"
        ),
    }
}
