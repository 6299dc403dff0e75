//! Plans how to make a device as wanted. Pure: compares, decides, writes nothing.

mod ip_tunnel;
mod vxlan;

use flannel_common::IfName;
use flannel_entries::kernel::{Link, LinkKind, Ownership};
use flannel_netlink::Request;
use flannel_netlink::verbs::mac_attribute;
use netlink_packet_route::link::{LinkAttribute, LinkFlags};

use crate::encode;
use crate::links::Links;
use crate::observed::{ObservedKind, ObservedLink};

#[derive(Clone, Copy)]
pub(crate) struct LinkContext<'a> {
    pub(crate) links: &'a Links,
    pub(crate) ownership: &'a Ownership,
    pub(crate) default_port: u16,
}

pub(crate) enum LinkPlan {
    Keep,
    Create,
    /// The device is ours, but somebody has renamed it.
    Rename {
        index: u32,
        from: IfName,
    },
    Change(Vec<Step>),
    Remove {
        index: u32,
        why: String,
    },
    /// Something that the device depends on does not exist yet.
    Wait(String),
}

pub(crate) struct Step {
    pub(crate) what: String,
    pub(crate) request: Request,
    /// If the kernel refuses to change the existing device, a new one is made.
    pub(crate) recreate_if_refused: bool,
}

pub(crate) fn plan_link(link: &Link, around: LinkContext<'_>) -> LinkPlan {
    let links = around.links;
    let parent = match link.kind.parent().map(|name| links.index(name).ok_or(name)) {
        Some(Err(name)) => {
            return LinkPlan::Wait(format!("{name}, the device it is to send through"));
        }
        Some(Ok(index)) => Some(index),
        None => None,
    };
    let Some(observed) = links.get(link.name) else {
        return match links.iter().find(|(other, _)| was_ours(link, other, around)) {
            Some((other, _)) => LinkPlan::Rename { index: other.index, from: other.name },
            None if link.kind == LinkKind::Tun => {
                LinkPlan::Wait("the tunnel process, which makes it".to_owned())
            }
            None => LinkPlan::Create,
        };
    };
    let index = observed.index;
    let steps = match (&link.kind, &observed.kind) {
        (LinkKind::Vxlan(wanted), Some(ObservedKind::Vxlan(vxlan))) => {
            if let Some(why) = around.vxlan_needs_new_device(wanted, vxlan) {
                return LinkPlan::Remove { index, why };
            }
            vxlan::changes(wanted, parent, observed, vxlan)
        }
        (LinkKind::IpTunnel(wanted), Some(ObservedKind::IpTunnel(tunnel)))
            if tunnel.kind == wanted.kind =>
        {
            ip_tunnel::changes(wanted, link.mtu, observed, tunnel)
        }
        (LinkKind::Wireguard, Some(ObservedKind::Wireguard))
        | (LinkKind::Tun, Some(ObservedKind::Tun))
        | (LinkKind::Dummy, Some(ObservedKind::Dummy)) => Vec::new(),
        (
            LinkKind::Vxlan(_)
            | LinkKind::IpTunnel(_)
            | LinkKind::Wireguard
            | LinkKind::Tun
            | LinkKind::Dummy,
            _,
        ) => {
            let why =
                format!("a device of this name exists and is not of the kind {}", link.kind.kind());
            return LinkPlan::Remove { index, why };
        }
    };
    let steps: Vec<Step> = steps.into_iter().chain(changes(link, observed)).collect();
    if steps.is_empty() { LinkPlan::Keep } else { LinkPlan::Change(steps) }
}

/// Whether a device is the wanted one under another name: of the same kind, and with our MAC, or with our local
/// address and an address of our network.
fn was_ours(link: &Link, other: &ObservedLink, around: LinkContext<'_>) -> bool {
    if around.ownership.links.contains(&other.name) || !around.receives_the_same(&link.kind, other)
    {
        return false;
    }
    let (convertible, same_local) = match &link.kind {
        LinkKind::Vxlan(wanted) => match &other.kind {
            Some(ObservedKind::Vxlan(vxlan)) => (
                around.vxlan_needs_new_device(wanted, vxlan).is_none(),
                vxlan.local == Some(wanted.local),
            ),
            _ => return false,
        },
        // There is only one of a kind between the same ends.
        LinkKind::IpTunnel(_) => (true, true),
        // It is identified by its key, which is read elsewhere.
        LinkKind::Wireguard => return false,
        // By its addresses alone.
        LinkKind::Tun | LinkKind::Dummy => (true, true),
    };
    let addresses = around.links.addresses(other.index);
    convertible
        && (other.mac.is_some() && other.mac == link.mac
            || same_local
                && addresses.iter().any(|address| around.ownership.is_within(address.addr)))
}

