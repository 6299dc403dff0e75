//! Differences between a vxlan device and the wanted one: which can be changed, and which need a new device.

use flannel_entries::kernel::Vxlan;
use netlink_packet_route::link::LinkFlags;

use super::{LinkContext, Step};
use crate::encode;
use crate::observed::{ObservedLink, ObservedVxlan};

impl LinkContext<'_> {
    pub(super) fn receives_the_same_vxlan(self, wanted: &Vxlan, other: &ObservedVxlan) -> bool {
        let v4 = other.local.is_none_or(|local| local.is_ipv4());
        other.vni == wanted.vni && other.port == self.port(wanted) && v4 == wanted.local.is_ipv4()
    }

    pub(crate) fn port(self, wanted: &Vxlan) -> u16 {
        wanted.port.unwrap_or(self.default_port)
    }

    pub(super) fn vxlan_needs_new_device(
        self,
        wanted: &Vxlan,
        observed: &ObservedVxlan,
    ) -> Option<String> {
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

pub(super) fn changes(
    wanted: &Vxlan,
    parent: Option<u32>,
    observed: &ObservedLink,
    vxlan: &ObservedVxlan,
) -> Vec<Step> {
    let index = observed.index;
    let mut steps = Vec::new();
    let mut step =
        |what: String, request| steps.push(Step { what, request, recreate_if_refused: true });
    let mut differences = Vec::new();
    if vxlan.parent != parent {
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
        step(differences.join(", "), encode::set_vxlan(index, wanted, parent));
    }
    if observed.noarp {
        let request = encode::set_flags(index, LinkFlags::Noarp, false);
        step("it resolves no addresses (NOARP)".to_owned(), request);
    }
    steps
}
