//! The rtnetlink socket: requests in large batches, dumps, and a monitor of outside changes.
//!
//! Blocking and single-threaded on purpose. The kernel works through a batch inside `send`, goes on
//! past a message that fails and names it by its sequence number, so only the last message of a batch
//! needs an acknowledgement: some 230 system calls for 30,000 entries instead of 60,000.

mod batch;
mod error;
#[cfg(feature = "engine")]
mod monitor;
mod socket;

pub use batch::{Connection, Request};
pub use error::NetlinkError;
#[cfg(feature = "engine")]
pub(crate) use monitor::{Heard, Monitor};
