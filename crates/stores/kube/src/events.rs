//! Events on Nodes, for what an operator must know: `kubectl describe node` shows them. What is repeated is
//! counted and not repeated, and however much happens, few are written.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{Backoff, Task};
use flannel_lease::Subnet;
use flannel_store::NodeNetwork;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{ApiError, CORE, Client, Collection, MERGE};
use crate::cluster::Cluster;

/// Events of Nodes, which are in no namespace, are here.
const NAMESPACE: &str = "default";
const NOTICE_QUEUE: usize = 64;
/// Most events that are remembered, to be counted when they are repeated.
const MAX_REMEMBERED: usize = 256;
/// Most bytes of a message that Kubernetes allows.
const MAX_MESSAGE_BYTES: usize = 1_024;
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
const MAX_TRIES: u32 = 8;
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Reason {
    #[serde(rename = "FlannelNotReady")]
    NotReady,
    #[serde(rename = "FlannelReady")]
    Ready,
    #[serde(rename = "FlannelSubnetChanged")]
    SubnetChanged,
    #[serde(rename = "FlannelSubnetClash")]
    SubnetClash,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub node: String,
    pub reason: Reason,
    pub text: String,
}

/// Rate of written events: some at once, and one more after each pause.
#[derive(Clone, Copy, Debug)]
pub struct EventRate {
    pub at_once: u32,
    pub pause: Duration,
}

impl EventRate {
    pub const NODE: Self = Self { at_once: 10, pause: Duration::from_secs(30) };
    /// Rate of a server that speaks for thousands of nodes.
    pub const SERVER: Self = Self { at_once: 200, pause: Duration::from_millis(200) };
}

/// Recorder of events, which never blocks.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    notices: mpsc::Sender<Notice>,
    /// Nodes that have reported that their network does not work.
    failed: Arc<Mutex<BTreeSet<String>>>,
}

impl Recorder {
    /// Must be called within a tokio runtime.
    pub(crate) fn start(cluster: Arc<Cluster>, rate: EventRate) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Notice>(NOTICE_QUEUE);
        let write = async move {
            let mut writer = Writer { cluster, paused_until: None, logged_refusal: false };
            let mut book = EventBook::new(rate, Instant::now());
            while let Some(notice) = receiver.recv().await {
                if let Some(event) = book.note(notice, Timestamp::now(), Instant::now()) {
                    writer.write(&event).await;
                }
            }
        };
        Task::spawn("writer of Kubernetes events", write).detach();
        Self { notices: sender, failed: Arc::default() }
    }

    fn record(&self, node: &str, reason: Reason, text: impl Into<String>) {
        let notice = Notice { node: node.to_owned(), reason, text: text.into() };
        if self.notices.try_send(notice).is_err() {
            tracing::debug!("Too many events wait to be written: dropping one");
        }
    }

    pub(crate) fn record_network(&self, node: &str, network: &NodeNetwork) {
        match network {
            NodeNetwork::Fails(why) => {
                self.failed.lock().insert(node.to_owned());
                self.record(node, Reason::NotReady, why);
            }
            NodeNetwork::Works if self.failed.lock().remove(node) => {
                self.record(node, Reason::Ready, "pods of this node reach others again");
            }
            NodeNetwork::Works => {}
        }
    }

    pub(crate) fn record_subnet_change(&self, node: &str, before: Subnet, now: Option<Subnet>) {
        let text = match now {
            Some(now) => format!(
                "the podCIDR of this node was {before} and is {now} now: pods that are running have addresses of the \
                 former one and are cut off; restart them"
            ),
            None => format!("this node has no podCIDR any more; it was {before}"),
        };
        self.record(node, Reason::SubnetChanged, text);
    }

    /// Records that another Node has a node's subnet, so that pods of one of them are cut off.
    pub(crate) fn record_subnet_clash(&self, node: &str, other: &str) {
        let text = format!(
            "the Node {other} has the same podCIDR as this one, so pods of one of them are cut off; delete one of \
             the two Nodes and let it be created again"
        );
        self.record(node, Reason::SubnetClash, text);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub notice: Notice,
    pub name: String,
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
    pub known: bool,
}

#[derive(Debug)]
pub struct EventBook {
    events: VecDeque<Event>,
    rate: EventRate,
    left: u32,
    filled: Instant,
}

impl EventBook {
    pub fn new(rate: EventRate, now: Instant) -> Self {
        Self { events: VecDeque::new(), rate, left: rate.at_once, filled: now }
    }

    /// Event to write now; `None` when there have been too many: it is counted, and written with the next.
    pub fn note(&mut self, notice: Notice, wall: Timestamp, now: Instant) -> Option<Event> {
        let mut event = match self.events.iter().position(|event| event.notice == notice) {
            Some(at) => self.events.remove(at)?,
            None => {
                let name = format!("{}.{:016x}", notice.node, fastrand::u64(..));
                Event { notice, name, count: 0, first: wall, last: wall, known: false }
            }
        };
        event.count += 1;
        event.last = wall;
        let written = self.may_write(now);
        let event_now = event.clone();
        event.known |= written;
        self.events.push_back(event);
        if self.events.len() > MAX_REMEMBERED {
            self.events.pop_front();
        }
        written.then_some(event_now)
    }

