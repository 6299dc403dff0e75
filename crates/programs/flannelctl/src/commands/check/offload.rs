//! Cards and kernels that are known to break packets of a tunnel.

use std::fs;

use flannel_backend::KernelFeature;
use flannel_common::Family;
use flannel_entries::devices::USUAL_DEVICE;
use flannel_entries::facts::KernelVersion;

use super::node_context::{Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Offload;
/// Before it, the kernel computes wrong checksums for packets of vxlan that are masqueraded.
const FIXED_IN: KernelVersion = KernelVersion { major: 5, minor: 7 };
/// VMware's card: some hosts offload tunnels wrongly, above all on UDP ports that are not vxlan's assigned one.
const VMXNET3: &str = "vmxnet3";

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let judged = context.networks.iter().flat_map(|network| {
        let card = network.underlay.as_ref().map(|underlay| underlay.link.to_string());
        let driver = card.as_ref().and_then(|card| {
            let link = fs::read_link(format!("/sys/class/net/{card}/device/driver")).ok()?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        });
        judge(network, context.host.facts.kernel, driver.as_deref(), context.state.is_some())
    });
    judged.collect()
}

/// `ours`: the daemon that runs here fixes what can be fixed on its own devices.
fn judge(
    network: &Network,
    kernel: KernelVersion,
    driver: Option<&str>,
    ours: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tunnel = network.encapsulation.tunnel();
    let is_vxlan = tunnel.is_some_and(|tunnel| tunnel.needs == KernelFeature::Vxlan);
    let device = network.devices.first().map_or(USUAL_DEVICE, String::as_str);
    if is_vxlan && kernel < FIXED_IN && kernel != KernelVersion::default() {
        let what = format!(
            "this kernel is {kernel}, and kernels before {FIXED_IN} send wrong checksums by vxlan"
        );
        let done = "flanneld has switched checksum offload off on its device";
        let why = "connections to services by way of another node hang for a minute";
        let fix = format!("ethtool -K {device} tx-checksum-ip-generic off, or a newer kernel");
        findings.push(match ours {
            true => Finding::note(LAYER, what, done),
            false => Finding::warning(LAYER, what, why, fix),
        });
    }
    let in_udp = Family::BOTH.iter().any(|it| network.encapsulation.udp_port(*it).is_some());
    if let (Some(VMXNET3), true, Some(underlay)) = (driver, in_udp, &network.underlay) {
        let card = underlay.link;
        let what = format!("{card} is a card of VMware ({VMXNET3}), which offloads tunnels");
        let why = "on some hosts packets of the tunnel get a wrong checksum: ping works, and connections between nodes hang";
        let fix = format!(
            "if so: ethtool -K {card} tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off"
        );
        findings.push(Finding::warning(LAYER, what, why, fix));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_state::Severity;

    #[test]
    fn kernels_and_cards_that_break_packets_are_named_and_others_are_not() {
        let network = Network::sample();
        let kernel = |major, minor| KernelVersion { major, minor };
        assert_eq!(judge(&network, kernel(6, 1), Some("virtio_net"), true), []);
        let old = judge(&network, kernel(5, 4), None, false);
        assert!(
            old[0].fix.starts_with("ethtool -K flannel.1 tx-checksum-ip-generic off"),
            "{old:?}"
        );
        assert_eq!(
            judge(&network, kernel(5, 4), None, true)[0].severity,
            Severity::Note,
            "ours repairs it"
        );
        let vmware = judge(&network, kernel(6, 1), Some("vmxnet3"), true);
        assert!(vmware[0].fix.contains("tx-udp_tnl-segmentation off"), "{vmware:?}");
    }
}
