//! The API server, for any resource: objects are got, listed, watched, created and patched. Knows no resource by itself.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use flannel_https::{Limits, StreamError, Upgraded, escape, websocket};
use http::header::{ACCEPT as ACCEPT_HEADER, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::watch;

use crate::access::Access;
use crate::message::{
    ACCEPT, ACCEPT_STREAM, Encoding, Event, EventKind, JSON, Malformed, Resource, Status,
};

/// Time for a request, which a server that is starting or busy may need.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    answer: REQUEST_TIMEOUT,
    body: REQUEST_TIMEOUT,
    largest: 64 << 20,
};
/// Objects per page where they are not streamed: some 2 MB of Nodes.
const PAGE_SIZE: usize = 250;
/// Longest silence of a watch: the server sends something at least once a minute.
const WATCH_SILENCE: Duration = Duration::from_secs(150);
/// Most bytes of a message; no object of Kubernetes is that large.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Protocol of a forwarded port: bytes, each message with the number of its channel.
const PORT_PROTOCOL: &str = "v4.channel.k8s.io";
pub const CORE: &str = "/api/v1";
/// Kinds of a patch; the strategic one merges lists by the keys of their items.
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

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

#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {action}: {}", explain(.endpoint, .code, .reason))]
pub struct ApiError {
    pub(crate) action: Action,
    pub(crate) endpoint: String,
    /// Status of a refusal; `None` if there was no answer.
    pub code: Option<u16>,
    pub(crate) reason: String,
    pub(crate) retry_after: Option<Duration>,
}

pub type Result<T, E = ApiError> = std::result::Result<T, E>;

fn explain(endpoint: &str, code: &Option<u16>, reason: &str) -> String {
    match code {
        None => format!("no answer from {endpoint}: {reason}"),
        Some(code) => format!("{endpoint} says {code}: {reason}"),
    }
}

/// Objects of one kind in one place: all Nodes, or the Pods of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
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

pub struct Watch {
    pub(crate) body: flannel_https::Stream,
    encoding: Encoding,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// Its time was up: nothing is wrong.
    InTime,
    Broken(String),
    Refused(Status),
}

/// Answer of any status.
pub(crate) struct ApiAnswer {
    pub(crate) status: StatusCode,
    encoding: Encoding,
    retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

#[derive(Debug)]
pub struct Client {
    access: Access,
    https: flannel_https::Client,
    /// Name of the writer in `managedFields`.
    field_manager: &'static str,
    moves: watch::Sender<u64>,
}

impl Client {
    pub fn new(access: Access, field_manager: &'static str) -> Self {
        let https = flannel_https::Client::new(LIMITS);
        Self { access, https, field_manager, moves: watch::Sender::new(0) }
    }

    pub fn endpoint(&self) -> String {
        self.access.name()
    }

    /// Connections made so far are dead.
    pub fn node_moved(&self) {
        self.https.forget();
        self.moves.send_modify(|times| *times += 1);
    }

