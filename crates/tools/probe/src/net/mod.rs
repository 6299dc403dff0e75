//! The rim: sockets.

mod exchange;
mod listener;
mod ping;
mod socket;

pub(crate) use exchange::{Exchange, Question};
pub use listener::Listeners;
pub(crate) use ping::ping;