    fn may_write(&mut self, now: Instant) -> bool {
        let pauses = now.duration_since(self.filled).as_nanos() / self.rate.pause.as_nanos().max(1);
        let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
        if pauses > 0 {
            self.left = self.left.saturating_add(pauses).min(self.rate.at_once);
            self.filled = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

struct Writer {
    cluster: Arc<Cluster>,
    paused_until: Option<Instant>,
    logged_refusal: bool,
}

impl Writer {
    async fn write(&mut self, event: &Event) {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let mut tries = RETRY.tries(fastrand::Rng::new());
        for _ in 0..MAX_TRIES {
            let Err(error) = write(&self.cluster.api.client, event).await else {
                (self.paused_until, self.logged_refusal) = (None, false);
                return;
            };
            match error.code {
                Some(403) => {
                    self.paused_until = Some(Instant::now() + FORBIDDEN_PAUSE);
                    if !std::mem::replace(&mut self.logged_refusal, true) {
                        let error = error.into_store_error("");
                        tracing::warn!(
                            "Cannot write events on Nodes: {error}; everything else works"
                        );
                    }
                    return;
                }
                // Another try would fail the same way.
                Some(400..=428 | 430..=499) => {
                    tracing::debug!("Cannot write an event: {error}");
                    return;
                }
                _ => tokio::time::sleep(tries.pause()).await,
            }
        }
    }
}

async fn write(client: &Client, event: &Event) -> Result<(), ApiError> {
    let events = Collection::of_namespace(CORE, NAMESPACE, "events");
    if event.known {
        let patch = json!({"count": event.count, "lastTimestamp": time(event.last)}).to_string();
        match client.patch(&events, &event.name, MERGE, &patch).await {
            // Kubernetes forgets them after an hour.
            Err(error) if error.code == Some(404) => {}
            done => return done,
        }
    }
    client.create(&events, &object(event).to_string()).await
}

fn object(event: &Event) -> Value {
    let Notice { node, reason, text } = &event.notice;
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": NAMESPACE},
        // Kubelets write the name here too, and kubectl searches for both.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": if *reason == Reason::Ready { "Normal" } else { "Warning" },
        "reason": reason,
        "message": brief(text),
        "count": event.count,
        "firstTimestamp": time(event.first),
        "lastTimestamp": time(event.last),
        "source": {"component": "flannel", "host": node},
        "reportingComponent": "flannel",
        "reportingInstance": node,
    })
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn brief(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_MESSAGE_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(text: &str) -> Notice {
        Notice { node: "node-1".to_owned(), reason: Reason::NotReady, text: text.to_owned() }
    }

    #[test]
    fn what_is_said_again_is_counted_in_the_event_that_is_there() {
        let now = Instant::now();
        let mut book = EventBook::new(EventRate::NODE, now);
        let first = book.note(notice("a"), Timestamp::UNIX_EPOCH, now).expect("written");
        assert!(!first.known && first.count == 1);
        let other = book.note(notice("b"), Timestamp::UNIX_EPOCH, now).expect("written");
        let again = book.note(notice("a"), Timestamp::MAX, now).expect("written");
        assert_eq!((again.known, again.count, &again.name), (true, 2, &first.name));
        assert_eq!((again.first, again.last), (first.first, Timestamp::MAX));
        assert_ne!(other.name, first.name);
    }

    #[test]
    fn however_much_happens_few_are_written_and_none_is_forgotten_in_the_count() {
        let begin = Instant::now();
        let mut book = EventBook::new(EventRate::NODE, begin);
        let mut written = 0;
        for second in 0..3_600 {
            let now = begin + Duration::from_secs(second);
            written += u32::from(book.note(notice("a"), Timestamp::UNIX_EPOCH, now).is_some());
        }
        assert!(written <= 10 + 3_600 / 30, "{written}");
        let now = begin + Duration::from_secs(7_200);
        let last = book.note(notice("a"), Timestamp::UNIX_EPOCH, now).expect("written");
        assert_eq!(last.count, 3_601);
        for number in 0..100_000 {
            book.note(notice(&number.to_string()), Timestamp::UNIX_EPOCH, now);
        }
        assert!(book.events.len() <= MAX_REMEMBERED, "what is remembered is bounded");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = "é".repeat(MAX_MESSAGE_BYTES);
        assert_eq!(brief(&long).len(), MAX_MESSAGE_BYTES);
        assert_eq!(brief(&format!("a{long}")).len(), MAX_MESSAGE_BYTES - 1);
    }
}
