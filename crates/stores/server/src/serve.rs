//! Connections: accepted within limits, with TLS or without, closed when they are slow.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::FromRawFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flannel_common::{ConnectionLimit, TcpListener, TcpStream, accept_connections};
use flannel_https::certificate;
use flannel_page::{Direct, NodeConnector, Page};
use flannel_store::remote::{Listen, TlsFiles, TokenFile};
use flannel_store::wire;
use http::header::{AUTHORIZATION, CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, Fault};
use crate::api::{Api, RequestBody};
use crate::auth::{self, ClientEvidence};
use crate::body::Body;
use crate::body_drain::drain;
use crate::browser::{self, ServerNames};
use crate::lease_state::{ClientMachine, Who};
use crate::leases_of_page::LeasesOfPage;
use crate::limits::{ConnectionSlot, Limits, Meter, Payer};
use crate::reload::Reloadable;
use crate::revocation::{self, Review, Revocation};
use crate::route::{Query, Route};
use crate::tls::Tls;
use crate::token_review::{TokenReviewer, TokenReviews};
use crate::{LeaseService, local_peer, permission};

#[derive(Clone, Debug)]
pub struct Options {
    pub listen: Listen,
    pub tls: Option<TlsFiles>,
    pub tokens: Option<PathBuf>,
    /// Tells which node a token of Kubernetes is of.
    pub reviewer: Option<Arc<dyn TokenReviewer>>,
    /// Allows plain HTTP to other machines.
    pub insecure: bool,
    pub limits: Limits,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    #[error("cannot listen on {listen}: {source}; free the port, or listen on another")]
    Io { listen: Listen, source: io::Error },
    #[error("{0}")]
    Files(String),
    #[error(
        "{0} can be reached from other machines without encryption: give the server a \
         certificate (remote-certfile and remote-keyfile; `flannelctl pki` makes them), or say listen-insecure \
         if you trust that network"
    )]
    Insecure(SocketAddr),
}

pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Reloadable<Tls>>,
    tokens: Option<Reloadable<TokenFile>>,
    reviews: Option<TokenReviews>,
    names: Vec<String>,
    limits: Limits,
    probe_port: Option<u16>,
}

impl Server {
    /// Reads all files and binds the socket, so that errors show before anybody is served.
    pub async fn bind(options: Options) -> Result<Self, BindError> {
        let Options { listen, tls: files, tokens, reviewer, insecure, limits } = options;
        let with_tokens = tokens.is_some() || reviewer.is_some();
        let asks_who = with_tokens || files.as_ref().is_some_and(|files| files.ca.is_some());
        let with_tls = files.is_some();
        let tls = files.map(|files| {
            let TlsFiles { cert, key, ca } = files.clone();
            let watched = [Some(cert), Some(key), ca].into_iter().flatten().collect();
            Reloadable::new(watched, move || Tls::read(&files, with_tokens))
        });
        let tls = tls.transpose().map_err(BindError::Files)?;
        let tokens =
            tokens.map(|file| Reloadable::new(vec![file.clone()], move || TokenFile::read(&file)));
        let tokens = tokens.transpose().map_err(BindError::Files)?;
        let failed = |source| BindError::Io { listen: listen.clone(), source };
        let listener = bind(&listen).await.map_err(failed)?;
        if let Some(socket) = listener.socket() {
            rustix::net::listen(socket, BACKLOG).map_err(|error| failed(error.into()))?;
        }
        let address = listener.local_addr().map_err(failed)?;
        let elsewhere = !address.ip().to_canonical().is_loopback();
        if !with_tls && elsewhere {
            if !insecure {
                return Err(BindError::Insecure(address));
            }
            tracing::warn!(
                %address,
                "Leases are served without encryption: anybody who can read or change packets of this network can take \
                 over the cluster's routing"
            );
        }
        if !asks_who && elsewhere {
            tracing::warn!(
                "Clients are not authenticated: anybody who reaches {address} can read the network config and change any \
                 lease; set listen-token-file or remote-cafile to change that"
            );
        }
        let reviews = reviewer.map(TokenReviews::new);
        let names = own_names(&listen);
        Ok(Self { listener, address, tls, tokens, reviews, names, limits, probe_port: None })
    }

