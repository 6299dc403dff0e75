//! What tests write into the store by hand: leases of nodes that exist there alone.

use flannel_lab::{Lab, Result};
use serde_json::json;

/// Where a lease lies.
pub(crate) fn lease_path(lab: &Lab, key: &str) -> String {
    format!("{}/subnets/{key}", lab.spec().etcd_prefix)
}

/// The key of a node's own lease.
pub(crate) fn own_key(lab: &Lab, node: u16) -> Result<String> {
    let env = lab.node(node).subnet_env()?;
    let v4 = env.subnet.map(|net| format!("{}-{}", net.network(), net.prefix_len()));
    let v6 = env.subnet6.map(|net| format!("{}-{}", net.network(), net.prefix_len()));
    Ok(v4.into_iter().chain(v6).collect::<Vec<_>>().join("&"))
}

/// A peer of vxlan with a number, at an address of the lab's underlay.
pub(crate) fn peer(number: u8) -> (String, String) {
    let value = json!({
        "PublicIP": format!("192.168.100.{number}"),
        "PublicIPv6": null,
        "BackendType": "vxlan",
        "BackendData": {"VNI": 1, "VtepMAC": format!("02:00:00:00:01:{number:02x}")},
    });
    (format!("10.244.{number}.0-24"), value.to_string())
}

/// Writes the leases of such peers.
pub(crate) fn put_peers(lab: &Lab, numbers: impl Iterator<Item = u8>) -> Result<()> {
    let pairs: Vec<_> =
        numbers.map(peer).map(|(key, value)| (lease_path(lab, &key), value)).collect();
    lab.etcd()?.put_many(&pairs)
}
