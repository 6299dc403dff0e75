//! Devices of this node and their addresses, by index and by name.

use std::collections::{BTreeMap, BTreeSet};

use flannel_common::IfName;
use flannel_entries::facts::{Interface, InterfaceAddress};
use ipnet::IpNet;

use crate::observed::{ObservedAddress, ObservedLink};

#[derive(Default)]
pub(crate) struct Links {
    by_index: BTreeMap<u32, LinkRecord>,
}

struct LinkRecord {
    link: ObservedLink,
    addresses: Vec<ObservedAddress>,
}

impl Links {
    pub(crate) fn clear(&mut self) {
        self.by_index.clear();
    }

    /// Adds or updates a device. Returns whether anything has changed.
    pub(crate) fn put(&mut self, link: ObservedLink) -> bool {
        match self.by_index.get_mut(&link.index) {
            None => {
                self.by_index.insert(link.index, LinkRecord { link, addresses: Vec::new() });
                true
            }
            Some(known) if known.link == link => false,
            Some(known) => {
                known.link = link;
                true
            }
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> bool {
        self.by_index.remove(&index).is_some()
    }

    pub(crate) fn put_address(&mut self, address: ObservedAddress) -> bool {
        let Some(known) = self.by_index.get_mut(&address.link) else { return false };
        match known.addresses.iter_mut().find(|a| a.addr == address.addr) {
            Some(old) if *old == address => false,
            Some(old) => {
                *old = address;
                true
            }
            None => {
                known.addresses.push(address);
                true
            }
        }
    }

    pub(crate) fn remove_address(&mut self, link: u32, addr: IpNet) -> bool {
        let Some(known) = self.by_index.get_mut(&link) else { return false };
        let before = known.addresses.len();
        known.addresses.retain(|a| a.addr != addr);
        known.addresses.len() != before
    }

    pub(crate) fn get(&self, name: IfName) -> Option<&ObservedLink> {
        self.by_index.values().map(|k| &k.link).find(|l| l.name == name)
    }

    pub(crate) fn index(&self, name: IfName) -> Option<u32> {
        self.get(name).map(|link| link.index)
    }

    pub(crate) fn name(&self, index: u32) -> Option<IfName> {
        self.by_index.get(&index).map(|k| k.link.name)
    }

    pub(crate) fn addresses(&self, index: u32) -> &[ObservedAddress] {
        self.by_index.get(&index).map_or(&[], |known| &known.addresses)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObservedLink, &[ObservedAddress])> {
        self.by_index.values().map(|k| (&k.link, k.addresses.as_slice()))
    }

    /// Networks that this node is directly connected to, through devices other than `ours`.
    pub(crate) fn connected(&self, ours: &BTreeSet<IfName>) -> BTreeMap<IpNet, IfName> {
        self.iter()
            .filter(|(link, _)| link.up && !link.loopback && !ours.contains(&link.name))
            .flat_map(|(link, addresses)| addresses.iter().map(|a| (a.addr.trunc(), link.name)))
            .filter(|(net, _)| net.prefix_len() < net.max_prefix_len())
            .collect()
    }

    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        self.iter()
            .map(|(link, addresses)| Interface {
                index: link.index,
                name: link.name,
                mac: link.mac,
                mtu: link.mtu,
                up: link.up,
                loopback: link.loopback,
                master: link.master,
                addresses: addresses
                    .iter()
                    .map(|a| InterfaceAddress {
                        addr: a.addr,
                        permanent: a.permanent,
                        temporary: a.temporary,
                        deprecated: a.deprecated,
                        duplicate: a.duplicate,
                    })
                    .collect(),
            })
            .collect()
    }
}
