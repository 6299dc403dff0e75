//! What of an ipip device is as wanted, and what is to be put right. Nothing of it needs a new one.

use std::net::IpAddr;

use super::Step;
use crate::Ipip;
use crate::encode;
use crate::observed::{ObservedIpip, ObservedLink};

/// Of two such tunnels the kernel makes only one.
pub(super) fn has_the_same_ends(wanted: &Ipip, other: &ObservedIpip) -> bool {
    other.local == Some(IpAddr::V4(wanted.local)) && other.remote.is_none() && other.parent == 0
}

pub(super) fn changes(
    wanted: &Ipip,
    mtu: u32,
    observed: &ObservedLink,
    ipip: &ObservedIpip,
) -> Vec<Step> {
    let mut differences = Vec::new();
    if ipip.local != Some(IpAddr::V4(wanted.local)) {
        differences.push(format!("its local address is not {}", wanted.local));
    }
    if let Some(remote) = ipip.remote {
        differences.push(format!("it sends to {remote} alone"));
    }
    if ipip.parent != 0 {
        differences.push("it is bound to a device".to_owned());
    }
    if ipip.ttl != 0 {
        differences.push(format!("its TTL is {}", ipip.ttl));
    }
    if ipip.pmtudisc {
        differences.push("it discovers path MTUs itself".to_owned());
    }
    if differences.is_empty() {
        return Vec::new();
    }
    let request = encode::set_ipip(observed.index, wanted, mtu);
    vec![Step { what: differences.join(", "), request, or_anew: true }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IfName;

    fn differences(alter: impl FnOnce(&mut ObservedIpip)) -> usize {
        let wanted = Ipip { local: [192, 168, 100, 1].into() };
        let mut ipip = ObservedIpip { local: Some(wanted.local.into()), ..ObservedIpip::default() };
        alter(&mut ipip);
        let link = ObservedLink {
            index: 3,
            name: IfName::new("flannel.ipip").expect("a name"),
            mac: None,
            mtu: 1480,
            up: true,
            carrier: true,
            loopback: false,
            master: None,
            noarp: true,
            protodown: false,
            kind: None,
        };
        changes(&wanted, 1480, &link, &ipip).len()
    }

    #[test]
    fn whatever_differs_is_put_right_on_the_device_that_is_there() {
        assert_eq!(differences(|_| ()), 0);
        let alterations: [fn(&mut ObservedIpip); 6] = [
            |ipip| ipip.local = None,
            |ipip| ipip.local = Some([192, 168, 100, 9].into()),
            |ipip| ipip.remote = Some([192, 168, 100, 2].into()),
            |ipip| ipip.parent = 2,
            |ipip| ipip.ttl = 64,
            |ipip| ipip.pmtudisc = true,
        ];
        for alter in alterations {
            assert_eq!(differences(alter), 1);
        }
    }
}
