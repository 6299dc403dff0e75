//! The lease server: what a [`LeaseService`] does, over HTTP. The API is that of the
//! flannel 0.5-0.7 server with what was missing added; `openapi.json` describes it.

mod answer;
mod api;
mod auth;
mod body;
mod body_drain;
mod browser;
mod clock;
pub mod embedded;
mod lease_service;
pub mod lease_state;
mod leases_of_page;
mod limits;
mod local_peer;
mod metrics;
mod permission;
mod reload;
mod revocation;
mod route;
mod serve;
mod snapshot_permits;
mod store_service;
mod tls;
mod token_review;
pub mod watch_log;

pub use api::Api;
pub use embedded::{Embedded, EmbeddedOptions, EmbeddedStore};
pub use lease_service::{LeaseService, NetworkRequests, ServedNetwork};
pub use limits::Limits;
pub use metrics::LogFigures;
pub use serve::{BindError, Options, Server};
pub use store_service::StoreService;
pub use token_review::{AUDIENCE, ServiceAccountTokens, TokenReviewer, TokenVerdict};

pub const OPENAPI: &str = include_str!("openapi.json");
