//! One Node by its name: what it has been assigned, and what is written into it.

use std::path::Path;

use flannel_backend::Stack;
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet};
use flannel_store::{PublicAddresses, StoreError};
use ipnet::IpNet;

use crate::api::Api;
use crate::client::{ApiError, MERGE, STRATEGIC};
use crate::lease::{node_addresses, overwrite, overwrites, subnet, subnet_in};
use crate::node::NodeView;
use crate::patch;

#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedNode<'a> {
    pub(crate) api: &'a Api,
    pub(crate) name: &'a str,
    pub(crate) if_missing: &'static str,
    pub(crate) net_config: &'a Path,
}

impl NamedNode<'_> {
    pub(crate) async fn get(&self) -> Result<NodeView<'static>, StoreError> {
        let name = self.name;
        let node = self.api.node(name).await.map_err(|error| error.into_store_error(name))?;
        node.ok_or_else(|| StoreError::NotAssignedYet {
            reason: format!("there is no Node {name:?} in Kubernetes"),
            fix: self.if_missing.to_owned(),
        })
    }

    /// The subnet that Kubernetes has assigned to the node, in the families of the network.
    pub(crate) fn assigned(
        &self,
        config: &NetworkConfig,
        node: &NodeView<'_>,
    ) -> Result<Subnet, StoreError> {
        let name = self.name;
        let found = subnet(node)
            .map_err(|why| StoreError::Corrupt { key: format!("the Node {name}"), reason: why })?;
        let not_yet = |reason: String| {
            StoreError::NotAssignedYet {
            reason,
            fix: "let kube-controller-manager assign them (--allocate-node-cidrs --cluster-cidr=…; kubeadm: \
                  podSubnet), or write spec.podCIDRs of the Node yourself"
                .to_owned(),
        }
        };
        let found = found.ok_or_else(|| not_yet(format!("node {name:?} pod cidr not assigned")))?;
        let families = Stack::of(config);
        let ours = subnet_in(found, families);
        let has_all =
            |it: &Subnet| it.v4().is_some() == families.v4 && it.v6().is_some() == families.v6;
        let Some(ours) = ours.filter(has_all) else {
            let missing = if families.v4 && found.v4().is_none() { "IPv4" } else { "IPv6" };
            return Err(not_yet(format!(
                "node {name:?} has no {missing} podCIDR, and the network config wants one"
            )));
        };
        if config.accepts(&ours) {
            return Ok(ours);
        }
        let v4 = config.v4.zip(ours.v4()).filter(|(source, net)| !source.accepts(*net));
        let v4 = v4.map(|(source, net)| (IpNet::from(source.network()), IpNet::from(net)));
        let v6 = config.v6.zip(ours.v6());
        let v6 = v6.map(|(source, net)| (IpNet::from(source.network()), IpNet::from(net)));
        let reason = v4.or(v6).map(|(network, cidr)| {
            let (network, cidr) = (network.to_string(), cidr.to_string());
            format!(
                "subnet {network:?} specified in the flannel net config doesn't contain {cidr:?} PodCIDR of the \
                 {name:?} node"
            )
        });
        Err(StoreError::NotAssignedYet {
            reason: reason.unwrap_or_default(),
            fix: format!(
                "make Network in {} the cluster-cidr of kube-controller-manager",
                self.net_config.display()
            ),
        })
    }

    /// Addresses at which an operator wants the node to be known; none for a Node that does not exist yet.
    pub(crate) async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        let node = self.api.node(self.name).await;
        let node = node.map_err(|error| error.into_store_error(self.name))?.unwrap_or_default();
        Ok(node_addresses(&node.annotations).unwrap_or_else(|why| {
            tracing::warn!("Node {}: {why}; it is ignored", self.name);
            PublicAddresses::default()
        }))
    }

    /// The lease as everybody sees it: with the address that an operator has written instead of the node's.
    pub(crate) fn lease(&self, subnet: Subnet, attrs: &LeaseAttrs, node: &NodeView<'_>) -> Lease {
        let overwrites = overwrites(&node.annotations).unwrap_or_default();
        let mut attrs = attrs.clone();
        overwrite(&mut attrs, &overwrites);
        attrs.owner = Some(self.name.into());
        Lease { subnet, attrs }
    }
}

pub(crate) async fn announce(
    api: &Api,
    name: &str,
    node: &NodeView<'_>,
    attrs: &LeaseAttrs,
) -> Result<(), StoreError> {
    let overwrites = overwrites(&node.annotations).unwrap_or_default();
    match patch::announce(&api.nodes.prefix, &node.annotations, attrs, &overwrites) {
        Some(patch) => {
            let written = api.patch_status(name, MERGE, &patch).await;
            written.map_err(|error| error.into_store_error(name))
        }
        None => Ok(()),
    }
}

pub(crate) async fn set_available(api: &Api, name: &str) -> Result<(), ApiError> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    api.patch_status(name, STRATEGIC, &patch::network_is_available(&now)).await?;
    tracing::info!("Node {name}: NetworkUnavailable is now False");
    Ok(())
}
