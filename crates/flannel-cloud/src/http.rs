//! One request and its answer. A cloud is asked once a minute, so no connection is kept.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const LARGEST_ANSWER: usize = 16 << 20;
const AGENT: &str = concat!("flannel-rs/", env!("CARGO_PKG_VERSION"));

pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) url: String,
    /// None of them is ever shown: some are secret.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
    /// For all of it.
    pub(crate) limit: Duration,
    /// Whether what is sent may be read on the way.
    pub(crate) plain: Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    /// A metadata service has no certificate: its address is the machine's own business.
    Allowed,
    ToThisMachine,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

pub(crate) async fn send(ask: Ask) -> Result<Answer, String> {
    let limit = ask.limit;
    let silent = |_| format!("silent for {} s", limit.as_secs());
    timeout(limit, send_unlimited(ask)).await.map_err(silent)?
}

async fn send_unlimited(ask: Ask) -> Result<Answer, String> {
    let uri: Uri = ask.url.parse().map_err(|_| format!("{:?} is not a URL", ask.url))?;
    let host = uri.host().ok_or_else(|| format!("{:?} names no host", ask.url))?.to_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(format!("{:?} begins with neither https:// nor http://", ask.url)),
    };
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(ask.method)
        .uri(path)
        .header(HOST, authority)
        .header(USER_AGENT, AGENT);
    for (name, value) in ask.headers {
        let wrong = |_| format!("the header {name} would hold what cannot be sent");
        let mut value = HeaderValue::try_from(value).map_err(wrong)?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(ask.body))).map_err(|e| e.to_string())?;
    let tcp = TcpStream::connect((&*bare, port)).await.map_err(|e| format!("{bare}:{port}: {e}"))?;
    let _ = tcp.set_nodelay(true);
    if !tls {
        let peer = tcp.peer_addr().map_err(|error| error.to_string())?.ip();
        if ask.plain == Plain::ToThisMachine && !is_loopback(peer) {
            return Err(format!(
                "{host} is another machine, to which nothing is sent without TLS: use https://"
            ));
        }
        return exchange(tcp, request).await;
    }
    let name = ServerName::try_from(bare).map_err(|_| format!("{host:?} is not a server's name"))?;
    let connector = TlsConnector::from(tls_config()?);
    let stream = connector.connect(name, tcp).await;
    let explain = |error: std::io::Error| {
        format!(
            "TLS with {host}: {error} (the authorities of this machine are used, /etc/ssl/certs or \
             SSL_CERT_FILE; is its clock right?)"
        )
    };
    exchange(stream.map_err(explain)?, request).await
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

async fn exchange<T>(stream: T, request: Request<Full<Bytes>>) -> Result<Answer, String>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let work = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        read(response).await
    };
    tokio::pin!(work);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut work => answer,
        // It ends when the other side closes it: what was read by then is the answer.
        _ = &mut connection => work.await,
    }
}

async fn read(response: Response<Incoming>) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    let body = body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes();
    let body = String::from_utf8(body.into()).map_err(|_| "the answer is not text".to_owned())?;
    Ok(Answer { status, body })
}

fn tls_config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "this machine knows no certificate authority: install ca-certificates, or set SSL_CERT_FILE"
                .to_owned(),
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}
