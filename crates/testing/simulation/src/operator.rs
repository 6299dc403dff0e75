//! Operators, who ask the lease server on its own machine.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flannel_lease::NetworkName;
use flannel_server::embedded::AskError;
use flannel_server::lease_state::{Reply, Request};
use flannel_server::{Embedded, LeaseService as _};
use flannel_store::{KeptLease, Refusal};
use tokio::sync::Notify;

use crate::operations::{self, Answer, Call, LeaseSeen, Machine};

/// Longest time that an operator waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The store of the lease server, while one runs.
#[derive(Default)]
pub(crate) struct Served {
    embedded: Mutex<Option<Embedded>>,
    ended: Notify,
}

impl Served {
    pub(crate) fn embedded(&self) -> Option<Embedded> {
        self.embedded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn begin(&self, embedded: Embedded) {
        *self.embedded.lock().unwrap_or_else(PoisonError::into_inner) = Some(embedded);
    }

    /// The lease server is killed: nobody who waits for an answer gets one.
    pub(crate) fn end(&self) {
        self.embedded.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.ended.notify_waiters();
    }
}

/// Clones are the same operator.
#[derive(Clone)]
pub(crate) struct Operator(Arc<Served>);

impl Operator {
    pub(crate) fn new(served: Arc<Served>) -> Self {
        Self(served)
    }

    /// `None` while no lease server runs, and when it ends before it has answered.
    pub(crate) async fn ask(
        &self,
        network: &NetworkName,
        request: Request,
    ) -> Option<Result<Reply, AskError>> {
        let embedded = self.0.embedded()?;
        let noted = note_call(network, &request);
        let answer = async move { embedded.ask(network, request).await };
        let answer = tokio::select! {
            biased;
            () = self.0.ended.notified() => return None,
            answer = tokio::time::timeout(ANSWER_TIMEOUT, answer) => answer.ok()?,
        };
        if let (Some(noted), Some(seen)) = (noted, answer_of(&answer)) {
            operations::answered(noted, seen);
        }
        Some(answer)
    }

    /// Reads the config as it was written.
    pub(crate) fn read_config(&self, network: &NetworkName) {
        let Some(embedded) = self.0.embedded() else { return };
        let begun = operations::moment();
        let noted =
            operations::called("operator".to_owned(), network.to_string(), Call::ReadConfig, begun);
        let log = embedded.watch_logs().get(network);
        operations::answered(noted, Answer::Config(log.and_then(|log| log.config_text())));
    }
}

/// Notes what the operator asks for; returns the number of the operation.
fn note_call(network: &NetworkName, request: &Request) -> Option<usize> {
    let call = match request {
        Request::SetConfig { text, force } => Call::SetConfig { text: text.clone(), force: *force },
        Request::Release { subnet, version, .. } => {
            Call::Release { subnet: *subnet, version: *version }
        }
        Request::Reserve { subnet, attrs } => {
            Call::Reserve { subnet: *subnet, machine: Machine::of(attrs) }
        }
        Request::Unreserve { subnet } => Call::Unreserve { subnet: *subnet },
        Request::Import { subnet, attrs, .. } => {
            Call::Import { subnet: *subnet, machine: Machine::of(attrs) }
        }
        // Nobody who operates asks for these.
        Request::Acquire { .. } | Request::Renew { .. } | Request::RemoveNetwork { .. } => {
            return None;
        }
    };
    let (client, network) = ("operator".to_owned(), network.to_string());
    Some(operations::called(client, network, call, operations::moment()))
}

/// `None` if it does not say whether anything was done.
fn answer_of(answer: &Result<Reply, AskError>) -> Option<Answer> {
    let seen = |lease: &KeptLease| LeaseSeen {
        machine: Machine::of(&lease.attrs),
        version: lease.version,
        reserved: lease.expires.is_none(),
    };
    match answer {
        Ok(Reply::Done) => Some(Answer::Done),
        Ok(Reply::Lease(subnet, lease)) => Some(Answer::Lease(*subnet, seen(lease))),
        Err(AskError::Refused(Refusal::Gone(_))) => Some(Answer::Gone),
        Err(AskError::Refused(Refusal::Taken(_, lease))) => Some(Answer::Taken(seen(lease))),
        Err(AskError::Refused(Refusal::Reserved(_))) => Some(Answer::Reserved),
        Err(AskError::Refused(refusal)) => Some(Answer::Refused(refusal.to_string())),
        Err(_) => None,
    }
}
