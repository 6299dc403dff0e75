//! Whether a strict `rp_filter` drops what peers send. The kernel itself is asked, as it decides for a packet.

use std::net::IpAddr;

use flannel_kernel::look::{Kernel, RouteQuery};
use flannel_netlink::NetlinkError;
use flannel_trace::settings::is_reverse_path_strict;

use super::node_context::{MAX_PEERS, Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::ReversePath;

struct Refused {
    from: IpAddr,
    to: IpAddr,
    device: String,
    answered_by: Option<String>,
    errno: i32,
    strict: bool,
}

pub(super) fn look(context: &NodeContext) -> anyhow::Result<Vec<Finding>> {
    let mut kernel = Kernel::open()?;
    let mut refused = Vec::new();
    for network in &context.networks {
        for (from, to, device) in packets(network, &kernel) {
            let Some(index) = kernel.device(&device).map(|device| device.index) else { continue };
            let asked = RouteQuery { dst: to, from: Some((from, index)), protocol: None };
            if let Err(NetlinkError { errno, .. }) = kernel.decide(asked)? {
                let back = kernel.decide(RouteQuery { dst: from, from: None, protocol: None })?;
                let strict = is_reverse_path_strict(&device);
                let answered_by = back.ok().map(|way| way.link);
                refused.push(Refused { from, to, device, answered_by, errno, strict });
            }
        }
    }
    Ok(judge(&refused))
}

fn packets(network: &Network, kernel: &Kernel) -> Vec<(IpAddr, IpAddr, String)> {
    let Some(underlay) = &network.underlay else { return Vec::new() };
    let own = underlay.addresses();
    let mut packets = Vec::new();
    for peer in network.peers.iter().take(MAX_PEERS) {
        for from in &peer.public {
            let to = own.iter().find(|ip| ip.is_ipv4() == from.is_ipv4());
            packets.extend(to.map(|to| (*from, *to, underlay.link.to_string())));
        }
        // To the node's own address on the tunnel, which it has whether there are pods or not.
        let devices = network.devices.iter().filter_map(|name| kernel.device(name));
        for device in devices.filter(|device| device.up) {
            for subnet in &peer.subnets {
                let v4 = subnet.addr().is_ipv4();
                let to =
                    device.addresses.iter().map(|net| net.addr()).find(|ip| ip.is_ipv4() == v4);
                let from = subnet.hosts().nth(1);
                packets.extend(from.zip(to).map(|(from, to)| (from, to, device.name.clone())));
            }
        }
    }
    packets
}

fn judge(refused: &[Refused]) -> Vec<Finding> {
    let mut devices: Vec<&str> = refused.iter().map(|one| one.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let of = |device: &str| {
        let strict = |one: &&Refused| {
            // Kernels from 6.13 on say EINVAL, which has other reasons, too.
            let refused = [libc::EXDEV, libc::EINVAL].contains(&one.errno);
            let elsewhere = one.answered_by.as_deref() != Some(device);
            one.device == device && one.strict && refused && elsewhere
        };
        let all: Vec<&Refused> = refused.iter().filter(strict).collect();
        let first = all.first()?;
        let more =
            if all.len() > 1 { format!(" (and {} more)", all.len() - 1) } else { String::new() };
        let way = first.answered_by.as_ref().map_or("there is no route back".to_owned(), |link| {
            format!("it would answer by {link}")
        });
        Some(Finding::broken(
            LAYER,
            format!(
                "the kernel drops packets from {} to {} that come in by {device}{more}: {way}, and rp_filter is strict",
                first.from, first.to
            ),
            "routes are asymmetric: this node sends to that peer, and what the peer sends is lost",
            format!(
                "correct the route (ip route get {}), or sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{device}.rp_filter=2",
                first.from
            ),
        ))
    };
    devices.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_would_be_answered_elsewhere_are_a_finding_a_device() {
        let refused = |from: [u8; 4], errno, strict| Refused {
            from: from.into(),
            to: [192, 0, 2, 1].into(),
            device: "eth0".to_owned(),
            answered_by: Some("eth1".to_owned()),
            errno,
            strict,
        };
        let all = [
            refused([192, 0, 2, 2], libc::EXDEV, true),
            refused([192, 0, 2, 3], libc::EXDEV, true),
        ];
        let found = judge(&all);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .about
                .contains("from 192.0.2.2 to 192.0.2.1 that come in by eth0 (and 1 more)")
        );
        assert!(found[0].fix.contains("net.ipv4.conf.eth0.rp_filter=2"), "{found:?}");
        // Of what else may be the matter, others speak.
        assert_eq!(judge(&[refused([192, 0, 2, 2], libc::EXDEV, false)]), []);
        assert_eq!(judge(&[refused([192, 0, 2, 2], libc::ENETUNREACH, true)]), []);
    }
}
