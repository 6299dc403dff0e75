//! Frames of a link, past the kernel's own tables: sockets for them, and who answers for an address, by ARP or
//! neighbour discovery. No firewall filters either, and no router answers. And ICMP echo, which crosses routers.

mod arp;
mod echo;
mod neighbour_discovery;
mod packet_socket;
mod who_has;

pub use echo::{ECHO_HEADER, Pinger, echo_request, open_echo_socket, read_echo_reply};
pub use packet_socket::{instruction, open_packet_socket};
pub use who_has::{AddressQuestion, AnswerTiming};
