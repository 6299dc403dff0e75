//! The API server, for any resource: objects are got, listed, watched, created and patched. Knows no resource by itself.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use flannel_https::{StreamError, Upgraded, escape};
use http::{Method, StatusCode};

use crate::access::Access;
use crate::http::{ApiAnswer, ApiRequest, Client as Http, Stream};
use crate::message::{ACCEPT, ACCEPT_STREAM, Encoding, Event, JSON, Malformed, Resource, Status};

/// Objects per page where they are not streamed: some 2 MB of Nodes.
const PAGE_SIZE: usize = 250;
/// Longest silence of a watch: the server sends something at least once a minute.
const WATCH_SILENCE: Duration = Duration::from_secs(150);
/// Most bytes of a message; no object of Kubernetes is that large.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Protocol of a forwarded port: bytes, each message with the number of its channel.
const PORT_PROTOCOL: &str = "v4.channel.k8s.io";
/// The core API group.
pub const CORE: &str = "/api/v1";

/// Something that a role in Kubernetes allows or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub verb: &'static str,
    /// Name in roles: `nodes`, `nodes/status`.
    pub resource: &'static str,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

/// Error of a request to the API server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ApiError {
    #[error("cannot {action}: no answer from {endpoint}: {reason}")]
    NoAnswer { action: Action, endpoint: String, reason: String },
    #[error("cannot {action}: {endpoint} says {}: {}", status.code, status.message)]
    Refused {
        action: Action,
        endpoint: String,
        credentials: String,
        status: Box<Status>,
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

    /// Whether the server cannot send a list through a watch.
    pub(crate) fn is_not_streamed(&self) -> bool {
        matches!(self.code(), Some(400 | 422))
    }

    /// Whether the requested version has expired.
    pub(crate) fn is_too_old(&self) -> bool {
        self.code() == Some(StatusCode::GONE.as_u16())
    }
}

/// Objects of one kind in one place: all Nodes, or the Pods of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Name in roles.
    pub(crate) resource: &'static str,
    path: String,
    /// Begins with `&` where there is one.
    selector: String,
    /// Path behind that of an object.
    part: &'static str,
}

impl Collection {
    /// `group` is [`CORE`], or the path of another API group with its version.
    pub fn of_cluster(group: &str, resource: &'static str) -> Self {
        Self { resource, path: format!("{group}/{resource}"), selector: String::new(), part: "" }
    }

    pub fn of_namespace(group: &str, namespace: &str, resource: &'static str) -> Self {
        let path = format!("{group}/namespaces/{}/{resource}", escape(namespace));
        Self { resource, path, selector: String::new(), part: "" }
    }

    /// Those that `labelSelector` or `fieldSelector` selects, where they are listed or watched.
    pub fn selecting(self, kind: &str, selector: &str) -> Self {
        Self { selector: format!("&{kind}={}", escape(selector)), ..self }
    }

    /// A part of each object that has rights of its own: `nodes/status`.
    pub fn part(&self, resource: &'static str) -> Self {
        let part = resource.find('/').map_or("", |at| &resource[at..]);
        Self { resource, part, ..self.clone() }
    }

    fn action(&self, verb: &'static str) -> Action {
        Action { verb, resource: self.resource }
    }

    fn object(&self, name: &str) -> String {
        format!("{}/{}{}", self.path, escape(name), self.part)
    }
}

/// A change of an object, in JSON.
#[derive(Clone, Copy, Debug)]
pub enum Patch<'a> {
    Merge(&'a str),
    /// Lists are merged by the keys of their items.
    Strategic(&'a str),
}

impl<'a> Patch<'a> {
    fn content(self) -> (&'static str, &'a str) {
        match self {
            Self::Merge(text) => ("application/merge-patch+json", text),
            Self::Strategic(text) => ("application/strategic-merge-patch+json", text),
        }
    }
}

/// Start of a watch.
#[derive(Clone, Copy, Debug)]
pub enum WatchStart<'a> {
    /// All objects first, then changes.
    All,
    /// After this version.
    Version(&'a str),
}

/// A watch, message by message.
pub struct Watch {
    body: flannel_https::Stream,
    encoding: Encoding,
    buffer: Vec<u8>,
}

/// Reason why a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// Its time was up: nothing is wrong.
    InTime,
    Broken(String),
}

/// Speaks with the API server.
#[derive(Debug)]
pub struct Client {
    http: Http,
    /// Name of the writer in `managedFields`.
    field_manager: &'static str,
}

