//! Connections: accepted within limits, spoken to in TLS or not, cut off when they are slow.

use crate::LeaseService;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::FromRawFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::lease_state::{ClientMachine, Who};
use flannel_page::{Direct, Page, Way};
use flannel_store::wire;
use http::header::{AUTHORIZATION, CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, Fault};
use crate::api::{Api, Sent, plain};
use crate::auth::{self, ClientEvidence, Tokens};
use crate::body::Body;
use crate::browser::{self, ServerNames};
use crate::certificate;
use crate::leases_of_page::LeasesOfPage;
use crate::leftover;
use crate::limits::{ConnectionSlot, Limits, Meter, Payer};
use crate::listen::Listen;
use crate::local_peer;
use crate::permission;
use crate::reload::Reloaded;
use crate::route::{Query, Route};
use crate::standing::{Lost, Review, Standing};
use crate::tls::Tls;
use crate::token_review::{TokenReviewer, TokenReviews};

#[derive(Clone, Debug)]
pub struct Options {
    pub listen: Listen,
    pub tls: Option<TlsFiles>,
    /// The file of tokens, see [`Tokens`].
    pub tokens: Option<PathBuf>,
    /// Who says which node a token of Kubernetes is of.
    pub reviewer: Option<Arc<dyn TokenReviewer>>,
    /// Plain HTTP may be spoken to other machines.
    pub insecure: bool,
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, its key, and the authority's certificate after it, for clients that
    /// know the authority by a token.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Clients must show a certificate of this authority, unless they send a token.
    pub ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    #[error("cannot listen on {listen}: {source}; free the port, or listen on another")]
    Io { listen: Listen, source: io::Error },
    #[error("{0}")]
    Files(String),
    #[error(
        "{0} can be reached from other machines, and what is said there is not encrypted: give the server a \
         certificate (remote-certfile and remote-keyfile; `flannelctl pki` makes them), or say listen-insecure \
         if you trust that network"
    )]
    Insecure(SocketAddr),
}

pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Reloaded<Tls>>,
    tokens: Option<Reloaded<Tokens>>,
    reviews: Option<TokenReviews>,
    names: Vec<String>,
    limits: Limits,
    probe_port: Option<u16>,
}

impl Server {
    /// Everything that can go wrong does so here, before anybody is served.
    pub async fn bind(options: Options) -> Result<Self, BindError> {
        let Options { listen, tls: files, tokens, reviewer, insecure, limits } = options;
        let with_tokens = tokens.is_some() || reviewer.is_some();
        let asks_who = with_tokens || files.as_ref().is_some_and(|files| files.ca.is_some());
        let with_tls = files.is_some();
        let tls = files.map(|files| {
            let TlsFiles { cert, key, ca } = files.clone();
            let watched = [Some(cert), Some(key), ca].into_iter().flatten().collect();
            Reloaded::new(watched, move || Tls::read(&files, with_tokens))
        });
        let tls = tls.transpose().map_err(BindError::Files)?;
        let tokens =
            tokens.map(|file| Reloaded::new(vec![file.clone()], move || Tokens::read(&file)));
        let tokens = tokens.transpose().map_err(BindError::Files)?;
        let failed = |source| BindError::Io { listen: listen.clone(), source };
        let listener = bind(&listen).await.map_err(failed)?;
        rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
        let address = listener.local_addr().map_err(failed)?;
        let elsewhere = !plain(address.ip()).is_loopback();
        if !with_tls && elsewhere {
            if !insecure {
                return Err(BindError::Insecure(address));
            }
            tracing::warn!(
                %address,
                "Leases are served without encryption: whoever can listen in or interfere on this network \
                 can take over the cluster's routing"
            );
        }
        if !asks_who && elsewhere {
            tracing::warn!(
                "Clients are not asked who they are: whoever reaches {address} may read the network config and \
                 change any lease; give listen-token-file or remote-cafile to change that"
            );
        }
        let reviews = reviewer.map(TokenReviews::new);
        let names = own_names(&listen);
        Ok(Self { listener, address, tls, tokens, reviews, names, limits, probe_port: None })
    }

