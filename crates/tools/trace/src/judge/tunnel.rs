//! The device of the tunnel, and the way between nodes.

use std::net::IpAddr;

use flannel_backend::OuterPackets;
use flannel_common::Family;
use flannel_kernel::look::{Decision, Device};
use flannel_state::Layer;
use netlink_packet_route::route::RouteType;

use super::routes::{by, leads_nowhere};
use super::{HopJudgement, fault};
use crate::NodeInNetwork;

const LAYER: Layer = Layer::Tunnel;

pub(crate) fn tunnel(
    node: &NodeInNetwork,
    family: Family,
    name: &str,
    device: Option<&Device>,
) -> HopJudgement {
    let Some(device) = device else {
        let fix = "flannelctl repair; if no flanneld runs, start it";
        return fault(LAYER, format!("{name} is not there"), fix);
    };
    if !device.up {
        let fix = format!("ip link set {name} up, then flannelctl repair");
        return fault(LAYER, format!("{name} is down"), fix);
    }
    if let Some(mtu) = node.mtu.filter(|mtu| device.mtu < *mtu) {
        let what = format!("{name} has an MTU of {}, and pods have {mtu}", device.mtu);
        return fault(LAYER, what, format!("ip link set {name} mtu {mtu}"));
    }
    let outer = node.encapsulation.path(family).map(|path| path.outer);
    match (&device.vxlan, outer) {
        (Some(vxlan), Some(OuterPackets::Udp(port))) if vxlan.port != port => fault(
            LAYER,
            format!("{name} uses UDP port {}, and the network uses {port}", vxlan.port),
            "flannelctl repair: it makes the device again",
        ),
        _ => Ok(format!("{name} is up, MTU {}", device.mtu)),
    }
}

pub(crate) fn underlay(public: IpAddr, way: &Decision, device: &Device) -> HopJudgement {
    if leads_nowhere(way.kind) || way.kind == RouteType::Local {
        let what = format!("what is sent to {public} stays on this node ({:?})", way.kind);
        return fault(Layer::Underlay, what, format!("ip route get {public}"));
    }
    if !device.up || !device.carrier {
        let fix = format!("ip link set {} up, and look at its cable", device.name);
        return fault(Layer::Underlay, format!("{} towards {public} is down", device.name), fix);
    }
    Ok(by(public, way))
}

#[cfg(test)]
mod tests {
    use flannel_common::Mac;

    use super::super::routes::tests::node;
    use super::super::{bridge, no_veth, veth};
    use super::*;

    #[test]
    fn a_device_that_is_down_or_too_small_is_a_fault_with_the_command_that_fixes_it() {
        let vxlan = node("vxlan", &["flannel.1"]);
        let device = Device { mtu: 1450, ..Device::plain(1, "flannel.1") };
        assert!(tunnel(&vxlan, Family::V4, "flannel.1", Some(&device)).is_ok());
        assert!(tunnel(&vxlan, Family::V4, "flannel.1", None).is_err());
        let smaller = Device { mtu: 1300, ..device.clone() };
        let said = tunnel(&vxlan, Family::V4, "flannel.1", Some(&smaller)).unwrap_err();
        assert_eq!(said.fix, "ip link set flannel.1 mtu 1450");
        let port = flannel_kernel::ObservedVxlan { port: 4789, ..Default::default() };
        let other_port = Device { vxlan: Some(port), ..device.clone() };
        assert!(tunnel(&vxlan, Family::V4, "flannel.1", Some(&other_port)).is_err());
        let (pod, mac) = (IpAddr::from([10, 244, 1, 2]), Mac([2, 0, 0, 0, 0, 1]));
        let port = Device { up: false, ..Device::plain(2, "veth2") };
        let said = no_veth("cni0", pod, mac, &[Device::plain(1, "veth1"), port.clone()]);
        assert_eq!(said.fix, "ip link set veth2 up");
        assert!(veth(&port, pod, mac, None).is_err() && bridge(&port).is_err());
        assert!(veth(&Device::plain(1, "veth1"), pod, mac, Some(1450)).is_err(), "its MTU");
    }
}
