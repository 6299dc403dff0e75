//! Requests of operators to nodes, and the nodes' answers. They go through the store, so that only who may write there
//! as an operator can request anything.
//!
//! A request stands for as long as its operator places it again ([`REQUEST_LIFETIME`]). Then the store drops it with its
//! answers, whatever has become of the operator. A node follows the requests that stand ([`RequestStore::follow`]),
//! carries one out while it stands, and undoes it afterwards.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flannel_lease::Subnet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::StoreError;
use crate::wire::{WireError, from_json};

/// Time for which a request stands after it was last placed.
pub const REQUEST_LIFETIME: Duration = Duration::from_secs(15);
/// Interval at which an operator places a request again while it is still wanted.
pub const REQUEST_RENEWAL_INTERVAL: Duration = Duration::from_secs(5);
/// Most requests that stand in a network, and that a node carries out, at the same time.
pub const MAX_STANDING_REQUESTS: usize = 4;
/// Most bytes of a request's or an answer's text: what fits into a Node of Kubernetes beside the rest.
pub const MAX_REQUEST_BYTES: usize = 100 << 10;
/// Longest time that a request may last, however often it is placed again.
const MAX_REQUEST_DURATION: Duration = Duration::from_secs(3_600);

/// Requests of one network. The verbs are methods of `dyn RequestStore`, so that a store implements one write.
#[async_trait]
pub trait RequestStore: Send + Sync {
    /// Requests that stand, while [`crate::Store::watch`] runs; the last ones known while the store is unreachable.
    /// Must be called within a tokio runtime.
    fn follow(&self) -> watch::Receiver<Requests>;

    async fn write(&self, change: RequestChange<'_>) -> Result<(), StoreError>;

    async fn answers(&self, to: &RequestId) -> Result<Vec<NodeAnswer>, StoreError>;
}

/// A change of the requests that stand, or of their answers. Its text completes "cannot …".
#[derive(Clone, Copy, Debug)]
pub enum RequestChange<'a> {
    Place(&'a NodeRequest),
    Withdraw(&'a RequestId),
    Answer(&'a RequestId, &'a NodeAnswer),
}

impl dyn RequestStore + '_ {
    /// Places a request, or again, for another [`REQUEST_LIFETIME`].
    pub async fn place(&self, request: &NodeRequest) -> Result<(), StoreError> {
        self.write(RequestChange::Place(request)).await
    }

    /// Withdraws a request with its answers. It is not an error if it is already gone.
    pub async fn withdraw(&self, request: &RequestId) -> Result<(), StoreError> {
        self.write(RequestChange::Withdraw(request)).await
    }

    /// Answers a request that stands for one node. [`StoreError::Lost`] when it no longer stands.
    pub async fn answer(&self, to: &RequestId, answer: &NodeAnswer) -> Result<(), StoreError> {
        self.write(RequestChange::Answer(to, answer)).await
    }
}

impl<'a> RequestChange<'a> {
    pub fn id(self) -> &'a RequestId {
        match self {
            Self::Place(request) => &request.id,
            Self::Withdraw(id) | Self::Answer(id, _) => id,
        }
    }
}

impl fmt::Display for RequestChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self {
            Self::Place(_) => "place",
            Self::Withdraw(_) => "withdraw",
            Self::Answer(..) => "answer",
        };
        write!(f, "{verb} the request {}", self.id())
    }
}

/// The name of a request: lower case letters, digits and dashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestId(String);

