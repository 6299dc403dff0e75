//! One connection to a server, if need be through a proxy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flannel_common::TcpStream;
use http::header::{AUTHORIZATION, HOST, HeaderName, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::client::{Limits, silence};
use crate::plain::PlainConnection;
use crate::proxy::Proxy;
use crate::target::{Credentials, Target};
use crate::{connection_error, tcp, tls};

const AGENT: &str = concat!("flannel-rs/", env!("CARGO_PKG_VERSION"));
/// Keepalive: a peer that vanished is noticed after half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

#[derive(Debug)]
pub(crate) struct Connection {
    target: Target,
    pub(crate) plain: PlainConnection,
}

impl Connection {
    pub(crate) async fn open(target: Target, limits: &Limits) -> Result<Self, String> {
        let server = &target.server;
        let (host, port) = match &target.proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&server.host, server.port),
        };
        let through = |why: String| match &target.proxy {
            Some(proxy) => format!("through the proxy {proxy}: {why}"),
            None => why,
        };
        let tcp = reach(host, port, limits.connect).await.map_err(through)?;
        if let Some(socket) = tcp.socket() {
            let _ = socket.set_nodelay(true);
            set_keepalive(socket);
        }
        if !server.tls {
            refuse_unencrypted_credentials(&target, &tcp)?;
            return Self::speak(target, tcp).await;
        }
        let tcp = match &target.proxy {
            Some(proxy) => {
                let asked = timeout(limits.connect, proxy.tunnel(tcp, &server.authority())).await;
                asked.unwrap_or_else(|_| Err(silence(limits.connect))).map_err(through)?
            }
            None => tcp,
        };
        let connector = TlsConnector::from(Arc::new(tls::config(&target)?));
        let name = target.server_name.as_ref().unwrap_or(&server.host);
        let server_name = ServerName::try_from(name.clone())
            .map_err(|_| format!("{name:?} is not the name of a server"))?;
        let tls = timeout(limits.connect, connector.connect(server_name, tcp));
        let tls = tls.await.map_err(|_| silence(limits.connect))?;
        let tls = tls.map_err(|error| connection_error::explain(&error, &target))?;
        Self::speak(target, tls).await
    }

    async fn speak<T>(target: Target, stream: T) -> Result<Self, String>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match PlainConnection::open(stream).await {
            Ok(plain) => Ok(Self { target, plain }),
            Err(error) => Err(connection_error::explain(&error, &target)),
        }
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Bytes>,
        limits: &Limits,
    ) -> Result<Response<Incoming>, String> {
        let request = self.complete(request)?;
        let response = timeout(limits.answer, self.plain.send(request)).await;
        let response = response.map_err(|_| silence(limits.answer))?;
        response.map_err(|error| connection_error::explain(&error, &self.target))
    }

    fn complete(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, String> {
        let server = &self.target.server;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let proxy = self.target.proxy.as_ref().filter(|_| !server.tls);
        let uri = match proxy {
            Some(_) => format!("{server}{}{path}", server.base),
            None => format!("{}{path}", server.base),
        };
        *request.uri_mut() =
            uri.parse::<Uri>().map_err(|error| format!("{uri:?} is not a path: {error}"))?;
        let headers = request.headers_mut();
        let is_host_given = headers.contains_key(HOST);
        let mut set = |name: HeaderName, text: String| -> Result<(), String> {
            let mut value = HeaderValue::try_from(text).map_err(|_| {
                format!("what the header {name} should say has characters that cannot be sent")
            })?;
            value.set_sensitive(name == AUTHORIZATION || name == PROXY_AUTHORIZATION);
            headers.insert(name, value);
            Ok(())
        };
        // A request that is signed has signed its host, too.
        if !is_host_given {
            set(HOST, server.authority())?;
        }
        set(USER_AGENT, AGENT.to_owned())?;
        if let Some(text) = self.target.credentials.authorization()? {
            set(AUTHORIZATION, text)?;
        }
        if let Some(text) = proxy.and_then(Proxy::authorization) {
            set(PROXY_AUTHORIZATION, text)?;
        }
        Ok(request)
    }
}

fn refuse_unencrypted_credentials(target: &Target, tcp: &TcpStream) -> Result<(), String> {
    if matches!(target.credentials, Credentials::None) || target.clear_text_allowed {
        return Ok(());
    }
    let peer: IpAddr = tcp.peer_addr().map_err(|error| error.to_string())?.ip().to_canonical();
    match &target.proxy {
        None if peer.is_loopback() => Ok(()),
        None => Err(format!("{} is {peer}: {}", target.server.host, target.advice.clear_text)),
        Some(proxy) => Err(format!("through the proxy {proxy}: {}", target.advice.clear_text)),
    }
}

/// Connects to one of a name's addresses that answers: several servers may have one name.
async fn reach(host: &str, port: u16, most: Duration) -> Result<TcpStream, String> {
    let found = timeout(most, tokio::net::lookup_host((host, port))).await;
    let found = found.map_err(|_| {
        format!("the name {host} was not resolved within {} s: check DNS", most.as_secs())
    })?;
    let found = found.map_err(|error| format!("the name {host} is not resolved: {error}"))?;
    let mut why = format!("{host} has no address");
    for address in found {
        match timeout(most, tcp::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => why = format!("cannot connect to {address}: {error}"),
            Err(_) => why = format!("cannot connect to {address}: {}", silence(most)),
        }
    }
    Err(why)
}

/// Turns keepalive on. If the kernel cannot do that, the connection is still made.
fn set_keepalive(tcp: &tokio::net::TcpStream) {
    let _ = sockopt::set_socket_keepalive(tcp, true);
    let _ = sockopt::set_tcp_keepidle(tcp, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(tcp, KEEPALIVE_PROBE);
    let _ = sockopt::set_tcp_keepcnt(tcp, KEEPALIVE_PROBES);
    // The limit also covers data that was sent and never acknowledged.
    let most = KEEPALIVE_IDLE + KEEPALIVE_PROBE * KEEPALIVE_PROBES;
    let _ = sockopt::set_tcp_user_timeout(tcp, u32::try_from(most.as_millis()).unwrap_or(0));
}
