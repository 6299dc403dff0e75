//! VICI, charon's control protocol: messages of named values over a local socket.

mod client;
mod message;

pub use client::{Result, Vici, ViciError};
pub use message::{InvalidMessage, Message, Value};
