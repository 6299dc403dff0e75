//! Devices of this node and their addresses, by index and by name.

use std::collections::{BTreeMap, BTreeSet};

use flannel_common::IfName;
use flannel_entries::facts::{Interface, InterfaceAddress};
use ipnet::IpNet;

use crate::observed::ObservedLink;

#[derive(Default)]
pub(crate) struct Links {
    by_index: BTreeMap<u32, (ObservedLink, Vec<InterfaceAddress>)>,
}

impl Links {
    pub(crate) fn put(&mut self, link: ObservedLink) -> bool {
        let known = self.by_index.get_mut(&link.index);
        let is_news = known.as_ref().is_none_or(|(known, _)| *known != link);
        match known {
            Some((known, _)) => *known = link,
            None => drop(self.by_index.insert(link.index, (link, Vec::new()))),
        }
        is_news
    }

    pub(crate) fn remove(&mut self, index: u32) -> bool {
        self.by_index.remove(&index).is_some()
    }

    pub(crate) fn put_address(&mut self, link: u32, address: InterfaceAddress) -> bool {
        let Some((_, addresses)) = self.by_index.get_mut(&link) else { return false };
        let known = addresses.iter_mut().find(|known| known.addr == address.addr);
        let is_news = known.as_ref().is_none_or(|known| **known != address);
        match known {
            Some(known) => *known = address,
            None => addresses.push(address),
        }
        is_news
    }

    pub(crate) fn remove_address(&mut self, link: u32, addr: IpNet) -> bool {
        let Some((_, addresses)) = self.by_index.get_mut(&link) else { return false };
        addresses.extract_if(.., |known| known.addr == addr).count() > 0
    }

    pub(crate) fn get(&self, name: IfName) -> Option<&ObservedLink> {
        self.by_index.values().map(|(link, _)| link).find(|link| link.name == name)
    }

    pub(crate) fn index(&self, name: IfName) -> Option<u32> {
        self.get(name).map(|link| link.index)
    }

    pub(crate) fn name(&self, index: u32) -> Option<IfName> {
        self.by_index.get(&index).map(|(link, _)| link.name)
    }

    pub(crate) fn addresses(&self, index: u32) -> &[InterfaceAddress] {
        self.by_index.get(&index).map_or(&[], |(_, addresses)| addresses)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObservedLink, &[InterfaceAddress])> {
        self.by_index.values().map(|(link, addresses)| (link, addresses.as_slice()))
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
        let interface = |(link, addresses): (&ObservedLink, &[InterfaceAddress])| {
            let ObservedLink { index, name, mac, mtu, up, loopback, master, .. } = *link;
            let addresses = addresses.to_vec();
            Interface { index, name, mac, mtu, up, loopback, master, addresses }
        };
        self.iter().map(interface).collect()
    }
}