impl LinkContext<'_> {
    /// Whether the kernel would refuse the wanted device because this one exists: of two that receive the same
    /// packets, one would get none.
    pub(crate) fn receives_the_same(self, wanted: &LinkKind, other: &ObservedLink) -> bool {
        match wanted {
            LinkKind::Vxlan(wanted) => match &other.kind {
                Some(ObservedKind::Vxlan(other)) => self.receives_the_same_vxlan(wanted, other),
                _ => false,
            },
            LinkKind::IpTunnel(wanted) => match &other.kind {
                Some(ObservedKind::IpTunnel(other)) => ip_tunnel::has_the_same_ends(wanted, other),
                _ => false,
            },
            // There may be any number of them; ports decide which one receives a packet.
            LinkKind::Wireguard => false,
            LinkKind::Tun => matches!(&other.kind, Some(ObservedKind::Tun)),
            LinkKind::Dummy => matches!(&other.kind, Some(ObservedKind::Dummy)),
        }
    }
}

fn changes(link: &Link, observed: &ObservedLink) -> Vec<Step> {
    let index = observed.index;
    let mut steps = Vec::new();
    let mut step = |what: String, recreate_if_refused, request| {
        steps.push(Step { what, request, recreate_if_refused })
    };
    if observed.master.is_some() {
        let request = encode::alter(index, [LinkAttribute::Controller(0)]);
        step("it has a master".to_owned(), true, request);
    }
    if let Some(mac) = link.mac
        && observed.mac != Some(mac)
    {
        let request = encode::alter(index, [mac_attribute(mac)]);
        step(format!("its MAC is not {mac}"), true, request);
    }
    if observed.mtu != link.mtu {
        let what = format!("its MTU is {}, not {}", observed.mtu, link.mtu);
        step(what, false, encode::alter(index, [LinkAttribute::Mtu(link.mtu)]));
    }
    if observed.protodown {
        let request = encode::alter(index, [LinkAttribute::ProtoDown(0)]);
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
    use crate::observed::ObservedVxlan;
    use flannel_common::Mac;
    use flannel_entries::kernel::Vxlan;

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
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            mtu: 1450,
            kind: Some(ObservedKind::Vxlan(ObservedVxlan {
                vni: 1,
                port: 8472,
                parent: Some(2),
                local: Some([192, 168, 100, 1].into()),
                learning: false,
                gbp: false,
                ttl: 0,
            })),
            ..ObservedLink::plain(3, "flannel.1")
        }
    }

    fn vxlan(link: &mut ObservedLink) -> &mut ObservedVxlan {
        match link.kind.as_mut().unwrap() {
            ObservedKind::Vxlan(vxlan) => vxlan,
            other => panic!("{other:?}"),
        }
    }

    fn ownership() -> Ownership {
        Ownership {
            links: [name("flannel.1")].into(),
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            legacy: Vec::new(),
        }
    }

    fn around<'a>(links: &'a Links, ownership: &'a Ownership) -> LinkContext<'a> {
        LinkContext { links, ownership, default_port: 8472 }
    }

    fn plan(alter: impl FnOnce(&mut ObservedLink)) -> LinkPlan {
        let mut links = Links::default();
        links.put(ObservedLink::plain(2, "eth0"));
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
    fn what_an_existing_device_allows_is_changed_in_place() {
        assert!(matches!(plan(|l| l.mtu = 1400), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.up = false), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.mac = None), LinkPlan::Change(_)));
        let local = |l: &mut ObservedLink| {
            vxlan(l).local = Some([192, 168, 100, 9].into());
        };
        assert!(matches!(plan(local), LinkPlan::Change(_)));
    }

    #[test]
    fn a_device_of_ours_has_no_master_resolves_addresses_and_sends_far() {
        assert!(matches!(plan(|l| l.master = Some(9)), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.noarp = true), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| l.protodown = true), LinkPlan::Change(_)));
        assert!(matches!(plan(|l| vxlan(l).ttl = 1), LinkPlan::Change(_)));
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
        assert!(matches!(renamed(|l| vxlan(l).vni = 2), LinkPlan::Create));
        assert!(matches!(renamed(|l| l.kind = None), LinkPlan::Create));
    }

    #[test]
    fn what_it_does_not_allow_means_a_new_device() {
        assert!(matches!(plan(|l| vxlan(l).vni = 2), LinkPlan::Remove { .. }));
        // Also when the port that is wanted is the kernel's own.
        assert!(matches!(plan(|l| vxlan(l).port = 4789), LinkPlan::Remove { .. }));
        assert!(matches!(plan(|l| vxlan(l).gbp = true), LinkPlan::Remove { .. }));
        assert!(matches!(plan(|l| l.kind = None), LinkPlan::Remove { .. }));
    }

    #[test]
    fn without_its_parent_a_device_waits() {
        let plan = plan_link(&wanted(), around(&Links::default(), &ownership()));
        assert!(matches!(plan, LinkPlan::Wait(_)));
    }
}