    /// Changes when [`Self::node_moved`] was called.
    pub fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// `None` when there is none of that name.
    pub async fn get<R: Resource, T>(
        &self,
        resource: &R,
        name: &str,
        read: impl FnOnce(R::View<'_>) -> T,
    ) -> Result<Option<T>> {
        let action = resource.collection().action("get");
        let path = resource.collection().object(name);
        let answer = match self.request(action, Method::GET, &path, R::ACCEPT, None).await {
            Err(error) if error.code == Some(404) => return Ok(None),
            answer => answer?,
        };
        let object = answer.encoding.object(&answer.body, resource);
        object.map(|view| Some(read(view))).map_err(|error| self.malformed(action, &error))
    }

    /// Reads all objects one by one. Returns their version.
    pub async fn list<R: Resource>(
        &self,
        resource: &R,
        mut take_object: impl FnMut(R::View<'_>),
    ) -> Result<String> {
        let Collection { path, selector, .. } = resource.collection();
        let action = resource.collection().action("list");
        let mut next = String::new();
        loop {
            let path = format!("{path}?limit={PAGE_SIZE}{selector}{next}");
            let answer = self.request(action, Method::GET, &path, R::ACCEPT, None).await?;
            let page = answer.encoding.list(&answer.body, resource, &mut take_object);
            let (version, rest) = page.map_err(|error| self.malformed(action, &error))?;
            let Some(token) = rest else { return Ok(version) };
            next = format!("&continue={}", escape(&token));
        }
    }

    /// Follows changes after a version, else all objects and then their changes, until the server ends it.
    pub async fn watch<R: Resource>(
        &self,
        resource: &R,
        after: Option<&str>,
        lasting: Duration,
    ) -> Result<Watch> {
        let Collection { path, selector, .. } = resource.collection();
        let seconds = lasting.as_secs().max(1);
        let start = match after {
            None => "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            Some(version) => format!("&resourceVersion={}", escape(version)),
        };
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{selector}{start}"
        );
        let action = resource.collection().action("watch");
        let opened = self.stream(&path, ACCEPT_STREAM).await;
        let opened = opened.map_err(|reason| self.no_answer(action, reason))?;
        opened.map_err(|answer| self.refused(action, &answer))
    }

    /// Opens a stream; a refusal is an answer.
    pub(crate) async fn stream(
        &self,
        path: &str,
        accept: &'static str,
    ) -> Result<Result<Watch, ApiAnswer>, String> {
        let request = build(Method::GET, path, accept, None)?;
        let response = self.https.stream(|| self.access.target(), request).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(Ok(Watch { body, encoding: encoding(&head.headers), buffer: Vec::new() }));
        }
        let body = body.whole(&LIMITS).await?;
        Ok(Err(read(Response::from_parts(head, body))))
    }

    pub(crate) fn watch_error<R: Resource>(&self, resource: &R, ended: WatchEnd) -> ApiError {
        let action = resource.collection().action("watch");
        match ended {
            WatchEnd::InTime => self.no_answer(action, "it ended the watch early".to_owned()),
            WatchEnd::Broken(why) => self.no_answer(action, why),
            WatchEnd::Refused(status) => self.refusal(action, status, None),
        }
    }

    pub async fn create(&self, collection: &Collection, object: &str) -> Result<()> {
        let path = format!("{}?fieldManager={}", collection.path, self.field_manager);
        let (action, content) = (collection.action("create"), Some((JSON, object)));
        self.request(action, Method::POST, &path, ACCEPT, content).await.map(drop)
    }

