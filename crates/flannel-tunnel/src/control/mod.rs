//! How the control plane speaks to the process that carries the packets.
//!
//! The datapath lives in a process of its own, so that it goes on when the control plane ends, however it
//! ends. It listens on a Unix socket that only root may open. What is said there is in `protocol`, who says
//! it in `client`, who answers in `service`; what the system knows of the process is in `processes`.

pub(crate) mod client;
mod processes;
pub(crate) mod protocol;
pub(crate) mod service;
