//! The pair of devices that a test pod is, and how the kernel gets to it.
//!
//! Both ends are in the node's own namespace. What the kernel sends to the pod has a link-layer address that the far
//! end does not have, so that the kernel does not take it in there: only this process, which reads along, sees it.

use std::net::IpAddr;

use flannel_kernel::{IfName, Mac, TEST_POD_DEVICES, is_test_pod_device};
use flannel_netlink::{Connection, Protocol, Request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{PodError, addresses};

/// So many test pods a node may have at once: one for each network.
const MOST: u32 = 100;

pub(super) struct Devices {
    kernel: Connection,
    near: u32,
    pub(super) far: u32,
    /// Of the end that is the node's.
    pub(super) near_mac: Mac,
    pub(super) pod_mac: Mac,
}

impl Drop for Devices {
    fn drop(&mut self) {
        if let Err(error) = apply(&mut self.kernel, "remove the test pod", delete(self.near)) {
            tracing::warn!("{error}; `flannelctl cleanup` or a restart of flanneld removes it");
        }
    }
}

impl Devices {
    pub(super) fn make(addresses: &[IpAddr], mtu: u32) -> Result<Self, PodError> {
        let mut rng = fastrand::Rng::new();
        let mut kernel = Connection::open(Protocol::Route)
            .map_err(|error| PodError::new("talk to the kernel", error))?;
        let (near_mac, far_mac) = (Mac::random(&mut rng), Mac::random(&mut rng));
        let near = make_pair(&mut kernel, near_mac, far_mac, mtu)?;
        let pod_mac = Mac::random(&mut rng);
        // From here on it is removed if anything fails.
        let mut devices = Self { kernel, near: near.0, far: near.1, near_mac, pod_mac };
        // Nobody but a card would finish the checksums of what this node itself sends.
        flannel_kernel::set_tx_checksum(near.2, false).map_err(|error| {
            PodError::new(format!("switch off the checksum offload of {}", near.2), error)
        })?;
        devices.apply("keep the test pod's far end without an address", no_address(near.1))?;
        devices.apply("set the test pod's devices up", up(near.1))?;
        devices.apply("set the test pod's devices up", up(near.0))?;
        for ip in addresses {
            devices.apply("lead to the test pod", neighbour(near.0, *ip, pod_mac))?;
            devices.apply("lead to the test pod", route(near.0, *ip))?;
        }
        Ok(devices)
    }

    fn apply(&mut self, attempted: &str, request: Request) -> Result<(), PodError> {
        apply(&mut self.kernel, attempted, request)
    }
}

fn apply(kernel: &mut Connection, attempted: &str, request: Request) -> Result<(), PodError> {
    let mut refused = None;
    let sent = kernel.apply([request], |_, error| refused = Some(error));
    sent.map_err(|error| PodError::new(attempted, error))?;
    match refused {
        None => Ok(()),
        Some(error) => Err(PodError::new(attempted, error)),
    }
}

/// The indices of both ends, and the name of the near one.
fn make_pair(
    kernel: &mut Connection,
    near_mac: Mac,
    far_mac: Mac,
    mtu: u32,
) -> Result<(u32, u32, IfName), PodError> {
    let attempted = "make the devices of a test pod";
    let mut taken = None;
    for number in 0..MOST {
        let [near, far] = TEST_POD_DEVICES.map(|name| format!("{name}{number}"));
        let mut peer = named(&far, far_mac, mtu);
        let mut message = named(&near, near_mac, mtu);
        peer.header.flags = LinkFlags::empty();
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let request = Request {
            message: RouteNetlinkMessage::NewLink(message),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        };
        let mut refused = None;
        kernel
            .apply([request], |_, error| refused = Some(error))
            .map_err(|error| PodError::new(attempted, error))?;
        match refused {
            None => {
                let index = |name: &str| {
                    let socket = rustix::net::socket(
                        rustix::net::AddressFamily::INET,
                        rustix::net::SocketType::DGRAM,
                        None,
                    );
                    socket
                        .and_then(|socket| rustix::net::netdevice::name_to_index(&socket, name))
                        .map_err(|error| PodError::new(attempted, error))
                };
                let name: IfName = near.parse().map_err(|error| PodError::new(attempted, error))?;
                return Ok((index(&near)?, index(&far)?, name));
            }
            Some(error) if error.errno == libc::EEXIST => taken = Some(near),
            Some(error) => return Err(PodError::new(attempted, error)),
        }
    }
    let reason =
        format!("{} is there already, and so are all before it", taken.unwrap_or_default());
    Err(PodError::new(attempted, reason))
}

/// Removes what test pods of processes that were killed have left. Not to be called while this node has one that is
/// in use.
pub fn sweep() {
    addresses::sweep();
    let Ok(mut kernel) = Connection::open(Protocol::Route) else { return };
    let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let left = kernel.dump(&all, |message| match message {
        RouteNetlinkMessage::NewLink(link) if is_test_pod_device(&link) => Some(link.header.index),
        _ => None,
    });
    for index in left.unwrap_or_default() {
        // The other end goes with the first.
        let _ = apply(&mut kernel, "remove what a test pod has left", delete(index));
    }
}

fn named(name: &str, mac: Mac, mtu: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::NumTxQueues(1),
        LinkAttribute::NumRxQueues(1),
    ];
    message
}

fn indexed(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn delete(index: u32) -> Request {
    Request { message: RouteNetlinkMessage::DelLink(indexed(index)), flags: 0 }
}

fn up(index: u32) -> Request {
    let mut message = indexed(index);
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    Request { message: RouteNetlinkMessage::NewLink(message), flags: 0 }
}

fn no_address(index: u32) -> Request {
    let mut message = indexed(index);
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]));
    Request { message: RouteNetlinkMessage::NewLink(message), flags: 0 }
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn neighbour(near: u32, ip: IpAddr, mac: Mac) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = near;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(ip.into()),
        NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
    ];
    let message = RouteNetlinkMessage::NewNeighbour(message);
    Request { message, flags: NLM_F_CREATE | NLM_F_REPLACE }
}

/// Not with flannel's own protocol: the engine would take it for a peer's that is gone.
fn route(near: u32, ip: IpAddr) -> Request {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(ip),
        destination_prefix_length: if ip.is_ipv4() { 32 } else { 128 },
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Boot,
        scope: if ip.is_ipv4() { RouteScope::Link } else { RouteScope::Universe },
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Destination(ip.into()), RouteAttribute::Oif(near)];
    Request { message: RouteNetlinkMessage::NewRoute(message), flags: NLM_F_CREATE | NLM_F_EXCL }
}
