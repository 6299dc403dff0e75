//! The page: a whole network at a glance, in a browser. The lease server serves it behind its tokens, and
//! `flannelctl page` on localhost, for any store.
//!
//! Leases come from the store ([`Leases`]); how each node is, it says itself on its probe port
//! ([`flannel_state`]), which is reached directly or otherwise ([`Way`]). Nodes are asked only while somebody looks, and never faster than a fixed pace
//! (`collector.rs`). What is found is a [`Picture`](picture), from which everything is drawn: HTML by the server
//! (`html/`), so that the overview needs no JavaScript, and a stream of what changes (`live.rs`). Texts of
//! nodes are text wherever they are shown: `html/text.rs` is the one place where they become HTML.

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
mod page;
mod picture;
mod pool;
mod reachability;
mod said;
mod timeline;
mod way;

pub use leases::{LeaseRow, LeaseTable, Leases, StoreLeases};
pub use local::Local;
pub use page::{Body, Page, is_ours};
pub use way::{Direct, Pace, Stream, Way};
