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
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const FILTER_PROTOCOL: u32 = 1 << 3;
const FILTER_DESTINATION_PORT: u32 = 1 << 5;
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const GENERIC_HEADER: usize = 4;

/// The kernel goes through the whole of its table, of which it has one for all namespaces: ten
/// milliseconds, however little is in there.
pub(super) fn forget_udp(families: &[Family], ports: &[u16]) -> io::Result<()> {
    if ports.is_empty() || families.is_empty() || are_there_no_flows() {
        return Ok(());
    }
    let mut socket = NetlinkSocket::open(Some(netlink::NETFILTER), 0)?;
    for family in families {
        for tuple in tuples(&mut socket, *family, ports)? {
            socket.send(&message(DELETE, NLM_F_ACK, *family, &tuple))?;
            // That it has ended by itself meanwhile is as good.
            socket.receive()?;
        }
    }
    Ok(())
}

/// Of this namespace. Without the file, nothing is tracked.
fn are_there_no_flows() -> bool {
    std::fs::read(COUNT).is_ok_and(|text| text.trim_ascii() == b"0")
}

/// The first half of every flow to one of the ports: what names it.
fn tuples(socket: &mut NetlinkSocket, family: Family, ports: &[u16]) -> io::Result<Vec<Vec<u8>>> {
    match filtered(socket, family, ports) {
        // Kernels before 5.8 know no filter.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            dump(socket, family, ports, &[])
        }
        other => other,
    }
}

/// Lets the kernel pick the flows of UDP, and those to the port if there is but one: what it does not
/// send need not be read.
fn filtered(socket: &mut NetlinkSocket, family: Family, ports: &[u16]) -> io::Result<Vec<Vec<u8>>> {
    let mut protocol = Attributes::default().bytes(PROTOCOL_NUMBER, &[UDP]);
    let mut wanted = FILTER_PROTOCOL;
    if let [port] = ports {
        protocol = protocol.bytes(PROTOCOL_DESTINATION_PORT, &port.to_be_bytes());
        wanted |= FILTER_DESTINATION_PORT;
    }
    let tuple = Attributes::default().nest(TUPLE_PROTOCOL, protocol);
    let flags = Attributes::default()
        .bytes(FILTER_ORIGINAL, &wanted.to_ne_bytes())
        .bytes(FILTER_REPLY, &0u32.to_ne_bytes());
    let filter = Attributes::default().nest(TUPLE_ORIGINAL, tuple).nest(FILTER, flags);
    dump(socket, family, ports, filter.as_bytes())
}

fn dump(
    socket: &mut NetlinkSocket,
    family: Family,
    ports: &[u16],
    filter: &[u8],
) -> io::Result<Vec<Vec<u8>>> {
    let mut wanted = ports.to_vec();
    wanted.sort_unstable();
    socket.send(&message(GET, NLM_F_DUMP, family, filter))?;
    let mut found = Vec::new();
    loop {
        for message in socket::messages(socket.receive()?) {
            match message.kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(io::Error::from_raw_os_error(message.error())),
                _ => found.extend(
                    message.payload.get(GENERIC_HEADER..).and_then(|it| tuple_to(it, &wanted)),
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
    (is_udp && ports.binary_search(&port).is_ok())
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
