//! What it takes to make a device as wanted. Pure: compares, decides, writes nothing.

use crate::encode;
use crate::links::Links;
use crate::observed::{ObservedLink, ObservedVxlan};
use crate::{IfName, Link, LinkKind, Vxlan};
use flannel_netlink::Request;

pub(crate) enum LinkPlan {
    Keep,
    Create,
    /// Can be put right on the living device.
    Change(Request),
    /// Cannot; and why.
    Recreate(String),
    /// The parent is not there (yet).
    Wait(IfName),
}

pub(crate) fn plan_link(link: &Link, links: &Links) -> LinkPlan {
    let LinkKind::Vxlan(wanted) = &link.kind;
    let Some(parent) = links.index(wanted.parent) else {
        return LinkPlan::Wait(wanted.parent);
    };
    let Some(observed) = links.get(link.name) else {
        return LinkPlan::Create;
    };
    let Some(vxlan) = &observed.vxlan else {
        return LinkPlan::Recreate("a device of this name exists and is no vxlan".to_owned());
    };
    if let Some(reason) = needs_new_device(wanted, vxlan) {
        return LinkPlan::Recreate(reason);
    }
    change(link, wanted, parent, observed, vxlan).map_or(LinkPlan::Keep, LinkPlan::Change)
}

fn needs_new_device(wanted: &Vxlan, observed: &ObservedVxlan) -> Option<String> {
    if observed.vni != wanted.vni {
        return Some(format!("its VNI is {}, not {}", observed.vni, wanted.vni));
    }
    if let Some(port) = wanted.port
        && observed.port != port
    {
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

fn change(
    link: &Link,
    wanted: &Vxlan,
    parent: u32,
    observed: &ObservedLink,
    vxlan: &ObservedVxlan,
) -> Option<Request> {
    let mac = link.mac.filter(|mac| observed.mac != Some(*mac));
    let mtu = (observed.mtu != link.mtu).then_some(link.mtu);
    let up = !observed.up;
    let same_vxlan = vxlan.parent == Some(parent)
        && vxlan.local == Some(wanted.local)
        && vxlan.learning == wanted.learning;
    if mac.is_none() && mtu.is_none() && !up && same_vxlan {
        return None;
    }
    let vxlan = (!same_vxlan).then_some((wanted, parent));
    Some(encode::change_link(observed.index, mac, mtu, up, vxlan))
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
            loopback: false,
            vxlan: Some(ObservedVxlan {
                vni: 1,
                port: 8472,
                parent: Some(2),
                local: Some([192, 168, 100, 1].into()),
                learning: false,
                gbp: false,
            }),
        }
    }

    fn plan(alter: impl FnOnce(&mut ObservedLink)) -> LinkPlan {
        let mut links = Links::default();
        links.put(ObservedLink {
            index: 2,
            name: name("eth0"),
            mac: None,
            mtu: 1500,
            up: true,
            loopback: false,
            vxlan: None,
        });
        let mut link = observed();
        alter(&mut link);
        links.put(link);
        plan_link(&wanted(), &links)
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
    fn what_it_does_not_allow_means_a_new_device() {
        assert!(matches!(plan(|l| l.vxlan.as_mut().unwrap().vni = 2), LinkPlan::Recreate(_)));
        assert!(matches!(plan(|l| l.vxlan.as_mut().unwrap().gbp = true), LinkPlan::Recreate(_)));
        assert!(matches!(plan(|l| l.vxlan = None), LinkPlan::Recreate(_)));
    }

    #[test]
    fn without_its_parent_a_device_waits() {
        assert!(matches!(plan_link(&wanted(), &Links::default()), LinkPlan::Wait(_)));
    }
}
