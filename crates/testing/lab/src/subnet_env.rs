//! The file in which flanneld tells the node what it got.

use std::path::Path;

use flannel_lease::SubnetFile;
use ipnet::{Ipv4Net, Ipv6Net};

pub use flannel_lease::SUBNET_FILE as SUBNET_ENV;

/// A read `subnet.env`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_SUBNET`: the first address of the node's pods, with the length of their subnet.
    pub subnet: Option<Ipv4Net>,
    /// `FLANNEL_IPV6_SUBNET`, the same.
    pub subnet6: Option<Ipv6Net>,
    /// `FLANNEL_MTU`.
    pub mtu: u32,
    /// All of it.
    pub file: SubnetFile,
}

impl SubnetEnv {
    /// Reads the text; what is wrong with it otherwise.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file = SubnetFile::parse_complete(text, Path::new(SUBNET_ENV))?;
        let (subnet, subnet6) = (file.gateway(), file.ipv6_gateway());
        Ok(Self { subnet, subnet6, mtu: file.mtu.unwrap_or_default(), file })
    }
}
