//! Which devices can be flannel's: the one place that says so, by kind and name.

use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use crate::observed::{self, ObservedKind, ObservedLink};
use crate::{IfName, IpTunnelKind};

/// The kernel allows a name so many bytes.
const LONGEST_NAME: usize = 15;

/// What the names of flannel's vxlan devices begin with, for IPv4 and for IPv6; the VNI follows.
pub const VXLAN_DEVICES: [&str; 2] = ["flannel.", "flannel-v6."];
/// The one of a network whose config says nothing else.
pub const USUAL_DEVICE: &str = "flannel.1";
/// What the names of its TUN devices begin with; a number follows.
pub const TUN_DEVICES: &str = "flannel";

/// The ipip backend's device for a kind of tunnel. One of each per node.
pub fn ip_tunnel_device(kind: IpTunnelKind) -> &'static str {
    match kind {
        IpTunnelKind::Ipip => "flannel.ipip",
        IpTunnelKind::Sit => "flannel.sit",
    }
}

/// The device that drops packets that should have been encrypted and were not. One per node.
pub const IPSEC_DEVICE: &str = "flannel.ipsec";

/// WireGuard's devices: the one that all modes have, and that of IPv6 in the mode `separate`.
pub const WIREGUARD_DEVICES: [&str; 2] = ["flannel-wg", "flannel-wg-v6"];

/// What the names of both ends of a test pod begin with: the node's, and the pod's. A number follows.
pub const TEST_POD_DEVICES: [&str; 2] = ["flannel-test", "flannel-tpod"];

/// What the names of devices begin with that are made to see whether the kernel can make them.
const TRIAL_DEVICES: &str = "try-";

/// The name under which a device is tried that has its own name in use; `None` if it is too long.
pub fn trial_device(name: IfName) -> Option<IfName> {
    let tried = format!("{TRIAL_DEVICES}{name}");
    let end = tried.len().min(LONGEST_NAME);
    IfName::new(tried.get(..end)?).ok()
}

/// Whether a device was made to be tried. None lasts longer than its trial.
pub(crate) fn is_trial_device(link: &ObservedLink) -> bool {
    let tried = link.name.as_str().strip_prefix(TRIAL_DEVICES);
    link.kind.is_some() && tried.is_some_and(|name| name.starts_with(TUN_DEVICES))
}

/// Whether it is one end of a test pod. Those come and go beside what is wanted of the kernel: no backend wants them.
pub fn is_test_pod_device(message: &LinkMessage) -> bool {
    let is_veth = message.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => info.contains(&LinkInfo::Kind(InfoKind::Veth)),
        _ => false,
    });
    let name = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    });
    is_veth && name.is_some_and(is_test_pod_name)
}

/// Whether the ends of test pods are named so.
pub(crate) fn is_test_pod_name(name: &str) -> bool {
    is_numbered(name, &TEST_POD_DEVICES)
}

/// Whether flannel names devices so, of whatever kind they are.
pub fn is_flannel_name(name: &str) -> bool {
    is_numbered(name, &VXLAN_DEVICES)
        || is_test_pod_name(name)
        || is_numbered(name, &[TUN_DEVICES])
        || WIREGUARD_DEVICES.contains(&name)
        || [IpTunnelKind::Ipip, IpTunnelKind::Sit].map(ip_tunnel_device).contains(&name)
        || name == IPSEC_DEVICE
}

fn is_numbered(name: &str, prefixes: &[&str]) -> bool {
    let numbers = prefixes.iter().filter_map(|prefix| name.strip_prefix(prefix));
    numbers.into_iter().any(|number| number.parse::<u32>().is_ok())
}

/// Whether a device that the kernel tells of is of a kind that flannel makes, and named as flannel
/// names it.
pub fn is_flannel_device(message: LinkMessage) -> bool {
    is_test_pod_device(&message)
        || observed::link(message).is_some_and(|link| can_be_ours(&link) || is_trial_device(&link))
}

pub(crate) fn can_be_ours(link: &ObservedLink) -> bool {
    match &link.kind {
        None => false,
        Some(ObservedKind::Vxlan(vxlan)) => VXLAN_DEVICES
            .iter()
            .any(|prefix| link.name.as_str() == format!("{prefix}{}", vxlan.vni)),
        Some(ObservedKind::IpTunnel(tunnel)) => link.name.as_str() == ip_tunnel_device(tunnel.kind),
        Some(ObservedKind::Dummy) => link.name.as_str() == IPSEC_DEVICE,
        Some(ObservedKind::Wireguard) => WIREGUARD_DEVICES.contains(&link.name.as_str()),
        Some(ObservedKind::Tun) => {
            let name = link.name.as_str();
            // Where the kernel has no WireGuard, its devices are these.
            is_numbered(name, &[TUN_DEVICES]) || WIREGUARD_DEVICES.contains(&name)
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{InfoData, InfoVxlan};

    use super::*;

    fn device(name: &str, kind: InfoKind, vni: u32) -> LinkMessage {
        let data = LinkInfo::Data(InfoData::Vxlan(vec![InfoVxlan::Id(vni)]));
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), data]),
        ];
        message
    }

    #[test]
    fn a_device_can_be_ours_by_its_kind_and_by_its_name() {
        for (name, kind, vni) in [
            (USUAL_DEVICE, InfoKind::Vxlan, 1),
            ("flannel.7", InfoKind::Vxlan, 7),
            ("flannel-v6.7", InfoKind::Vxlan, 7),
            ("flannel.ipip", InfoKind::IpIp, 0),
            ("flannel.sit", InfoKind::SitTun, 0),
            ("flannel.ipsec", InfoKind::Dummy, 0),
            ("flannel-wg", InfoKind::Wireguard, 0),
            ("flannel-wg-v6", InfoKind::Wireguard, 0),
            ("flannel0", InfoKind::Tun, 7),
            ("flannel-wg", InfoKind::Tun, 7),
            ("flannel-test0", InfoKind::Veth, 0),
            ("flannel-tpod12", InfoKind::Veth, 0),
        ] {
            assert!(is_flannel_name(name), "{name}");
            assert!(is_flannel_device(device(name, kind, vni)), "{name}");
        }
        for other in ["flannel", "flannel.", "flannel-vpn", "flannel.of-mine", "tunl0", "eth0"] {
            assert!(!is_flannel_name(other), "{other}");
        }
        for other in [
            device("flannel0", InfoKind::Bridge, 7),
            device("flannel-vpn", InfoKind::Tun, 7),
            device("flannel.7", InfoKind::Bridge, 7),
            device("flannel.8", InfoKind::Vxlan, 7),
            device("flannel.of-mine", InfoKind::Vxlan, 7),
            device("vxlan7", InfoKind::Vxlan, 7),
            device("flannel.ipip", InfoKind::Vxlan, 7),
            device("tunl0", InfoKind::IpIp, 0),
            device("sit0", InfoKind::SitTun, 0),
            device("flannel.sit", InfoKind::IpIp, 0),
            device("dummy0", InfoKind::Dummy, 0),
            device("wg0", InfoKind::Wireguard, 0),
            device("flannel-test0", InfoKind::Dummy, 0),
            device("flannel-testing", InfoKind::Veth, 0),
            device("veth0", InfoKind::Veth, 0),
        ] {
            assert!(!is_flannel_device(other.clone()), "{other:?}");
        }
    }
}
