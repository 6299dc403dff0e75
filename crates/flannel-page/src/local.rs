//! Serves the page to this machine's own browsers. Others on this machine could connect as well, so clients must
//! know a key, which is in the address that the operator is told.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use crate::gate::{KEY, random};
use crate::page::Page;

/// A form holds a token.
const LARGEST_FORM: usize = 8 << 10;
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

    /// With the key in it.
    pub fn url(&self) -> String {
        format!("http://{}/page/enter?{KEY}={}", self.address, self.key)
    }

    /// Serves until it is dropped.
    pub async fn run(self, page: Page) -> Infallible {
        let (page, key) = (Arc::new(page.entered_by_address()), Arc::<str>::from(self.key));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(talk(stream, page.clone(), key.clone()));
                }
                // Out of descriptors: that passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// What goes wrong on the way is the browser's business.
async fn talk(stream: TcpStream, page: Arc<Page>, key: Arc<str>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let (page, key) = (page.clone(), key.clone());
        async move {
            let (head, body) = request.into_parts();
            let form = match Limited::new(body, LARGEST_FORM).collect().await {
                Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
                Err(_) => String::new(),
            };
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

/// By their hashes, so that how long it takes tells nothing about the key.
fn is_same(one: &str, other: &str) -> bool {
    let hash = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    hash(one).as_ref() == hash(other).as_ref()
}
