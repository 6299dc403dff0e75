//! What the kernel must be able to do for the backend that is configured, and versions of it that are known to be bad.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use flannel_backend::KernelFeature;
use flannel_common::Family;
use flannel_entries::facts::KernelVersion;
use flannel_netlink::{Connection, Protocol, Request, verbs};
use flannel_trace::settings::setting;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVxlan};

use super::node_context::{Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Kernel;
const OLDEST: KernelVersion = KernelVersion { major: 4, minor: 19 };

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Feature {
    Bridge,
    Veth,
    Tunnel(KernelFeature),
    Ipv6,
    /// Rules of iptables for packets between pods of this node.
    BridgeFilter,
}

#[derive(Debug, Default)]
struct Facts {
    kernel: KernelVersion,
    missing: BTreeSet<Feature>,
    /// Of the settings of `br_netfilter`, those that are off.
    filter_off: Vec<&'static str>,
}

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let wanted: BTreeSet<Feature> = context.networks.iter().flat_map(needed).collect();
    let missing = wanted.into_iter().filter(|feature| !is_there(*feature)).collect();
    let is_filtered = |family| {
        let mut networks = context.networks.iter();
        networks.any(|network| network.stack.has(family) && network.nftables == Some(false))
    };
    let mut filter_off = Vec::new();
    for (name, family) in
        [("bridge-nf-call-iptables", Family::V4), ("bridge-nf-call-ip6tables", Family::V6)]
    {
        let is_off = setting(&format!("net/bridge/{name}")).as_deref() == Some("0");
        filter_off.extend((is_off && is_filtered(family)).then_some(name));
    }
    judge(&Facts { kernel: context.host.facts.kernel, missing, filter_off })
}

fn needed(network: &Network) -> Vec<Feature> {
    let mut features = vec![Feature::Bridge, Feature::Veth];
    features.extend(network.encapsulation.tunnel().map(|tunnel| Feature::Tunnel(tunnel.needs)));
    features.extend(network.stack.v6.then_some(Feature::Ipv6));
    features.extend((network.nftables == Some(false)).then_some(Feature::BridgeFilter));
    features
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        facts.missing.iter().map(|feature| missing(*feature)).collect();
    for name in &facts.filter_off {
        let why = "packets between pods of this node pass iptables by: services of Kubernetes fail from pods to pods of the \
                   same node";
        let fix = format!("sysctl -w net.bridge.{name}=1");
        findings.push(Finding::warning(LAYER, format!("net.bridge.{name} is 0"), why, fix));
    }
    if facts.kernel < OLDEST && facts.kernel != KernelVersion::default() {
        let what = format!("this kernel is {}, older than {OLDEST}", facts.kernel);
        let why = "it has not been seen to work; vxlan and nftables of that age lack much";
        findings.push(Finding::warning(LAYER, what, why, "install a newer kernel"));
    }
    findings
}

fn missing(feature: Feature) -> Finding {
    let broken = |what: &str, why: &str, fix: &str| Finding::broken(LAYER, what, why, fix);
    let pods = "pods cannot be put on the network";
    match feature {
        Feature::Bridge => broken("the kernel makes no bridges", pods, "modprobe bridge"),
        Feature::Veth => broken("the kernel makes no veth devices", pods, "modprobe veth"),
        Feature::Tunnel(KernelFeature::Vxlan) => broken(
            "the kernel makes no vxlan devices, and the backend is vxlan",
            "there is no tunnel to other nodes without it",
            "modprobe vxlan; on Ubuntu for Raspberry Pi: apt install linux-modules-extra-raspi",
        ),
        Feature::Tunnel(KernelFeature::Ipip) => broken(
            "the kernel makes no ipip devices, and the backend is ipip",
            "there is no tunnel to other nodes without it",
            "modprobe ipip, or use vxlan",
        ),
        Feature::Tunnel(KernelFeature::Wireguard) => Finding::warning(
            LAYER,
            "the kernel has no WireGuard, and the backend is wireguard",
            "flanneld encrypts in user space instead, which is slower",
            "modprobe wireguard",
        ),
        Feature::Tunnel(KernelFeature::Tun) => broken(
            "/dev/net/tun cannot be used, and the backend is udp",
            "there is no tunnel to other nodes without it",
            "modprobe tun; in a container, give it the device /dev/net/tun",
        ),
        Feature::Tunnel(KernelFeature::Ipsec) => broken(
            "the kernel has no IPsec (xfrm), and the backend is ipsec",
            "packets are not encrypted, so none is sent",
            "modprobe xfrm_user esp4",
        ),
        Feature::Ipv6 => broken(
            "IPv6 is switched off, and the network has IPv6",
            "pods get no IPv6, and flanneld waits for an address of that family",
            "sysctl -w net.ipv6.conf.all.disable_ipv6=0; if that does not exist, boot without ipv6.disable=1",
        ),
        Feature::BridgeFilter => broken(
            "the kernel module br_netfilter is not loaded",
            "flanneld does not start without it in iptables mode: iptables would never see packets between pods of \
             one node, and services fail",
            "modprobe br_netfilter; echo br_netfilter > /etc/modules-load.d/flannel.conf",
        ),
    }
}

