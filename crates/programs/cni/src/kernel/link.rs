//! Links: looking them up, making bridges and pairs of virtual Ethernet interfaces.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use flannel_common::Mac;
use flannel_netlink::verbs::{kind_attribute, mac_attribute, named_link, veth_end};
use flannel_netlink::{AttributeWriter, Attributes, RawRequest, Request, text};
use libc::{
    IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_EXT_MASK, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_KIND,
    IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_OPERSTATE, IFLA_PROMISCUITY, RTM_GETLINK,
};
use netlink_packet_route::link::{
    InfoBridgePort, InfoKind, InfoPortData, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo,
};

use super::query::number;
use super::{Change, Kernel, KernelError};
use crate::protocol::{Result, internal};

const LINK_HEADER: usize = 16;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
/// Where they stand in the list of a link's settings.
const IPV4_FORWARDING: usize = 0;
const IPV4_ROUTE_LOCALNET: usize = 25;
const IPV6_FORWARDING: usize = 0;
const IPV6_ACCEPT_RA: usize = 3;
const IPV6_DISABLED: usize = 26;
const OPERATIONAL: u8 = 6;

#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) mac: Option<Mac>,
    pub(crate) up: bool,
    pub(crate) promiscuous: bool,
    pub(crate) mtu: u32,
    /// Frames can pass.
    pub(crate) operational: bool,
    /// `bridge`, `veth`, …; empty for hardware.
    pub(crate) kind: String,
    pub(crate) master: Option<u32>,
    /// Of one end of a pair: the index of the other, in its own namespace.
    pub(crate) peer: Option<u32>,
    pub(crate) name: String,
    /// What is noted at it for people.
    pub(crate) alias: String,
    pub(crate) settings: Settings,
}

/// Of what `/proc/sys/net` says of a link, that which matters to us. It comes along with the link, and
/// so costs nothing. `None`: the kernel does not say, or has no such family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) ipv4_forwarding: Option<bool>,
    pub(crate) route_localnet: Option<bool>,
    pub(crate) ipv6_forwarding: Option<bool>,
    /// Routers may set our routes.
    pub(crate) accepts_routers: Option<bool>,
    pub(crate) ipv6_disabled: Option<bool>,
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
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, KernelError> {
        let wanted = AttributeWriter::default().text(IFLA_IFNAME, name);
        self.look_up([0; LINK_HEADER], wanted, name)
    }

    /// One that was there a moment ago.
    pub(crate) fn link_made(&mut self, name: &str) -> Result<Link> {
        self.link(name)?.ok_or_else(|| internal!("{name} vanished"))
    }

    /// Only its number, which takes one system call.
    pub(crate) fn index_of(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.connection, name)?)
    }

    pub(crate) fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, KernelError> {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        self.look_up(header, AttributeWriter::default(), &format!("link {index}"))
    }

    pub(crate) fn links_of_kind(&mut self, kind: &str) -> Result<Vec<Link>, KernelError> {
        let all = [0; LINK_HEADER];
        self.ask_all(RTM_GETLINK, &all, |link| Link::of(link).filter(|link| link.kind == kind))
    }

    fn look_up(
        &mut self,
        header: [u8; LINK_HEADER],
        wanted: AttributeWriter,
        name: &str,
    ) -> Result<Option<Link>, KernelError> {
        let wanted = wanted.bytes(IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let question = RawRequest::new(RTM_GETLINK, header, wanted);
        match self.connection.ask(&question, |message| Link::of(message.payload))? {
            Ok(Some(link)) => Ok(Some(link)),
            Ok(None) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("what the kernel says about {name} is cut short"),
            )
            .into()),
            Err(error) if error.errno == libc::ENODEV => Ok(None),
            Err(error) => Err(KernelError::Refused { what: format!("look up {name}"), error }),
        }
    }
}

impl Settings {
    fn of(families: Attributes<'_>) -> Self {
        let setting = |family: libc::c_int, list: u16, at: usize| {
            let list = families.nested(family as u16)?.get(list)?;
            number(list.get(4 * at..)?)
        };
        let ipv4 = |at| setting(libc::AF_INET, IFLA_INET_CONF, at).map(|value| value != 0);
        let ipv6 = |at| setting(libc::AF_INET6, IFLA_INET6_CONF, at).map(|value| value != 0);
        Self {
            ipv4_forwarding: ipv4(IPV4_FORWARDING),
            route_localnet: ipv4(IPV4_ROUTE_LOCALNET),
            ipv6_forwarding: ipv6(IPV6_FORWARDING),
            accepts_routers: ipv6(IPV6_ACCEPT_RA),
            ipv6_disabled: ipv6(IPV6_DISABLED),
        }
    }
}

