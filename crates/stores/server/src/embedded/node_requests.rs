//! Requests of operators where this process keeps the leases: in memory, so that none outlives the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use flannel_common::{Task, send_if_changed};
use flannel_lease::{NetworkName, Subnet};
use flannel_store::{
    MAX_STANDING_REQUESTS, NodeAnswer, NodeRequest, REQUEST_LIFETIME, Refusal, RequestChange,
    RequestId, RequestStore, Requests, StoreError,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

/// Requests of every network. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RequestsByNetwork(Arc<Mutex<BTreeMap<NetworkName, MemoryRequests>>>);

impl RequestsByNetwork {
    pub fn of(&self, network: &NetworkName) -> MemoryRequests {
        let mut networks = self.0.lock();
        networks.entry(network.clone()).or_default().clone()
    }
}

/// Requests of one network. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryRequests(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    standing: BTreeMap<RequestId, StandingRequest>,
    published: watch::Sender<Requests>,
}

#[derive(Debug)]
struct StandingRequest {
    request: NodeRequest,
    answers: BTreeMap<Subnet, Value>,
    until: Instant,
}

#[async_trait]
impl RequestStore for MemoryRequests {
    fn follow(&self) -> watch::Receiver<Requests> {
        self.0.lock().published.subscribe()
    }

    /// Must be called within a tokio runtime.
    async fn write(&self, change: RequestChange<'_>) -> Result<(), StoreError> {
        let mut shared = self.0.lock();
        let until = Instant::now() + REQUEST_LIFETIME;
        match (change, shared.standing.get_mut(change.id())) {
            (RequestChange::Place(request), Some(standing)) => {
                (standing.request, standing.until) = (request.clone(), until);
            }
            (RequestChange::Place(request), None) => {
                if shared.standing.len() >= MAX_STANDING_REQUESTS {
                    let refusal = Refusal::too_many_requests();
                    return Err(StoreError::rejected(&change.to_string(), refusal));
                }
                let (request, answers) = (request.clone(), BTreeMap::new());
                let standing = StandingRequest { request, answers, until };
                shared.standing.insert(change.id().clone(), standing);
                let expire = self.clone().expire(change.id().clone());
                Task::spawn("expiry of a request", expire).detach();
            }
            (RequestChange::Withdraw(id), _) => _ = shared.standing.remove(id),
            (RequestChange::Answer(_, answer), Some(standing))
                if standing.request.concerns(&answer.node) =>
            {
                standing.answers.insert(answer.node, answer.body.clone());
            }
            (RequestChange::Answer(id, _), _) => {
                return Err(StoreError::Lost { key: id.to_string() });
            }
        }
        shared.publish();
        Ok(())
    }

    async fn answers(&self, id: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        let shared = self.0.lock();
        let answers = shared.standing.get(id).into_iter().flat_map(|standing| &standing.answers);
        Ok(answers.map(|(node, body)| NodeAnswer { node: *node, body: body.clone() }).collect())
    }
}

impl MemoryRequests {
    /// Removes a request once nobody has placed it again in time.
    async fn expire(self, id: RequestId) {
        loop {
            let until = {
                let mut shared = self.0.lock();
                let Some(standing) = shared.standing.get(&id) else { return };
                if standing.until <= Instant::now() {
                    shared.standing.remove(&id);
                    return shared.publish();
                }
                standing.until
            };
            tokio::time::sleep_until(until).await;
        }
    }
}

impl Shared {
    fn publish(&self) {
        let now = self.standing.values().map(|standing| standing.request.clone()).collect();
        send_if_changed(&self.published, now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(id: &str) -> NodeRequest {
        NodeRequest {
            id: id.parse().expect("a name"),
            kind: "test".to_owned(),
            nodes: vec!["10.5.1.0-24".parse().expect("a subnet")],
            limit: Duration::from_secs(60),
            body: Value::Null,
        }
    }

    fn answer(node: &str) -> NodeAnswer {
        NodeAnswer { node: node.parse().expect("a subnet"), body: Value::from(1) }
    }

    fn is_lost(answered: Result<(), StoreError>) -> bool {
        matches!(answered, Err(StoreError::Lost { .. }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_expires_when_nobody_places_it_again() {
        let memory = MemoryRequests::default();
        let store: &dyn RequestStore = &memory;
        let standing = store.follow();
        let one = request("one");
        for _ in 0..4 {
            store.place(&one).await.expect("placed");
            tokio::time::sleep(REQUEST_LIFETIME / 2).await;
            assert_eq!(standing.borrow().len(), 1);
        }
        store.answer(&one.id, &answer("10.5.1.0-24")).await.expect("answered");
        assert!(is_lost(store.answer(&one.id, &answer("10.5.2.0-24")).await), "it was not asked");
        assert_eq!(store.answers(&one.id).await.expect("read"), [answer("10.5.1.0-24")]);
        tokio::time::sleep(2 * REQUEST_LIFETIME).await;
        assert!(standing.borrow().is_empty());
        assert!(store.answers(&one.id).await.expect("read").is_empty());
        assert!(is_lost(store.answer(&one.id, &answer("10.5.1.0-24")).await), "it is gone");
    }

    #[tokio::test]
    async fn no_more_than_a_few_requests_stand_at_once() {
        let memory = MemoryRequests::default();
        let store: &dyn RequestStore = &memory;
        for number in 0..MAX_STANDING_REQUESTS {
            store.place(&request(&format!("r{number}"))).await.expect("placed");
        }
        assert!(store.place(&request("another")).await.is_err());
        store.withdraw(&request("r0").id).await.expect("withdrawn");
        store.place(&request("another")).await.expect("placed");
    }
}
