//! Serves the page to this machine's browsers, which prove themselves by a key in the address: others live here too.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{ConnectionLimit, accept_connections};
use http::Request;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use crate::gate::{KEY, random};
use crate::page::Page;

/// Largest form: it holds a token.
const LARGEST_FORM: usize = 8 << 10;
/// Number of connections: a browser opens six at most, and an open page keeps one.
const BROWSER_CONNECTIONS: usize = 1_024;
const SLOWEST_HEAD: Duration = Duration::from_secs(30);

pub struct Local {
    listener: TcpListener,
    address: SocketAddr,
    key: String,
}

impl Local {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let key = random::<24>().ok_or_else(|| io::Error::other("there is no randomness"))?;
        Ok(Self { listener, address, key })
    }

    /// Address of the page, with the key in it.
    pub fn url(&self) -> String {
        format!("http://{}/page/enter?{KEY}={}", self.address, self.key)
    }

    pub async fn run(self, page: Page) -> Infallible {
        let (page, key) = (Arc::new(page.entered_by_address()), Arc::<str>::from(self.key));
        let serve = |stream, _| Some(talk(stream, page.clone(), key.clone()));
        let limit = ConnectionLimit::CutOldest(BROWSER_CONNECTIONS);
        accept_connections("page", &self.listener, limit, serve).await
    }
}

/// Serves one connection. Its errors are the browser's business.
async fn talk(stream: TcpStream, page: Arc<Page>, key: Arc<str>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let (page, key) = (page.clone(), key.clone());
        async move {
            let (head, body) = request.into_parts();
            let form = Limited::new(body, LARGEST_FORM).collect().await;
            let form = form.map(|form| form.to_bytes()).unwrap_or_default();
            let form = String::from_utf8_lossy(&form);
            let gate = move |token: Option<&str>| token.is_some_and(|token| is_same(token, &key));
            Ok::<_, Infallible>(page.respond(&head, &form, false, gate).await)
        }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SLOWEST_HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

/// Compares by hashes, so that the time it takes tells nothing about the key.
fn is_same(one: &str, other: &str) -> bool {
    let hash = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    hash(one).as_ref() == hash(other).as_ref()
}