fn is_there(feature: Feature) -> bool {
    match feature {
        Feature::Bridge => makes(InfoKind::Bridge, None),
        Feature::Veth => makes(InfoKind::Veth, None),
        Feature::Tunnel(KernelFeature::Vxlan) => makes(
            InfoKind::Vxlan,
            Some(InfoData::Vxlan(vec![InfoVxlan::Id(1), InfoVxlan::Port(8472)])),
        ),
        Feature::Tunnel(KernelFeature::Ipip) => makes(InfoKind::IpIp, None),
        Feature::Tunnel(KernelFeature::Wireguard) => {
            flannel_kernel::has_wireguard().is_ok_and(|has| has.is_ok())
        }
        Feature::Tunnel(KernelFeature::Tun) => {
            std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_ok()
        }
        Feature::Tunnel(KernelFeature::Ipsec) => Connection::open(Protocol::Xfrm).is_ok(),
        Feature::Ipv6 => setting("net/ipv6/conf/all/disable_ipv6").as_deref() == Some("0"),
        Feature::BridgeFilter => Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists(),
    }
}

/// Whether the kernel makes a device of a kind. It is tried, because no list says so: a module may be built in, be
/// loaded when it is asked for, or be there for another kernel. What is made goes with the namespace it is made in.
fn makes(kind: InfoKind, data: Option<InfoData>) -> bool {
    let tried = std::thread::scope(|scope| scope.spawn(|| make(kind, data)).join());
    // What is not known is not accused.
    !matches!(tried, Ok(Ok(false)))
}

fn make(kind: InfoKind, data: Option<InfoData>) -> io::Result<bool> {
    // SAFETY: the thread is new and ends here; nothing else relies on its network.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
    let mut connection = Connection::open(Protocol::Route)?;
    let request =
        Request::create_link(verbs::named_link("try", [verbs::kind_attribute(kind, data)]));
    let mut unknown = false;
    connection.apply([request], |_, error| {
        // Refused for any other reason, it is known at least.
        unknown = [libc::EOPNOTSUPP, libc::ENODEV, libc::EAFNOSUPPORT].contains(&error.errno);
    })?;
    Ok(!unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_module_and_what_is_there_is_not() {
        let current = KernelVersion { major: 6, minor: 1 };
        let sound = Facts { kernel: current, ..Facts::default() };
        assert_eq!(judge(&sound), []);
        let missing = [Feature::Tunnel(KernelFeature::Vxlan), Feature::BridgeFilter].into();
        let found = judge(&Facts { kernel: current, missing, ..Facts::default() });
        let fixes: Vec<&str> = found.iter().map(|finding| finding.fix.as_str()).collect();
        assert!(fixes[0].starts_with("modprobe vxlan"), "{fixes:?}");
        assert!(fixes[1].starts_with("modprobe br_netfilter"), "{fixes:?}");
        let old = Facts { kernel: KernelVersion { major: 3, minor: 10 }, ..Facts::default() };
        assert!(judge(&old)[0].about.contains("3.10"));
        let off = Facts {
            kernel: current,
            filter_off: vec!["bridge-nf-call-iptables"],
            ..Facts::default()
        };
        assert_eq!(judge(&off)[0].fix, "sysctl -w net.bridge.bridge-nf-call-iptables=1");
    }
}
