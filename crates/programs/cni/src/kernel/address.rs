//! Addresses.

use std::net::IpAddr;

use flannel_netlink::{Attributes, Request, ip, verbs};
use ipnet::IpNet;
use libc::{IFA_ADDRESS, IFA_LOCAL, RTM_GETADDR};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags};

use super::query::number;
use super::{Change, Kernel, KernelError};

const ADDRESS_HEADER: usize = 8;

struct Found {
    link: u32,
    address: IpNet,
    flags: u8,
}

impl Kernel {
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
        let mut message = verbs::address(link, address, tried_out);
        if let IpAddr::V4(broadcast) = address.broadcast() {
            message.attributes.push(AddressAttribute::Broadcast(broadcast));
        }
        let what = format!("add the address {address} to {name}");
        Self::new(what, Request::create_address(message))
    }

    pub(crate) fn delete_address(link: u32, name: &str, address: IpNet) -> Self {
        let what = format!("remove the address {address} from {name}");
        Self::new(what, Request::delete_address(link, address)).unless(&[libc::EADDRNOTAVAIL])
    }
}
