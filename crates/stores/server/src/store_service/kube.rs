//! Networks of Kubernetes: a node is identified by its token, with the name of its Node; its attributes are written into
//! that Node and no other; and its subnet is what Kubernetes has assigned.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_kube::KubeNodes;
use flannel_lease::{Expiry, KnownBy, LeaseAttrs, Subnet, Version};
use flannel_store::{
    Cursor, Held, KeptLease, NodeNetwork, PublicAddresses, Refusal, StoreError, StoreFindings,
};
use tokio::sync::watch;

use super::{OpenedNetwork, View};
use crate::embedded::AskError;
use crate::lease_service::{NetworkRequests, ServedNetwork};
use crate::lease_state::{Reply, Request, Who};

/// Life of a lease here. A node renews in half this time, which corrects what somebody has changed in its Node.
const ANNOUNCE_TTL: Duration = Duration::from_secs(2 * 3_600);

pub(super) struct ServedNodes {
    nodes: Arc<KubeNodes>,
    view: View,
    requests: NetworkRequests,
}

impl ServedNodes {
    pub(super) fn open(nodes: &Arc<KubeNodes>, view: View) -> OpenedNetwork {
        let (nodes, events) = (nodes.clone(), nodes.watch(&Cursor::BEGINNING));
        let requests = NetworkRequests::new(nodes.requests());
        (Arc::new(Self { nodes, view, requests }), events)
    }
}

#[async_trait]
impl ServedNetwork for ServedNodes {
    async fn ask(&self, request: Request) -> Result<Reply, AskError> {
        let instead = |what: &str| Err(Refusal::KubernetesOwns(what.to_owned()).into());
        match request {
            Request::Acquire { attrs, who, .. } => self.announce(None, &attrs, &who).await,
            Request::Renew { subnet, attrs, who, .. } => {
                self.announce(Some(subnet), &attrs, &who).await
            }
            Request::Release { subnet, .. } => {
                let whose = self.view.watch_log.lease(&subnet).and_then(|lease| lease.owner);
                let node = whose.as_deref().unwrap_or("NODE");
                instead(&format!(
                    "{subnet} is the podCIDR of a Node for as long as that Node lives: `kubectl delete node {node}` \
                     gives it back"
                ))
            }
            Request::Reserve { .. } | Request::Unreserve { .. } | Request::Import { .. } => {
                instead(
                    "nothing is reserved or brought in here: a Node keeps its podCIDR, and whoever makes the Node \
                     may choose it (spec.podCIDRs)",
                )
            }
            Request::SetConfig { .. } | Request::RemoveNetwork { .. } => instead(&format!(
                "the network config is not written here: write it with {}",
                self.nodes.net_config.how_to_write()
            )),
        }
    }

    async fn public_addresses(&self, who: &Who) -> Result<PublicAddresses, AskError> {
        // A client without a name only reads; it is not a node.
        let Some(name) = who.name.as_deref() else { return Ok(PublicAddresses::default()) };
        Ok(self.nodes.public_addresses(name).await?)
    }

    async fn report(&self, who: &Who, network: &NodeNetwork) -> Result<(), AskError> {
        Ok(self.nodes.report(name(who)?, network).await?)
    }

    fn requests(&self) -> NetworkRequests {
        self.requests.clone()
    }

    fn findings(&self) -> Option<watch::Receiver<StoreFindings>> {
        Some(self.nodes.findings())
    }
}

impl ServedNodes {
    /// Announces a node; `has` is the subnet that it believes to have.
    async fn announce(
        &self,
        has: Option<Subnet>,
        attrs: &LeaseAttrs,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let (name, config) = (name(who)?, self.view.config()?);
        KnownBy::of(Some(&config)).address(attrs).map_err(Refusal::from)?;
        self.view.check_attrs(attrs, who)?;
        let another = self.view.watch_log.find(|_, entry| {
            flannel_lease::same_node(&config, attrs, &entry.attrs)
                && entry.owner.as_deref() != Some(name)
        });
        if let Some((_, entry)) = another {
            let node = entry.owner.as_deref().unwrap_or_default().to_owned();
            return Err(Refusal::AddressOfNode { node }.into());
        }
        // A client is its Node, whatever address an operator has written there.
        let of_node = |_: &Subnet, entry: &KeptLease| entry.owner.as_deref() == Some(name);
        let own = has.or_else(|| self.view.watch_log.find(of_node).map(|(subnet, _)| subnet));
        self.view.check_identity(&config, attrs, who, own)?;
        let lease = self.nodes.announce(name, &config, has, attrs).await;
        let lease = lease.map_err(|error| match (error, has) {
            (StoreError::Lost { .. }, Some(subnet)) => Refusal::Gone(subnet).into(),
            (error, _) => AskError::from(error),
        })?;
        let expiry = Expiry::At(SystemTime::now() + ANNOUNCE_TTL);
        Ok(self.view.reply(Held { lease, expiry, version: Version::UNKNOWN }))
    }
}

fn name(who: &Who) -> Result<&str, AskError> {
    Ok(who.name.as_deref().ok_or(Refusal::NoName)?)
}
