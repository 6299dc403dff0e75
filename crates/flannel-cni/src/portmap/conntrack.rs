//! Flows that the kernel tracks: those of UDP to a port that is now mapped are forgotten.

use std::io;

use flannel_netlink::nfnetlink::{self, CONNTRACK, NetfilterRequest};
use flannel_netlink::{AttributeWriter, Attributes, Connection, NetlinkError, Protocol};

use crate::nft::TableFamily;

const GET: u16 = 1;
const DELETE: u16 = 2;

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

/// The kernel goes through the whole of its table, of which it has one for all namespaces: ten
/// milliseconds, however little is in there.
pub(super) fn forget_udp(families: &[TableFamily], ports: &[u16]) -> io::Result<()> {
    if ports.is_empty() || families.is_empty() || are_there_no_flows() {
        return Ok(());
    }
    let mut wanted = ports.to_vec();
    wanted.sort_unstable();
    let mut connection = Connection::open(Protocol::Netfilter)?;
    for family in families {
        let flows = flows(&mut connection, *family, &wanted)?;
        // That one has ended by itself meanwhile is as good.
        let removals = flows.into_iter().map(|flow| request(DELETE, *family, flow));
        connection.apply(removals, |_, _| ())?;
    }
    Ok(())
}

/// Of this namespace. Without the file, nothing is tracked.
fn are_there_no_flows() -> bool {
    std::fs::read(COUNT).is_ok_and(|text| text.trim_ascii() == b"0")
}

/// The first half of every flow to one of the ports: what names it.
fn flows(
    connection: &mut Connection,
    family: TableFamily,
    ports: &[u16],
) -> io::Result<Vec<AttributeWriter>> {
    let mut list = |filter: AttributeWriter| {
        connection.ask_all(&request(GET, family, filter), |message| {
            flow_to(nfnetlink::read(message, CONNTRACK)?.attributes, ports)
        })
    };
    let listed = match list(filter(ports))? {
        // Kernels before 5.8 know no filter.
        Err(NetlinkError { errno: libc::EINVAL | libc::EOPNOTSUPP, .. }) => {
            list(AttributeWriter::default())?
        }
        other => other,
    };
    listed.map_err(|error| io::Error::from_raw_os_error(error.errno))
}

/// Lets the kernel pick the flows of UDP, and those to the port if there is but one: what it does not
/// send need not be read.
fn filter(ports: &[u16]) -> AttributeWriter {
    let mut protocol = AttributeWriter::default().bytes(PROTOCOL_NUMBER, &[UDP]);
    let mut wanted = FILTER_PROTOCOL;
    if let [port] = ports {
        protocol = protocol.bytes(PROTOCOL_DESTINATION_PORT, &port.to_be_bytes());
        wanted |= FILTER_DESTINATION_PORT;
    }
    let tuple = AttributeWriter::default().nest(TUPLE_PROTOCOL, &protocol);
    let flags = AttributeWriter::default()
        .bytes(FILTER_ORIGINAL, &wanted.to_ne_bytes())
        .bytes(FILTER_REPLY, &0u32.to_ne_bytes());
    AttributeWriter::default().nest(TUPLE_ORIGINAL, &tuple).nest(FILTER, &flags)
}

fn flow_to(flow: Attributes<'_>, ports: &[u16]) -> Option<AttributeWriter> {
    let tuple = flow.nested(TUPLE_ORIGINAL)?;
    let protocol = tuple.nested(TUPLE_PROTOCOL)?;
    let port = u16::from_be_bytes(*protocol.get(PROTOCOL_DESTINATION_PORT)?.first_chunk()?);
    let is_udp = protocol.get(PROTOCOL_NUMBER)?.first() == Some(&UDP);
    (is_udp && ports.binary_search(&port).is_ok())
        .then(|| AttributeWriter::default().nest_read(TUPLE_ORIGINAL, tuple))
}

fn request(kind: u16, family: TableFamily, attributes: AttributeWriter) -> NetfilterRequest {
    NetfilterRequest { subsystem: CONNTRACK, kind, flags: 0, family: family as u8, attributes }
}
