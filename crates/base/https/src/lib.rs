//! HTTP and HTTPS client of everything in flannel that asks a server: the lease server's clients, the Kubernetes
//! store, clouds.
//!
//! Requests and answers are those of the `http` crate. [`Client`] asks one server and keeps a connection to it; what
//! it needs to connect, a [`Target`], may change under a running daemon and is requested for each connection.
//! [`UrlClient`] asks the server that a URL names. Errors are texts for an operator: what is wrong, and what to do
//! about it, in the words of whoever made the [`Target`] ([`Advice`]).

#![forbid(unsafe_code)]

pub mod certificate;
mod client;
mod connection;
mod connection_error;
pub mod pem;
mod plain;
mod proxy;
mod server;
mod stream;
mod target;
mod tcp;
mod tls;
mod url_client;
pub mod websocket;

pub use client::{Client, Limits, Upgraded};
pub use plain::PlainConnection;
pub use proxy::{Proxies, Proxy};
pub use server::Server;
pub use stream::{Stream, StreamError};
pub use target::{Advice, ClientCertificate, Credentials, FileOrPem, Target, Trust};
pub use tcp::connect_to;
pub use url_client::UrlClient;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What stands for itself in any part of a path and a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b':');

pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().unwrap_or_default()
}