    /// Asks what the server thinks of an object that is not kept.
    pub(crate) async fn review<T>(
        &self,
        collection: &Collection,
        object: &str,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T> {
        let (action, content) = (collection.action("create"), Some((JSON, object)));
        let path = &collection.path;
        let answer = self.request(action, Method::POST, path, JSON, content).await?;
        let strange = || self.malformed(action, &Malformed("it is not a TokenReview"));
        read(&answer.body).ok_or_else(strange)
    }

    pub(crate) async fn patch(
        &self,
        collection: &Collection,
        name: &str,
        kind: &'static str,
        patch: &str,
    ) -> Result<()> {
        let path = format!("{}?fieldManager={}", collection.object(name), self.field_manager);
        let (action, content) = (collection.action("patch"), Some((kind, patch)));
        self.request(action, Method::PATCH, &path, ACCEPT, content).await.map(drop)
    }

    pub async fn forward_port(&self, namespace: &str, pod: &str, port: u16) -> Result<Upgraded> {
        let ports = Collection::of_namespace(CORE, namespace, "pods").part("pods/portforward");
        let (action, path) =
            (ports.action("create"), format!("{}?ports={port}", ports.object(pod)));
        let lost = |reason| self.no_answer(action, reason);
        let key = fastrand::u128(..).to_be_bytes();
        let request = websocket::ask(&path, PORT_PROTOCOL, key).map_err(lost)?;
        match self.https.upgrade(|| self.access.target(), request).await.map_err(lost)? {
            Ok(opened) if websocket::is_accepted(opened.headers(), PORT_PROTOCOL, key) => {
                Ok(opened.into_body())
            }
            Ok(_) => Err(lost(format!("the server does not speak WebSocket with {PORT_PROTOCOL}"))),
            Err(answer) => Err(self.refused(action, &read(answer))),
        }
    }

    /// Sends a request for which being carried out twice is the same as once. `content` comes with its type.
    pub(crate) async fn answer(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        content: Option<(&'static str, &str)>,
    ) -> Result<ApiAnswer, String> {
        let request = build(method, path, accept, content)?;
        Ok(read(self.https.request(|| self.access.target(), request).await?))
    }

    async fn request(
        &self,
        action: Action,
        method: Method,
        path: &str,
        accept: &'static str,
        content: Option<(&'static str, &str)>,
    ) -> Result<ApiAnswer> {
        let answer = self.answer(method, path, accept, content).await;
        let answer = answer.map_err(|reason| self.no_answer(action, reason))?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(action, &answer)) }
    }

    fn no_answer(&self, action: Action, reason: String) -> ApiError {
        ApiError { action, endpoint: self.endpoint(), code: None, reason, retry_after: None }
    }

    fn malformed(&self, action: Action, error: &Malformed) -> ApiError {
        self.no_answer(action, error.to_string())
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
        let Status { code, message } = status;
        let reason = match code {
            401 => format!(
                "the API server does not know us by {} ({message}); has it expired, or was the service account \
                 deleted?",
                self.access.credentials()
            ),
            _ => message,
        };
        ApiError { code: Some(code), retry_after, ..self.no_answer(action, reason) }
    }
}

fn build(
    method: Method,
    path: &str,
    accept: &'static str,
    content: Option<(&'static str, &str)>,
) -> Result<Request<Bytes>, String> {
    let mut request = Request::builder().method(method).uri(path).header(ACCEPT_HEADER, accept);
    let mut body = Bytes::new();
    if let Some((kind, content)) = content {
        request = request.header(CONTENT_TYPE, kind);
        body = Bytes::copy_from_slice(content.as_bytes());
    }
    request.body(body).map_err(|error| error.to_string())
}

fn read(response: Response<Bytes>) -> ApiAnswer {
    let (status, encoding) = (response.status(), encoding(response.headers()));
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|text| text.to_str().ok()?.parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    ApiAnswer { status, encoding, retry_after, body: response.into_body() }
}

fn encoding(headers: &HeaderMap) -> Encoding {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Encoding::of(kind.unwrap_or_default())
}

impl Watch {
    /// Waits for messages and passes the objects in all of them on.
    pub async fn next<R: Resource>(
        &mut self,
        resource: &R,
        take_object: impl FnMut(EventKind, R::View<'_>),
    ) -> Result<(), WatchEnd> {
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
            let (taken, ended) = take_messages(self.encoding, &data, resource, take_object);
            self.buffer.extend_from_slice(&data[taken..]);
            return ended;
        }
        self.buffer.extend_from_slice(&data);
        let (taken, ended) = take_messages(self.encoding, &self.buffer, resource, take_object);
        self.buffer.drain(..taken);
        if self.buffer.len() > MAX_MESSAGE_BYTES {
            return Err(broken("the API server sends a message without end"));
        }
        ended
    }
}

/// Returns the length of the complete messages, and whether one of them ends the watch.
fn take_messages<R: Resource>(
    encoding: Encoding,
    stream: &[u8],
    resource: &R,
    mut take_object: impl FnMut(EventKind, R::View<'_>),
) -> (usize, Result<(), WatchEnd>) {
    let mut taken = 0;
    while let Some((message, length)) = encoding.cut(&stream[taken..]) {
        taken += length;
        match encoding.event(message, resource) {
            Ok(Event::Object(kind, object)) => take_object(kind, object),
            Ok(Event::Error(status)) => return (taken, Err(WatchEnd::Refused(status))),
            Err(error) => return (taken, Err(WatchEnd::Broken(error.to_string()))),
        }
    }
    (taken, Ok(()))
}