    /// Sets the port of nodes at which its page asks for their state.
    #[must_use]
    pub fn with_probe_port(self, port: Option<u16>) -> Self {
        Self { probe_port: port, ..self }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped, which closes every connection.
    pub async fn run(self, service: Arc<dyn LeaseService>) -> Infallible {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        tracing::info!("Lease server listens on {scheme}://{}", self.address);
        let Self { listener, tls, tokens, reviews, names, limits, probe_port, .. } = self;
        let takes_tokens = tokens.is_some() || reviews.is_some();
        let takes_certificates = tls.as_ref().is_some_and(|tls| tls.get().clients.is_some());
        let asks_who = takes_tokens || takes_certificates;
        let nodes = probe_port.map(|port| Arc::new(Direct { port }) as Arc<dyn NodeConnector>);
        let shared = Arc::new(Shared {
            page: Page::new(Arc::new(LeasesOfPage(service.clone())), nodes),
            api: Api::new(service, limits),
            meter: Meter::new(limits, asks_who),
            tls,
            tokens,
            reviews,
            names,
            takes_tokens,
            asks_who,
            limits,
            reloads: watch::Sender::new(0),
        });
        let chores = async {
            let mut file_check = tokio::time::interval(FILE_CHECK_INTERVAL);
            let mut certificate_check = tokio::time::interval(CERTIFICATE_CHECK_INTERVAL);
            certificate_check.reset();
            loop {
                tokio::select! {
                    _ = file_check.tick() => shared.reload_files(),
                    _ = certificate_check.tick() => {
                        shared.tls.iter().for_each(|tls| tls.get().warn_of_expiry());
                    }
                }
            }
        };
        let serve = |stream: TcpStream, from| match ClientConnection::admit(&shared, from) {
            Some(client_connection) => Some(client_connection.serve(stream)),
            None => {
                // Before the TLS handshake no answer can be sent.
                if shared.tls.is_none() {
                    refuse_connection(&stream);
                }
                None
            }
        };
        let limit = ConnectionLimit::ByCaller;
        tokio::select! {
            never = accept_connections("lease server", &listener, limit, serve) => never,
            never = chores => never,
        }
    }
}

/// Most bytes of a form of the page: it holds a token.
const MAX_FORM_BYTES: usize = 8 << 10;
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which an expiring certificate of the server is logged.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(86_400);

/// Refuses a connection, as far as that is possible without waiting.
fn refuse_connection(stream: &TcpStream) {
    let text = "too many connections: try again later\n";
    let length = text.len();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n{text}"
    );
    let _ = stream.socket().map(|socket| socket.try_write(answer.as_bytes()));
}

/// Longest queue of connections. After a restart all nodes come back at once, and a node that is refused waits for
/// seconds before it tries again. The kernel's own limit (net.core.somaxconn) caps it.
const BACKLOG: i32 = 65_535;

/// Whether this descriptor is a listening socket. It may be any other file of this process.
fn is_listening(number: std::os::fd::RawFd) -> bool {
    // SAFETY: the descriptor is used for this one question alone; where it is not open, or not a socket, the
    // question fails.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// Names of this machine, beside those in its certificate.
fn own_names(listen: &Listen) -> Vec<String> {
    let listens = match listen {
        Listen::Address { host, .. } => Some(host.clone()).filter(|host| !host.is_empty()),
        Listen::Inherited(_) => None,
    };
    let uname = rustix::system::uname();
    let machine = uname.nodename().to_str().ok().map(str::to_owned);
    listens.into_iter().chain(machine).collect()
}

async fn bind(listen: &Listen) -> io::Result<TcpListener> {
    if let Listen::Address { host, port } = listen
        && let Ok(ip) = host.parse()
        && let Some(simulated) = TcpListener::simulated(SocketAddr::new(ip, *port))
    {
        return simulated;
    }
    bind_socket(listen).await.map(TcpListener::Kernel)
}

async fn bind_socket(listen: &Listen) -> io::Result<tokio::net::TcpListener> {
    use tokio::net::TcpListener;
    match listen {
        Listen::Address { host, port } if !host.is_empty() => {
            TcpListener::bind((host.as_str(), *port)).await
        }
        // Every address; a kernel without IPv6 has the IPv4 ones only.
        Listen::Address { port, .. } => match TcpListener::bind(("::", *port)).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(("0.0.0.0", *port)).await
            }
            other => other,
        },
        Listen::Inherited(number) => {
            if !is_listening(*number) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is not a listening socket that was handed to this process: use a socket unit of systemd",
                ));
            }
            // SAFETY: by saying fd://N the operator gives us this descriptor, which is a listening socket and so
            // not one that this process has opened for something else.
            let listener = unsafe { std::net::TcpListener::from_raw_fd(*number) };
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        }
    }
}

