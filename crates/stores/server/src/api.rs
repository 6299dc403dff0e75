//! The API: each path with each method.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use flannel_lease::{Expiry, LeaseAttrs, NetworkName, Subnet, SubnetOrigin};
use flannel_metrics::Format;
use flannel_store::wire::{self, WireLease, WireNode, WireReservation};
use flannel_store::{
    LogPosition, NodeAnswer, NodeRequest, PublicAddresses, Refusal, RequestId, StoreError,
    read_answer_body,
};
use http::header::ACCEPT;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{self, Fault};
use crate::body::{Body, Events};
use crate::lease_state::{Reply, Request as LeaseRequest, Who};
use crate::limits::Limits;
use crate::metrics::RequestCounters;
use crate::revocation::{self, Revocation};
use crate::route::{Query, Route};
use crate::snapshot_permits::SnapshotPermits;
use crate::watch_log::{AnswerStyle, WatchLog};
use crate::{LeaseService, NetworkRequests, OPENAPI, permission};

pub struct Api {
    service: Arc<dyn LeaseService>,
    limits: Limits,
    permits: SnapshotPermits,
    pub(crate) counted: RequestCounters,
}

pub(crate) trait RequestBody: HttpBody<Error: Into<Box<dyn Error + Send + Sync>>> {}

impl<B: HttpBody<Error: Into<Box<dyn Error + Send + Sync>>>> RequestBody for B {}

type ApiResult = Result<Response<Body>, Fault>;

impl Api {
    pub fn new(service: Arc<dyn LeaseService>, limits: Limits) -> Self {
        Self {
            service,
            limits,
            permits: SnapshotPermits::new(&limits),
            counted: RequestCounters::default(),
        }
    }

