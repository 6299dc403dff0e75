//! Differences between an IP tunnel and the wanted one. All of them are changed on the existing device.

use flannel_entries::kernel::IpTunnel;

use super::Step;
use crate::encode;
use crate::observed::{ObservedIpTunnel, ObservedLink};

/// Whether both have the same ends: the kernel makes only one such tunnel.
pub(super) fn has_the_same_ends(wanted: &IpTunnel, other: &ObservedIpTunnel) -> bool {
    let here = other.kind == wanted.kind && other.local == Some(wanted.local.into());
    here && other.remote.is_none() && other.parent == 0
}

pub(super) fn changes(
    wanted: &IpTunnel,
    mtu: u32,
    observed: &ObservedLink,
    tunnel: &ObservedIpTunnel,
) -> Vec<Step> {
    let mut differences = Vec::new();
    if tunnel.local != Some(wanted.local.into()) {
        differences.push(format!("its local address is not {}", wanted.local));
    }
    if let Some(remote) = tunnel.remote {
        differences.push(format!("it sends to {remote} alone"));
    }
    if tunnel.parent != 0 {
        differences.push("it is bound to a device".to_owned());
    }
    if tunnel.ttl != 0 {
        differences.push(format!("its TTL is {}", tunnel.ttl));
    }
    if tunnel.pmtudisc {
        differences.push("it discovers path MTUs itself".to_owned());
    }
    if differences.is_empty() {
        return Vec::new();
    }
    let request = encode::set_ip_tunnel(observed.index, wanted, mtu);
    vec![Step { what: differences.join(", "), request, recreate_if_refused: true }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_entries::kernel::IpTunnelKind;

    fn differences(kind: IpTunnelKind, alter: impl FnOnce(&mut ObservedIpTunnel)) -> usize {
        let wanted = IpTunnel { kind, local: [192, 168, 100, 1].into() };
        let mut tunnel =
            ObservedIpTunnel { local: Some(wanted.local.into()), ..ObservedIpTunnel::new(kind) };
        alter(&mut tunnel);
        let link = ObservedLink { noarp: true, ..ObservedLink::plain(3, "flannel.ipip") };
        changes(&wanted, 1480, &link, &tunnel).len()
    }

    #[test]
    fn whatever_differs_is_put_right_on_the_device_that_is_there() {
        for kind in [IpTunnelKind::Ipip, IpTunnelKind::Sit] {
            assert_eq!(differences(kind, |_| ()), 0);
            let alterations: [fn(&mut ObservedIpTunnel); 6] = [
                |tunnel| tunnel.local = None,
                |tunnel| tunnel.local = Some([192, 168, 100, 9].into()),
                |tunnel| tunnel.remote = Some([192, 168, 100, 2].into()),
                |tunnel| tunnel.parent = 2,
                |tunnel| tunnel.ttl = 64,
                |tunnel| tunnel.pmtudisc = true,
            ];
            for alter in alterations {
                assert_eq!(differences(kind, alter), 1);
            }
        }
    }
}