impl Link {
    fn of(payload: &[u8]) -> Option<Self> {
        let (header, attributes) = payload.split_at_checked(LINK_HEADER)?;
        let flags = number(&header[8..12])?;
        let mut link = Self {
            index: number(&header[4..8])?,
            up: flags & libc::IFF_UP as u32 != 0,
            promiscuous: flags & libc::IFF_PROMISC as u32 != 0,
            ..Self::default()
        };
        for (kind, value) in Attributes(attributes).iter() {
            match kind {
                IFLA_IFNAME => text(value).unwrap_or_default().clone_into(&mut link.name),
                IFLA_IFALIAS => text(value).unwrap_or_default().clone_into(&mut link.alias),
                IFLA_AF_SPEC => link.settings = Settings::of(Attributes(value)),
                IFLA_ADDRESS => link.mac = Mac::from_slice(value),
                IFLA_OPERSTATE => link.operational = value.first() == Some(&OPERATIONAL),
                IFLA_MTU => link.mtu = number(value).unwrap_or_default(),
                IFLA_MASTER => link.master = number(value),
                IFLA_LINK => link.peer = number(value),
                IFLA_PROMISCUITY => {
                    link.promiscuous |= number(value).is_some_and(|count| count > 0)
                }
                IFLA_LINKINFO => {
                    link.kind = Attributes(value).text(IFLA_INFO_KIND).unwrap_or_default().into();
                }
                _ => {}
            }
        }
        Some(link)
    }
}

impl Change {
    /// A bridge with a MAC address of its own. Another ADD may make it at the same moment.
    pub(crate) fn make_bridge(name: &str, mac: Mac, mtu: Option<u32>) -> Self {
        let attributes = [mac_attribute(mac), kind_attribute(InfoKind::Bridge, None)];
        let attributes = attributes.into_iter().chain(mtu.map(LinkAttribute::Mtu));
        let request = Request::create_link(named_link(name, attributes));
        Self::new(format!("make the bridge {name}"), request).unless(&[libc::EEXIST])
    }

    /// The near end joins the bridge. Both are down.
    pub(crate) fn make_veth(veth: &Veth<'_>) -> Self {
        let mut far = veth_end(veth.peer_name, veth.peer_mac, veth.mtu);
        far.attributes.push(LinkAttribute::NetNsFd(veth.peer_netns.as_raw_fd()));
        let mut near = veth_end(veth.name, veth.mac, veth.mtu);
        near.attributes.push(LinkAttribute::Controller(veth.bridge));
        let what = format!("make the pair {} and {}", veth.name, veth.peer_name);
        Self::new(what, Request::create_veth(near, far))
    }

    /// How a port of a bridge treats frames: `hairpin` sends them back where they came from,
    /// `isolated` keeps them from other isolated ports.
    pub(crate) fn set_port(name: &str, hairpin: bool, isolated: bool) -> Self {
        let mode = LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::HairpinMode(hairpin),
                InfoBridgePort::Isolated(isolated),
            ])),
        ]);
        let request = Request::set_link(named_link(name, [mode]));
        Self::new(format!("set the mode of bridge port {name}"), request)
    }

    pub(crate) fn set_up(name: &str) -> Self {
        Self::set_flag(name, "up", LinkFlags::Up, true)
    }

    pub(crate) fn set_down(name: &str) -> Self {
        Self::set_flag(name, "down", LinkFlags::Up, false)
    }

    pub(crate) fn set_promiscuous(name: &str) -> Self {
        Self::set_flag(name, "promiscuous", LinkFlags::Promisc, true)
    }

    fn set_flag(name: &str, word: &str, flag: LinkFlags, on: bool) -> Self {
        let request = Request::set_link_flags(named_link(name, []), flag, on);
        Self::new(format!("set {name} {word}"), request)
    }

    pub(crate) fn set_mac(name: &str, mac: Mac) -> Self {
        let request = Request::set_link(named_link(name, [mac_attribute(mac)]));
        Self::new(format!("set the MAC address of {name} to {mac}"), request)
    }
}