struct Shared {
    api: Api,
    page: Page,
    meter: Meter,
    tls: Option<Reloadable<Tls>>,
    tokens: Option<Reloadable<TokenFile>>,
    reviews: Option<TokenReviews>,
    /// Names of this machine, beside those in its certificate.
    names: Vec<String>,
    takes_tokens: bool,
    asks_who: bool,
    limits: Limits,
    /// Number of reloads of tokens and certificates.
    reloads: watch::Sender<u64>,
}

impl Shared {
    fn reload_files(&self) {
        let tls = self.tls.as_ref().is_some_and(Reloadable::reload_if_changed);
        let tokens = self.tokens.as_ref().is_some_and(Reloadable::reload_if_changed);
        if tls || tokens {
            self.reloads.send_modify(|times| *times += 1);
        }
    }

    /// Identity of a client as of now. Without authentication, the socket tells this machine's operator.
    fn who(&self, client: &Client, credentials: &Credentials) -> Result<Who, Fault> {
        if !self.asks_who {
            let is_operator = credentials.operator_wanted && client.is_local_operator();
            return Ok(if is_operator { Who::anybody() } else { Who::unnamed(client.source) });
        }
        let known = self.identify(client, credentials);
        // A token that was just added counts at once.
        if known.is_err() && self.tokens.as_ref().is_some_and(Reloadable::reload_if_changed) {
            self.reloads.send_modify(|times| *times += 1);
            return self.identify(client, credentials);
        }
        known
    }

    fn identify(&self, client: &Client, credentials: &Credentials) -> Result<Who, Fault> {
        let tokens = self.tokens.as_ref().map(Reloadable::get);
        let shown = client.certificate.as_ref();
        let good = shown.filter(|shown| self.is_accepted(shown));
        let reviewed = credentials.token().zip(self.reviews.as_ref());
        let evidence = ClientEvidence {
            authorization: credentials.authorization.as_ref(),
            reviewed: reviewed.and_then(|(token, reviews)| reviews.known(token)),
            certificate: good.map(|shown| &shown.names),
            machine: &credentials.machine,
            source: client.source,
        };
        auth::identify(tokens.as_deref(), self.takes_tokens, evidence).map_err(|fault| {
            match shown.is_some() && good.is_none() {
                true => Fault::unknown_client(
                    "the certificate is no longer accepted: it was revoked or has expired, or its authority is \
                     no longer trusted",
                ),
                false => fault,
            }
        })
    }

    /// Asks Kubernetes about a token whose last review is too old.
    async fn review(&self, client: &Client, credentials: &Credentials) -> Result<(), Fault> {
        let (Some(reviews), Some(token)) = (&self.reviews, credentials.token()) else {
            return Ok(());
        };
        let is_known_otherwise = || {
            let who = self.identify(client, credentials);
            who.is_ok_and(|who| who.machine != ClientMachine::Vouched)
        };
        if !reviews.is_due(token, Instant::now()) || is_known_otherwise() {
            return Ok(());
        }
        if reviews.known(token).is_none() && !self.charge(&Payer::Unknown(client.source)) {
            return Err(too_many());
        }
        reviews.ask(token).await.map_err(|reason| {
            let text = format!("cannot ask Kubernetes to review the token: {reason}");
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text)
        })
    }

    async fn review_again(&self, credentials: &Credentials) {
        if let (Some(reviews), Some(token)) = (&self.reviews, credentials.token()) {
            // Without an answer, the last review counts.
            let _ = reviews.ask(token).await;
        }
    }

    fn charge(&self, payer: &Payer) -> bool {
        self.meter.requested(payer, Instant::now())
    }

    /// Refuses requests that another site may have made a browser send. No site can send a token that way.
    fn check_sender(&self, head: &http::request::Parts, judge_body: bool) -> Result<(), Fault> {
        let is_public = Route::read(head.uri.path()).is_ok_and(|route| route.is_public());
        if is_public || self.takes_tokens && head.headers.contains_key(AUTHORIZATION) {
            return Ok(());
        }
        let of_certificate = self.tls.iter().flat_map(|tls| tls.get().names.clone());
        let names = ServerNames::new(self.names.iter().cloned().chain(of_certificate));
        browser::check_site(head, &names, self.tls.is_some())?;
        browser::check_content(head, judge_body)
    }

    /// Whether a certificate is still good. It is verified again after each reload.
    fn is_accepted(&self, shown: &ClientCertificate) -> bool {
        let reloads = *self.reloads.borrow();
        if shown.checked.load(Ordering::Relaxed) == reloads {
            return true;
        }
        let good = self.tls.as_ref().is_some_and(|tls| tls.get().accepts(&shown.chain));
        if good {
            shown.checked.store(reloads, Ordering::Relaxed);
        }
        good
    }
}

