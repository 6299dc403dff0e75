//! Flows that the kernel tracks: those of UDP to a port that is now mapped are forgotten.

use std::io;

use rustix::net::netlink;

use crate::attributes::{Attributes, find};
use crate::nft::Family;
use crate::socket::{self, NetlinkSocket};

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const PROTOCOL_DESTINATION_PORT: u16 = 3;
const UDP: u8 = 17;
const GENERIC_HEADER: usize = 4;

pub(super) fn forget_udp(family: Family, ports: &[u16]) -> io::Result<()> {
    let mut socket = NetlinkSocket::open(Some(netlink::NETFILTER), 0)?;
    for tuple in tuples(&mut socket, family, ports)? {
        socket.send(&message(DELETE, NLM_F_ACK, family, &tuple))?;
        // That it has ended by itself meanwhile is as good.
        socket.receive()?;
    }
    Ok(())
}

/// The first half of every flow to one of the ports: what names it.
fn tuples(socket: &mut NetlinkSocket, family: Family, ports: &[u16]) -> io::Result<Vec<Vec<u8>>> {
    socket.send(&message(GET, NLM_F_DUMP, family, &[]))?;
    let mut found = Vec::new();
    loop {
        for message in socket::messages(socket.receive()?) {
            match message.kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(io::Error::from_raw_os_error(message.error())),
                _ => found.extend(
                    message.payload.get(GENERIC_HEADER..).and_then(|it| tuple_to(it, ports)),
                ),
            }
        }
    }
}

fn tuple_to(attributes: &[u8], ports: &[u16]) -> Option<Vec<u8>> {
    let tuple = find(attributes, TUPLE_ORIGINAL)?;
    let protocol = find(tuple, TUPLE_PROTOCOL)?;
    let port = u16::from_be_bytes(*find(protocol, PROTOCOL_DESTINATION_PORT)?.first_chunk()?);
    let is_udp = find(protocol, PROTOCOL_NUMBER)?.first() == Some(&UDP);
    (is_udp && ports.contains(&port))
        .then(|| Attributes::default().raw_nest(TUPLE_ORIGINAL, tuple).as_bytes().to_vec())
}

fn message(kind: u16, flags: u16, family: Family, attributes: &[u8]) -> Vec<u8> {
    let len = socket::HEADER_LEN + GENERIC_HEADER + attributes.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&(len as u32).to_ne_bytes());
    bytes.extend_from_slice(&(SUBSYSTEM << 8 | kind).to_ne_bytes());
    bytes.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[family as u8, 0, 0, 0]);
    bytes.extend_from_slice(attributes);
    bytes
}
