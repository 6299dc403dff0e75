//! A lease server in front of a store that assigns subnets: what it says of this node, and the node of itself.

use std::time::Duration;

use ::http::{Method, StatusCode};
use flannel_common::Backoff;
use flannel_lease::{LeaseAttrs, Subnet, SubnetOrigin};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{RemoteStore, refused};
use crate::wire::{self, WireLease, WireNode};
use crate::{Held, NodeNetwork, StoreError, StoredLease};

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

#[derive(Debug, Default)]
pub(super) struct AssignedSubnets {
    state: Mutex<State>,
    /// Counts how often this node has announced itself.
    announced: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// The server's state of this node; `None` where subnets come from a pool.
    node: Option<WireNode>,
    own: Option<OwnNode>,
}

/// This node's lease, which others see with another address where an operator has written one into the store.
#[derive(Debug)]
struct OwnNode {
    subnet: Subnet,
    announced: LeaseAttrs,
    seen: LeaseAttrs,
}

impl AssignedSubnets {
    pub(super) fn subnets(&self) -> SubnetOrigin {
        self.state.lock().node.as_ref().map_or(SubnetOrigin::Pool, |node| node.subnets)
    }

    pub(super) fn is_own(&self, lease: &WireLease) -> bool {
        let state = self.state.lock();
        let name = state.node.as_ref().and_then(|node| node.name.as_ref());
        name.is_some() && lease.owner.as_ref() == name
    }

    /// Takes note of what became of an announcement: the lease as others see it. Returns it as the node sees it.
    pub(super) fn announced(&self, held: Held, attrs: &LeaseAttrs) -> Held {
        let mut state = self.state.lock();
        if state.node.is_none() {
            return held;
        }
        let (announced, Held { mut lease, expiry, version }) = (attrs.clone(), held);
        let seen = std::mem::replace(&mut lease.attrs, announced.clone());
        state.own = Some(OwnNode { subnet: lease.subnet, announced, seen });
        self.announced.send_modify(|count| *count += 1);
        Held { lease, expiry, version }
    }

    pub(super) fn seen(&self, mut stored: StoredLease) -> StoredLease {
        let state = self.state.lock();
        if let Some(own) = &state.own
            && own.subnet == stored.lease.subnet
            && own.seen.announce_the_same_as(&stored.lease.attrs)
        {
            stored.lease.attrs = own.announced.clone();
        }
        stored
    }
}

impl RemoteStore {
    /// Asks the server what it has to say of this node. An older one has nothing to say.
    pub(super) async fn learn(&self) -> Result<WireNode, StoreError> {
        let attempted = "ask what the lease server knows of this node";
        let path = format!("{}/node", self.0.base);
        let answer = self.send(attempted, Method::GET, &path, "").await?;
        let node = match answer.status {
            StatusCode::NOT_FOUND => WireNode::default(),
            status if status.is_success() => {
                WireNode::read(&answer.body).map_err(|error| self.unreadable(&error))?
            }
            _ => return Err(refused(attempted, answer, None)),
        };
        let assigned = node.subnets == SubnetOrigin::Store;
        self.0.assigned.state.lock().node = assigned.then(|| node.clone());
        Ok(node)
    }

    /// Reports this node's network until the server has taken it, and after each announcement: the Node may be another.
    pub(super) async fn keep_reporting(&self, network: &NodeNetwork) {
        let path = format!("{}/node", self.0.base);
        let attempted = "say how this node's network is";
        let mut announced = self.0.assigned.announced.subscribe();
        let mut tries = RETRY.tries(self.0.rng.lock().fork());
        loop {
            announced.mark_unchanged();
            let body = wire::node_network_json(network);
            match self.ask(attempted, Method::PUT, &path, body).await {
                Ok(_) => {
                    tries.reset();
                    if announced.changed().await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let pause = tries.pause();
                    tracing::error!("{error}; next try in {pause:.0?}");
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}
