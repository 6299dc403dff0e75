//! Clouds on this machine: servers that speak the providers' protocols, check signatures with code of their own,
//! and do on demand what makes a real cloud hard: throttle, deny, fill up, answer page by page.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on must say so and stop"
)]

mod ali;
mod aws;
mod cloud;
mod gce;
mod http;
mod signing;
mod tencent;

pub use cloud::{Cloud, Machine, RouteTable, State, TableRoute};
pub use gce::key_file;
