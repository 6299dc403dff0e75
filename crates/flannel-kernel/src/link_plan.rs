//! What it takes to make a device as wanted. Pure: compares, decides, writes nothing.

use netlink_packet_route::link::LinkFlags;

use crate::encode;
use crate::links::Links;
use crate::observed::{ObservedLink, ObservedVxlan};
use crate::{IfName, Link, LinkKind, Ownership, Vxlan};
use flannel_netlink::Request;

/// What a device is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) links: &'a Links,
    pub(crate) ownership: &'a Ownership,
    /// What the kernel listens on for a vxlan device that names no port.
    pub(crate) default_port: u16,
}

pub(crate) enum LinkPlan {
    Keep,
    Create,
    /// Ours, under a name that somebody else gave it.
    Rename {
        index: u32,
        from: IfName,
    },
    /// Can be put right on the living device.
    Change(Vec<Step>),
    /// In the way of the device that is wanted; and why.
    Remove {
        index: u32,
        why: String,
    },
    /// The parent is not there (yet).
    Wait(IfName),
}

/// One thing that is not as wanted, and its change.
pub(crate) struct Step {
    pub(crate) what: String,
    pub(crate) request: Request,
    /// If the kernel does not change it on a living device, a new device will have it.
    pub(crate) or_anew: bool,
}

pub(crate) fn plan_link(link: &Link, around: Surroundings<'_>) -> LinkPlan {
    let LinkKind::Vxlan(wanted) = &link.kind;
    let links = around.links;
    let Some(parent) = links.index(wanted.parent) else {
        return LinkPlan::Wait(wanted.parent);
    };
    let Some(observed) = links.get(link.name) else {
        return match links.iter().find(|(other, _)| was_ours(link, other, around)) {
            Some((other, _)) => LinkPlan::Rename { index: other.index, from: other.name },
            None => LinkPlan::Create,
        };
    };
    let index = observed.index;
    let Some(vxlan) = &observed.vxlan else {
        let why = "a device of this name exists and is no vxlan".to_owned();
        return LinkPlan::Remove { index, why };
    };
    if let Some(why) = around.needs_new_device(wanted, vxlan) {
        return LinkPlan::Remove { index, why };
    }
    let steps = changes(link, wanted, parent, observed, vxlan);
    if steps.is_empty() { LinkPlan::Keep } else { LinkPlan::Change(steps) }
}

/// Whether a device is the one that is wanted, though it has another name: of the same make, and with our
/// MAC, or with our local address and an address of our network.
fn was_ours(link: &Link, other: &ObservedLink, around: Surroundings<'_>) -> bool {
    let LinkKind::Vxlan(wanted) = &link.kind;
    let Some(vxlan) = &other.vxlan else { return false };
    if around.ownership.links.contains(&other.name)
        || !around.receives_the_same(wanted, vxlan)
        || around.needs_new_device(wanted, vxlan).is_some()
    {
        return false;
    }
    let addresses = around.links.addresses(other.index);
    other.mac.is_some() && other.mac == link.mac
        || vxlan.local == Some(wanted.local)
            && addresses.iter().any(|address| around.ownership.is_within(address.addr))
}

impl Surroundings<'_> {
    /// Whether the kernel would refuse the wanted device because this one is there: of two that receive
    /// the same packets, one would get none.
    pub(crate) fn receives_the_same(self, wanted: &Vxlan, other: &ObservedVxlan) -> bool {
        let v4 = other.local.is_none_or(|local| local.is_ipv4());
        other.vni == wanted.vni && other.port == self.port(wanted) && v4 == wanted.local.is_ipv4()
    }

    pub(crate) fn port(self, wanted: &Vxlan) -> u16 {
        wanted.port.unwrap_or(self.default_port)
    }

    fn needs_new_device(self, wanted: &Vxlan, observed: &ObservedVxlan) -> Option<String> {
        let port = self.port(wanted);
        if observed.vni != wanted.vni {
            return Some(format!("its VNI is {}, not {}", observed.vni, wanted.vni));
        }
        if observed.port != port {
            return Some(format!("its port is {}, not {port}", observed.port));
        }
        if observed.gbp != wanted.gbp {
            return Some(format!("GBP is {}, not {}", observed.gbp, wanted.gbp));
        }
        if observed.local.is_some_and(|local| local.is_ipv4() != wanted.local.is_ipv4()) {
            return Some("its local address is of the other family".to_owned());
        }
        None
    }
}