    /// Its page asks nodes how they are, on this port of theirs.
    #[must_use]
    pub fn with_probe_port(self, port: Option<u16>) -> Self {
        Self { probe_port: port, ..self }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped, and with it every connection.
    pub async fn run(self, service: Arc<dyn LeaseService>) -> Infallible {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        tracing::info!("Lease server listens on {scheme}://{}", self.address);
        let Self { listener, tls, tokens, reviews, names, limits, probe_port, .. } = self;
        let takes_tokens = tokens.is_some() || reviews.is_some();
        let takes_certificates = tls.as_ref().is_some_and(|tls| tls.get().asks_for_certificates());
        let asks_who = takes_tokens || takes_certificates;
        let nodes = probe_port.map(|port| Arc::new(Direct { port }) as Arc<dyn Way>);
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
            renewed: watch::Sender::new(0),
        });
        let mut connections = JoinSet::new();
        let mut look = tokio::time::interval(LOOK);
        let mut remind = tokio::time::interval(REMIND);
        remind.reset();
        loop {
            tokio::select! {
                _ = look.tick() => shared.look(),
                _ = remind.tick() => shared.remind(),
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        match ClientConnection::admit(&shared, from) {
                            Some(client_connection) => {
                                connections.spawn(client_connection.serve(stream));
                            }
                            // In TLS there is nobody to say it to yet.
                            None if shared.tls.is_none() => turn_away(&stream),
                            None => {}
                        }
                    }
                    Err(error) => {
                        // Out of descriptors, or the client has gone again: all pass.
                        tracing::debug!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// A form of the page holds a token.
const LARGEST_FORM: usize = 8 << 10;
/// How often files are looked at for changes.
const LOOK: Duration = Duration::from_millis(500);
/// How often it is said that the server's certificate is about to end.
const REMIND: Duration = Duration::from_secs(86_400);

/// Says so as far as that can be done without waiting.
fn turn_away(stream: &TcpStream) {
    let text = "too many connections: try again later\n";
    let length = text.len();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n{text}"
    );
    let _ = stream.try_write(answer.as_bytes());
}

/// After a restart all nodes come back at the same moment; a node that is refused waits for seconds before it
/// tries again. The kernel's own limit (net.core.somaxconn) caps it.
const BACKLOG: i32 = 65_535;

/// Whether this number is an open socket that listens. It may be any other file of this process.
fn is_listening(number: std::os::fd::RawFd) -> bool {
    // SAFETY: the descriptor is used for this one question alone; where it is not open, or not a socket, the
    // question fails.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// Names that this machine is known to have, beside those in its certificate.
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
    tls: Option<Reloaded<Tls>>,
    tokens: Option<Reloaded<Tokens>>,
    reviews: Option<TokenReviews>,
    /// Of this machine; those in its certificate are beside them.
    names: Vec<String>,
    takes_tokens: bool,
    asks_who: bool,
    limits: Limits,
    /// Counts how often tokens or certificates were read anew.
    renewed: watch::Sender<u64>,
}

impl Shared {
    fn look(&self) {
        let tls = self.tls.as_ref().is_some_and(Reloaded::look);
        let tokens = self.tokens.as_ref().is_some_and(Reloaded::look);
        if tls || tokens {
            self.renewed.send_modify(|times| *times += 1);
        }
    }

    fn remind(&self) {
        if let Some(tls) = &self.tls {
            tls.get().remark();
        }
    }

    /// Who it is as of now. A server that asks nobody knows the operator of its own machine by its socket.
    fn who(&self, client: &Client, credentials: &Credentials) -> Result<Who, Fault> {
        if !self.asks_who {
            let is_operator = credentials.operator_wanted && client.is_local_operator();
            return Ok(if is_operator { Who::anybody() } else { Who::unnamed(client.source) });
        }
        let known = self.identify(client, credentials);
        // A token that was made a moment ago counts at once.
        if known.is_err() && self.tokens.as_ref().is_some_and(Reloaded::look) {
            self.renewed.send_modify(|times| *times += 1);
            return self.identify(client, credentials);
        }
        known
    }

    fn identify(&self, client: &Client, credentials: &Credentials) -> Result<Who, Fault> {
        let tokens = self.tokens.as_ref().map(Reloaded::get);
        let shown = client.certificate.as_ref();
        let good = shown.filter(|shown| self.stands(shown));
        let evidence = ClientEvidence {
            authorization: credentials.authorization.as_ref(),
            reviewed: credentials
                .token()
                .zip(self.reviews.as_ref())
                .and_then(|(token, reviews)| reviews.known(token)),
            certificate: good.map(|shown| &shown.names),
            machine: &credentials.machine,
            source: client.source,
        };
        auth::identify(tokens.as_deref(), self.takes_tokens, evidence).map_err(|fault| {
            match shown.is_some() && good.is_none() {
                true => Fault::unknown_client(
                    "the certificate is no longer accepted: it was revoked or has ended, or its authority is \
                     no longer trusted",
                ),
                false => fault,
            }
        })
    }

    /// Asks Kubernetes about a token that nobody has asked about for a while.
    async fn review(&self, client: &Client, credentials: &Credentials) -> Result<(), Fault> {
        let (Some(reviews), Some(token)) = (&self.reviews, credentials.token()) else {
            return Ok(());
        };
        if !reviews.is_due(token, Instant::now())
            || self
                .identify(client, credentials)
                .is_ok_and(|who| who.machine != ClientMachine::Vouched)
        {
            return Ok(());
        }
        if reviews.known(token).is_none() && !self.charge(&Payer::Unknown(client.source)) {
            return Err(too_many());
        }
        reviews.ask(token).await.map_err(|reason| {
            let text = format!("Kubernetes cannot be asked who this is: {reason}");
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text)
        })
    }

    /// For a stream that is open for long: is its client still who it was?
    async fn review_again(&self, credentials: &Credentials) {
        if let (Some(reviews), Some(token)) = (&self.reviews, credentials.token()) {
            // When nobody answers, what is known goes on to count.
            let _ = reviews.ask(token).await;
        }
    }

    fn charge(&self, payer: &Payer) -> bool {
        self.meter.requested(payer, Instant::now())
    }

    /// Refuses what another site may have made a browser send. A token is nothing that a site could do that with.
    fn check_sender(&self, head: &http::request::Parts, judge_body: bool) -> Result<(), Fault> {
        let is_public = Route::read(head.uri.path()).is_ok_and(|route| route.is_public());
        if is_public || self.takes_tokens && head.headers.contains_key(AUTHORIZATION) {
            return Ok(());
        }
        let of_certificate = self.tls.as_ref().map(|tls| tls.get().names().to_vec());
        let names = ServerNames::new(
            self.names.iter().cloned().chain(of_certificate.into_iter().flatten()),
        );
        browser::check_site(head, &names, self.tls.is_some())?;
        browser::check_content(head, judge_body)
    }

    /// Whether a certificate is still good. It is asked anew when anything was read anew.
    fn stands(&self, shown: &Shown) -> bool {
        let renewed = *self.renewed.borrow();
        if shown.checked.load(Ordering::Relaxed) == renewed {
            return true;
        }
        let good = self.tls.as_ref().is_some_and(|tls| tls.get().accepts(&shown.chain));
        if good {
            shown.checked.store(renewed, Ordering::Relaxed);
        }
        good
    }
}

fn too_many() -> Fault {
    let text = "too many requests from this address: slow down";
    Fault::new(StatusCode::TOO_MANY_REQUESTS, "too-many", text)
}

/// The other end of a connection.
struct Client {
    source: IpAddr,
    certificate: Option<Shown>,
    /// Both ends of the connection, by which the kernel knows whose socket the other one is.
    ends: Option<(SocketAddr, SocketAddr)>,
    local_operator: OnceLock<bool>,
}

impl Client {
    fn is_local_operator(&self) -> bool {
        let look = || self.ends.is_some_and(|(peer, local)| local_peer::is_operator(peer, local));
        *self.local_operator.get_or_init(look)
    }
}

/// What a request says of who sends it.
#[derive(Clone, Debug)]
struct Credentials {
    authorization: Option<HeaderValue>,
    machine: ClientMachine,
    /// It asks for what takes an operator.
    operator_wanted: bool,
}

impl Credentials {
    fn of(head: &http::request::Parts) -> Self {
        let secret = head.headers.get(wire::NODE_SECRET).and_then(|value| value.to_str().ok());
        let route = Route::read(head.uri.path()).ok();
        let query = Query::read(head.uri.query().unwrap_or_default()).ok();
        let operator_wanted = route
            .zip(query)
            .is_some_and(|(route, query)| permission::takes_operator(&route, &head.method, &query));
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

/// A certificate that was valid as of this number of reloads.
struct Shown {
    names: certificate::Names,
    chain: Vec<CertificateDer<'static>>,
    checked: AtomicU64,
}

/// One connection, counted as long as it lives.
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
    /// `None` when there are too many, all in all or from there.
    fn admit(shared: &Arc<Shared>, peer: SocketAddr) -> Option<Self> {
        let source = plain(peer.ip());
        let room = shared.api.counted.open.load(Ordering::Relaxed) < shared.limits.connections;
        let Some(slot) = room.then(|| shared.meter.connected(source)).flatten() else {
            tracing::debug!(%source, "too many connections; one is turned away");
            return None;
        };
        shared.api.counted.open.fetch_add(1, Ordering::Relaxed);
        Some(Self { shared: shared.clone(), source, peer, slot })
    }

    /// Ends early when it has to make room for another one.
    async fn serve(self, stream: TcpStream) {
        let (evicted, source) = (self.slot.evicted.clone(), self.source);
        tokio::select! {
            biased;
            () = evicted.notified() => {
                tracing::debug!(%source, "a connection that has not said whose it is makes room for another");
            }
            () = self.serve_to_end(stream) => {}
        }
    }

    async fn serve_to_end(self, stream: TcpStream) {
        let ends = stream.local_addr().ok().map(|local| (self.peer, local));
        let _ = stream.set_nodelay(true);
        // What is sent and not taken ends the connection, and so does a client that has vanished.
        let patience = self.shared.limits.slowest_reader;
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, patience.as_millis() as u32);
        let Some(tls) = &self.shared.tls else {
            return self.speak(stream, None, ends).await;
        };
        // Before the certificates are looked at: what changes meanwhile is looked at again.
        let renewed = *self.shared.renewed.borrow();
        let acceptor = TlsAcceptor::from(tls.get().config.clone());
        let handshake =
            tokio::time::timeout(self.shared.limits.slowest_handshake, acceptor.accept(stream));
        match handshake.await {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
                let shown = chain
                    .first()
                    .map(|first| certificate::names(first))
                    .map(|names| Shown { names, chain, checked: AtomicU64::new(renewed) });
                self.speak(stream, shown, ends).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(source = %self.source, %error, "no TLS connection came about");
            }
            Err(_) => tracing::debug!(source = %self.source, "a TLS handshake took too long"),
        }
    }

