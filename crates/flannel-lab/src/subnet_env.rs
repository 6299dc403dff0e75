//! The file in which flanneld tells the node what it got.

use std::collections::BTreeMap;

use ipnet::{Ipv4Net, Ipv6Net};

/// Where flanneld writes it.
pub const SUBNET_ENV: &str = "/run/flannel/subnet.env";

/// A read `subnet.env`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_SUBNET`: the first address of the node's pods, with the length of their subnet.
    pub subnet: Option<Ipv4Net>,
    /// `FLANNEL_IPV6_SUBNET`, the same.
    pub subnet6: Option<Ipv6Net>,
    /// `FLANNEL_MTU`.
    pub mtu: u32,
    /// All variables as they are.
    pub variables: BTreeMap<String, String>,
}

impl SubnetEnv {
    /// Reads the text; what is wrong with it otherwise.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut variables = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once('=').ok_or(format!("no variable: {line}"))?;
            variables.insert(name.to_owned(), value.to_owned());
        }
        let mtu = variables.get("FLANNEL_MTU").ok_or("no FLANNEL_MTU")?;
        Ok(Self {
            subnet: read(&variables, "FLANNEL_SUBNET")?,
            subnet6: read(&variables, "FLANNEL_IPV6_SUBNET")?,
            mtu: mtu.parse().map_err(|_| format!("FLANNEL_MTU={mtu}"))?,
            variables,
        })
    }
}

fn read<T: std::str::FromStr>(
    variables: &BTreeMap<String, String>,
    name: &str,
) -> Result<Option<T>, String> {
    let Some(value) = variables.get(name) else { return Ok(None) };
    value.parse().map(Some).map_err(|_| format!("{name}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_flannel_writes_is_read() {
        let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.69.1/24\n\
                    FLANNEL_IPV6_NETWORK=fd00:244::/56\nFLANNEL_IPV6_SUBNET=fd00:244:0:24::1/64\n\
                    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n\n";
        let env = SubnetEnv::parse(text).unwrap();
        assert_eq!(env.subnet.unwrap().to_string(), "10.244.69.1/24");
        assert_eq!(env.subnet6.unwrap().to_string(), "fd00:244:0:24::1/64");
        assert_eq!(env.mtu, 1450);
        assert_eq!(env.variables["FLANNEL_IPMASQ"], "true");
    }

    #[test]
    fn a_half_written_file_is_refused() {
        assert!(SubnetEnv::parse("").is_err());
        assert!(SubnetEnv::parse("FLANNEL_SUBNET=10.2\nFLANNEL_MTU=1450").is_err());
    }
}
