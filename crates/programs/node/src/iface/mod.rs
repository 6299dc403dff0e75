//! Which interface this node reaches its peers through, and with which addresses: a pure function of flags and facts, called
//! again whenever a fact changes. Flannel's own devices are an uplink only when somebody names them.

mod address;
mod default_route;
mod error;
mod wish;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_backend::{Stack, Underlay};
use flannel_common::{Family, IfName};
use flannel_entries::devices::is_flannel_name;
use flannel_entries::facts::{Facts, Interface, Path};

use address::{usable_v4, usable_v6};
pub use error::SelectError;

const NO_FAMILY: &str =
    "the network enables neither IPv4 nor IPv6: enable one in its configuration";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Interface names or addresses, tried in order.
    pub iface: Vec<String>,
    /// Searched for in addresses, then in names; tried in order after `iface`.
    pub regex: Vec<String>,
    /// The interface towards this address; tried last.
    pub can_reach: Option<IpAddr>,
    /// Announced to peers instead of the interface's address.
    pub public_ip: Option<Ipv4Addr>,
    pub public_ipv6: Option<Ipv6Addr>,
}

/// Chooses the underlay, with addresses of all of `stack`. `lookup` asks the kernel for its path to an address.
pub fn select(
    request: &Selection,
    stack: Stack,
    facts: &Facts,
    lookup: &dyn Fn(IpAddr) -> Option<Path>,
) -> Result<Underlay, SelectError> {
    if !stack.v4 && !stack.v6 {
        return Err(SelectError(NO_FAMILY.to_owned()));
    }
    let chooser = Chooser { request, stack, facts };
    let mut tried = Vec::new();
    for attempt in attempts(request, stack) {
        match chooser.find(&attempt, lookup).and_then(|found| chooser.complete(found)) {
            Ok(mut underlay) => {
                for failure in &tried {
                    underlay.why += &format!("; before it: {failure}");
                }
                return Ok(underlay);
            }
            Err(failure) => tried.push(failure),
        }
    }
    if let [only] = tried.as_slice() {
        return Err(only.clone());
    }
    let all = tried.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(SelectError(format!("none of the interfaces asked for can be used: {all}")))
}

/// The best of several choices; `uses` are the network's families. The error is that of the first, as expected.
pub fn select_one_of(
    stacks: &[Stack],
    uses: Stack,
    select: impl Fn(Stack) -> Result<Underlay, SelectError>,
) -> Result<Underlay, SelectError> {
    let mut first = None;
    for stack in stacks {
        match select(*stack) {
            // A card has a link-local address before it gets others: not one to switch to.
            Ok(underlay)
                if !uses.v6 && underlay.v6.is_some_and(|ip| ip.is_unicast_link_local()) => {}
            Ok(underlay) if !uses.v4 && underlay.v4.is_some_and(|ip| ip.is_link_local()) => {}
            Ok(underlay) => return Ok(underlay),
            Err(error) => _ = first.get_or_insert(error),
        }
    }
    Err(first.unwrap_or_else(|| SelectError(NO_FAMILY.to_owned())))
}

enum Attempt<'a> {
    Named(&'a str),
    Carrying(IpAddr, &'static str),
    Matching(&'a str),
    Towards(IpAddr),
    DefaultRoute,
}

/// What is tried, in order. Without a wish for an interface it is a public address, and else the default route.
fn attempts(request: &Selection, stack: Stack) -> Vec<Attempt<'_>> {
    let named = request.iface.iter().map(|wish| match wish.parse() {
        Ok(address) => Attempt::Carrying(address, "iface"),
        Err(_) => Attempt::Named(wish),
    });
    let matching = request.regex.iter().map(|pattern| Attempt::Matching(pattern));
    let towards = request.can_reach.map(Attempt::Towards);
    let wishes: Vec<Attempt<'_>> = named.chain(matching).chain(towards).collect();
    if !wishes.is_empty() {
        return wishes;
    }
    let public_ip = request.public_ip.filter(|_| stack.v4);
    let public_ipv6 = request.public_ipv6.filter(|_| stack.v6);
    vec![match (public_ip, public_ipv6) {
        (Some(address), _) => Attempt::Carrying(address.into(), "public-ip"),
        (None, Some(address)) => Attempt::Carrying(address.into(), "public-ipv6"),
        (None, None) => Attempt::DefaultRoute,
    }]
}

/// An interface, and the addresses of it that are settled by the way it was found.
struct Found<'a> {
    interface: &'a Interface,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    why: String,
}

impl<'a> Found<'a> {
    fn new(interface: &'a Interface, why: String) -> Self {
        Self { interface, v4: None, v6: None, why }
    }

    fn with(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.v4 = Some(address),
            IpAddr::V6(address) => self.v6 = Some(address),
        }
        self
    }
}

struct Chooser<'a> {
    request: &'a Selection,
    stack: Stack,
    facts: &'a Facts,
}

impl<'a> Chooser<'a> {
    fn find(
        &self,
        attempt: &Attempt<'_>,
        lookup: &dyn Fn(IpAddr) -> Option<Path>,
    ) -> Result<Found<'a>, SelectError> {
        match *attempt {
            Attempt::Named(name) => self.named(name),
            Attempt::Carrying(address, flag) => self.carrying(address, flag),
            Attempt::Matching(pattern) => self.matching(pattern),
            Attempt::Towards(address) => self.towards(address, lookup(address)),
            Attempt::DefaultRoute => self.default_route(),
        }
    }

    fn complete(&self, found: Found<'_>) -> Result<Underlay, SelectError> {
        let Found { interface, v4, v6, why } = found;
        let link = interface.name;
        if interface.mtu == 0 {
            let fix = "name another interface with -iface";
            return Err(SelectError(format!("{link} has no MTU: {fix}")));
        }
        let missing = |family| SelectError::no_usable_address(link, family);
        let v4 = match v4.or_else(|| usable_v4(interface).next()) {
            _ if !self.stack.v4 => None,
            None => return Err(missing(Family::V4)),
            some => some,
        };
        let v6 = match v6.or_else(|| usable_v6(interface).next()) {
            _ if !self.stack.v6 => None,
            None => return Err(missing(Family::V6)),
            some => some,
        };
        let public_v4 = self.request.public_ip.filter(|_| self.stack.v4).or(v4);
        let public_v6 = self.request.public_ipv6.filter(|_| self.stack.v6).or(v6);
        Ok(Underlay { link, mtu: interface.mtu, v4, v6, public_v4, public_v6, why })
    }
}

/// Devices that pods are behind: those of backends, and bridges that container runtimes make.
fn is_own(link: IfName) -> bool {
    is_flannel_name(link.as_str()) || ["cni0", "docker0"].contains(&link.as_str())
}

#[cfg(test)]
mod tests;
