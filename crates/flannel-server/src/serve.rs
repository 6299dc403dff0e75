//! Connections: accepted within limits, spoken to in TLS or not, cut off when they are slow.

use crate::LeaseService;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::FromRawFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::lease_state::Who;
use flannel_page::{Direct, Page, Way};
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
use crate::auth::{self, Tokens};
use crate::body::Body;
use crate::certificate;
use crate::leases_of_page::LeasesOfPage;
use crate::leftover;
use crate::limits::{Limits, Meter};
use crate::listen::Listen;
use crate::reload::Reloaded;
use crate::standing::Standing;
use crate::tls::Tls;

#[derive(Clone, Debug)]
pub struct Options {
    pub listen: Listen,
    pub tls: Option<TlsFiles>,
    /// The file of tokens, see [`Tokens`].
    pub tokens: Option<PathBuf>,
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
    asks_who: bool,
    limits: Limits,
    probe_port: Option<u16>,
}

impl Server {
    /// Everything that can go wrong does so here, before anybody is served.
    pub async fn bind(options: Options) -> Result<Self, BindError> {
        let Options { listen, tls: files, tokens, insecure, limits } = options;
        let asks_who = tokens.is_some() || files.as_ref().is_some_and(|files| files.ca.is_some());
        let (with_tls, with_tokens) = (files.is_some(), tokens.is_some());
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
                "Clients are not asked who they are: whoever reaches {address} may change any lease; give \
                 listen-token-file or remote-cafile to change that"
            );
        }
        Ok(Self { listener, address, tls, tokens, asks_who, limits, probe_port: None })
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
        let Self { listener, tls, tokens, asks_who, limits, probe_port, .. } = self;
        let nodes = probe_port.map(|port| Arc::new(Direct { port }) as Arc<dyn Way>);
        let shared = Arc::new(Shared {
            page: Page::new(Arc::new(LeasesOfPage(service.clone())), nodes),
            api: Api::new(service, limits),
            meter: Meter::new(limits),
            tls,
            tokens,
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
                        match ClientConnection::admit(&shared, plain(from.ip())) {
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

    /// Who it is as of now.
    fn who(&self, client: &Client, authorization: Option<&HeaderValue>) -> Result<Who, Fault> {
        if !self.asks_who {
            return Ok(Who::anybody());
        }
        let tokens = self.tokens.as_ref().map(Reloaded::get);
        let shown = client.certificate.as_ref();
        let good = shown.filter(|shown| self.stands(shown));
        let names = good.map(|shown| &shown.names);
        auth::identify(tokens.as_deref(), names, authorization, client.source).map_err(|fault| {
            match shown.is_some() && good.is_none() {
                true => Fault::unknown_client(
                    "the certificate is no longer accepted: it was revoked or has ended, or its authority is \
                     no longer trusted",
                ),
                false => fault,
            }
        })
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

/// The other end of a connection.
struct Client {
    source: IpAddr,
    certificate: Option<Shown>,
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
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.shared.api.counted.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.meter.disconnected(self.source, Instant::now());
    }
}

impl ClientConnection {
    /// `None` when there are too many, all in all or from there.
    fn admit(shared: &Arc<Shared>, source: IpAddr) -> Option<Self> {
        if shared.api.counted.open.load(Ordering::Relaxed) >= shared.limits.connections
            || !shared.meter.connected(source, Instant::now())
        {
            tracing::debug!(%source, "too many connections; one is turned away");
            return None;
        }
        shared.api.counted.open.fetch_add(1, Ordering::Relaxed);
        Some(Self { shared: shared.clone(), source })
    }

    async fn serve(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        // What is sent and not taken ends the connection, and so does a client that has vanished.
        let patience = self.shared.limits.slowest_reader;
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, patience.as_millis() as u32);
        let Some(tls) = &self.shared.tls else {
            return self.speak(stream, None).await;
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
                self.speak(stream, shown).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(source = %self.source, %error, "no TLS connection came about");
            }
            Err(_) => tracing::debug!(source = %self.source, "a TLS handshake took too long"),
        }
    }

    async fn speak<T>(self, stream: T, certificate: Option<Shown>)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let client = Arc::new(Client { source: self.source, certificate });
        let (client_connection, client) = (&self, &client);
        let answer = service_fn(move |request: Request<Incoming>| async move {
            let wants_json = answer::wants_json(&request);
            let authorization = request.headers().get(AUTHORIZATION).cloned();
            // A client that waits for `100 Continue` before it sends its body does not get one.
            let waits = request.headers().contains_key(EXPECT);
            let (head, body) = request.into_parts();
            let (path, method) = (head.uri.path().to_owned(), head.method.clone());
            let (body, leftover) = leftover::lend(body);
            let request = Request::from_parts(head, body);
            let who = || client_connection.who(client, authorization);
            let fits =
                client_connection.shared.meter.requested(client_connection.source, Instant::now());
            let answered = if fits && flannel_page::is_ours(request.uri().path()) {
                Ok(client_connection.page(client, request).await)
            } else if fits {
                client_connection.shared.api.answer(request, who).await
            } else {
                let text = "too many requests from this address: slow down";
                Err(Fault::new(StatusCode::TOO_MANY_REQUESTS, "too-many", text))
            };
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

    /// The page is an operator's. A browser's cookie counts here alone: what changes something asks for a token or a
    /// certificate, which no other site can make a browser send.
    async fn page(&self, client: &Arc<Client>, request: Request<impl Sent>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let form = Limited::new(body, LARGEST_FORM).collect();
        let form = tokio::time::timeout(self.shared.limits.slowest_body, form).await;
        let form = form.ok().and_then(Result::ok).map(|form| form.to_bytes());
        let form = String::from_utf8_lossy(&form.unwrap_or_default()).into_owned();
        let (shared, client) = (self.shared.clone(), client.clone());
        let sent = head.headers.get(AUTHORIZATION).cloned();
        let gate = move |token: Option<&str>| {
            let shown = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
            let Ok(shown) = shown.transpose() else { return false };
            shared.who(&client, shown.as_ref().or(sent.as_ref())).is_ok_and(|who| who.admin)
        };
        let is_tls = self.shared.tls.is_some();
        self.shared.page.respond(&head, &form, is_tls, gate).await.map(Body::Page)
    }

    fn who(
        &self,
        client: &Arc<Client>,
        authorization: Option<HeaderValue>,
    ) -> Result<(Who, Standing), Fault> {
        // Before it is asked who it is: what changes in between is not missed.
        let renewed = self.shared.renewed.subscribe();
        let who = self.shared.who(client, authorization.as_ref())?;
        if !self.shared.asks_who {
            return Ok((who, Standing::for_ever()));
        }
        let (shared, client, before) = (self.shared.clone(), client.clone(), who.clone());
        let still = move || {
            let now = shared.who(&client, authorization.as_ref());
            now.is_ok_and(|now| now == before)
        };
        Ok((who, Standing::new(renewed, still)))
    }
}