fn changes(
    link: &Link,
    wanted: &Vxlan,
    parent: u32,
    observed: &ObservedLink,
    vxlan: &ObservedVxlan,
) -> Vec<Step> {
    let index = observed.index;
    let mut steps = Vec::new();
    let mut step = |what: String, or_anew, request| steps.push(Step { what, request, or_anew });
    let mut differences = Vec::new();
    if vxlan.parent != Some(parent) {
        differences.push(format!("it does not send through {}", wanted.parent));
    }
    if vxlan.local != Some(wanted.local) {
        differences.push(format!("its local address is not {}", wanted.local));
    }
    if vxlan.learning != wanted.learning {
        differences.push(format!("learning is {}, not {}", vxlan.learning, wanted.learning));
    }
    if vxlan.ttl != 0 {
        differences.push(format!("its TTL is {}", vxlan.ttl));
    }
    if !differences.is_empty() {
        step(differences.join(", "), true, encode::set_vxlan(index, wanted, parent));
    }
    if observed.master.is_some() {
        step("it has a master".to_owned(), true, encode::release_from_master(index));
    }
    if let Some(mac) = link.mac
        && observed.mac != Some(mac)
    {
        step(format!("its MAC is not {mac}"), true, encode::set_mac(index, mac));
    }
    if observed.mtu != link.mtu {
        let what = format!("its MTU is {}, not {}", observed.mtu, link.mtu);
        step(what, false, encode::set_mtu(index, link.mtu));
    }
    if observed.noarp {
        let request = encode::set_flags(index, LinkFlags::Noarp, false);
        step("it resolves no addresses (NOARP)".to_owned(), true, request);
    }
    if observed.protodown {
        let request = encode::clear_protodown(index);
        step("it is held down (protodown)".to_owned(), true, request);
    }
    if !observed.up {
        step("it is down".to_owned(), true, encode::set_flags(index, LinkFlags::Up, true));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mac;

    fn name(text: &str) -> IfName {
        IfName::new(text).unwrap()
    }

    fn wanted() -> Link {
        Link {
            name: name("flannel.1"),
            kind: LinkKind::Vxlan(Vxlan {
                vni: 1,
                port: None,
                parent: name("eth0"),
                local: [192, 168, 100, 1].into(),
                learning: false,
                gbp: false,
            }),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            mtu: 1450,
        }
    }

    fn observed() -> ObservedLink {
        ObservedLink {
            index: 3,
            name: name("flannel.1"),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            mtu: 1450,
            up: true,
            carrier: true,
            loopback: false,
            master: None,
            noarp: false,
            protodown: false,
            vxlan: Some(ObservedVxlan {
                vni: 1,
                port: 8472,
                parent: Some(2),
                local: Some([192, 168, 100, 1].into()),
                learning: false,
                gbp: false,
                ttl: 0,
            }),
        }
    }

    fn ownership() -> Ownership {
        Ownership {
            links: [name("flannel.1")].into(),
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            legacy: Vec::new(),
        }
    }

    fn around<'a>(links: &'a Links, ownership: &'a Ownership) -> Surroundings<'a> {
        Surroundings { links, ownership, default_port: 8472 }
    }

    fn plan(alter: impl FnOnce(&mut ObservedLink)) -> LinkPlan {
        let mut links = Links::default();
        links.put(ObservedLink {
            index: 2,
            name: name("eth0"),
            mac: None,
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            master: None,
            noarp: false,
            protodown: false,
            vxlan: None,
        });
        let mut link = observed();
        alter(&mut link);
        links.put(link);
        plan_link(&wanted(), around(&links, &ownership()))
    }

    #[test]
    fn a_device_as_wanted_is_kept() {
        assert!(matches!(plan(|_| ()), LinkPlan::Keep));
    }

    #[test]
    fn what_a_living_device_allows_is_changed_in_place() {
        assert!(matches!(plan(|l| l.mtu = 1400), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.up = false), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.mac = None), LinkPlan::Change(_)));
        let local = |l: &mut ObservedLink| {
            l.vxlan.as_mut().unwrap().local = Some([192, 168, 100, 9].into());
        };
        assert!(matches!(plan(local), LinkPlan::Change(_)));
    }

    #[test]
    fn a_device_of_ours_has_no_master_resolves_addresses_and_sends_far() {
        assert!(matches!(plan(|l| l.master = Some(9)), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.noarp = true), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.protodown = true), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.vxlan.as_mut().unwrap().ttl = 1), LinkPlan::Change(_)));
    }

    #[test]
    fn one_that_somebody_has_renamed_is_ours_by_its_marks() {
        let renamed = |alter: fn(&mut ObservedLink)| {
            plan(|l| {
                l.name = name("x");
                alter(l);
            })
        };
        assert!(matches!(renamed(|_| ()), LinkPlan::Rename { index: 3, .. }));
        // Put right under its name.
        assert!(matches!(renamed(|l| l.mtu = 1000), LinkPlan::Rename { index: 3, .. }));
        // A stranger's: the kernel will say whether it is in the way.
        assert!(matches!(renamed(|l| l.mac = None), LinkPlan::Create));
        assert!(matches!(renamed(|l| l.vxlan.as_mut().unwrap().vni = 2), LinkPlan::Create));
        assert!(matches!(renamed(|l| l.vxlan = None), LinkPlan::Create));
    }

    #[test]
    fn what_it_does_not_allow_means_a_new_device() {
        assert!(matches!(plan(|l| l.vxlan.as_mut().unwrap().vni = 2), LinkPlan::Remove { .. }));
        // Also when the port that is wanted is the kernel's own.
        assert!(matches!(plan(|l| l.vxlan.as_mut().unwrap().port = 4789), LinkPlan::Remove { .. }));
        assert!(matches!(plan(|l| l.vxlan.as_mut().unwrap().gbp = true), LinkPlan::Remove { .. }));
        assert!(matches!(plan(|l| l.vxlan = None), LinkPlan::Remove { .. }));
    }

    #[test]
    fn without_its_parent_a_device_waits() {
        let plan = plan_link(&wanted(), around(&Links::default(), &ownership()));
        assert!(matches!(plan, LinkPlan::Wait(_)));
    }
}