impl Client {
    pub fn new(access: Access, field_manager: &'static str) -> Self {
        Self { http: Http::new(access), field_manager }
    }

    pub fn endpoint(&self) -> String {
        self.http.access().name()
    }

    /// Connections made so far are dead.
    pub fn node_moved(&self) {
        self.http.node_moved();
    }

    /// Changes when [`Self::node_moved`] was called.
    pub fn moves(&self) -> tokio::sync::watch::Receiver<u64> {
        self.http.moves()
    }

    /// `None` when there is none of that name.
    pub async fn get<R: Resource, T>(
        &self,
        resource: &R,
        name: &str,
        read: impl FnOnce(R::View<'_>) -> T,
    ) -> Result<Option<T>, ApiError> {
        let (action, path) =
            (resource.collection().action("get"), resource.collection().object(name));
        let ask =
            ApiRequest { method: &Method::GET, path: &path, accept: R::ACCEPT, content: None };
        let answer = match self.answer(action, ask).await {
            Err(error) if error.code() == Some(404) => return Ok(None),
            answer => answer?,
        };
        let object = answer.encoding.object(&answer.body, resource);
        object.map(|view| Some(read(view))).map_err(|error| self.malformed(action, &error))
    }

    /// Reads all objects one by one. Returns their version.
    pub async fn list<R: Resource>(
        &self,
        resource: &R,
        mut take_event: impl FnMut(R::View<'_>),
    ) -> Result<String, ApiError> {
        let Collection { path, selector, .. } = resource.collection();
        let action = resource.collection().action("list");
        let mut next = String::new();
        loop {
            let path = format!("{path}?limit={PAGE_SIZE}{selector}{next}");
            let ask =
                ApiRequest { method: &Method::GET, path: &path, accept: R::ACCEPT, content: None };
            let answer = self.answer(action, ask).await?;
            let page = answer.encoding.list(&answer.body, resource, &mut take_event);
            let (version, rest) = page.map_err(|error| self.malformed(action, &error))?;
            let Some(token) = rest else { return Ok(version) };
            next = format!("&continue={}", escape(&token));
        }
    }

    /// Follows all objects for so long, then the server ends it.
    pub async fn watch<R: Resource>(
        &self,
        resource: &R,
        start: WatchStart<'_>,
        lasting: Duration,
    ) -> Result<Watch, ApiError> {
        let Collection { path, selector, .. } = resource.collection();
        let seconds = lasting.as_secs().max(1);
        let start = match start {
            WatchStart::All => {
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()
            }
            WatchStart::Version(version) => format!("&resourceVersion={}", escape(version)),
        };
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{selector}{start}"
        );
        let action = resource.collection().action("watch");
        let opened = self.http.stream(&path, ACCEPT_STREAM).await;
        match opened.map_err(|reason| self.no_answer(action, reason))? {
            Ok(Stream { encoding, body }) => Ok(Watch { body, encoding, buffer: Vec::new() }),
            Err(answer) => Err(self.refused(action, &answer)),
        }
    }

    /// An error that came as a message of a watch.
    pub fn watch_error<R: Resource>(&self, resource: &R, status: Status) -> ApiError {
        self.refusal(resource.collection().action("watch"), status, None)
    }

    /// A watch that was over before its time.
    pub fn watch_broke<R: Resource>(&self, resource: &R, ended: WatchEnd) -> ApiError {
        let reason = match ended {
            WatchEnd::InTime => "it ended the watch early".to_owned(),
            WatchEnd::Broken(why) => why,
        };
        self.no_answer(resource.collection().action("watch"), reason)
    }

    /// Makes an object.
    pub async fn create(&self, collection: &Collection, object: &str) -> Result<(), ApiError> {
        let path = format!("{}?fieldManager={}", collection.path, self.field_manager);
        self.post(collection.action("create"), &path, ACCEPT, object).await.map(drop)
    }

    /// Asks what the server thinks of an object that is not kept. Returns it as JSON.
    pub async fn review(&self, collection: &Collection, object: &str) -> Result<Bytes, ApiError> {
        let action = collection.action("create");
        Ok(self.post(action, &collection.path, JSON, object).await?.body)
    }

    async fn post(
        &self,
        action: Action,
        path: &str,
        accept: &'static str,
        object: &str,
    ) -> Result<ApiAnswer, ApiError> {
        let content = Some((JSON, object));
        self.answer(action, ApiRequest { method: &Method::POST, path, accept, content }).await
    }

    pub async fn patch(
        &self,
        collection: &Collection,
        name: &str,
        patch: Patch<'_>,
    ) -> Result<(), ApiError> {
        let path = format!("{}?fieldManager={}", collection.object(name), self.field_manager);
        let content = Some(patch.content());
        let ask = ApiRequest { method: &Method::PATCH, path: &path, accept: ACCEPT, content };
        self.answer(collection.action("patch"), ask).await.map(drop)
    }

    /// Has a port of a pod forwarded.
    pub async fn forward_port(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<Upgraded, ApiError> {
        let ports = Collection::of_namespace(CORE, namespace, "pods").part("pods/portforward");
        let (action, path) =
            (ports.action("create"), format!("{}?ports={port}", ports.object(pod)));
        let opened = self.http.websocket(&path, PORT_PROTOCOL).await;
        match opened.map_err(|reason| self.no_answer(action, reason))? {
            Ok(upgraded) => Ok(upgraded),
            Err(answer) => Err(self.refused(action, &answer)),
        }
    }

    async fn answer(&self, action: Action, ask: ApiRequest<'_>) -> Result<ApiAnswer, ApiError> {
        let answer = self.http.request(ask).await;
        let answer = answer.map_err(|reason| self.no_answer(action, reason))?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(action, &answer)) }
    }