    async fn speak<T>(
        self,
        stream: T,
        certificate: Option<Shown>,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (source, local_operator) = (self.source, OnceLock::new());
        let client = Arc::new(Client { source, certificate, ends, local_operator });
        let (client_connection, client) = (&self, &client);
        let answer = service_fn(move |request: Request<Incoming>| async move {
            let wants_json = answer::wants_json(&request);
            // A client that waits for `100 Continue` before it sends its body does not get one.
            let waits = request.headers().contains_key(EXPECT);
            let (head, body) = request.into_parts();
            let (path, method) = (head.uri.path().to_owned(), head.method.clone());
            let (body, leftover) = leftover::lend(body);
            let answered = client_connection.answer(client, Request::from_parts(head, body)).await;
            let mut response = answered.unwrap_or_else(|fault| fault.response(wants_json));
            client_connection.shared.api.counted.request(&path, &method, response.status());
            let most = if waits { 0 } else { client_connection.shared.limits.largest_body };
            if !leftover.finish(most).await {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        });
        // What goes wrong on the way is the client's business.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.shared.limits.slowest_head)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), answer)
            .await;
    }

    /// One request: it must be of no other site's making, and be paid for by whoever sends it.
    async fn answer(
        &self,
        client: &Arc<Client>,
        request: Request<impl Sent>,
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
        // Who is not known is told that, and nothing of what a body should be.
        let judge_body = who.is_ok() && !is_page && !body.is_end_stream();
        shared.check_sender(&head, judge_body)?;
        let request = Request::from_parts(head, body);
        match is_page {
            true => Ok(self.page(client, request).await),
            false => shared.api.answer(request, || who).await,
        }
    }

    /// The page is an operator's, where clients are asked who they are. A browser's cookie counts here alone, and a
    /// certificate counts for requests that the browser says are not another site's.
    async fn page(&self, client: &Arc<Client>, request: Request<impl Sent>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let form = Limited::new(body, LARGEST_FORM).collect();
        let form = tokio::time::timeout(self.shared.limits.slowest_body, form).await;
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
        self.shared.page.respond(&head, &form, is_tls, gate).await.map(Body::Page)
    }

    fn who(
        &self,
        client: &Arc<Client>,
        credentials: Credentials,
    ) -> Result<(Who, Standing), Fault> {
        // Before it is asked who it is: what changes in between is not missed.
        let renewed = self.shared.renewed.subscribe();
        let who = self.shared.who(client, &credentials)?;
        if !self.shared.asks_who {
            return Ok((who, Standing::for_ever()));
        }
        let (shared, client, before) = (self.shared.clone(), client.clone(), who.clone());
        let review = (who.machine == ClientMachine::Vouched).then(|| {
            let (shared, credentials) = (shared.clone(), credentials.clone());
            let review = move || {
                let (shared, credentials) = (shared.clone(), credentials.clone());
                Box::pin(async move { shared.review_again(&credentials).await }) as Lost
            };
            Box::new(review) as Review
        });
        let still = move || {
            let now = shared.who(&client, &credentials);
            now.is_ok_and(|now| now == before)
        };
        let standing = Standing::new(renewed, still);
        Ok((
            who,
            match review {
                Some(review) => standing.with_review(review),
                None => standing,
            },
        ))
    }
}