fn too_many() -> Fault {
    let text = "too many requests from this address: slow down";
    Fault::new(StatusCode::TOO_MANY_REQUESTS, "too-many", text)
}

struct Client {
    source: IpAddr,
    certificate: Option<ClientCertificate>,
    /// Addresses of both ends, by which the kernel knows whose socket the peer's is.
    both_ends: Option<(SocketAddr, SocketAddr)>,
    local_operator: OnceLock<bool>,
}

impl Client {
    fn is_local_operator(&self) -> bool {
        let is_operator =
            || self.both_ends.is_some_and(|(peer, local)| local_peer::is_operator(peer, local));
        *self.local_operator.get_or_init(is_operator)
    }
}

#[derive(Clone, Debug)]
struct Credentials {
    authorization: Option<HeaderValue>,
    machine: ClientMachine,
    operator_wanted: bool,
}

impl Credentials {
    fn of(head: &http::request::Parts) -> Self {
        let secret =
            head.headers.get(wire::NODE_SECRET_HEADER).and_then(|value| value.to_str().ok());
        let route = Route::read(head.uri.path()).ok();
        let query = Query::read(head.uri.query().unwrap_or_default()).ok();
        let operator_wanted = route
            .zip(query)
            .is_some_and(|(route, query)| permission::needs_operator(&route, &head.method, &query));
        Self {
            authorization: head.headers.get(AUTHORIZATION).cloned(),
            machine: secret.and_then(ClientMachine::of_secret).unwrap_or(ClientMachine::Unknown),
            operator_wanted,
        }
    }

    fn token(&self) -> Option<&str> {
        auth::bearer(self.authorization.as_ref()?)
    }
}

struct ClientCertificate {
    names: certificate::Names,
    chain: Vec<CertificateDer<'static>>,
    checked: AtomicU64,
}

struct ClientConnection {
    shared: Arc<Shared>,
    source: IpAddr,
    peer: SocketAddr,
    slot: ConnectionSlot,
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.shared.api.counted.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.meter.disconnected(&self.slot);
    }
}

impl ClientConnection {
    /// Counts a new connection; `None` when there are too many, in all or from its address.
    fn admit(shared: &Arc<Shared>, peer: SocketAddr) -> Option<Self> {
        let source = peer.ip().to_canonical();
        let room = shared.api.counted.open.load(Ordering::Relaxed) < shared.limits.connections;
        let Some(slot) = room.then(|| shared.meter.connected(source)).flatten() else {
            tracing::debug!(%source, "too many connections: refusing one");
            return None;
        };
        shared.api.counted.open.fetch_add(1, Ordering::Relaxed);
        Some(Self { shared: shared.clone(), source, peer, slot })
    }

    /// Serves a connection. It ends early when it has to make room for another one.
    async fn serve(self, stream: TcpStream) {
        let (evicted, source) = (self.slot.evicted.clone(), self.source);
        tokio::select! {
            biased;
            () = evicted.notified() => {
                tracing::debug!(%source, "closing an unidentified connection to make room for another");
            }
            () = self.serve_to_end(stream) => {}
        }
    }