    pub async fn respond<B>(
        &self,
        request: Request<B>,
        who: Who,
    ) -> Response<impl HttpBody<Data = Bytes, Error = Infallible> + use<B>>
    where
        B: HttpBody<Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let wants_json = answer::wants_json(&request);
        let answered = self.answer(request, || Ok((who, revocation::never()))).await;
        answered.unwrap_or_else(|fault| fault.response(wants_json))
    }

    /// Answers one request; `who` is called only where the identity matters.
    pub(crate) async fn answer(
        &self,
        request: Request<impl RequestBody>,
        who: impl FnOnce() -> Result<(Who, Revocation), Fault>,
    ) -> ApiResult {
        let route = Route::read(request.uri().path());
        if let Ok(route) = &route
            && route.is_public()
        {
            return match (route, request.method()) {
                (Route::Healthz, &Method::GET) => Ok(answer::text("ok\n")),
                (_, &Method::GET) => Ok(answer::json(OPENAPI)),
                _ => Err(Fault::method(route.methods())),
            };
        }
        // Unidentified clients are not told which paths exist.
        let ((who, revocation), route) = (who()?, route?);
        let query = Query::read(request.uri().query().unwrap_or_default())?;
        permission::check(&who, &route, request.method(), &query)?;
        let method = request.method().clone();
        match (route, method) {
            (Route::Metrics, Method::GET) => {
                let accept = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
                let format = Format::accepted(accept);
                let scrape = self.counted.scrape(&*self.service);
                Ok(answer::metrics(scrape.text(format), format.content_type()))
            }
            (Route::Networks, Method::GET) => self.networks(&query, revocation).await,
            (Route::Config(name), Method::GET) => self.config(&name, query.raw, &who),
            (Route::Config(name), Method::PUT) => {
                let text = self.read(request).await?;
                let judged = flannel_backend::judge_config_to_write(&text, self.service.subnets());
                let judged = judged.map_err(Refusal::from)?;
                let request = LeaseRequest::SetConfig { text, force: query.force };
                self.service.new_network(&name)?.ask(request).await?;
                Ok(remarked(&name, &judged))
            }
            (Route::Config(name), Method::DELETE) => {
                self.done(&name, LeaseRequest::RemoveNetwork { force: query.force }).await
            }
            (Route::Node(name), Method::GET) => {
                let PublicAddresses { v4, v6 } =
                    self.service.network(&name)?.public_addresses(&who).await?;
                let name = who.name.as_deref().map(str::to_owned);
                let node = WireNode { name, subnets: self.service.subnets(), v4, v6 };
                Ok(answer::json(node.to_json()))
            }
            (Route::Node(name), Method::PUT) => {
                let how =
                    wire::read_node_network(&self.read(request).await?).map_err(Fault::bad)?;
                self.service.network(&name)?.report(&who, &how).await?;
                Ok(answer::text(""))
            }
            (Route::Leases(name), Method::GET) => {
                let watch_log = self.watch_log(&name)?;
                let is_snapshot = |at| !watch_log.continues(at);
                let answer = |at| watch_log.answer(at, AnswerStyle::Poll).map(|(bytes, _)| bytes);
                self.poll(watch_log.changes(), &query, revocation, is_snapshot, answer).await
            }
            (Route::Leases(name), Method::POST) => {
                let attrs = read_attrs(&self.read(request).await?)?;
                let previous = query.previous;
                self.lease(&name, LeaseRequest::Acquire { attrs, previous, who }).await
            }
            (Route::Lease(name, subnet), Method::GET) => {
                let watch_log = self.watch_log(&name)?;
                if query.next.is_none() && watch_log.lease(&subnet).is_none() {
                    return Err(Refusal::Gone(subnet).into());
                }
                let answer = |at| watch_log.answer_one(&subnet, at);
                self.poll(watch_log.changes(), &query, revocation, |_| false, answer).await
            }
            (Route::Lease(name, subnet), Method::PUT) => {
                self.put_lease(&name, subnet, request, &query, who).await
            }
            (Route::Lease(name, subnet), Method::DELETE) => {
                self.done(&name, LeaseRequest::Release { subnet, version: query.version, who })
                    .await
            }
            (Route::Events(name), Method::GET) => {
                let watch_log = self.watch_log(&name)?;
                // A client that may only read is not a node.
                let gets_requests = query.requests && !who.only_reads();
                let style = if who.only_reads() {
                    AnswerStyle::RedactedStream
                } else {
                    AnswerStyle::Stream
                };
                let network = self.service.network(&name)?;
                let requests = gets_requests.then(|| network.requests().standing);
                let findings = network.findings().filter(|_| query.findings);
                let events = Events {
                    watch_log,
                    style,
                    requests,
                    findings,
                    cursor: query.next,
                    idle_timeout: self.idle_timeout(&query),
                    permits: self.permits.clone(),
                    revoked: revocation,
                    _watching: self.counted.watching(),
                };
                Ok(answer::lines(events.into_body()))
            }
            (Route::Reservations(name), Method::GET) => self.reservations(&name),
            (Route::Reservations(name), Method::POST) => {
                let WireReservation { subnet, attrs } =
                    WireReservation::read(&self.read(request).await?).map_err(Fault::bad)?;
                self.done(&name, LeaseRequest::Reserve { subnet, attrs }).await
            }
            (Route::Reservation(name, subnet), Method::DELETE) => {
                self.done(&name, LeaseRequest::Unreserve { subnet }).await
            }
            (Route::Request(name, id), Method::PUT) => {
                let requests = self.requests(&name)?;
                let placed = NodeRequest::read(&self.read(request).await?).map_err(Fault::bad)?;
                if placed.id != id {
                    return Err(Fault::bad("the request's Id is not the one of the path"));
                }
                requests.store.place(&placed).await?;
                Ok(answer::text(""))
            }
            (Route::Request(name, id), Method::DELETE) => {
                self.requests(&name)?.store.withdraw(&id).await?;
                Ok(answer::text(""))
            }
            (Route::Answers(name, id), Method::GET) => {
                let answers = self.requests(&name)?.store.answers(&id).await?;
                Ok(answer::json(NodeAnswer::list_to_json(&answers)))
            }
            (Route::Answer(name, id, node), Method::PUT) => {
                self.take_answer(&name, &id, node, request, &who).await
            }
            (route, _) => Err(Fault::method(route.methods())),
        }
    }

    /// Stores a node's answer to a request. A node answers for itself alone.
    async fn take_answer(
        &self,
        name: &NetworkName,
        id: &RequestId,
        node: Subnet,
        request: Request<impl RequestBody>,
        who: &Who,
    ) -> ApiResult {
        let lease = self.watch_log(name)?.lease(&node).ok_or(Refusal::Gone(node))?;
        // Where subnets are assigned, a lease is that of a Node, which the client has the name of.
        let is_own = match self.service.subnets() {
            SubnetOrigin::Store => who.admin || who.name.as_deref() == lease.owner.as_deref(),
            SubnetOrigin::Pool => who.owns(lease.owner.as_deref(), &lease.attrs),
        };
        if !is_own {
            return Err(Refusal::NotYours(node, Box::new(lease)).into());
        }
        let body = read_answer_body(&self.read(request).await?).map_err(Fault::bad)?;
        let not_asked = || Fault::not_found("nobody asks that of this node, or no longer");
        let requests = self.requests(name)?;
        let stands = |request: &NodeRequest| request.id == *id && request.concerns(&node);
        if !requests.standing.borrow().iter().any(stands) {
            return Err(not_asked());
        }
        match requests.store.answer(id, &NodeAnswer { node, body }).await {
            Ok(()) => Ok(answer::text("")),
            Err(StoreError::Lost { .. }) => Err(not_asked()),
            Err(error) => Err(error.into()),
        }
    }

    async fn networks(&self, query: &Query, revocation: Revocation) -> ApiResult {
        let watch_logs = self.service.watch_logs();
        self.poll(watch_logs.changes(), query, revocation, |_| false, |at| watch_logs.answer(at))
            .await
    }

    /// Answers with the config. Who only reads is not a node, and gets none of its secrets.
    fn config(&self, name: &NetworkName, raw: bool, who: &Who) -> ApiResult {
        let watch_log = self.watch_log(name)?;
        let text = || watch_log.config_text();
        let config = match (raw, who.only_reads()) {
            (true, true) => text().map(|text| flannel_backend::redact_config(&text).into()),
            (true, false) => text().map(Bytes::from),
            (false, true) => watch_log.redacted_config(),
            (false, false) => watch_log.config(),
        };
        Ok(answer::json(config.ok_or_else(|| Refusal::NoNetwork(name.clone()))?))
    }

    async fn put_lease(
        &self,
        name: &NetworkName,
        subnet: Subnet,
        request: Request<impl RequestBody>,
        query: &Query,
        who: Who,
    ) -> ApiResult {
        let lease = WireLease::read(&self.read(request).await?).map_err(Fault::bad)?;
        if lease.subnet.is_some_and(|of| of != subnet) {
            return Err(Fault::bad("the lease's Subnet is not the one of the path"));
        }
        let WireLease { mut attrs, version, .. } = lease;
        attrs = check_attrs(attrs)?;
        if !query.import {
            return self.lease(name, LeaseRequest::Renew { subnet, attrs, version, who }).await;
        }
        let left = match (lease.expiry, lease.ttl) {
            (Some(Expiry::Never), _) => None,
            (_, Some(ttl)) => Some(ttl),
            (Some(expiry), None) => expiry.remaining(SystemTime::now()),
            (None, None) => Some(flannel_lease::LEASE_TTL),
        };
        let left = left.map(|left| left.as_millis() as u64);
        attrs.owner = lease.owner.map(Into::into);
        self.lease(name, LeaseRequest::Import { subnet, attrs, left }).await
    }

    fn reservations(&self, name: &NetworkName) -> ApiResult {
        let all = self.watch_log(name)?.snapshot();
        let reserved = all.leases.iter().filter(|(_, entry)| entry.expires.is_none());
        let list: Vec<String> = reserved
            .map(|(subnet, entry)| WireReservation::to_json(subnet, &entry.attrs))
            .collect();
        Ok(answer::json(format!("[{}]\n", list.join(","))))
    }

    fn requests(&self, name: &NetworkName) -> Result<NetworkRequests, Fault> {
        self.watch_log(name)?;
        Ok(self.service.network(name)?.requests())
    }

    fn watch_log(&self, name: &NetworkName) -> Result<Arc<WatchLog>, Refusal> {
        let missing = || Refusal::NoNetwork(name.clone());
        self.service.watch_logs().get(name).ok_or_else(missing)
    }

    /// Waits for news, within a limit so that dead connections end. An answer that `is_snapshot` waits for a permit.
    async fn poll(
        &self,
        mut changes: watch::Receiver<u64>,
        query: &Query,
        revocation: Revocation,
        is_snapshot: impl Fn(Option<LogPosition>) -> bool,
        answer: impl Fn(Option<LogPosition>) -> Option<Bytes>,
    ) -> ApiResult {
        let next = query.next;
        let _watching = next.is_some().then(|| self.counted.watching());
        let idle_timeout = self.idle_timeout(query).unwrap_or(self.limits.max_poll);
        let until = Instant::now() + idle_timeout;
        let wait = async {
            loop {
                changes.mark_unchanged();
                // News are sent, however long they wait for their permit.
                let permit =
                    if is_snapshot(next) { Some(self.permits.acquire().await) } else { None };
                if let Some(bytes) = answer(next) {
                    return Some((bytes, permit));
                }
                tokio::time::timeout_at(until, changes.changed()).await.ok()?.ok()?;
            }
        };
        let answered = tokio::select! {
            biased;
            () = revocation => return Err(Fault::unknown_client(
                "the token or certificate has been revoked: get a new one from the operator",
            )),
            answered = wait => answered,
        };
        let nothing = || {
            let LogPosition { revision, history } = next.unwrap_or_default();
            let history = wire::history_text(history.unwrap_or(0));
            Bytes::from(format!(
                "{{\"events\":[],\"snapshot\":null,\"cursor\":\"{revision}\",\"history\":\"{history}\"}}\n"
            ))
        };
        let (bytes, permit) = answered.unwrap_or_else(|| (nothing(), None));
        let mut response = answer::snapshot(bytes, permit);
        response.headers_mut().insert(wire::TIME_HEADER, self.service.now().into());
        Ok(response)
    }

    /// Time that the client wants to wait, within limits.
    fn idle_timeout(&self, query: &Query) -> Option<Duration> {
        query.wait.map(|wait| wait.min(self.limits.max_poll))
    }

    async fn lease(&self, name: &NetworkName, request: LeaseRequest) -> ApiResult {
        match self.service.network(name)?.ask(request).await? {
            Reply::Lease(subnet, entry) => {
                let now = self.service.now();
                let left = |end: u64| Duration::from_millis(end.saturating_sub(now));
                let ttl = entry.expires.map(left);
                Ok(answer::json(format!("{}\n", wire::lease_json(&subnet, &entry, ttl))))
            }
            Reply::Done => Ok(answer::text("")),
        }
    }

    async fn done(&self, name: &NetworkName, request: LeaseRequest) -> ApiResult {
        self.service.network(name)?.ask(request).await?;
        Ok(answer::text(""))
    }

    async fn read(&self, request: Request<impl RequestBody>) -> Result<String, Fault> {
        let body = Limited::new(request.into_body(), self.limits.max_body_bytes).collect();
        let text = "the request's body was sent too slowly";
        let slow = |_| Fault::new(StatusCode::REQUEST_TIMEOUT, "slow", text);
        let body = tokio::time::timeout(self.limits.body_timeout, body).await.map_err(slow)?;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let text = format!("the body is longer than {} bytes", self.limits.max_body_bytes);
                Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", text)
            } else {
                Fault::bad("the body is incomplete")
            }
        })?;
        String::from_utf8(body.to_bytes().into())
            .map_err(|_| Fault::bad("the body is not UTF-8 text"))
    }
}

fn read_attrs(text: &str) -> Result<LeaseAttrs, Fault> {
    let attrs = LeaseAttrs::from_json(text.as_bytes());
    let attrs = check_attrs(attrs.map_err(Fault::bad)?)?;
    // A client does not choose the owner of a lease.
    Ok(LeaseAttrs { owner: None, ..attrs })
}

/// Refuses values that other clients could not handle.
fn check_attrs(attrs: LeaseAttrs) -> Result<LeaseAttrs, Fault> {
    attrs.check_depth().map(|()| attrs).map_err(Fault::bad)
}

fn remarked(name: &NetworkName, judged: &flannel_backend::UsableConfig) -> Response<Body> {
    let mut text = String::new();
    for remark in &judged.remarks {
        tracing::warn!(network = %name, "The network config was written: {remark}");
        text += &format!("warning: {remark}\n");
    }
    answer::text(text)
}
