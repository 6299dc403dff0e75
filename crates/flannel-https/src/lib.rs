//! The HTTP and HTTPS client of everything in flannel that asks a server: the lease server's clients, the
//! Kubernetes store, clouds.
//!
//! Requests and answers are those of the `http` crate. [`Client`] asks one server and keeps a connection to it;
//! what it needs to know to connect, a [`Target`], may change under a running daemon and is asked for with each
//! connection. [`Web`] asks whatever server a URL names. Errors are texts for an operator: what is wrong, and
//! what to do about it, in the words of whoever made the [`Target`] ([`Advice`]).

#![forbid(unsafe_code)]

mod client;
mod connection;
mod connection_error;
pub mod pem;
mod proxy;
mod server;
mod stream;
mod target;
mod tcp;
mod tls;
mod web;
pub mod websocket;

pub use client::{Client, Limits, Upgraded};
pub use proxy::{Proxies, Proxy};
pub use server::Server;
pub use stream::{Broken, Stream};
pub use target::{Advice, ClientCertificate, Credentials, FileOrPem, Target, Trust};
pub use tcp::connect_to;
pub use web::Web;
