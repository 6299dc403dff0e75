//! Conversion between a Node and a lease: what a node announces is in its annotations, and the subnet
//! that Kubernetes has given it is in its spec.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use flannel_backend::Stack;
use flannel_common::shorten;
use flannel_lease::{
    Lease, LeaseAttrs, MAX_DATA_BYTES, RawJson, Subnet, UnusableAddress, check_public_address,
};
use flannel_store::PublicAddresses;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::annotations::Key;
use crate::node::{Annotations, NodeView};

/// The lease of a Node; `None` if no flannel has announced itself there. The error is why one cannot be sent to.
pub fn lease_of(node: &NodeView<'_>) -> Result<Option<Lease>, String> {
    if node.annotations.get(Key::SubnetManager) != Some("true") {
        return Ok(None);
    }
    let subnet = subnet(node)?.ok_or("it has no podCIDR")?;
    let attrs = LeaseAttrs { machine: node.machine, ..attrs(&node.annotations)? };
    Ok(Some(Lease { subnet, attrs }))
}

/// The subnet of a Node's pods: of each family the first that is given, in whichever order.
pub fn subnet(node: &NodeView<'_>) -> Result<Option<Subnet>, String> {
    let (mut v4, mut v6): (Option<Ipv4Net>, Option<Ipv6Net>) = (None, None);
    for text in node.networks() {
        match text.parse() {
            Ok(IpNet::V4(net)) => _ = v4.get_or_insert(net),
            Ok(IpNet::V6(net)) => _ = v6.get_or_insert(net),
            Err(_) => return Err(format!("its podCIDR {text:?} is not a network")),
        }
    }
    Ok(Subnet::new(v4, v6))
}

/// Attributes that a node has announced. An address that cannot be read counts as missing: the other family may be enough.
pub fn attrs(annotations: &Annotations<'_>) -> Result<LeaseAttrs, String> {
    let data = |key: Key| {
        let text = annotations.get(key).unwrap_or_default();
        if text.len() > MAX_DATA_BYTES {
            return Err(format!(
                "its annotation {} has more than {MAX_DATA_BYTES} bytes, the most that a lease may carry",
                key.suffix()
            ));
        }
        RawJson::read(text).map_err(|error| format!("its annotation {}: {error}", key.suffix()))
    };
    let public_ip = annotations.text(Key::PublicIp).and_then(|text| text.parse().ok());
    let public_ip = public_ip.filter(|ip: &Ipv4Addr| !ip.is_unspecified());
    let public_ipv6 = annotations.text(Key::PublicIpv6).and_then(|text| text.parse().ok());
    let public_ipv6 = public_ipv6.filter(|ip: &Ipv6Addr| !ip.is_unspecified());
    let announced = [Key::PublicIp, Key::PublicIpv6]
        .into_iter()
        .find_map(|key| Some((key.suffix(), annotations.text(key)?)));
    let is_known = public_ip.is_some() || public_ipv6.is_some();
    if let Some((key, text)) = announced.filter(|_| !is_known) {
        let text = shorten(text, 60);
        return Err(format!("its annotation {key} is {text:?}, which is no address of a node"));
    }
    let attrs = LeaseAttrs {
        public_ip,
        public_ipv6,
        backend_type: annotations.get(Key::BackendType).unwrap_or_default().into(),
        backend_data: data(Key::BackendData)?,
        backend_v6_data: data(Key::BackendV6Data)?,
        owner: None,
        probe_port: annotations.text(Key::ProbePort).and_then(|text| text.parse().ok()),
        machine: None,
    };
    attrs.check_size().map_err(|error| error.to_string())?;
    Ok(attrs)
}

/// The lease as a network of these families sees it; `None` when they have none in common. A Node often
/// has networks of families that flannel is not asked to serve.
pub fn in_families(lease: Lease, families: Stack) -> Option<Lease> {
    let (subnet, mut attrs) = (subnet_in(lease.subnet, families)?, lease.attrs);
    let (v4, v6) = (subnet.v4().is_some(), subnet.v6().is_some());
    // Packets of a node that announces one address alone travel in that family, whatever is in them.
    let (at_v4, at_v6) = (attrs.public_ip.is_some(), attrs.public_ipv6.is_some());
    let (v4, v6) = (v4 || !at_v6, v6 || !at_v4);
    if !at_v4 && !at_v6 {
        return None;
    }
    if !v4 {
        (attrs.public_ip, attrs.backend_data) = (None, None);
    }
    if !v6 {
        (attrs.public_ipv6, attrs.backend_v6_data) = (None, None);
    }
    Some(Lease { subnet, attrs })
}

pub fn subnet_in(subnet: Subnet, families: Stack) -> Option<Subnet> {
    Subnet::new(subnet.v4().filter(|_| families.v4), subnet.v6().filter(|_| families.v6))
}

/// Addresses of an operator, to be announced instead of the node's own. The error names what is not an address.
pub fn overwrites(annotations: &Annotations<'_>) -> Result<PublicAddresses, String> {
    addresses(annotations, Key::PublicIpOverwrite, Key::PublicIpv6Overwrite)
}

/// Addresses as of the flags `public-ip` and `public-ipv6`.
pub fn node_addresses(annotations: &Annotations<'_>) -> Result<PublicAddresses, String> {
    addresses(annotations, Key::NodePublicIp, Key::NodePublicIpv6)
}

/// Instead of the addresses that a node announces; what it does not announce, it still does not.
pub fn overwrite(attrs: &mut LeaseAttrs, with: &PublicAddresses) {
    attrs.public_ip = attrs.public_ip.map(|ip| with.v4.unwrap_or(ip));
    attrs.public_ipv6 = attrs.public_ipv6.map(|ip| with.v6.unwrap_or(ip));
}

fn addresses(annotations: &Annotations<'_>, v4: Key, v6: Key) -> Result<PublicAddresses, String> {
    let (v4, v6) = (address(annotations, v4, "IPv4")?, address(annotations, v6, "IPv6")?);
    Ok(PublicAddresses { v4, v6 })
}

fn address<A: FromStr + Copy + Into<IpAddr>>(
    annotations: &Annotations<'_>,
    key: Key,
    family: &str,
) -> Result<Option<A>, String> {
    let Some(text) = annotations.text(key) else { return Ok(None) };
    let name = key.suffix();
    let ip: A = text.parse().map_err(|_| {
        let text = shorten(text, 60);
        format!("the annotation {name} is {text:?}, which is not an {family} address")
    })?;
    match check_public_address(ip.into(), &[]) {
        Ok(()) | Err(UnusableAddress::LinkLocal) => Ok(Some(ip)),
        Err(why) => Err(format!("the annotation {name} is {}, which {why}", ip.into())),
    }
}
