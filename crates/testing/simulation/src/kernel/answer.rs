//! Requests as bytes, and the answers to them.

use flannel_netlink::{Message, decode, messages};
use netlink_packet_core::{Emitable as _, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_core::{NLM_F_MULTIPART, NLM_F_REPLACE};
use netlink_packet_route::link::{
    InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader};
use netlink_packet_route::rule::{RuleAction, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Kernel, link_name};

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The state has changed while it was listed.
const DUMP_INTERRUPTED: u16 = 0x10;
/// The request is quoted without its payload.
const CAPPED: u16 = 0x100;
const HEADER_LEN: usize = 16;
/// Less than the buffer of a socket.
const DATAGRAM_BYTES: usize = 16 << 10;

const VXLAN_PORT: u16 = 8472;

type Errno = i32;

/// Appends a message.
pub(super) fn append(
    bytes: &mut Vec<u8>,
    message: &RouteNetlinkMessage,
    flags: u16,
    sequence: u32,
    port: u32,
) {
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&mut payload);
    append_raw(bytes, message.message_type(), flags, sequence, port, &payload);
}

fn append_raw(bytes: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, port: u32, body: &[u8]) {
    bytes.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(port.to_ne_bytes());
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

impl Kernel {
    /// Carries out requests, and returns the datagrams that answer them.
    pub(super) fn answer(&self, bytes: &[u8], port: u32) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        for message in messages(bytes) {
            let Ok(message) = message else { break };
            if message.flags & NLM_F_DUMP == NLM_F_DUMP {
                self.dump(message, port, &mut datagrams);
                continue;
            }
            let outcome = match decode(message) {
                Some(request) => self.carry_out(request, message.flags, port),
                None => Err(libc::EOPNOTSUPP),
            };
            let mut datagram = Vec::new();
            match outcome {
                Ok(Some(answer)) => append(&mut datagram, &answer, 0, message.sequence, port),
                Ok(None) if message.flags & NLM_F_ACK == 0 => continue,
                other => {
                    let errno = other.err().unwrap_or(0);
                    let mut body = (-errno).to_ne_bytes().to_vec();
                    body.extend(((HEADER_LEN + message.payload.len()) as u32).to_ne_bytes());
                    body.extend(message.kind.to_ne_bytes());
                    body.extend(message.flags.to_ne_bytes());
                    body.extend(message.sequence.to_ne_bytes());
                    body.extend(port.to_ne_bytes());
                    append_raw(&mut datagram, ERROR, CAPPED, message.sequence, port, &body);
                }
            }
            datagrams.push(datagram);
        }
        datagrams
    }

    fn dump(&self, message: Message<'_>, port: u32, datagrams: &mut Vec<Vec<u8>>) {
        let sequence = message.sequence;
        let listed = decode(message).map_or_else(Vec::new, |request| self.list(&request));
        let torn = self.torn_dumps.get();
        self.torn_dumps.set(torn.saturating_sub(1));
        let flags = NLM_F_MULTIPART | if torn > 0 { DUMP_INTERRUPTED } else { 0 };
        let mut datagram = Vec::new();
        for item in listed {
            append(&mut datagram, &item, flags, sequence, port);
            if datagram.len() > DATAGRAM_BYTES {
                datagrams.push(std::mem::take(&mut datagram));
            }
        }
        append_raw(&mut datagram, DONE, flags, sequence, port, &0i32.to_ne_bytes());
        datagrams.push(datagram);
    }

    fn list(&self, request: &RouteNetlinkMessage) -> Vec<RouteNetlinkMessage> {
        use RouteNetlinkMessage as M;
        let state = self.state.borrow();
        match request {
            M::GetLink(_) => state.links.values().cloned().map(M::NewLink).collect(),
            M::GetAddress(_) => state.addresses.iter().cloned().map(M::NewAddress).collect(),
            M::GetRoute(asked) => {
                let family = asked.header.address_family;
                let routes = state.routes.iter().filter(|it| it.header.address_family == family);
                routes.cloned().map(M::NewRoute).collect()
            }
            M::GetNeighbour(asked) => {
                let family = asked.header.family;
                let link = asked.attributes.iter().find_map(|attribute| match attribute {
                    NeighbourAttribute::IfIndex(index) => Some(*index),
                    _ => None,
                });
                let link = link.unwrap_or(asked.header.ifindex);
                let wanted = |it: &&NeighbourMessage| {
                    it.header.family == family && (link == 0 || it.header.ifindex == link)
                };
                state.neighbours.iter().filter(wanted).cloned().map(M::NewNeighbour).collect()
            }
            M::GetRule(asked) => {
                let mut rule = RuleMessage::default();
                rule.header.family = asked.header.family;
                rule.header.action = RuleAction::ToTable;
                rule.header.table = RouteHeader::RT_TABLE_MAIN;
                vec![M::NewRule(rule)]
            }
            _ => Vec::new(),
        }
    }

    fn carry_out(
        &self,
        request: RouteNetlinkMessage,
        flags: u16,
        port: u32,
    ) -> Result<Option<RouteNetlinkMessage>, Errno> {
        use RouteNetlinkMessage as M;
        match request {
            M::GetLink(asked) => {
                let state = self.state.borrow();
                let found = match link_name(&asked) {
                    Some(name) => state.links.values().find(|it| link_name(it) == Some(name)),
                    None => state.links.get(&asked.header.index),
                };
                return found.cloned().map(|it| Some(M::NewLink(it))).ok_or(libc::ENODEV);
            }
            M::GetRoute(asked) => return self.look_up(&asked).map(|it| Some(M::NewRoute(it))),
            _ => {}
        }
        self.writes.set(self.writes.get() + 1);
        let is_put = flags & (NLM_F_CREATE | NLM_F_REPLACE) != 0;
        if is_put && self.refusals.get() > 0 {
            self.refusals.set(self.refusals.get() - 1);
            self.note(format_args!("refuses a change"));
            return Err(libc::ENOMEM);
        }
        match request {
            M::NewLink(link) if flags & NLM_F_CREATE != 0 => {
                if link_name(&link).is_some_and(|name| self.link_index(name).is_some()) {
                    return Err(libc::EEXIST);
                }
                self.add_link(link, port);
            }
            M::NewLink(link) => self.change_link(link, port)?,
            M::DelLink(link) => self.remove_link(link.header.index, port)?,
            M::NewAddress(address) => self.add_address(address, port),
            M::DelAddress(address) => self.remove_address(address, port)?,
            M::NewRoute(route) => self.add_route(route, flags & NLM_F_EXCL == 0, port)?,
            M::DelRoute(route) => self.remove_route(&route, port)?,
            M::NewNeighbour(neighbour) => self.add_neighbour(neighbour, port)?,
            M::DelNeighbour(neighbour) => self.remove_neighbour(&neighbour, port)?,
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(None)
    }

    pub(super) fn add_link(&self, mut link: LinkMessage, by: u32) {
        {
            let mut state = self.state.borrow_mut();
            link.header.index = state.next_link;
            link.header.flags = LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running;
            link.header.change_mask = LinkFlags::empty();
            complete_vxlan(&mut link);
            state.next_link += 1;
            state.links.insert(link.header.index, link.clone());
        }
        self.note(format_args!("new link {}", link_name(&link).unwrap_or("?")));
        self.announce(libc::RTNLGRP_LINK, &RouteNetlinkMessage::NewLink(link), by);
    }

    fn change_link(&self, change: LinkMessage, by: u32) -> Result<(), Errno> {
        let changed = {
            let mut state = self.state.borrow_mut();
            let link = state.links.get_mut(&change.header.index).ok_or(libc::ENODEV)?;
            let mask = change.header.change_mask;
            link.header.flags = (link.header.flags - mask) | (change.header.flags & mask);
            for attribute in change.attributes {
                let kind = std::mem::discriminant(&attribute);
                if let LinkAttribute::LinkInfo(infos) = attribute {
                    change_vxlan(link, &infos);
                } else {
                    link.attributes.retain(|it| std::mem::discriminant(it) != kind);
                    link.attributes.push(attribute);
                }
            }
            link.clone()
        };
        self.announce(libc::RTNLGRP_LINK, &RouteNetlinkMessage::NewLink(changed), by);
        Ok(())
    }

    pub(super) fn remove_link(&self, index: u32, by: u32) -> Result<(), Errno> {
        let link = {
            let mut state = self.state.borrow_mut();
            let link = state.links.remove(&index).ok_or(libc::ENODEV)?;
            state.addresses.retain(|address| address.header.index != index);
            // The kernel says nothing of the routes that go with a device.
            state.routes.retain(|route| {
                !route
                    .attributes
                    .iter()
                    .any(|it| matches!(it, RouteAttribute::Oif(oif) if *oif == index))
            });
            state.neighbours.retain(|it| it.header.ifindex != index);
            link
        };
        self.note(format_args!("link {} is gone", link_name(&link).unwrap_or("?")));
        self.announce(libc::RTNLGRP_LINK, &RouteNetlinkMessage::DelLink(link), by);
        Ok(())
    }

    fn add_neighbour(&self, neighbour: NeighbourMessage, by: u32) -> Result<(), Errno> {
        {
            let mut state = self.state.borrow_mut();
            if !state.links.contains_key(&neighbour.header.ifindex) {
                return Err(libc::ENODEV);
            }
            state.neighbours.retain(|it| neighbour_key(it) != neighbour_key(&neighbour));
            state.neighbours.push(neighbour.clone());
        }
        self.announce(libc::RTNLGRP_NEIGH, &RouteNetlinkMessage::NewNeighbour(neighbour), by);
        Ok(())
    }

    pub(super) fn remove_neighbour(&self, asked: &NeighbourMessage, by: u32) -> Result<(), Errno> {
        let gone = {
            let mut state = self.state.borrow_mut();
            let is_it = |it: &NeighbourMessage| {
                it.header.ifindex == asked.header.ifindex
                    && it.header.family == asked.header.family
                    && asked.attributes.iter().all(|attribute| match attribute {
                        NeighbourAttribute::Destination(_)
                        | NeighbourAttribute::LinkLayerAddress(_) => {
                            it.attributes.contains(attribute)
                        }
                        _ => true,
                    })
            };
            let at = state.neighbours.iter().position(is_it).ok_or(libc::ENOENT)?;
            state.neighbours.remove(at)
        };
        self.announce(libc::RTNLGRP_NEIGH, &RouteNetlinkMessage::DelNeighbour(gone), by);
        Ok(())
    }
}

/// Takes what a vxlan device is told anew.
fn change_vxlan(link: &mut LinkMessage, change: &[LinkInfo]) {
    let changes = change.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    });
    let infos = link.attributes.iter_mut().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    for info in infos.flatten() {
        let LinkInfo::Data(InfoData::Vxlan(data)) = info else { continue };
        for change in changes.into_iter().flatten() {
            let kind = std::mem::discriminant(change);
            data.retain(|it| std::mem::discriminant(it) != kind);
            data.push(change.clone());
        }
    }
}

/// A vxlan device without a port gets the usual one.
fn complete_vxlan(link: &mut LinkMessage) {
    for attribute in &mut link.attributes {
        let LinkAttribute::LinkInfo(infos) = attribute else { continue };
        for info in infos {
            let LinkInfo::Data(InfoData::Vxlan(data)) = info else { continue };
            if !data.iter().any(|it| matches!(it, InfoVxlan::Port(_))) {
                data.push(InfoVxlan::Port(VXLAN_PORT));
            }
        }
    }
}

/// What no two neighbours, or forwarding entries, have in common.
fn neighbour_key(it: &NeighbourMessage) -> (u32, AddressFamily, Option<NeighbourAttribute>) {
    let is_key = |attribute: &&NeighbourAttribute| match it.header.family {
        AddressFamily::Bridge => matches!(attribute, NeighbourAttribute::LinkLayerAddress(_)),
        _ => matches!(attribute, NeighbourAttribute::Destination(_)),
    };
    (it.header.ifindex, it.header.family, it.attributes.iter().find(is_key).cloned())
}
