//! What several crates need and none of them owns, one file each.

#![forbid(unsafe_code)]

#[cfg(feature = "worker")]
mod accept;
mod backoff;
mod family;
mod hex;
mod if_name;
mod mac;
mod operator_commands;
mod overlap;
mod random;
mod redact;
mod repair;
mod replace_file;
mod run_program;
mod search_path;
mod secret;
mod shorten;
pub mod simulation;
#[cfg(feature = "worker")]
mod task;
#[cfg(feature = "worker")]
mod tcp;
mod throttle;
#[cfg(feature = "wireguard")]
mod wireguard_keys;
#[cfg(feature = "worker")]
mod worker;
pub mod xfrm;

#[cfg(feature = "worker")]
pub use accept::{ConnectionLimit, Listener, accept_connections};
pub use backoff::{Backoff, Tries};
pub use family::Family;
pub use hex::hex;
pub use if_name::{IfName, InvalidIfName};
pub use mac::{InvalidMac, Mac};
pub use operator_commands::OperatorCommands;
pub use overlap::overlap;
pub use random::{fill_with_random, random_bytes};
pub use redact::{is_secret_name, without_secrets};
pub use repair::{RepairHistory, RepairPolicy};
pub use replace_file::{replace_by, replace_file, temporary_path};
pub use run_program::{FinishedProgram, run_program};
pub use search_path::SearchPath;
pub use secret::Secret;
pub use shorten::shorten;
#[cfg(feature = "worker")]
pub use task::{Task, run_if_any, send_if_changed, sleep_until, spawn_publisher, spawn_sender};
#[cfg(feature = "worker")]
pub use tcp::{TcpListener, TcpStream};
pub use throttle::Throttle;
#[cfg(feature = "wireguard")]
pub use wireguard_keys::{InvalidKey, PresharedKey, PrivateKey, PublicKey};
#[cfg(feature = "worker")]
pub use worker::{Stopped, Work, Worker};
