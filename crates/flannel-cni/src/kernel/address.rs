//! Addresses.

use std::net::IpAddr;

use flannel_netlink::{Attributes, Request, ip};
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::query::number;
use super::{Change, Kernel, KernelError};

const RTM_GETADDR: u16 = 22;
const ADDRESS_HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// An address as it was found.
struct Found {
    link: u32,
    address: IpNet,
    flags: u8,
}

impl Kernel {
    /// Of one link, or of all.
    pub(crate) fn addresses(&mut self, link: Option<u32>) -> Result<Vec<IpNet>, KernelError> {
        Ok(self.all_addresses(link)?.into_iter().map(|found| found.address).collect())
    }

    /// Whether an address is still being tried out, or has failed.
    pub(crate) fn is_tentative(&mut self, link: u32) -> Result<bool, KernelError> {
        let undecided = (AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed).bits();
        Ok(self.all_addresses(Some(link))?.iter().any(|found| found.flags & undecided != 0))
    }

    /// Addresses that a link has made up itself, because of what a router has announced.
    pub(crate) fn announced_addresses(&mut self, link: u32) -> Result<Vec<IpNet>, KernelError> {
        let lasting = AddressHeaderFlags::Permanent.bits();
        let found = self.all_addresses(Some(link))?;
        let is_announced = |it: &Found| it.address.addr().is_ipv6() && it.flags & lasting == 0;
        Ok(found.into_iter().filter(is_announced).map(|found| found.address).collect())
    }

    fn all_addresses(&mut self, link: Option<u32>) -> Result<Vec<Found>, KernelError> {
        let mut header = [0; ADDRESS_HEADER];
        header[4..].copy_from_slice(&link.unwrap_or_default().to_ne_bytes());
        self.ask_all(RTM_GETADDR, &header, |payload| {
            Found::read(payload).filter(|found| link.is_none_or(|link| link == found.link))
        })
    }
}

impl Found {
    fn read(payload: &[u8]) -> Option<Self> {
        let (header, attributes) = payload.split_at_checked(ADDRESS_HEADER)?;
        // The link's own address; of a point-to-point one, not the other side's.
        let attributes = Attributes(attributes);
        let own = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS)).and_then(ip)?;
        Some(Self {
            link: number(&header[4..])?,
            address: IpNet::new(own, header[1]).ok()?,
            flags: header[2],
        })
    }
}

impl Change {
    /// `tried_out`: let IPv6 ask around first whether somebody has it already.
    pub(crate) fn add_address(link: u32, name: &str, address: IpNet, tried_out: bool) -> Self {
        let mut message = message(link, address);
        if address.addr().is_ipv6() && !tried_out {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        if let IpAddr::V4(broadcast) = address.broadcast() {
            message.attributes.push(AddressAttribute::Broadcast(broadcast));
        }
        let request = Request {
            message: RouteNetlinkMessage::NewAddress(message),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        };
        Self::new(format!("add the address {address} to {name}"), request)
    }

    pub(crate) fn delete_address(link: u32, name: &str, address: IpNet) -> Self {
        let message = RouteNetlinkMessage::DelAddress(message(link, address));
        Self::new(
            format!("remove the address {address} from {name}"),
            Request { message, flags: 0 },
        )
        .unless(&[libc::EADDRNOTAVAIL])
    }

    /// It is fine when somebody else has done so meanwhile.
    pub(crate) fn or_exists(self) -> Self {
        self.unless(&[libc::EEXIST])
    }
}

fn message(link: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: if address.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 },
        prefix_len: address.prefix_len(),
        flags: AddressHeaderFlags::empty(),
        scope: AddressScope::Universe,
        index: link,
    };
    message.attributes =
        vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    message
}
