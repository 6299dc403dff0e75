//! The lease server: what a [`LeaseService`] does, over HTTP. The API is that of the
//! flannel 0.5-0.7 server with what was missing added; `openapi.json` describes it.

mod answer;
mod api;
mod auth;
mod body;
mod browser;
pub mod certificate;
mod clock;
pub mod embedded;
mod lease_service;
pub mod lease_state;
mod leases_of_page;
mod leftover;
mod limits;
mod listen;
mod local_peer;
mod metrics;
mod permission;
mod reload;
mod route;
mod serve;
mod standing;
mod store_service;
mod tls;
mod token_review;
mod turns;
pub mod watch_log;

pub use api::Api;
pub use auth::{Tokens, TokensError, hash_token};
pub use embedded::{Embedded, EmbeddedStore};
pub use lease_service::LeaseService;
pub use limits::Limits;
pub use listen::{Listen, ListenError};
pub use metrics::LogFigures;
pub use serve::{BindError, Options, Server, TlsFiles};
pub use store_service::StoreService;
pub use token_review::{AUDIENCE, ServiceAccountTokens, TokenReviewer, Verdict};

/// The description of the API.
pub const OPENAPI: &str = include_str!("openapi.json");