    async fn serve_to_end(self, stream: TcpStream) {
        let both_ends = stream.local_addr().ok().map(|local| (self.peer, local));
        if let Some(socket) = stream.socket() {
            let _ = socket.set_nodelay(true);
            // A client that does not read, or has vanished, is disconnected.
            let timeout = self.shared.limits.send_timeout.as_millis() as u32;
            let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, timeout);
        }
        let Some(tls) = &self.shared.tls else {
            return self.speak(stream, None, both_ends).await;
        };
        // Read before the certificates are verified, so that a change meanwhile is noticed.
        let reloads = *self.shared.reloads.borrow();
        let acceptor = TlsAcceptor::from(tls.get().config.clone());
        let handshake =
            tokio::time::timeout(self.shared.limits.handshake_timeout, acceptor.accept(stream));
        match handshake.await {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
                let shown = chain.first().map(|first| certificate::names(first)).map(|names| {
                    ClientCertificate { names, chain, checked: AtomicU64::new(reloads) }
                });
                self.speak(stream, shown, both_ends).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(source = %self.source, %error, "TLS handshake failed");
            }
            Err(_) => tracing::debug!(source = %self.source, "TLS handshake timed out"),
        }
    }

    async fn speak<T>(
        self,
        stream: T,
        certificate: Option<ClientCertificate>,
        both_ends: Option<(SocketAddr, SocketAddr)>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (source, local_operator) = (self.source, OnceLock::new());
        let client = Arc::new(Client { source, certificate, both_ends, local_operator });
        let (client_connection, client) = (&self, &client);
        let answer = service_fn(move |request: Request<Incoming>| async move {
            let wants_json = answer::wants_json(&request);
            // A client that waits for `100 Continue` before it sends its body does not get one.
            let waits = request.headers().contains_key(EXPECT);
            let (head, mut body) = request.into_parts();
            let (path, method) = (head.uri.path().to_owned(), head.method.clone());
            let request = Request::from_parts(head, &mut body);
            let answered = client_connection.answer(client, request).await;
            let mut response = answered.unwrap_or_else(|fault| fault.response(wants_json));
            client_connection.shared.api.counted.request(&path, &method, response.status());
            let most = if waits { 0 } else { client_connection.shared.limits.max_body_bytes };
            if !drain(body, most).await {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        });
        // Errors of a connection are its client's to see.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.shared.limits.head_timeout)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), answer)
            .await;
    }

    /// Answers one request, unless another site made it or its sender has used up its share.
    async fn answer(
        &self,
        client: &Arc<Client>,
        request: Request<impl RequestBody>,
    ) -> Result<Response<Body>, Fault> {
        let shared = &self.shared;
        let (head, body) = request.into_parts();
        let is_page = flannel_page::is_ours(head.uri.path());
        let credentials = Credentials::of(&head);
        shared.review(client, &credentials).await?;
        let who = self.who(client, credentials);
        let payer = match &who {
            Ok((Who { name: Some(name), .. }, _)) => {
                shared.meter.identified(&self.slot);
                Payer::Client { name: name.clone(), source: self.source }
            }
            _ => Payer::Unknown(self.source),
        };
        if !shared.charge(&payer) {
            return Err(too_many());
        }
        // An unidentified client is told only that.
        let judge_body = who.is_ok() && !is_page && !body.is_end_stream();
        shared.check_sender(&head, judge_body)?;
        let request = Request::from_parts(head, body);
        match is_page {
            true => Ok(self.page(client, request).await),
            false => shared.api.answer(request, || who).await,
        }
    }

    /// Answers for the page, which needs an operator where clients are authenticated: by cookie, or by a certificate
    /// that the browser has not sent for another site.
    async fn page(
        &self,
        client: &Arc<Client>,
        request: Request<impl RequestBody>,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        let form = Limited::new(body, MAX_FORM_BYTES).collect();
        let form = tokio::time::timeout(self.shared.limits.body_timeout, form).await;
        let form = form.ok().and_then(Result::ok).map(|form| form.to_bytes());
        let form = String::from_utf8_lossy(&form.unwrap_or_default()).into_owned();
        let (shared, client) = (self.shared.clone(), client.clone());
        let sent = Credentials::of(&head);
        let gate = move |token: Option<&str>| {
            let shown = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
            let Ok(shown) = shown.transpose() else { return false };
            let mut credentials = sent.clone();
            credentials.authorization = shown.or(credentials.authorization);
            let who = shared.who(&client, &credentials);
            !shared.asks_who || who.is_ok_and(|who| who.admin)
        };
        let is_tls = self.shared.tls.is_some();
        self.shared.page.respond(&head, &form, is_tls, gate).await.map(BodyExt::boxed_unsync)
    }

    fn who(
        &self,
        client: &Arc<Client>,
        credentials: Credentials,
    ) -> Result<(Who, Revocation), Fault> {
        // Subscribed before the client is identified, so that no reload is missed.
        let reloads = self.shared.reloads.subscribe();
        let who = self.shared.who(client, &credentials)?;
        if !self.shared.asks_who {
            return Ok((who, revocation::never()));
        }
        let (shared, client, before) = (self.shared.clone(), client.clone(), who.clone());
        let review = (who.machine == ClientMachine::Vouched).then(|| {
            let (shared, credentials) = (shared.clone(), credentials.clone());
            let review = move || {
                let (shared, credentials) = (shared.clone(), credentials.clone());
                Box::pin(async move { shared.review_again(&credentials).await }) as Revocation
            };
            Box::new(review) as Review
        });
        let still = move || {
            let now = shared.who(&client, &credentials);
            now.is_ok_and(|now| now == before)
        };
        Ok((who, revocation::wait(reloads, still, review)))
    }
}
