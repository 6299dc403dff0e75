//! The interface somebody wished for: by name, by an address, by a pattern, or by where it leads.

use std::net::{IpAddr, Ipv6Addr};

use flannel_entries::facts::{Interface, Path};
use regex::Regex;

use super::address::{carries, is_link_local, usable, usable_v4, usable_v6};
use super::{Chooser, Family, Found, SelectError, is_own};

impl<'a> Chooser<'a> {
    pub(super) fn named(&self, name: &str) -> Result<Found<'a>, SelectError> {
        let interface = self.facts.interfaces.iter().find(|i| i.name.as_str() == name);
        let interface = interface.ok_or_else(|| {
            let known = self.facts.interfaces.iter().map(|i| i.name.to_string());
            let known = known.collect::<Vec<_>>().join(", ");
            SelectError(format!("no interface is named '{name}': name one of {known}"))
        })?;
        Ok(match self.bearer_of_addresses(interface) {
            Some(master) => {
                let master_name = master.name;
                let why =
                    format!("iface names {name}, a port of {master_name}, which has the addresses");
                Found::new(master, why)
            }
            None => Found::new(interface, format!("iface names {name}")),
        })
    }

    /// The bridge or bond that has the addresses of an interface that has become its port.
    fn bearer_of_addresses(&self, interface: &Interface) -> Option<&'a Interface> {
        if !interface.addresses.iter().all(|it| is_link_local(it.addr.addr())) {
            return None;
        }
        let master = self.facts.interfaces.iter().find(|it| Some(it.index) == interface.master)?;
        self.has_addresses(master).then_some(master)
    }

    /// The interface with exactly this address, of either family on a dual-stack network.
    pub(super) fn carrying(
        &self,
        address: IpAddr,
        flag: &'static str,
    ) -> Result<Found<'a>, SelectError> {
        let family = Family::of(address);
        if !self.stack.has(family) {
            return Err(SelectError(format!(
                "{flag} {address} is {family}, which the network does not use: use an address of its family"
            )));
        }
        let interface = self.owner(address).ok_or_else(|| {
            SelectError(format!(
                "{flag} {address} is not an address of any interface; there are {}: use one of these, or name \
                 the interface with -iface",
                self.listing()
            ))
        })?;
        let found =
            Found::new(interface, format!("{flag} {address} is an address of it")).with(address);
        match self.request.public_ipv6 {
            Some(public) if self.stack.v4 && self.stack.v6 => self.beside_public(found, public),
            _ => Ok(found),
        }
    }

    /// A public IPv6 address of this node must be on the interface found; any other is that of a translator.
    fn beside_public(
        &self,
        mut found: Found<'a>,
        public: Ipv6Addr,
    ) -> Result<Found<'a>, SelectError> {
        match self.owner(public.into()) {
            Some(owner) if owner.index != found.interface.index => Err(SelectError(format!(
                "public-ipv6 {public} is an address of {}, but {} was chosen: both families must use one \
                     interface",
                owner.name, found.interface.name
            ))),
            Some(_) => {
                found.v6 = found.v6.or(Some(public));
                Ok(found)
            }
            None => Ok(found),
        }
    }

    /// Addresses first, then names. On a dual-stack network one interface must match with both.
    pub(super) fn matching(&self, pattern: &str) -> Result<Found<'a>, SelectError> {
        let regex = Regex::new(pattern).map_err(|error| {
            SelectError(format!("'{pattern}' is not a regular expression: {error}"))
        })?;
        let candidates = || self.facts.interfaces.iter().filter(|i| !is_own(i.name));
        let matches = |address: &IpAddr| regex.is_match(&address.to_string());
        for interface in candidates() {
            let v4 = usable_v4(interface).find(|a| matches(&IpAddr::V4(*a)));
            let v6 = usable_v6(interface).find(|a| matches(&IpAddr::V6(*a)));
            let (v4, v6) = (v4.filter(|_| self.stack.v4), v6.filter(|_| self.stack.v6));
            if v4.is_some() == self.stack.v4 && v6.is_some() == self.stack.v6 {
                let why = format!("its address matches the iface-regex '{pattern}'");
                return Ok(Found { interface, v4, v6, why });
            }
        }
        let interface = candidates().find(|i| regex.is_match(i.name.as_str()));
        let interface = interface.ok_or_else(|| {
            let known = self.listing();
            let what = "matches neither an address nor a name of";
            SelectError(format!("the iface-regex '{pattern}' {what} {known}"))
        })?;
        Ok(Found::new(interface, format!("its name matches the iface-regex '{pattern}'")))
    }

    pub(super) fn towards(
        &self,
        address: IpAddr,
        path: Option<Path>,
    ) -> Result<Found<'a>, SelectError> {
        let path = path.ok_or_else(|| {
            let what = "the kernel has no route to the iface-can-reach address";
            SelectError(format!("{what} {address}"))
        })?;
        let link = path.link;
        if is_own(link) {
            return Err(SelectError(format!(
                "the kernel sends to {address} through {link}, which is a device for pods: use an \
                 iface-can-reach address outside the flannel network"
            )));
        }
        let vanished = || SelectError(format!("{link} has just disappeared"));
        let interface = self.facts.interface(link).ok_or_else(vanished)?;
        let found = Found::new(interface, format!("the kernel sends to {address} through it"));
        match path.source {
            Some(source) if self.stack.has(Family::of(source)) => Ok(found.with(source)),
            _ => Ok(found),
        }
    }

    fn owner(&self, address: IpAddr) -> Option<&'a Interface> {
        self.facts.interfaces.iter().find(|interface| carries(interface, address))
    }

    /// `eth0:[192.0.2.1 fe80::1] lo:[]`, for errors.
    fn listing(&self) -> String {
        let one = |interface: &Interface| {
            let addresses: Vec<String> = usable(interface).map(|a| a.to_string()).collect();
            format!("{}:[{}]", interface.name, addresses.join(" "))
        };
        self.facts.interfaces.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}
