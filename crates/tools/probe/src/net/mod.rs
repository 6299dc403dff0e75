//! The rim: sockets.

mod exchange;
mod listener;
mod ping;
mod socket;

use std::io;

pub(crate) use exchange::{Exchange, Question};
pub use listener::Listeners;
pub(crate) use ping::ping;

/// Makes the number by which an answer is known: nobody who does not see the question can guess it.
fn random_nonce() -> io::Result<u64> {
    flannel_common::random_bytes().map(u64::from_ne_bytes)
}
