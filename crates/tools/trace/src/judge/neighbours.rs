//! Neighbours: who has an address on a link.

use std::net::IpAddr;

use flannel_common::Mac;
use flannel_kernel::look::Device;
use flannel_state::{Finding, Layer};

use super::{HopJudgement, broken, fault};
use crate::Peer;
use crate::settings::setting;

const LAYER: Layer = Layer::Neighbours;

/// A device that does not say which addresses this node has.
pub(crate) fn arp(device: &Device) -> Result<(), Finding> {
    let name = &device.name;
    if device.noarp && !device.loopback && device.vxlan.is_none() && device.mac.is_some() {
        let what = format!("ARP is switched off on {name}: nobody on its wire finds this node");
        return Err(broken(Layer::Arp, what, format!("ip link set {name} arp on")));
    }
    let mut settings =
        ["all", name.as_str()].map(|of| format!("net/ipv4/conf/{of}/arp_ignore")).into_iter();
    match settings.find(|path| setting(path).as_deref() == Some(NEVER_ANSWER)) {
        Some(path) => {
            let what = format!(
                "{path} is {NEVER_ANSWER}: this node does not say on {name} that it has its address"
            );
            Err(broken(Layer::Arp, what, format!("sysctl -w {path}=0")))
        }
        None => Ok(()),
    }
}

/// Value of `arp_ignore` with which a node answers for none of its addresses.
const NEVER_ANSWER: &str = "8";

/// More than one on the way to another node that answers for an address.
pub(crate) fn answers_twice(device: &str, ip: IpAddr, answering: &[Mac]) -> Option<String> {
    let [first, second, ..] = answering else { return None };
    Some(format!(
        "two on {device} answer for {ip}, {first} and {second}: the address is given out twice, or one host has two \
         cards on this wire; packets may go to either"
    ))
}

/// `mac`: what the kernel has for an address. `answering`: who answers for it, as far as that is known.
pub(crate) fn neighbour_on_wire(
    device: &str,
    ip: IpAddr,
    mac: Mac,
    answering: &[Mac],
) -> Result<(), Finding> {
    let Some(real) = answering.first().filter(|_| !answering.contains(&mac)) else { return Ok(()) };
    let what = format!("{ip} is {mac} on {device}, and the one who answers for it is {real}");
    let fix = format!("ip neigh del {ip} dev {device}: the kernel then asks who it is");
    Err(broken(LAYER, what, fix))
}

/// `mac`: what the device has for the gateway.
pub(crate) fn neighbour(peer: &Peer, link: &str, via: IpAddr, mac: Option<Mac>) -> HopJudgement {
    let Some(mac) = mac else {
        let fix = format!("flannelctl repair (ip neigh show {via} dev {link})");
        return fault(LAYER, format!("{link} has no MAC for {via}"), fix);
    };
    if peer.macs.is_empty() || peer.macs.contains(&mac.to_string()) {
        return Ok(format!("{via} is {mac} on {link}"));
    }
    let wanted = peer.macs.join(" or ");
    let fix = format!(
        "flannelctl repair (ip neigh replace {via} lladdr {wanted} dev {link} nud permanent)"
    );
    fault(LAYER, format!("{via} is {mac} on {link}, and that node says it is {wanted}"), fix)
}

#[cfg(test)]
mod tests {
    use super::super::fdb;
    use super::super::routes::tests::peer;
    use super::*;

    #[test]
    fn what_leads_to_a_peer_is_compared_with_what_the_peer_says_of_itself() {
        let (peer, via) = (peer(), IpAddr::from([10, 244, 2, 0]));
        let (its, other) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 9]));
        assert!(neighbour(&peer, "flannel.1", via, Some(its)).is_ok());
        assert!(neighbour(&peer, "flannel.1", via, Some(other)).is_err());
        assert!(neighbour(&peer, "flannel.1", via, None).is_err());
        assert!(neighbour(&Peer::default(), "flannel.1", via, Some(other)).is_ok(), "not known");
        assert!(fdb(&peer, "flannel.1", its, Some([192, 0, 2, 2].into())).is_ok());
        assert!(fdb(&peer, "flannel.1", its, Some([192, 0, 2, 9].into())).is_err());
        assert!(fdb(&peer, "flannel.1", its, None).is_err());
    }
}
