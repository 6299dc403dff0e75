//! Addresses.

use std::net::IpAddr;

use flannel_kernel::netlink::Request;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Change, Kernel, KernelError};

impl Kernel {
    /// Of one link, or of all.
    pub(crate) fn addresses(&mut self, link: Option<u32>) -> Result<Vec<IpNet>, KernelError> {
        Ok(self.address_messages(link)?.iter().filter_map(address_of).collect())
    }

    /// Whether an address is still being tried out, or has failed.
    pub(crate) fn is_tentative(&mut self, link: u32) -> Result<bool, KernelError> {
        let undecided = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
        Ok(self
            .address_messages(Some(link))?
            .iter()
            .any(|message| message.header.flags.intersects(undecided)))
    }

    fn address_messages(&mut self, link: Option<u32>) -> Result<Vec<AddressMessage>, KernelError> {
        let mut message = AddressMessage::default();
        message.header.index = link.unwrap_or_default();
        // Kernels before 4.20 do not know how to filter.
        let wanted =
            |message: &AddressMessage| link.is_none_or(|link| link == message.header.index);
        Ok(self.connection.dump(
            &RouteNetlinkMessage::GetAddress(message),
            |found| match found {
                RouteNetlinkMessage::NewAddress(found) if wanted(&found) => Some(found),
                _ => None,
            },
        )?)
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

/// The link's own address; of a point-to-point one, not the other side's.
fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let find = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(ip) if local => Some(*ip),
            AddressAttribute::Address(ip) if !local => Some(*ip),
            _ => None,
        })
    };
    IpNet::new(find(true).or_else(|| find(false))?, message.header.prefix_len).ok()
}
