//! What several rooms need and none of them owns, one file each.

#![forbid(unsafe_code)]

mod backoff;
mod repair;
#[cfg(feature = "worker")]
mod worker;

pub use backoff::{Backoff, Tries};
pub use repair::{OnceAMinute, RepairHistory, RepairPolicy};
#[cfg(feature = "worker")]
pub use worker::{Stopped, Work, Worker};
