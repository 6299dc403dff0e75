//! The user-space datapath: inner packets from a TUN device to peers over UDP, and back.
//!
//! The wire format is the Go flannel's: one inner packet is the payload of one datagram. What can be done once for many
//! packets is not done for each: the kernel hands over packets of up to 64 KB ([`segment`] cuts them into headers and
//! ranges), takes dozens of datagrams in one call and cuts them itself ([`outbound`]), hands over what it has joined on
//! arrival, and takes it joined again ([`inbound`]).
//!
//! [`table`], [`outbound`] and [`inbound`] touch memory only. [`lane`] moves packets between them and [`sys`],
//! [`datapath`] has the threads.

mod applier;
mod checksum;
mod control;
mod counters;
mod datapath;
mod icmp;
mod inbound;
mod lane;
mod lookup;
mod outbound;
mod packet;
mod segment;
mod sys;
mod table;
#[doc(hidden)]
pub mod testing;
mod vnet;
mod wireguard;

pub use applier::Tunnel;
pub use control::client::{Client, TunnelError, end_processes, socket_path, sockets};
pub use control::protocol::{TunnelStatus, WireguardPeerStatus};
pub use control::service::{PROCESS_NAME, SUBCOMMAND, run as run_process};
pub use counters::{CounterSnapshot, Counters, DropReason};
pub use datapath::{Datapath, DatapathError, FeaturesInUse};
pub use lookup::{Lookup, Prefix};
