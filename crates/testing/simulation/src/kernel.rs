//! A host's kernel as netlink shows it: links, addresses, routes, neighbours and forwarding entries in memory. It answers
//! requests and dumps, announces changes, and has the faults of real ones.

mod answer;
mod route;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use flannel_common::Mac;
use flannel_common::simulation::NetlinkSocket;
use ipnet::IpNet;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{RouteNetlinkMessage, address, link};
use tokio::sync::Notify;

pub(crate) use route::{FlannelRoute, destination, flannel_routes};

use crate::clib;
use crate::history;
use crate::host::name_of;

/// Devices of vxlan, by the family that its packets travel in.
pub(crate) const FLANNEL_DEVICES: [&str; 2] = ["flannel.1", "flannel-v6.1"];
/// Index of the card.
pub(crate) const CARD: u32 = 2;

pub(crate) struct Kernel {
    number: usize,
    mac: Mac,
    pub(crate) state: RefCell<State>,
    sockets: RefCell<Vec<Arc<Mutex<Inbox>>>>,
    pub(crate) changed: Arc<Notify>,
    next_port: Cell<u32>,
    /// Writes that come next and are refused.
    pub(crate) refusals: Cell<u32>,
    /// The next dumps are torn.
    pub(crate) torn_dumps: Cell<u32>,
    /// Changes that programs asked for since the last boot.
    pub(crate) writes: Cell<u64>,
    /// Routes of flannel's that flannel removed, since somebody last asked.
    pub(crate) removed_routes: RefCell<Vec<FlannelRoute>>,
}

/// Everything that a reboot loses.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) links: BTreeMap<u32, LinkMessage>,
    pub(crate) addresses: Vec<AddressMessage>,
    pub(crate) routes: Vec<RouteMessage>,
    /// Neighbours, and forwarding entries.
    pub(crate) neighbours: Vec<NeighbourMessage>,
    next_link: u32,
}

/// What has arrived at a socket.
#[derive(Default)]
struct Inbox {
    groups: Vec<u32>,
    datagrams: VecDeque<Vec<u8>>,
    overflowed: bool,
}

impl Kernel {
    pub(crate) fn new(number: usize, addresses: &[IpNet], mac: Mac) -> Self {
        let kernel = Self {
            number,
            mac,
            state: RefCell::default(),
            sockets: RefCell::default(),
            changed: Arc::default(),
            next_port: Cell::new(1_000),
            refusals: Cell::new(0),
            torn_dumps: Cell::new(0),
            writes: Cell::new(0),
            removed_routes: RefCell::default(),
        };
        kernel.boot(addresses);
        kernel
    }

    /// Begins with a card at these addresses, and a default route for each of them.
    pub(crate) fn boot(&self, addresses: &[IpNet]) {
        *self.state.borrow_mut() = State { next_link: CARD, ..State::default() };
        self.sockets.borrow_mut().clear();
        let mut card = flannel_netlink::verbs::named_link(
            "eth0",
            [LinkAttribute::Mtu(1500), flannel_netlink::verbs::mac_attribute(self.mac)],
        );
        card.header.link_layer_type = link::LinkLayerType::Ether;
        self.add_link(card, 0);
        addresses.iter().for_each(|address| self.add_card_address(*address));
    }

