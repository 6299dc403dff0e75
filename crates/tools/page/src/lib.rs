//! The page: a whole network at a glance, in a browser. The lease server serves it behind its tokens, and `flannelctl
//! page` on localhost, for any store.
//!
//! Leases come from the store ([`LeaseSource`]); nodes report their state on their probe ports ([`flannel_state`]),
//! which are reached directly or otherwise ([`NodeConnector`]). Nodes are asked only while somebody looks, and never
//! faster than a fixed pace (`collector.rs`). The result is a [`Picture`](picture), from which everything is drawn:
//! HTML by the server (`html/`), so that the overview needs no JavaScript, and a stream of changes (`live.rs`). Texts
//! of nodes are text wherever they are shown: `html/text.rs` is the one place where they become HTML.

#![forbid(unsafe_code)]

mod collector;
mod common_cause;
mod files;
mod gate;
mod health;
mod html;
mod leases;
mod live;
mod local;
mod node_client;
mod node_connector;
mod node_report;
mod page;
mod picture;
mod pool;
mod reachability;
mod timeline;

pub use leases::{LeaseRow, LeaseSource, LeaseTable, StoreLeases};
pub use local::Local;
pub use node_connector::{Direct, NodeConnector, Pace, Stream};
pub use page::{Body, Page, is_ours};
