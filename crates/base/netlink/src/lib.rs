//! How this project talks to the kernel: netlink sockets with time-outs, questions with one answer or
//! many, batches of changes.
//!
//! Blocking and single-threaded on purpose. The kernel works through a batch inside `send`, goes on
//! past a message that fails and names it by its sequence number, so only the last message of a batch
//! needs an acknowledgement: some 230 system calls for 30,000 routes instead of 60,000.
//!
//! From the ground up: [`Socket`] (system calls), [`Message`] and [`Attributes`] (bytes),
//! [`Connection`] (a conversation), and what is said in it: [`Request`] and its [`verbs`] for links, addresses and
//! routes, [`nfnetlink`] for nftables, [`xfrm`] for IPsec, [`generic`] for what has no protocol of its own.
//! Another protocol of netlink is another [`Protocol`] and, beside `nfnetlink`, a file with its messages.

mod attributes;
mod connection;
mod error;
pub mod generic;
mod message;
pub mod nfnetlink;
mod route;
mod socket;
pub mod verbs;
pub mod xfrm;

pub use attributes::{AttributeWriter, Attributes, ip, ne32_at, text};
pub use connection::{Connection, RawRequest, Writable};
pub use error::NetlinkError;
pub use message::{HEADER_LEN, Message, messages};
pub use route::{Request, decode};
pub use socket::{Protocol, Socket};
