//! The few requests that flannel makes to the API server, and the messages for refusals.

use std::collections::HashMap;
use std::time::Duration;

use flannel_https::{Broken, Upgraded};
use flannel_store::StoreError;
use http::{Method, StatusCode};
use serde::Deserialize;

use crate::access::Access;
use crate::annotations::AnnotationPrefix;
use crate::forward::{FlannelPod, PodList};
use crate::http::{Answer, Ask, Client, Stream};
use crate::message::{ACCEPT, Encoding, Event, Malformed, Status};
use crate::node::NodeView;
use crate::token_review::TokenReview;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// How many Nodes are asked for at once where they are not streamed: some 2 MB.
const PAGE: usize = 250;
/// The server says something at least once a minute, if only that nothing has happened.
const SILENCE: Duration = Duration::from_secs(150);
/// No object of Kubernetes is that large.
const LARGEST_MESSAGE: usize = 16 << 20;
/// What is said on a forwarded port: bytes, each message with the number of its channel.
const PORT_PROTOCOL: &str = "v4.channel.k8s.io";

/// Something that a role in Kubernetes allows or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    GetNode,
    ListNodes,
    WatchNodes,
    PatchNodeStatus,
    GetPod,
    ListPods,
    ForwardPort,
    GetConfigMap,
    PatchConfigMap,
    CreateEvent,
    PatchEvent,
    ReviewToken,
}

impl Action {
    pub fn verb(self) -> &'static str {
        match self {
            Self::GetNode | Self::GetPod | Self::GetConfigMap => "get",
            Self::ListNodes | Self::ListPods => "list",
            Self::WatchNodes => "watch",
            Self::PatchNodeStatus | Self::PatchConfigMap | Self::PatchEvent => "patch",
            Self::CreateEvent | Self::ForwardPort | Self::ReviewToken => "create",
        }
    }

    pub fn resource(self) -> &'static str {
        match self {
            Self::GetNode | Self::ListNodes | Self::WatchNodes => "nodes",
            Self::PatchNodeStatus => "nodes/status",
            Self::GetPod | Self::ListPods => "pods",
            Self::ForwardPort => "pods/portforward",
            Self::GetConfigMap | Self::PatchConfigMap => "configmaps",
            Self::CreateEvent | Self::PatchEvent => "events",
            Self::ReviewToken => "tokenreviews",
        }
    }

    /// The line of the manifest that is missing.
    fn fix(self) -> &'static str {
        match self {
            Self::GetNode | Self::ListNodes | Self::WatchNodes => {
                "the ClusterRole of flannel's service account needs the rule {apiGroups: [\"\"], resources: \
                 [nodes], verbs: [get, list, watch]}"
            }
            Self::PatchNodeStatus => {
                "the ClusterRole of flannel's service account needs the rule {apiGroups: [\"\"], resources: \
                 [nodes/status], verbs: [patch]}"
            }
            Self::GetPod => {
                "set NODE_NAME in flannel's DaemonSet (fieldRef spec.nodeName), or give its ClusterRole the rule \
                 {apiGroups: [\"\"], resources: [pods], verbs: [get]}"
            }
            Self::ListPods | Self::ForwardPort => {
                "who looks at the nodes needs, in flannel's namespace, the rules {apiGroups: [\"\"], resources: \
                 [pods], verbs: [list]} and {apiGroups: [\"\"], resources: [pods/portforward], verbs: [get, create]}: \
                 dist/kubernetes/operator.yml has them"
            }
            Self::CreateEvent | Self::PatchEvent => {
                "flannel's service account needs, by a Role in the namespace default, the rule {apiGroups: [\"\"], \
                 resources: [events], verbs: [create, patch]}"
            }
            Self::ReviewToken => {
                "the ClusterRole of the lease server's service account needs the rule {apiGroups: \
                 [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}"
            }
            Self::GetConfigMap | Self::PatchConfigMap => {
                "who looks at the network config needs the right to get that ConfigMap, and who writes it to patch it"
            }
        }
    }
}

/// Why something could not be done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ApiError {
    #[error("cannot {} {}: no answer from {endpoint}: {reason}", action.verb(), action.resource())]
    NoAnswer { action: Action, endpoint: String, reason: String },
    #[error("cannot {} {}: {endpoint} says {}: {}", action.verb(), action.resource(), status.code, status.message)]
    Refused {
        action: Action,
        endpoint: String,
        credentials: String,
        status: Status,
        retry_after: Option<Duration>,
    },
}