    /// Gives the card this address, and the routes that need it.
    pub(crate) fn add_card_address(&self, address: IpNet) {
        self.add_address(flannel_netlink::verbs::address(CARD, address, false), 0);
        let (default, gateway) = match address {
            IpNet::V4(_) => {
                let all = ipnet::Ipv4Net::default();
                (IpNet::V4(all), IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)))
            }
            IpNet::V6(_) => {
                let all = ipnet::Ipv6Net::default();
                (IpNet::V6(all), IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc0a8, 0, 0, 0, 0, 0, 1)))
            }
        };
        let protocol = netlink_packet_route::route::RouteProtocol::Boot;
        let route = flannel_netlink::verbs::route(default, protocol, Some(CARD), Some(gateway));
        let _ = self.add_route(route, true, 0);
    }

    /// Takes the card's address away, and what goes with it.
    pub(crate) fn remove_card_address(&self, address: IpNet) {
        let _ = self.remove_address(flannel_netlink::verbs::address(CARD, address, false), 0);
    }

    /// Opens a socket; dropping it closes it.
    pub(crate) fn connect(&self) -> KernelSocket {
        let port = self.next_port.get();
        self.next_port.set(port + 1);
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        self.sockets.borrow_mut().push(inbox.clone());
        KernelSocket { port, inbox }
    }

    /// Loses announcements that programs have not read yet.
    pub(crate) fn overflow(&self) {
        for inbox in self.sockets.borrow().iter() {
            let mut inbox = lock(inbox);
            if !inbox.groups.is_empty() {
                inbox.datagrams.clear();
                inbox.overflowed = true;
            }
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn has_news(&self) -> bool {
        self.sockets.borrow().iter().filter(|inbox| Arc::strong_count(inbox) > 1).any(|inbox| {
            let inbox = lock(inbox);
            !inbox.groups.is_empty() && (inbox.overflowed || !inbox.datagrams.is_empty())
        })
    }

    /// Tells everybody who listens of a change. `by` is the port of whoever made it.
    fn announce(&self, group: u32, message: &RouteNetlinkMessage, by: u32) {
        let mut datagram = Vec::new();
        answer::append(&mut datagram, message, 0, 0, by);
        self.sockets.borrow_mut().retain(|inbox| Arc::strong_count(inbox) > 1);
        for inbox in self.sockets.borrow().iter() {
            let mut inbox = lock(inbox);
            if inbox.groups.contains(&group) {
                inbox.datagrams.push_back(datagram.clone());
            }
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn link_index(&self, name: &str) -> Option<u32> {
        let state = self.state.borrow();
        state.links.values().find(|link| link_name(link) == Some(name)).map(|it| it.header.index)
    }

    /// Somebody deletes one of flannel's entries. Returns what it was.
    pub(crate) fn vandalize(&self, rng: &mut fastrand::Rng) -> Option<String> {
        let ours = flannel_routes(&self.state.borrow());
        let neighbours = self.state.borrow().neighbours.clone();
        let devices: Vec<u32> =
            FLANNEL_DEVICES.iter().filter_map(|name| self.link_index(name)).collect();
        match rng.u8(..4) {
            0 if !neighbours.is_empty() => {
                let victim = neighbours[rng.usize(..neighbours.len())].clone();
                self.remove_neighbour(&victim, 0).ok()?;
                Some("a neighbour or forwarding entry".to_owned())
            }
            1 if !devices.is_empty() => {
                let index = devices[rng.usize(..devices.len())];
                let name =
                    self.state.borrow().links.get(&index).and_then(link_name).map(str::to_owned);
                self.remove_link(index, 0).ok()?;
                Some(format!("the device {}", name.unwrap_or_default()))
            }
            _ if !ours.is_empty() => {
                let victim = ours[rng.usize(..ours.len())].clone();
                let state = self.state.borrow();
                let route = state.routes.iter().find(|it| destination(it) == Some(victim.dst))?;
                let route = route.clone();
                drop(state);
                self.remove_route(&route, 0).ok()?;
                Some(format!("the route to {}", victim.dst))
            }
            _ => None,
        }
    }

    /// Somebody deletes the first of flannel's routes, in order, past so many.
    pub(crate) fn delete_route(&self, past: usize) {
        let victim = flannel_routes(&self.state.borrow()).into_iter().nth(past);
        let Some(victim) = victim else { return };
        let is_it = |route: &&RouteMessage| destination(route) == Some(victim.dst);
        let route = self.state.borrow().routes.iter().find(is_it).cloned();
        if let Some(route) = route {
            let _ = self.remove_route(&route, 0);
        }
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        history::note(format_args!("kernel of {}: {what}", name_of(self.number)));
    }
}

/// A program's socket.
pub(crate) struct KernelSocket {
    port: u32,
    inbox: Arc<Mutex<Inbox>>,
}

impl NetlinkSocket for KernelSocket {
    fn port(&self) -> u32 {
        self.port
    }

    fn join(&self, group: u32) -> io::Result<()> {
        lock(&self.inbox).groups.push(group);
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let host = clib::current_host().ok_or(io::ErrorKind::NotConnected)?;
        let answers = host.kernel.answer(bytes, self.port);
        lock(&self.inbox).datagrams.extend(answers);
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inbox = lock(&self.inbox);
        if std::mem::take(&mut inbox.overflowed) {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let none = || io::Error::from_raw_os_error(libc::EAGAIN);
        let datagram = inbox.datagrams.pop_front().ok_or_else(none)?;
        buffer[..datagram.len()].copy_from_slice(&datagram);
        Ok(datagram.len())
    }
}

fn lock(inbox: &Mutex<Inbox>) -> std::sync::MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn link_name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// The IPv4 or IPv6 address of an address message.
fn local_address(message: &AddressMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        address::AddressAttribute::Local(ip) | address::AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    })
}

impl Kernel {
    /// Whether there is a neighbour with this address, or a forwarding entry to it.
    pub(crate) fn has_neighbour_entry(&self, ip: IpAddr) -> bool {
        let bytes = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        self.state.borrow().neighbours.iter().any(|neighbour| {
            neighbour.attributes.iter().any(|attribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(it)) => {
                    ip == IpAddr::V4(*it)
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(it)) => {
                    ip == IpAddr::V6(*it)
                }
                NeighbourAttribute::Destination(NeighbourAddress::Other(it)) => *it == bytes,
                _ => false,
            })
        })
    }
}
