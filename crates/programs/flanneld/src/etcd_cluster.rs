//! Which etcd cluster this node's leases are in, kept over restarts: no other cluster is believed.

use std::path::Path;

use flannel_store::{ClusterPin, EtcdOptions};
use serde::{Deserialize, Serialize};

use crate::state_file::{self, A_FEW_LINES};

const FILE: &str = "etcd-cluster.json";

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KeptCluster {
    /// The id in hexadecimal, as `etcdctl member list -w json --hex` has it.
    cluster: String,
    endpoints: Vec<String>,
}

impl KeptCluster {
    /// The cluster, if any endpoint is still in use: with none, the operator has moved to another etcd.
    fn id(&self, endpoints: &[String]) -> Option<u64> {
        let same = endpoints.iter().any(|endpoint| self.endpoints.contains(endpoint));
        u64::from_str_radix(&self.cluster, 16).ok().filter(|_| same)
    }
}

/// The options with the cluster that was known before; a cluster that is met for the first time is kept.
pub(crate) fn pinned(options: &EtcdOptions, data_dir: &Path) -> EtcdOptions {
    let file = data_dir.join(FILE);
    let kept = state_file::read(&file, A_FEW_LINES).ok().flatten();
    let kept = kept.and_then(|text| serde_json::from_str::<KeptCluster>(&text).ok());
    let fix = format!(
        "check etcd-endpoints; if etcd was replaced on purpose, remove {} and restart flanneld",
        file.display()
    );
    let endpoints = options.endpoints.clone();
    let id = kept.and_then(|kept| kept.id(&endpoints));
    let keep = move |cluster: u64| {
        let kept = KeptCluster { cluster: format!("{cluster:x}"), endpoints: endpoints.clone() };
        let text = serde_json::to_string(&kept).unwrap_or_default() + "\n";
        if let Err(error) = state_file::write(&file, &text) {
            tracing::debug!(%error, "the id of the etcd cluster is not kept");
        }
    };
    EtcdOptions { cluster: ClusterPin::new(id, fix, keep), ..options.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_known_again_by_any_endpoint_that_stayed() {
        let endpoints = |list: &[&str]| list.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let kept = KeptCluster { cluster: "cdf8".to_owned(), endpoints: endpoints(&["a", "b"]) };
        assert_eq!(kept.id(&endpoints(&["b", "c"])), Some(0xcdf8));
        assert_eq!(kept.id(&endpoints(&["c"])), None);
        assert_eq!(KeptCluster::default().id(&[]), None);
    }
}