impl ApiError {
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::NoAnswer { .. } => None,
            Self::Refused { status, .. } => Some(status.code),
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoAnswer { .. } => None,
            Self::Refused { retry_after, .. } => *retry_after,
        }
    }

    /// In the words of a store. `named` is what was asked for, for people.
    pub fn into_store_error(self, named: &str) -> StoreError {
        match self {
            Self::NoAnswer { action, endpoint, reason } => {
                StoreError::Unavailable { attempted: attempted(action, named), endpoint, reason }
            }
            Self::Refused { action, endpoint, credentials, status, .. } => {
                let (code, attempted) = (status.code, attempted(action, named));
                match code {
                    401 => {
                        let reason = format!(
                            "the API server does not know us by {credentials} ({}); has it expired, or was the \
                             service account deleted?",
                            status.message
                        );
                        StoreError::Unavailable { attempted, endpoint, reason }
                    }
                    403 => {
                        let reason = status.message;
                        StoreError::Denied { attempted, endpoint, reason, fix: action.fix() }
                    }
                    429 | 500.. => {
                        let reason = format!("{code} {}", status.message);
                        StoreError::Unavailable { attempted, endpoint, reason }
                    }
                    _ => {
                        let reason = format!("{code} {}", status.message);
                        StoreError::Refused { attempted, endpoint, reason }
                    }
                }
            }
        }
    }
}

fn attempted(action: Action, named: &str) -> String {
    let named = if named.is_empty() { String::new() } else { format!(" {named}") };
    format!("{} {}{named}", action.verb(), action.resource())
}

/// Speaks with the API server.
#[derive(Debug)]
pub struct Api {
    client: Client,
    prefix: AnnotationPrefix,
}

/// A watch, message by message.
pub struct Watch {
    body: flannel_https::Stream,
    encoding: Encoding,
    buffer: Vec<u8>,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// With all that there is; then goes on with news.
    All,
    /// After this version.
    Version(&'a str),
}

impl Api {
    pub fn new(access: Access, prefix: AnnotationPrefix) -> Self {
        Self { client: Client::new(access), prefix }
    }

    pub fn prefix(&self) -> &AnnotationPrefix {
        &self.prefix
    }

    pub fn endpoint(&self) -> String {
        self.client.access().name()
    }

    pub fn node_moved(&self) {
        self.client.node_moved();
    }

    /// Changes when [`Self::node_moved`] was called.
    pub fn moves(&self) -> tokio::sync::watch::Receiver<u64> {
        self.client.moves()
    }

