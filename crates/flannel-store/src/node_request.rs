//! What an operator asks of nodes, and what they answer: through the store, so that whoever may not write there as
//! an operator asks for nothing.
//!
//! A request stands for as long as the one who placed it says so again and again ([`LIFE`]). Then it is gone from
//! the store by itself, and its answers with it, whatever has become of the one who placed it. A node hears of all
//! requests that stand ([`crate::Store::requests`]), does what one asks while it stands, and undoes it afterwards.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use flannel_lease::Subnet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::wire::{WireError, from_json};

/// How long a request stands after it was last placed.
pub const LIFE: Duration = Duration::from_secs(15);
/// How often it is placed again by who still wants it.
pub const PLACED_EVERY: Duration = Duration::from_secs(5);
/// So many requests stand in a network at once, and so many a node carries out: people ask, and few of them.
pub const REQUESTS_AT_ONCE: usize = 4;
/// So many bytes a request or an answer may have as text: what a Node of Kubernetes can carry beside the rest.
pub const LARGEST_REQUEST: usize = 100 << 10;
/// So many seconds a request may want to last, however often it is placed again.
const LONGEST_REQUEST: Duration = Duration::from_secs(3_600);

/// The name of a request: lower case letters, digits and dashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(plain)
}

/// What is asked of some nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRequest {
    pub id: RequestId,
    /// What is to be done; a node that does not know it does nothing.
    pub kind: String,
    /// The nodes that are to do it, by their subnets.
    pub nodes: Vec<Subnet>,
    /// A node that hears no more of it, because its store is away, stops after this time.
    pub limit: Duration,
    /// What there is to say to a request of this kind.
    pub body: Value,
}

/// All requests that stand.
pub type Requests = Arc<[NodeRequest]>;

/// What a node says to a request. It may say more later: the last answer counts.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeAnswer {
    pub node: Subnet,
    pub body: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawRequest {
    id: String,
    kind: String,
    nodes: Vec<String>,
    seconds: u64,
    #[serde(default)]
    body: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawAnswer {
    node: String,
    #[serde(default)]
    body: Value,
}

impl NodeRequest {
    pub fn concerns(&self, node: &Subnet) -> bool {
        self.named(node).is_some()
    }

    /// How it names a node. The operator may see more families of a node's subnet than the network uses.
    pub fn named(&self, node: &Subnet) -> Option<Subnet> {
        self.nodes.iter().find(|named| named.overlaps(node)).copied()
    }

    pub fn to_json(&self) -> String {
        let raw = RawRequest {
            id: self.id.to_string(),
            kind: self.kind.clone(),
            nodes: self.nodes.iter().map(ToString::to_string).collect(),
            seconds: self.limit.as_secs(),
            body: self.body.clone(),
        };
        serde_json::to_string(&raw).unwrap_or_default()
    }

    pub fn read(json: &str) -> Result<Self, WireError> {
        check_size(json)?;
        let raw: RawRequest = from_json(json)?;
        if !is_word(&raw.kind) {
            return Err(WireError("Kind is not a word in lower case".to_owned()));
        }
        let limit = Duration::from_secs(raw.seconds);
        if limit.is_zero() || limit > LONGEST_REQUEST {
            let most = LONGEST_REQUEST.as_secs();
            return Err(WireError(format!("Seconds is not between 1 and {most}")));
        }
        let nodes = raw.nodes.iter().map(|text| read_node(text)).collect::<Result<_, _>>()?;
        Ok(Self { id: raw.id.parse()?, kind: raw.kind, nodes, limit, body: raw.body })
    }
}

impl NodeAnswer {
    pub fn to_json(&self) -> String {
        let raw = RawAnswer { node: self.node.to_string(), body: self.body.clone() };
        serde_json::to_string(&raw).unwrap_or_default()
    }

    pub fn read(json: &str) -> Result<Self, WireError> {
        let raw: RawAnswer = from_json(json)?;
        Ok(Self { node: read_node(&raw.node)?, body: raw.body })
    }

    pub fn list_to_json(answers: &[Self]) -> String {
        let all: Vec<String> = answers.iter().map(Self::to_json).collect();
        format!("[{}]\n", all.join(","))
    }

    pub fn read_list(json: &str) -> Result<Vec<Self>, WireError> {
        let raw: Vec<&serde_json::value::RawValue> = from_json(json)?;
        raw.into_iter().map(|answer| Self::read(answer.get())).collect()
    }
}

/// The body of an answer, as somebody else has written it.
pub fn read_answer_body(json: &str) -> Result<Value, WireError> {
    check_size(json)?;
    from_json(json)
}

/// For those who tell of requests: `{"requests":[…]}`, all that stand.
pub fn requests_json(requests: &[NodeRequest]) -> String {
    let all: Vec<String> = requests.iter().map(NodeRequest::to_json).collect();
    format!("{{\"requests\":[{}]}}\n", all.join(","))
}

/// `None`: the line is about something else. What cannot be read among them is left out.
pub(crate) fn read_requests(json: &str) -> Option<Vec<NodeRequest>> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        requests: Vec<&'a serde_json::value::RawValue>,
    }
    // Whole tables come the same way: they are not read twice.
    if !json.starts_with("{\"requests\":") {
        return None;
    }
    let raw: Raw<'_> = serde_json::from_str(json).ok()?;
    Some(raw.requests.iter().filter_map(|text| NodeRequest::read(text.get()).ok()).collect())
}

/// Of a store through which nobody asks.
pub(crate) fn none() -> watch::Receiver<Requests> {
    watch::channel(Requests::default()).1
}

fn check_size(json: &str) -> Result<(), WireError> {
    match json.len() <= LARGEST_REQUEST {
        true => Ok(()),
        false => Err(WireError(format!(
            "it has {} bytes, and may have {LARGEST_REQUEST}: name fewer nodes",
            json.len()
        ))),
    }
}

fn read_node(text: &str) -> Result<Subnet, WireError> {
    text.parse().map_err(|error| WireError(format!("a node is named by its subnet: {error}")))
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
        let large = good.replace(":1}", &format!(":\"{}\"}}", "x".repeat(LARGEST_REQUEST)));
        assert!(NodeRequest::read(&large).is_err());
    }
}
