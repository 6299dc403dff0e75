//! Control of the process that carries the packets, which goes on when the daemon ends, however it ends. It listens on
//! a Unix socket that only root may open. `protocol` has the messages, `client` sends requests, `service` answers;
//! `processes` is what the system knows of the process.

pub(crate) mod client;
mod processes;
pub(crate) mod protocol;
pub(crate) mod service;