    fn no_answer(&self, action: Action, reason: String) -> ApiError {
        ApiError::NoAnswer { action, endpoint: self.endpoint(), reason }
    }

    fn malformed(&self, action: Action, error: &Malformed) -> ApiError {
        self.no_answer(action, error.to_string())
    }

    /// An answer to a review that is not one.
    pub(crate) fn malformed_review(&self, collection: &Collection, what: &'static str) -> ApiError {
        self.malformed(collection.action("create"), &Malformed(what))
    }

    fn refused(&self, action: Action, answer: &ApiAnswer) -> ApiError {
        // Not every answer is from Kubernetes: there may be something between it and us.
        let status = answer.encoding.status(&answer.body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&answer.body).chars().take(200).collect(),
            ..Status::default()
        });
        self.refusal(action, Status { code: answer.status.as_u16(), ..status }, answer.retry_after)
    }

    fn refusal(&self, action: Action, status: Status, retry_after: Option<Duration>) -> ApiError {
        let credentials = self.http.access().credentials();
        let status = Box::new(status);
        ApiError::Refused { action, endpoint: self.endpoint(), credentials, status, retry_after }
    }
}

impl Watch {
    /// Waits for messages and passes all of them on. An error of `take_event` ends the watch.
    pub async fn next<R: Resource, E>(
        &mut self,
        resource: &R,
        mut take_event: impl FnMut(Event<'_, R>) -> Result<(), E>,
    ) -> Result<Result<(), E>, WatchEnd> {
        let broken = |why: &str| WatchEnd::Broken(why.to_owned());
        let data = match self.body.next(WATCH_SILENCE).await {
            Ok(Some(data)) => data,
            Ok(None) => return Err(WatchEnd::InTime),
            Err(StreamError::Broken(why)) => {
                return Err(WatchEnd::Broken(format!("it broke off: {why}")));
            }
            Err(StreamError::Silent) => return Err(broken("the API server has gone silent")),
        };
        // Most often a message is complete in one piece; then it need not be copied.
        if self.buffer.is_empty() {
            let (taken, outcome) = take_messages(self.encoding, &data, resource, &mut take_event);
            self.buffer.extend_from_slice(&data[taken..]);
            return outcome.map_err(|error| WatchEnd::Broken(error.to_string()));
        }
        self.buffer.extend_from_slice(&data);
        let (taken, outcome) =
            take_messages(self.encoding, &self.buffer, resource, &mut take_event);
        self.buffer.drain(..taken);
        if self.buffer.len() > MAX_MESSAGE_BYTES {
            return Err(broken("the API server sends a message without end"));
        }
        outcome.map_err(|error| WatchEnd::Broken(error.to_string()))
    }
}

/// Returns the length of the complete messages, and the result.
fn take_messages<R: Resource, E>(
    encoding: Encoding,
    stream: &[u8],
    resource: &R,
    mut take_event: impl FnMut(Event<'_, R>) -> Result<(), E>,
) -> (usize, Result<Result<(), E>, Malformed>) {
    let mut taken = 0;
    while let Some((message, length)) = encoding.cut(&stream[taken..]) {
        taken += length;
        match encoding.event(message, resource).map(&mut take_event) {
            Ok(Ok(())) => {}
            ended => return (taken, ended),
        }
    }
    (taken, Ok(Ok(())))
}
