//! The file in which flanneld tells what this node got: `/run/flannel/subnet.env`.

use std::path::{Path, PathBuf};

use ipnet::IpNet;

#[derive(Debug, PartialEq, Eq)]
pub struct SubnetEnv {
    /// IPv4 networks, then IPv6 ones.
    pub networks: Vec<IpNet>,
    /// The node's own, at most one of each family.
    pub subnets: Vec<IpNet>,
    pub mtu: u32,
    /// flanneld masquerades, so nobody else has to.
    pub ipmasq: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubnetEnvError {
    #[error("open {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: String, is_absent: bool },
    #[error("{}: line {line} ({text:?}): {why}", path.display())]
    Malformed { path: PathBuf, line: usize, text: String, why: String },
    #[error("{} is missing {keys}", path.display())]
    Missing { path: PathBuf, keys: String },
}

impl SubnetEnvError {
    /// It was not written yet.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Unreadable { is_absent: true, .. })
    }
}

/// What the file said so far.
#[derive(Default)]
struct Draft {
    networks: [Vec<IpNet>; 2],
    subnets: [Option<IpNet>; 2],
    mtu: Option<u32>,
    ipmasq: Option<bool>,
}

impl SubnetEnv {
    pub fn load(path: &Path) -> Result<Self, SubnetEnvError> {
        let text = std::fs::read(path).map_err(|error| {
            let why = match error.kind() {
                // Without the number that Rust appends: people search for this sentence.
                std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
                _ => error.to_string(),
            };
            let is_absent = error.kind() == std::io::ErrorKind::NotFound;
            SubnetEnvError::Unreadable { path: path.to_owned(), why, is_absent }
        })?;
        Self::parse(&String::from_utf8_lossy(&text), path)
    }

    /// No quotes, no comments, no white space around: simpler than the shell would have it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SubnetEnvError> {
        let mut draft = Draft::default();
        for (number, line) in text.lines().enumerate() {
            draft.take(line).map_err(|why| SubnetEnvError::Malformed {
                path: path.to_owned(),
                line: number + 1,
                text: line.to_owned(),
                why,
            })?;
        }
        draft.finish().map_err(|keys| SubnetEnvError::Missing { path: path.to_owned(), keys })
    }
}

impl Draft {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (line, None),
        };
        // Only of the keys we know do we ask for a value.
        let value = || value.ok_or_else(|| format!("{key} has no '=' and so no value"));
        match key {
            "FLANNEL_NETWORK" => add_networks(&mut self.networks[0], value()?)?,
            "FLANNEL_IPV6_NETWORK" => add_networks(&mut self.networks[1], value()?)?,
            "FLANNEL_SUBNET" => self.subnets[0] = Some(network(value()?)?),
            "FLANNEL_IPV6_SUBNET" => self.subnets[1] = Some(network(value()?)?),
            "FLANNEL_MTU" => {
                let text = value()?;
                self.mtu = Some(text.parse().map_err(|_| format!("{text:?} is not an MTU"))?);
            }
            "FLANNEL_IPMASQ" => self.ipmasq = Some(value()? == "true"),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<SubnetEnv, String> {
        let no_network = self.networks.iter().all(Vec::is_empty);
        let no_subnet = self.subnets.iter().all(Option::is_none);
        match (self.mtu, self.ipmasq) {
            (Some(mtu), Some(ipmasq)) if !no_network && !no_subnet => Ok(SubnetEnv {
                networks: self.networks.concat(),
                subnets: self.subnets.into_iter().flatten().collect(),
                mtu,
                ipmasq,
            }),
            (mtu, ipmasq) => {
                let missing = [
                    (no_network, "FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
                    (no_subnet, "FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
                    (mtu.is_none(), "FLANNEL_MTU"),
                    (ipmasq.is_none(), "FLANNEL_IPMASQ"),
                ];
                let keys: Vec<_> =
                    missing.into_iter().filter(|(is, _)| *is).map(|(_, keys)| keys).collect();
                Err(keys.join(", "))
            }
        }
    }
}

fn add_networks(networks: &mut Vec<IpNet>, list: &str) -> Result<(), String> {
    networks.clear();
    for text in list.split(',') {
        let network = network(text)?;
        if !networks.contains(&network) {
            networks.push(network);
        }
    }
    Ok(())
}

fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .map(|net| net.trunc())
        .map_err(|_| format!("invalid CIDR address: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<SubnetEnv, String> {
        SubnetEnv::parse(text, Path::new("s.env")).map_err(|error| error.to_string())
    }

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_family() {
        let text = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\nOTHER\n";
        let wanted = SubnetEnv {
            networks: nets(&["10.1.0.0/16"]),
            subnets: nets(&["10.1.17.0/24"]),
            mtu: 1472,
            ipmasq: true,
        };
        assert_eq!(parse(text), Ok(wanted));
    }

    #[test]
    fn both_families_with_several_networks_each_once_and_ipv4_first() {
        let text = "FLANNEL_IPV6_NETWORK=fc00::/48,fc00:1::/48,fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n\
                    FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n\
                    FLANNEL_MTU=1472\nFLANNEL_IPMASQ=yes\n";
        let env = parse(text).unwrap();
        assert_eq!(env.networks, nets(&["10.1.0.0/16", "10.2.0.0/16", "fc00::/48", "fc00:1::/48"]));
        assert_eq!(env.subnets, nets(&["10.1.17.0/24", "fc00::/64"]));
        assert!(!env.ipmasq, "only the word true is true");
    }

    #[test]
    fn all_that_is_missing_is_listed() {
        assert_eq!(
            parse("").unwrap_err(),
            "s.env is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"
        );
        assert_eq!(
            parse("FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_MTU=1\n").unwrap_err(),
            "s.env is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_IPMASQ"
        );
    }

    #[test]
    fn defect_76_a_known_key_without_a_value_is_an_error_that_names_the_line() {
        assert_eq!(
            parse("FLANNEL_IPMASQ=true\nFLANNEL_MTU\n").unwrap_err(),
            "s.env: line 2 (\"FLANNEL_MTU\"): FLANNEL_MTU has no '=' and so no value"
        );
        assert_eq!(
            parse("FLANNEL_SUBNET=10.1.17.1").unwrap_err(),
            "s.env: line 1 (\"FLANNEL_SUBNET=10.1.17.1\"): invalid CIDR address: 10.1.17.1"
        );
    }

    #[test]
    fn defect_76_networks_of_mixed_families_are_compared_without_a_crash() {
        let text = "FLANNEL_NETWORK=10.1.0.0/16,fc00::/48,10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1\nFLANNEL_IPMASQ=true\n";
        assert_eq!(parse(text).unwrap().networks, nets(&["10.1.0.0/16", "fc00::/48"]));
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(text in "(FLANNEL_(NETWORK|SUBNET|MTU|IPMASQ|IPV6_NETWORK|IPV6_SUBNET)?=?[0-9a-f.:/,]{0,20}\r?\n?){0,8}") {
            let _ = parse(&text);
        }
    }
}
