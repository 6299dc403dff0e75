//! Links: looking them up, making bridges and pairs of virtual Ethernet interfaces.

use std::os::fd::{AsRawFd, BorrowedFd};

use flannel_kernel::Mac;
use flannel_kernel::netlink::Request;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute,
    LinkExtentMask, LinkFlags, LinkInfo, LinkMessage, State,
};

use super::{Change, Kernel, KernelError};

/// A link as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) mac: Option<Mac>,
    pub(crate) up: bool,
    pub(crate) promiscuous: bool,
    /// Frames can pass.
    pub(crate) operational: bool,
    /// `bridge`, `veth`, …; empty for hardware.
    pub(crate) kind: String,
    pub(crate) master: Option<u32>,
    /// Of one end of a pair: the index of the other, in its own namespace.
    pub(crate) peer: Option<u32>,
}

/// A pair of interfaces, one end of which is in another namespace.
pub(crate) struct Veth<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
    pub(crate) bridge: u32,
    pub(crate) peer_name: &'a str,
    pub(crate) peer_mac: Mac,
    pub(crate) peer_netns: BorrowedFd<'a>,
    pub(crate) mtu: Option<u32>,
}

impl Kernel {
    /// `None`: there is no such link.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, KernelError> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]),
        ];
        match self.connection.get(&RouteNetlinkMessage::GetLink(message))? {
            Ok(RouteNetlinkMessage::NewLink(message)) => Ok(Some(Link::of(&message))),
            Ok(_) => Ok(None),
            Err(error) if error.errno == libc::ENODEV => Ok(None),
            Err(error) => Err(KernelError::Refused { what: format!("look up {name}"), error }),
        }
    }
}

impl Link {
    fn of(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            mac: None,
            up: message.header.flags.contains(LinkFlags::Up),
            promiscuous: message.header.flags.contains(LinkFlags::Promisc),
            operational: false,
            kind: String::new(),
            master: None,
            peer: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::Address(octets) => link.mac = Mac::from_slice(octets),
                LinkAttribute::OperState(state) => link.operational = *state == State::Up,
                LinkAttribute::Controller(index) => link.master = Some(*index),
                LinkAttribute::Link(index) => link.peer = Some(*index),
                LinkAttribute::Promiscuity(count) => link.promiscuous |= *count > 0,
                LinkAttribute::LinkInfo(infos) => {
                    if let Some(LinkInfo::Kind(kind)) =
                        infos.iter().find(|info| matches!(info, LinkInfo::Kind(_)))
                    {
                        link.kind = kind.to_string();
                    }
                }
                _ => {}
            }
        }
        link
    }
}

impl Change {
    /// A bridge that has its own address rather than that of whichever port comes first. Another ADD
    /// may make it at the same moment.
    pub(crate) fn make_bridge(name: &str, mac: Mac, mtu: Option<u32>) -> Self {
        let mut message = named(name);
        message.attributes.extend([
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ]);
        message.attributes.extend(mtu.map(LinkAttribute::Mtu));
        let request = Request {
            message: RouteNetlinkMessage::NewLink(message),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        };
        Self::new(format!("make the bridge {name}"), request).unless(&[libc::EEXIST])
    }

    /// The near end joins the bridge and is up from the start.
    pub(crate) fn make_veth(veth: &Veth<'_>) -> Self {
        let mut peer = named(veth.peer_name);
        peer.attributes.extend([
            LinkAttribute::Address(veth.peer_mac.0.to_vec()),
            LinkAttribute::NetNsFd(veth.peer_netns.as_raw_fd()),
        ]);
        peer.attributes.extend(veth.mtu.map(LinkAttribute::Mtu));
        let mut message = named(veth.name);
        set_up(&mut message);
        message.attributes.extend([
            LinkAttribute::Address(veth.mac.0.to_vec()),
            LinkAttribute::Controller(veth.bridge),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ]);
        message.attributes.extend(veth.mtu.map(LinkAttribute::Mtu));
        let what = format!("make the pair {} and {}", veth.name, veth.peer_name);
        let request = Request {
            message: RouteNetlinkMessage::NewLink(message),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        };
        Self::new(what, request)
    }

    /// How a port of a bridge treats frames: `hairpin` sends them back where they came from,
    /// `isolated` keeps them from other isolated ports.
    pub(crate) fn set_port(name: &str, hairpin: bool, isolated: bool) -> Self {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::HairpinMode(hairpin),
                InfoBridgePort::Isolated(isolated),
            ])),
        ]));
        Self::set_link(format!("set the mode of bridge port {name}"), message)
    }

    pub(crate) fn set_up(index: u32, name: &str) -> Self {
        let mut message = indexed(index);
        set_up(&mut message);
        Self::set_link(format!("set {name} up"), message)
    }

    pub(crate) fn set_down(index: u32, name: &str) -> Self {
        let mut message = indexed(index);
        message.header.change_mask = LinkFlags::Up;
        Self::set_link(format!("set {name} down"), message)
    }

    pub(crate) fn set_promiscuous(index: u32, name: &str) -> Self {
        let mut message = indexed(index);
        message.header.flags = LinkFlags::Promisc;
        message.header.change_mask = LinkFlags::Promisc;
        Self::set_link(format!("set {name} promiscuous"), message)
    }

    pub(crate) fn set_mac(index: u32, name: &str, mac: Mac) -> Self {
        let mut message = indexed(index);
        message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        Self::set_link(format!("fix the MAC address of {name}"), message)
    }

    fn set_link(what: String, message: LinkMessage) -> Self {
        Self::new(what, Request { message: RouteNetlinkMessage::NewLink(message), flags: 0 })
    }
}

/// The name of a link of the namespace this thread is in.
pub(crate) fn name_of(index: u32) -> Option<String> {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None)
            .ok()?;
    rustix::net::netdevice::index_to_name(&socket, index).ok()
}

fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message
}

fn indexed(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn set_up(message: &mut LinkMessage) {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
}
