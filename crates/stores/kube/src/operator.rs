//! Store of an operator: leases are Nodes, the network config is a ConfigMap, and Kubernetes decides the rest.

use std::sync::Arc;

use async_trait::async_trait;
use flannel_backend::Stack;
use flannel_lease::{NetworkConfig, Subnet, SubnetOrigin};
use flannel_store::{
    Cursor, Held, OperatorStore, PoolChange, Refusal, RequestStore, Snapshot, Store, StoreError,
    StoreEvent, SubnetPool, replace_config,
};
use tokio::sync::mpsc;

use crate::KubeStore;
use crate::api::Api;
use crate::client::{ApiError, CORE, Collection, MERGE};
use crate::cluster::Cluster;
use crate::requests::KubeRequests;

const CONFIG_KEY: &str = "net-conf.json";

#[derive(Debug)]
pub struct KubeOperator {
    cluster: Arc<Cluster>,
    config_map: ConfigMapName,
    requests: KubeRequests,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapName {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ConfigMapName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl std::str::FromStr for ConfigMapName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("write namespace/name, such as kube-flannel/kube-flannel-cfg"),
        }
    }
}

impl KubeOperator {
    /// Needs no API server.
    pub fn new(api: Api, config_map: ConfigMapName, seed: u64) -> Self {
        let cluster = Cluster::new(api, "", seed);
        cluster.table.lock().set_families(Stack { v4: true, v6: true });
        let cluster = Arc::new(cluster);
        Self { requests: KubeRequests::new(cluster.clone()), cluster, config_map }
    }

    fn refuse<T>(attempted: &str, instead: &str) -> Result<T, StoreError> {
        Err(StoreError::rejected(attempted, Refusal::KubernetesOwns(instead.to_owned())))
    }

    fn config_maps(&self) -> Collection {
        Collection::of_namespace(CORE, &self.config_map.namespace, "configmaps")
    }

    async fn config_map(&self) -> Result<Option<serde_json::Value>, StoreError> {
        let client = &self.cluster.api.client;
        let found = client.get(&self.config_maps(), &self.config_map.name, |map| map).await;
        found.map_err(|error: ApiError| error.into_store_error(&self.config_map.to_string()))
    }
}

#[async_trait]
impl Store for KubeOperator {
    fn name(&self) -> String {
        format!("Kubernetes at {}", self.cluster.api.client.endpoint())
    }

    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Store
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        let found = self.config_map().await?;
        Ok(found.and_then(|map| map["data"][CONFIG_KEY].as_str().map(str::to_owned)))
    }

    fn how_to_write_config(&self) -> String {
        let ConfigMapName { namespace, name } = &self.config_map;
        format!("`kubectl -n {namespace} edit configmap {name}`, key {CONFIG_KEY}")
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        self.cluster.follow(&cursor)
    }

    fn requests(&self) -> &dyn RequestStore {
        &self.requests
    }
}

#[async_trait]
impl OperatorStore for KubeOperator {
    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.cluster.list().await.map_err(|error| error.into_store_error(""))
    }

    async fn list(&self) -> Result<Vec<Held>, StoreError> {
        let leases = self.snapshot().await?.leases.into_iter();
        Ok(leases.map(|stored| KubeStore::held(stored.lease)).collect())
    }

    async fn set_config(&self, text: &str, force: bool) -> Result<(), StoreError> {
        let attempted = format!("write the network config into the ConfigMap {}", self.config_map);
        let config = flannel_backend::judge_config_to_write(text, SubnetOrigin::Store)
            .map_err(|error| StoreError::rejected(&attempted, error))?
            .config;
        let leases = self.snapshot().await?.leases;
        // Networks of a Node in a family that the config does not use are ignored.
        let families = Stack::of(&config);
        let subnets = leases.iter().map(|stored| stored.lease.subnet);
        let subnets = subnets.filter_map(|subnet| crate::lease::subnet_in(subnet, families));
        let subnets: Vec<Subnet> = subnets.collect();
        let Some(former) = self.config_map().await? else {
            let instead = format!(
                "there is no ConfigMap {}: it comes with flannel's manifest or chart; name another with \
                 --kube-config-map=NAMESPACE/NAME",
                self.config_map
            );
            return Self::refuse(&attempted, &instead);
        };
        let former = former["data"][CONFIG_KEY].as_str();
        let former = former.and_then(|text| NetworkConfig::read(text, SubnetOrigin::Store).ok());
        let text = replace_config(text, &config, former.as_ref(), &subnets, force)
            .map_err(|refusal| StoreError::rejected(&attempted, refusal))?;
        let patch = serde_json::json!({"data": {CONFIG_KEY: text}}).to_string();
        let (client, name) = (&self.cluster.api.client, &self.config_map.name);
        let written = client.patch(&self.config_maps(), name, MERGE, &patch).await;
        written.map_err(|error| error.into_store_error(&self.config_map.to_string()))
    }

    async fn pool(&self, change: PoolChange) -> Result<&dyn SubnetPool, StoreError> {
        match change {
            PoolChange::Reserve(subnet) => Self::refuse(
                &format!("reserve {subnet}"),
                "a Node keeps its podCIDR for as long as it lives, so nothing need be reserved; whoever makes a Node \
                 may choose its podCIDR: kubectl create with spec.podCIDRs",
            ),
            PoolChange::Unreserve(subnet) => Self::refuse(
                &format!("remove the reservation of {subnet}"),
                "a podCIDR is a Node's for as long as the Node lives",
            ),
            PoolChange::Release(subnet) => {
                let leases = self.snapshot().await?.leases;
                let lease = leases.iter().find(|stored| stored.lease.subnet == subnet);
                let node = lease.and_then(|stored| stored.lease.attrs.owner.as_deref());
                let node = node.unwrap_or("NODE");
                let instead = format!(
                    "it is the podCIDR of the Node {node} for as long as that lives, and Kubernetes changes no \
                     podCIDR; `kubectl delete node {node}` gives it back, and a kubelet that still runs makes the \
                     Node again"
                );
                Self::refuse(&format!("release {subnet}"), &instead)
            }
        }
    }
}
