//! The datapath: the pipeline by itself, and in network namespaces.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod build;
mod errors;
mod joining;
mod kernel;
mod namespaces;
mod net;
mod segmenting;
mod senders;
