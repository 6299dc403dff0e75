//! VICI, the language in which charon is told what to do: messages of named values over a local socket.

mod client;
mod message;

pub use client::{Vici, ViciError};
pub use message::{InvalidMessage, Message, Value};
