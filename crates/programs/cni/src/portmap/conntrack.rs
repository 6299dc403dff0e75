//! Flows that the kernel tracks: those of UDP to a port that is now mapped are forgotten.

use std::io;
use std::os::fd::AsFd as _;

use flannel_netlink::nfnetlink::{self, CONNTRACK};
use flannel_netlink::{
    AttributeWriter, Attributes, Connection, NetlinkError, Protocol, RawRequest,
};
use flannel_nft::TableFamily;

use crate::deferred_kernel_work;

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

/// Flows of UDP to some ports of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpFlows {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
    pub(crate) ports: Vec<u16>,
}

impl UdpFlows {
    /// How many ports somebody else is asked to look for.
    const MOST_PORTS: usize = 64;
    pub(crate) const LONGEST: usize = 1 + 2 * Self::MOST_PORTS;
    const IPV4: u8 = 1;
    const IPV6: u8 = 2;

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let of = |is_asked, bit| if is_asked { bit } else { 0 };
        let mut bytes = vec![of(self.ipv4, Self::IPV4) | of(self.ipv6, Self::IPV6)];
        bytes.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
        bytes
    }

    /// `None`: they are not flows, or too many.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (families, ports) = bytes.split_first()?;
        let (ports, rest) = ports.as_chunks::<2>();
        let is_sound = rest.is_empty() && bytes.len() <= Self::LONGEST;
        let ports = ports.iter().map(|port| u16::from_be_bytes(*port));
        is_sound.then(|| Self {
            ipv4: families & Self::IPV4 != 0,
            ipv6: families & Self::IPV6 != 0,
            ports: ports.collect(),
        })
    }

    /// The kernel goes through the whole of its table, of which it has one for all namespaces: ten
    /// milliseconds, however little is in there.
    pub(crate) fn forget(&self, connection: &mut Connection) -> io::Result<()> {
        let mut wanted = self.ports.clone();
        wanted.sort_unstable();
        for (is_asked, family) in [(self.ipv4, TableFamily::Ipv4), (self.ipv6, TableFamily::Ipv6)] {
            if !is_asked {
                continue;
            }
            let flows = flows(connection, family, &wanted)?;
            // That one has ended by itself meanwhile is as good.
            let removals = flows.into_iter().map(|flow| request(DELETE, family, flow));
            connection.apply(removals, |_, _| ())?;
        }
        Ok(())
    }
}

/// Forgets flows, or has flanneld do it: nobody waits for that.
pub(super) fn forget_udp(flows: &UdpFlows) -> io::Result<()> {
    // Without the file, nothing is tracked in this namespace.
    let is_empty = std::fs::read(COUNT).is_ok_and(|text| text.trim_ascii() == b"0");
    if flows.ports.is_empty() || is_empty {
        return Ok(());
    }
    if flows.ports.len() <= UdpFlows::MOST_PORTS {
        let handed = Connection::open(Protocol::Netfilter)?;
        if deferred_kernel_work::forget_flows(handed.as_fd(), flows) {
            return Ok(());
        }
    }
    flows.forget(&mut Connection::open(Protocol::Netfilter)?)
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

/// Lets the kernel pick flows of UDP, to the port if there is but one: the rest need not be read.
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

fn request(kind: u16, family: TableFamily, attributes: AttributeWriter) -> RawRequest {
    nfnetlink::request(CONNTRACK, kind, family as u8, attributes)
}
