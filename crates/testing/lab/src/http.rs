//! One HTTP request to a server of a namespace.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use flannel_https::{Client, Limits, Server, Target};
use http::Request;
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
        .body(Bytes::copy_from_slice(body.as_bytes()))
        .map_err(io::Error::other)?;
    let host = Ipv4Addr::LOCALHOST.to_string();
    let server = Server { host, port, tls: false, base: String::new() };
    let client = Client::new(Limits::default());
    let answer = client.request(|| Ok(Target::new(server)), request).await;
    let answer = answer.map_err(io::Error::other)?;
    let status = answer.status().as_u16();
    Ok(HttpAnswer { status, body: String::from_utf8_lossy(answer.body()).into_owned() })
}