    /// `None` when there is none of that name.
    pub async fn node(&self, name: &str) -> Result<Option<NodeView<'static>>, ApiError> {
        let (action, path) = (Action::GetNode, format!("/api/v1/nodes/{}", escape(name)));
        let answer = self.ask(action, &Method::GET, &path, None).await;
        match answer {
            Ok(answer) => {
                let node = answer.encoding.node(&answer.body, &self.prefix);
                Ok(Some(node.map_err(|error| self.malformed(action, &error))?.into_owned()))
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn config_map_path(namespace: &str, name: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps/{}", escape(namespace), escape(name))
    }

    /// Any object, as JSON; `None` when there is none.
    pub async fn object(
        &self,
        action: Action,
        path: &str,
    ) -> Result<Option<serde_json::Value>, ApiError> {
        let ask = Ask { method: &Method::GET, path, accept: JSON, content: None };
        match self.answer(action, ask).await {
            Ok(answer) => match serde_json::from_slice(&answer.body) {
                Ok(object) => Ok(Some(object)),
                Err(_) => Err(self.malformed(action, &Malformed("it is not JSON"))),
            },
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an object.
    pub async fn create(&self, action: Action, path: &str, object: &str) -> Result<(), ApiError> {
        let path = format!("{path}?fieldManager=flannel");
        self.ask(action, &Method::POST, &path, Some((JSON, object))).await.map(drop)
    }

    /// Asks whose a token is that was made for this audience.
    pub async fn review_token(&self, token: &str, audience: &str) -> Result<TokenReview, ApiError> {
        let action = Action::ReviewToken;
        let question = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token, "audiences": [audience] },
        });
        let (path, question) =
            ("/apis/authentication.k8s.io/v1/tokenreviews", question.to_string());
        let content = Some((JSON, question.as_str()));
        let answer =
            self.answer(action, Ask { method: &Method::POST, path, accept: JSON, content }).await?;
        TokenReview::read(&answer.body, audience)
            .ok_or_else(|| self.malformed(action, &Malformed("it is not a TokenReview")))
    }

    /// Changes an object.
    pub async fn merge(&self, action: Action, path: &str, patch: &str) -> Result<(), ApiError> {
        let path = format!("{path}?fieldManager=flannel");
        self.ask(action, &Method::PATCH, &path, Some((MERGE_PATCH, patch))).await.map(drop)
    }

    /// The name of the node that a pod runs on; `None` when there is no such pod, or it runs nowhere yet.
    pub async fn node_of_pod(
        &self,
        namespace: &str,
        pod: &str,
    ) -> Result<Option<String>, ApiError> {
        #[derive(Deserialize)]
        struct Pod {
            #[serde(default)]
            spec: PodSpec,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct PodSpec {
            #[serde(rename = "nodeName")]
            node_name: String,
        }
        let action = Action::GetPod;
        let path = format!("/api/v1/namespaces/{}/pods/{}", escape(namespace), escape(pod));
        let ask = Ask { method: &Method::GET, path: &path, accept: JSON, content: None };
        match self.answer(action, ask).await {
            Ok(answer) => {
                let pod: Result<Pod, _> = serde_json::from_slice(&answer.body);
                let unreadable = Malformed("it is not a pod");
                let pod = pod.map_err(|_| self.malformed(action, &unreadable))?;
                Ok(Some(pod.spec.node_name).filter(|name| !name.is_empty()))
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The pods of flannel by the names of their nodes.
    pub(crate) async fn flannel_pods(
        &self,
        namespace: &str,
        label: &str,
    ) -> Result<HashMap<String, FlannelPod>, ApiError> {
        let action = Action::ListPods;
        let (mut by_node, mut next) = (HashMap::new(), None);
        loop {
            let token = next.map(|token: String| format!("&continue={}", escape(&token)));
            let path = format!(
                "/api/v1/namespaces/{}/pods?labelSelector={}&limit={PAGE}{}",
                escape(namespace),
                escape(label),
                token.unwrap_or_default()
            );
            let ask = Ask { method: &Method::GET, path: &path, accept: JSON, content: None };
            let answer = self.answer(action, ask).await?;
            let list: PodList = serde_json::from_slice(&answer.body)
                .map_err(|_| self.malformed(action, &Malformed("it is not a list of pods")))?;
            next = list.take_into(&mut by_node);
            if next.is_none() {
                return Ok(by_node);
            }
        }
    }

    /// Has a port of a pod forwarded.
    pub(crate) async fn forward(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<Upgraded, ApiError> {
        let action = Action::ForwardPort;
        let (namespace, pod) = (escape(namespace), escape(pod));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}");
        let opened = self.client.websocket(&path, PORT_PROTOCOL).await;
        match opened.map_err(|reason| self.no_answer(action, reason))? {
            Ok(upgraded) => Ok(upgraded),
            Err(answer) => Err(self.refused(action, &answer)),
        }
    }

    /// All Nodes, told one by one. Returns their version.
    pub async fn list(&self, mut tell: impl FnMut(NodeView<'_>)) -> Result<String, ApiError> {
        let action = Action::ListNodes;
        let mut next: Option<String> = None;
        loop {
            let token = next.map(|token| format!("&continue={}", escape(&token)));
            let path = format!("/api/v1/nodes?limit={PAGE}{}", token.unwrap_or_default());
            let answer = self.ask(action, &Method::GET, &path, None).await?;
            let page = answer.encoding.list(&answer.body, &self.prefix, &mut tell);
            let (version, rest) = page.map_err(|error| self.malformed(action, &error))?;
            next = rest;
            if next.is_none() {
                return Ok(version);
            }
        }
    }

    /// Follows all Nodes for so long, then the server ends it.
    pub async fn watch(&self, from: From<'_>, lasting: Duration) -> Result<Watch, ApiError> {
        let seconds = lasting.as_secs().max(1);
        let path = format!(
            "/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{}",
            match from {
                From::All => "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
                From::Version(version) => format!("&resourceVersion={}", escape(version)),
            }
        );
        let action = Action::WatchNodes;
        let opened = self.client.stream(&path).await;
        match opened.map_err(|reason| self.no_answer(action, reason))? {
            Ok(Stream { encoding, body }) => Ok(Watch { body, encoding, buffer: Vec::new() }),
            Err(answer) => Err(self.refused(action, &answer)),
        }
    }

    /// Changes annotations of a Node.
    pub async fn annotate(&self, name: &str, merge_patch: &str) -> Result<(), ApiError> {
        self.patch_status(name, MERGE_PATCH, merge_patch).await
    }

    /// Changes a condition of a Node.
    pub async fn set_condition(&self, name: &str, strategic_patch: &str) -> Result<(), ApiError> {
        self.patch_status(name, STRATEGIC_PATCH, strategic_patch).await
    }

    async fn patch_status(
        &self,
        name: &str,
        kind: &'static str,
        patch: &str,
    ) -> Result<(), ApiError> {
        let path = format!("/api/v1/nodes/{}/status?fieldManager=flannel", escape(name));
        let content = Some((kind, patch));
        self.ask(Action::PatchNodeStatus, &Method::PATCH, &path, content).await.map(drop)
    }

    async fn ask(
        &self,
        action: Action,
        method: &Method,
        path: &str,
        content: Option<(&'static str, &str)>,
    ) -> Result<Answer, ApiError> {
        self.answer(action, Ask { method, path, accept: ACCEPT, content }).await
    }

    async fn answer(&self, action: Action, ask: Ask<'_>) -> Result<Answer, ApiError> {
        let answer = self.client.request(ask).await;
        let answer = answer.map_err(|reason| self.no_answer(action, reason))?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(action, &answer)) }
    }

    fn no_answer(&self, action: Action, reason: String) -> ApiError {
        ApiError::NoAnswer { action, endpoint: self.endpoint(), reason }
    }

    fn malformed(&self, action: Action, error: &Malformed) -> ApiError {
        self.no_answer(action, error.to_string())
    }

    fn refused(&self, action: Action, answer: &Answer) -> ApiError {
        // Not every answer is from Kubernetes: there may be something between it and us.
        let status = answer.encoding.status(&answer.body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&answer.body).chars().take(200).collect(),
            ..Status::default()
        });
        self.refusal(action, Status { code: answer.status.as_u16(), ..status }, answer.retry_after)
    }

    /// An error that came as a message of a watch.
    pub fn watch_error(&self, status: Status) -> ApiError {
        self.refusal(Action::WatchNodes, status, None)
    }

    /// A watch that was over before its time.
    pub fn watch_broke(&self, ended: Ended) -> ApiError {
        let reason = match ended {
            Ended::InTime => "it ended the watch early".to_owned(),
            Ended::Broken(why) => why,
        };
        self.no_answer(Action::WatchNodes, reason)
    }

    fn refusal(&self, action: Action, status: Status, retry_after: Option<Duration>) -> ApiError {
        let credentials = self.client.access().credentials();
        ApiError::Refused { action, endpoint: self.endpoint(), credentials, status, retry_after }
    }
}

/// Why a watch is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its time was up: nothing is wrong.
    InTime,
    Broken(String),
}

impl Watch {
    /// Waits until there is something to tell, and tells all of it. An error of `tell` ends the watch.
    pub async fn next<E>(
        &mut self,
        prefix: &AnnotationPrefix,
        mut tell: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<Result<(), E>, Ended> {
        let broken = |why: &str| Ended::Broken(why.to_owned());
        let data = match self.body.next(SILENCE).await {
            Ok(Some(data)) => data,
            Ok(None) => return Err(Ended::InTime),
            Err(Broken::Off(why)) => return Err(Ended::Broken(format!("it broke off: {why}"))),
            Err(Broken::Silent) => return Err(broken("the API server has gone silent")),
        };
        // Most often a message is one whole piece; then it need not be copied.
        if self.buffer.is_empty() {
            let (told, outcome) = self.encoding.tell_all(&data, prefix, &mut tell);
            self.buffer.extend_from_slice(&data[told..]);
            return outcome.map_err(|error| Ended::Broken(error.to_string()));
        }
        self.buffer.extend_from_slice(&data);
        let (told, outcome) = self.encoding.tell_all(&self.buffer, prefix, &mut tell);
        self.buffer.drain(..told);
        if self.buffer.len() > LARGEST_MESSAGE {
            return Err(broken("the API server sends a message without end"));
        }
        outcome.map_err(|error| Ended::Broken(error.to_string()))
    }
}

impl Encoding {
    /// Returns how much was whole, and what came of it.
    fn tell_all<E>(
        self,
        stream: &[u8],
        prefix: &AnnotationPrefix,
        mut tell: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> (usize, Result<Result<(), E>, Malformed>) {
        let mut told = 0;
        while let Some((message, length)) = self.cut(&stream[told..]) {
            told += length;
            match self.event(message, prefix).map(&mut tell) {
                Ok(Ok(())) => {}
                ended => return (told, ended),
            }
        }
        (told, Ok(Ok(())))
    }
}

/// Whether the server says that it does not know how to send all Nodes through a watch.
pub(crate) fn is_not_streamed(error: &ApiError) -> bool {
    matches!(error.code(), Some(400 | 422))
}

/// Whether what was asked for is from too long ago.
pub(crate) fn is_too_old(error: &ApiError) -> bool {
    error.code() == Some(StatusCode::GONE.as_u16())
}

/// For a path or a query: what has a meaning there is written as its number.
fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.as_bytes()
        .iter()
        .map(
            |byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") },
        )
        .collect()
}
