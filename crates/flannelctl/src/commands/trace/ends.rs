//! Where a packet comes from and goes to: a pod of this node, this node itself, a pod of a peer, or the world.

use std::fs;
use std::net::IpAddr;

use anyhow::Context as _;
use flannel_trace::End;
use serde_json::Value;

use crate::commands::check::surroundings::{Network, Surroundings};

/// What the container runtime notes of every pod.
const RESULTS: &str = "/var/lib/cni/results";

pub(super) struct Ends<'a> {
    pub(super) network: &'a Network,
    pub(super) from: (IpAddr, End<'a>),
    pub(super) to: (IpAddr, End<'a>),
}

impl<'a> Ends<'a> {
    pub(super) fn place(
        around: &'a Surroundings,
        from: IpAddr,
        to: IpAddr,
    ) -> anyhow::Result<Self> {
        let inside = |network: &&Network| {
            network.ranges.iter().any(|range| range.contains(&from) || range.contains(&to))
        };
        let network = around.networks.iter().find(inside).with_context(|| {
            let known: Vec<String> = around
                .networks
                .iter()
                .flat_map(|network| network.ranges.iter().map(ToString::to_string))
                .collect();
            let known = if known.is_empty() {
                "none is known; is flanneld running here?".to_owned()
            } else {
                known.join(", ")
            };
            format!("neither {from} nor {to} is in a pod network of this node ({known})")
        })?;
        let hosts: Vec<IpAddr> = around
            .facts
            .interfaces
            .iter()
            .flat_map(|interface| interface.addresses.iter().map(|address| address.addr.addr()))
            .collect();
        let end = |ip: IpAddr| End::place(ip, &hosts, &network.own, &network.peers);
        let (first, second) = (end(from), end(to));
        if let (End::Peer(peer), End::Peer(_)) = (first, second) {
            let node = peer.public.first().map_or("that".to_owned(), ToString::to_string);
            anyhow::bail!(
                "neither pod is on this node: run it on the node {node}, which has {from}"
            );
        }
        for (ip, end) in [(from, first), (to, second)] {
            let nobodys =
                matches!(end, End::World) && network.ranges.iter().any(|range| range.contains(&ip));
            anyhow::ensure!(
                !nobodys,
                "{ip} is in the pod network, and no node has a subnet with it (flannelctl leases lists them)"
            );
        }
        Ok(Self { network, from: (from, first), to: (to, second) })
    }

    /// The end that is not on this node, if one is.
    pub(super) fn far(&self) -> Option<End<'a>> {
        [self.from.1, self.to.1].into_iter().find(|end| matches!(end, End::Peer(_)))
    }
}

/// Of an address, or of a pod of this node.
pub(super) fn address(text: &str) -> anyhow::Result<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Ok(ip);
    }
    let files = fs::read_dir(RESULTS).into_iter().flatten().flatten();
    for file in files {
        let Ok(noted) = fs::read(file.path()) else { continue };
        let Ok(noted) = serde_json::from_slice::<Value>(&noted) else { continue };
        if let Some(ip) = of_pod(&noted, text) {
            return Ok(ip);
        }
    }
    anyhow::bail!(
        "{text} is not an address, and no pod on this node has that name; for a pod on another node, give its address"
    )
}

/// The address of a pod that is so called, as the runtime has noted it.
fn of_pod(noted: &Value, name: &str) -> Option<IpAddr> {
    let arguments = noted["cniArgs"].as_array()?;
    let argument = |key: &str| {
        let pair = arguments.iter().find(|pair| pair[0] == key)?;
        pair[1].as_str()
    };
    let pod = argument("K8S_POD_NAME")?;
    let whole = format!("{}/{pod}", argument("K8S_POD_NAMESPACE").unwrap_or_default());
    if pod != name && whole != name {
        return None;
    }
    let net = noted["result"]["ips"][0]["address"].as_str()?;
    Some(net.parse::<ipnet::IpNet>().ok()?.addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_known_by_its_name_with_or_without_its_namespace() {
        let noted = serde_json::json!({
            "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "web"]],
            "result": {"ips": [{"address": "10.244.1.5/24"}]},
        });
        let web: Option<IpAddr> = Some([10, 244, 1, 5].into());
        assert_eq!(of_pod(&noted, "web"), web);
        assert_eq!(of_pod(&noted, "default/web"), web);
        assert_eq!(of_pod(&noted, "other/web"), None);
        assert_eq!(of_pod(&Value::Null, "web"), None);
    }
}
