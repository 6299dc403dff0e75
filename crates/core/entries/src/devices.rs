//! Names of flannel's devices, by kind.

use flannel_common::IfName;

use crate::kernel::IpTunnelKind;

const LONGEST_NAME: usize = 15;

/// Prefixes of the names of vxlan devices, for IPv4 and for IPv6; the VNI follows.
pub const VXLAN_DEVICES: [&str; 2] = ["flannel.", "flannel-v6."];
pub const USUAL_DEVICE: &str = "flannel.1";
/// Prefix of the names of TUN devices; a number follows.
pub const TUN_DEVICES: &str = "flannel";

/// The ipip backend's device for a kind of tunnel. One of each per node.
pub fn ip_tunnel_device(kind: IpTunnelKind) -> &'static str {
    match kind {
        IpTunnelKind::Ipip => "flannel.ipip",
        IpTunnelKind::Sit => "flannel.sit",
    }
}

/// Device that drops packets that should have been encrypted and were not. One per node.
pub const IPSEC_DEVICE: &str = "flannel.ipsec";

/// WireGuard's devices: the one that all modes have, and that of IPv6 in the mode `separate`.
pub const WIREGUARD_DEVICES: [&str; 2] = ["flannel-wg", "flannel-wg-v6"];

/// Prefixes of the names of both ends of a test pod: the node's, and the pod's. A number follows.
pub const TEST_POD_DEVICES: [&str; 2] = ["flannel-test", "flannel-tpod"];

/// Prefix of the names of devices that are made to see whether the kernel can make them.
const TRIAL_DEVICES: &str = "try-";

/// Name for a trial of a device whose own name is in use; `None` if it would be too long.
pub fn trial_device(name: IfName) -> Option<IfName> {
    let tried = format!("{TRIAL_DEVICES}{name}");
    let end = tried.len().min(LONGEST_NAME);
    IfName::new(tried.get(..end)?).ok()
}

/// Whether a name was made by [`trial_device`]. No such device lasts longer than its trial.
pub fn is_trial_name(name: &str) -> bool {
    name.strip_prefix(TRIAL_DEVICES).is_some_and(|name| name.starts_with(TUN_DEVICES))
}

/// Whether a name is that of a TUN device of flannel, as WireGuard's are where the kernel has none.
pub fn is_tun_name(name: &str) -> bool {
    is_numbered(name, &[TUN_DEVICES]) || WIREGUARD_DEVICES.contains(&name)
}

pub fn is_test_pod_name(name: &str) -> bool {
    is_numbered(name, &TEST_POD_DEVICES)
}

pub fn is_flannel_name(name: &str) -> bool {
    is_numbered(name, &VXLAN_DEVICES)
        || is_test_pod_name(name)
        || is_tun_name(name)
        || [IpTunnelKind::Ipip, IpTunnelKind::Sit].map(ip_tunnel_device).contains(&name)
        || name == IPSEC_DEVICE
}

fn is_numbered(name: &str, prefixes: &[&str]) -> bool {
    let numbers = prefixes.iter().filter_map(|prefix| name.strip_prefix(prefix));
    numbers.into_iter().any(|number| number.parse::<u32>().is_ok())
}
