//! Which devices can be flannel's, by kind and name: the one place that decides.

use flannel_entries::devices::{
    IPSEC_DEVICE, VXLAN_DEVICES, WIREGUARD_DEVICES, ip_tunnel_device, is_test_pod_name,
    is_trial_name, is_tun_name,
};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use crate::observed::{self, ObservedKind, ObservedLink};

/// Whether a device was made for a trial. None lasts longer than its trial.
pub(crate) fn is_trial_device(link: &ObservedLink) -> bool {
    link.kind.is_some() && is_trial_name(link.name.as_str())
}

/// Whether it is one end of a test pod. No backend wants those: they come and go beside what is wanted of the kernel.
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

/// Whether a device is of a kind that flannel makes, and named as flannel names it.
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
        Some(ObservedKind::Tun) => is_tun_name(link.name.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use flannel_entries::devices::{USUAL_DEVICE, is_flannel_name};
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
