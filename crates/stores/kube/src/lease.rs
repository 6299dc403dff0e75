//! Conversion between a Node and a lease: what a node announces is in its annotations, and the subnet
//! that Kubernetes has given it is in its spec.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_common::shorten;
use flannel_lease::{
    Lease, LeaseAttrs, MAX_DATA_BYTES, NetworkConfig, RawJson, Subnet, UnusableAddress,
    check_public_address,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::annotations::Key;
use crate::node::{Annotations, NodeView};

/// The address families that a network uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    pub v4: bool,
    pub v6: bool,
}

impl Families {
    pub fn of(config: &NetworkConfig) -> Self {
        Self { v4: config.v4.is_some(), v6: config.v6.is_some() }
    }
}

/// The lease of a Node, if it has one.
#[derive(Debug, PartialEq)]
pub enum NodeLease {
    /// No flannel has announced itself there.
    NotOurs,
    /// One has, and cannot be sent to: why, for people.
    Unusable(String),
    Lease(Lease),
}

/// Whatever families the Node has.
pub fn lease_of(node: &NodeView<'_>) -> NodeLease {
    if node.annotations.get(Key::SubnetManager) != Some("true") {
        return NodeLease::NotOurs;
    }
    let subnet = match subnet(node) {
        Ok(Some(subnet)) => subnet,
        Ok(None) => return NodeLease::Unusable("it has no podCIDR".to_owned()),
        Err(why) => return NodeLease::Unusable(why),
    };
    match attrs(&node.annotations) {
        Ok(attrs) => {
            let attrs = LeaseAttrs { machine: node.machine, ..attrs };
            NodeLease::Lease(Lease { subnet, attrs })
        }
        Err(why) => NodeLease::Unusable(why),
    }
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
    let public_ip: Option<Ipv4Addr> =
        annotations.text(Key::PublicIp).and_then(|text| text.parse().ok());
    let public_ipv6: Option<Ipv6Addr> =
        annotations.text(Key::PublicIpv6).and_then(|text| text.parse().ok());
    let announced = [Key::PublicIp, Key::PublicIpv6]
        .into_iter()
        .find_map(|key| Some((key.suffix(), annotations.text(key)?)));
    let is_known = public_ip.is_some_and(|ip| !ip.is_unspecified())
        || public_ipv6.is_some_and(|ip| !ip.is_unspecified());
    if let Some((key, text)) = announced.filter(|_| !is_known) {
        let text = shorten(text, 60);
        return Err(format!("its annotation {key} is {text:?}, which is no address of a node"));
    }
    let attrs = LeaseAttrs {
        public_ip: public_ip.filter(|ip| !ip.is_unspecified()),
        public_ipv6: public_ipv6.filter(|ip| !ip.is_unspecified()),
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
pub fn in_families(lease: Lease, families: Families) -> Option<Lease> {
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

pub fn subnet_in(subnet: Subnet, families: Families) -> Option<Subnet> {
    Subnet::new(subnet.v4().filter(|_| families.v4), subnet.v6().filter(|_| families.v6))
}

/// Addresses that an operator has written into a Node instead of those that the node itself found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overwrites {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl Overwrites {
    /// The error names what is not an address.
    pub fn read(annotations: &Annotations<'_>) -> Result<Self, String> {
        Self::from(annotations, Key::PublicIpOverwrite, Key::PublicIpv6Overwrite)
    }

    /// Addresses as of the flags `public-ip` and `public-ipv6`.
    pub fn node_addresses(annotations: &Annotations<'_>) -> Result<Self, String> {
        Self::from(annotations, Key::NodePublicIp, Key::NodePublicIpv6)
    }

    /// Instead of the addresses that a node announces; what it does not announce, it still does not.
    pub fn apply(&self, attrs: &mut LeaseAttrs) {
        attrs.public_ip = attrs.public_ip.map(|ip| self.v4.unwrap_or(ip));
        attrs.public_ipv6 = attrs.public_ipv6.map(|ip| self.v6.unwrap_or(ip));
    }

    fn from(annotations: &Annotations<'_>, v4: Key, v6: Key) -> Result<Self, String> {
        let wrong = |key: Key, family: &str| {
            let text = shorten(annotations.get(key).unwrap_or_default(), 60);
            format!("the annotation {} is {text:?}, which is not an {family} address", key.suffix())
        };
        let unusable = |key: Key, ip: IpAddr| match check_public_address(ip, &[]) {
            Ok(()) | Err(UnusableAddress::LinkLocal) => Ok(()),
            Err(why) => Err(format!("the annotation {} is {ip}, which {why}", key.suffix())),
        };
        let read_v4: Option<Ipv4Addr> = annotations
            .text(v4)
            .map(|text| text.parse().map_err(|_| wrong(v4, "IPv4")))
            .transpose()?;
        let read_v6: Option<Ipv6Addr> = annotations
            .text(v6)
            .map(|text| text.parse().map_err(|_| wrong(v6, "IPv6")))
            .transpose()?;
        read_v4.map_or(Ok(()), |ip| unusable(v4, ip.into()))?;
        read_v6.map_or(Ok(()), |ip| unusable(v6, ip.into()))?;
        Ok(Self { v4: read_v4, v6: read_v6 })
    }
}