impl RequestId {
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        Self(format!("{:016x}", rng.u64(..)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequestId {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self, WireError> {
        match is_word(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(WireError(
                "the name of a request is made of lower case letters, digits and dashes, 64 at most".to_owned(),
            )),
        }
    }
}

impl From<RequestId> for String {
    fn from(id: RequestId) -> Self {
        id.0
    }
}

impl TryFrom<String> for RequestId {
    type Error = WireError;

    fn try_from(text: String) -> Result<Self, WireError> {
        text.parse()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(plain)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeRequest {
    pub id: RequestId,
    /// Kind of the task; a node that does not know it does nothing.
    pub kind: String,
    pub nodes: Vec<Subnet>,
    /// Time after which a node stops that no longer hears of it because its store is unreachable.
    #[serde(rename = "Seconds", with = "seconds")]
    pub limit: Duration,
    /// Details, in the form that its kind defines.
    #[serde(default)]
    pub body: Value,
}

pub type Requests = Arc<[NodeRequest]>;

/// Answer of one node to a request. The last one counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeAnswer {
    pub node: Subnet,
    #[serde(default)]
    pub body: Value,
}

impl NodeRequest {
    pub fn concerns(&self, node: &Subnet) -> bool {
        self.named(node).is_some()
    }

    /// Subnet by which it names a node. The operator may see more families of it than the network uses.
    pub fn named(&self, node: &Subnet) -> Option<Subnet> {
        self.nodes.iter().find(|named| named.overlaps(node)).copied()
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn read(json: &str) -> Result<Self, WireError> {
        check_size(json)?;
        let request: Self = from_json(json)?;
        if !is_word(&request.kind) {
            return Err(WireError("Kind is not a word in lower case".to_owned()));
        }
        if request.limit.is_zero() || request.limit > MAX_REQUEST_DURATION {
            let most = MAX_REQUEST_DURATION.as_secs();
            return Err(WireError(format!("Seconds is not between 1 and {most}")));
        }
        Ok(request)
    }
}

impl NodeAnswer {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn read(json: &str) -> Result<Self, WireError> {
        from_json(json)
    }

    pub fn list_to_json(answers: &[Self]) -> String {
        serde_json::to_string(answers).unwrap_or_default() + "\n"
    }

    pub fn read_list(json: &str) -> Result<Vec<Self>, WireError> {
        from_json(json)
    }
}

/// Reads the body of an answer that a client sent.
pub fn read_answer_body(json: &str) -> Result<Value, WireError> {
    check_size(json)?;
    from_json(json)
}

/// One line of the event stream: `{"requests":[…]}`, all that stand.
pub fn requests_json(requests: &[NodeRequest]) -> String {
    format!("{{\"requests\":{}}}\n", serde_json::to_string(requests).unwrap_or_default())
}

/// Reads such a line; `None` for one about something else. Requests that cannot be read are left out.
pub(crate) fn read_requests(json: &str) -> Option<Vec<NodeRequest>> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        requests: Vec<&'a serde_json::value::RawValue>,
    }
    // A snapshot of the lease table comes the same way and is large: it is not parsed twice.
    if !json.starts_with("{\"requests\":") {
        return None;
    }
    let raw: Raw<'_> = serde_json::from_str(json).ok()?;
    Some(raw.requests.iter().filter_map(|text| NodeRequest::read(text.get()).ok()).collect())
}

fn check_size(json: &str) -> Result<(), WireError> {
    match json.len() <= MAX_REQUEST_BYTES {
        true => Ok(()),
        false => Err(WireError(format!(
            "it has {} bytes, and may have {MAX_REQUEST_BYTES}: name fewer nodes",
            json.len()
        ))),
    }
}

mod seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_secs())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> NodeRequest {
        NodeRequest {
            id: "a-1".parse().expect("a name"),
            kind: "connectivity".to_owned(),
            nodes: vec!["10.5.1.0-24".parse().expect("a subnet")],
            limit: Duration::from_secs(60),
            body: serde_json::json!({"Port": 1}),
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let request = request();
        assert_eq!(NodeRequest::read(&request.to_json()), Ok(request.clone()));
        let line = requests_json(std::slice::from_ref(&request));
        assert_eq!(read_requests(line.trim_end()), Some(vec![request]));
        let answer =
            NodeAnswer { node: "10.5.1.0-24".parse().expect("a subnet"), body: Value::Null };
        let list = NodeAnswer::list_to_json(std::slice::from_ref(&answer));
        assert_eq!(NodeAnswer::read_list(&list), Ok(vec![answer]));
    }

    #[test]
    fn what_no_node_could_use_is_refused() {
        let good = request().to_json();
        for (what, with) in [
            ("\"a-1\"", "\"a/1\""),
            ("\"a-1\"", "\"\""),
            ("\"connectivity\"", "\"Rm -rf\""),
            ("10.5.1.0-24", "10.5.1.1-24"),
            (":60", ":0"),
            (":60", ":36000"),
        ] {
            let bad = good.replace(what, with);
            assert!(NodeRequest::read(&bad).is_err(), "{bad}");
        }
        let large = good.replace(":1}", &format!(":\"{}\"}}", "x".repeat(MAX_REQUEST_BYTES)));
        assert!(NodeRequest::read(&large).is_err());
    }
}
