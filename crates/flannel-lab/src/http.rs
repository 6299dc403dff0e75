//! One HTTP request to a server of a namespace.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::Result;
use crate::namespace::Namespace;

/// What a server answers.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// 200 if all is well.
    pub status: u16,
    /// As text.
    pub body: String,
}

impl Namespace {
    /// Asks the server that listens on this port of the namespace's loopback. The inner error says
    /// that it did not answer within `limit`, or why not at all.
    pub fn http(
        &self,
        port: u16,
        method: &str,
        path: &str,
        body: &str,
        limit: Duration,
    ) -> Result<io::Result<HttpAnswer>> {
        self.block_on(async || timeout(limit, request(port, method, path, body)).await?)
    }

    /// Runs what is asynchronous inside the namespace.
    pub(crate) fn block_on<T: Send, F: Future<Output = io::Result<T>>>(
        &self,
        work: impl FnOnce() -> F + Send,
    ) -> Result<io::Result<T>> {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(work())
        })
    }
}

async fn request(port: u16, method: &str, path: &str, body: &str) -> io::Result<HttpAnswer> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, format!("{}:{port}", Ipv4Addr::LOCALHOST))
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .map_err(io::Error::other)?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the runtime; what goes wrong with it, the request is told as well.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    Ok(HttpAnswer { status, body: String::from_utf8_lossy(&body).into_owned() })
}
