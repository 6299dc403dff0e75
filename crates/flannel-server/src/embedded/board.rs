//! Operators' requests to nodes, where this process keeps the leases: in memory, for as long as somebody renews them.
//! None of it outlives the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flannel_lease::{NetworkName, Subnet};
use flannel_store::{
    LIFE, NodeAnswer, NodeRequest, REQUESTS_AT_ONCE, Refusal, RequestId, Requests,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

/// Clones share it.
#[derive(Clone, Debug)]
pub struct RequestBoard {
    networks: Arc<Mutex<BTreeMap<NetworkName, OfNetwork>>>,
    life: Duration,
}

impl Default for RequestBoard {
    fn default() -> Self {
        Self { networks: Arc::default(), life: LIFE }
    }
}

#[derive(Debug, Default)]
struct OfNetwork {
    standing: BTreeMap<RequestId, Standing>,
    told: watch::Sender<Requests>,
}

#[derive(Debug)]
struct Standing {
    request: NodeRequest,
    answers: BTreeMap<Subnet, Value>,
    until: Instant,
}

impl RequestBoard {
    pub fn listen(&self, network: &NetworkName) -> watch::Receiver<Requests> {
        self.networks().entry(network.clone()).or_default().told.subscribe()
    }

    /// Must be called within a tokio runtime.
    pub fn place(&self, network: &NetworkName, request: NodeRequest) -> Result<(), Refusal> {
        let (id, until) = (request.id.clone(), Instant::now() + self.life);
        let mut networks = self.networks();
        let of = networks.entry(network.clone()).or_default();
        if let Some(standing) = of.standing.get_mut(&id) {
            (standing.request, standing.until) = (request, until);
        } else if of.standing.len() >= REQUESTS_AT_ONCE {
            let text =
                format!("{REQUESTS_AT_ONCE} requests stand in this network: try again later");
            return Err(Refusal::Elsewhere(text));
        } else {
            let standing = Standing { request, answers: BTreeMap::new(), until };
            of.standing.insert(id.clone(), standing);
            tokio::spawn(self.clone().end_in_time(network.clone(), id));
        }
        of.tell();
        Ok(())
    }

    pub fn withdraw(&self, network: &NetworkName, id: &RequestId) {
        if let Some(of) = self.networks().get_mut(network) {
            of.standing.remove(id);
            of.tell();
        }
    }

    /// Whether the request stands, and is about this node.
    pub fn answer(&self, network: &NetworkName, id: &RequestId, answer: NodeAnswer) -> bool {
        let mut networks = self.networks();
        let standing = networks.get_mut(network).and_then(|of| of.standing.get_mut(id));
        match standing {
            Some(standing) if standing.request.concerns(&answer.node) => {
                standing.answers.insert(answer.node, answer.body);
                true
            }
            _ => false,
        }
    }

    pub fn answers(&self, network: &NetworkName, id: &RequestId) -> Vec<NodeAnswer> {
        let networks = self.networks();
        let standing = networks.get(network).and_then(|of| of.standing.get(id));
        let answers = standing.into_iter().flat_map(|standing| &standing.answers);
        answers.map(|(node, body)| NodeAnswer { node: *node, body: body.clone() }).collect()
    }

    /// Waits until nobody has placed it again for so long.
    async fn end_in_time(self, network: NetworkName, id: RequestId) {
        loop {
            let until = {
                let mut networks = self.networks();
                let Some(of) = networks.get_mut(&network) else { return };
                let Some(standing) = of.standing.get(&id) else { return };
                if standing.until <= Instant::now() {
                    of.standing.remove(&id);
                    return of.tell();
                }
                standing.until
            };
            tokio::time::sleep_until(until).await;
        }
    }

    fn networks(&self) -> MutexGuard<'_, BTreeMap<NetworkName, OfNetwork>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfNetwork {
    fn tell(&self) {
        let now: Requests = self.standing.values().map(|it| it.request.clone()).collect();
        self.told.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(500);

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

    #[tokio::test]
    async fn a_request_ends_when_nobody_says_again_that_it_is_wanted() {
        let board = RequestBoard { life: SHORT, ..RequestBoard::default() };
        let network = NetworkName::default();
        let listening = board.listen(&network);
        let one = request("one");
        for _ in 0..4 {
            board.place(&network, one.clone()).expect("placed");
            tokio::time::sleep(SHORT / 2).await;
            assert_eq!(listening.borrow().len(), 1);
        }
        assert!(board.answer(&network, &one.id, answer("10.5.1.0-24")));
        assert!(!board.answer(&network, &one.id, answer("10.5.2.0-24")), "it was not asked");
        assert_eq!(board.answers(&network, &one.id), [answer("10.5.1.0-24")]);
        tokio::time::sleep(2 * SHORT).await;
        assert!(listening.borrow().is_empty());
        assert!(board.answers(&network, &one.id).is_empty());
        assert!(!board.answer(&network, &one.id, answer("10.5.1.0-24")), "it is gone");
    }

    #[tokio::test]
    async fn no_more_than_a_few_stand_at_once() {
        let (board, network) = (RequestBoard::default(), NetworkName::default());
        for number in 0..REQUESTS_AT_ONCE {
            board.place(&network, request(&format!("r{number}"))).expect("placed");
        }
        assert!(board.place(&network, request("another")).is_err());
        board.withdraw(&network, &request("r0").id);
        board.place(&network, request("another")).expect("placed");
    }
}
