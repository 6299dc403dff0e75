//! The rim: sockets.

mod exchange;
mod listener;
mod ping;
mod socket;

pub use exchange::ask_once;
pub(crate) use exchange::{ANSWER_TIMEOUT, Exchange, Question};
pub use listener::Listeners;
pub(crate) use ping::ping;
