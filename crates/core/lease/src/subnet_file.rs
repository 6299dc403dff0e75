//! The subnet file (`/run/flannel/subnet.env`), as text and as a value: what container runtimes and the CNI plugin read
//! about this node's subnet, and how the daemon remembers, when it starts again, what it had.

use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::Subnet;
use crate::dotenv::{self, Assignments};
use crate::net::Net;

/// Where the daemon writes it unless it is told otherwise.
pub const SUBNET_FILE: &str = "/run/flannel/subnet.env";

const PREFIX: &str = "FLANNEL_";
const NETWORK: &str = "FLANNEL_NETWORK";
const SUBNET: &str = "FLANNEL_SUBNET";
const IPV6_NETWORK: &str = "FLANNEL_IPV6_NETWORK";
const IPV6_SUBNET: &str = "FLANNEL_IPV6_SUBNET";
const MTU: &str = "FLANNEL_MTU";
const IP_MASQ: &str = "FLANNEL_IPMASQ";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetFile {
    /// The pod networks of IPv4. The daemon has one; former versions of flannel listed several.
    pub networks: Vec<Ipv4Net>,
    /// Subnet of the lease; the file shows its first usable address.
    pub subnet: Option<Ipv4Net>,
    pub ipv6_networks: Vec<Ipv6Net>,
    pub ipv6_subnet: Option<Ipv6Net>,
    pub mtu: Option<u32>,
    /// Whether the daemon masquerades, so that nobody else has to.
    pub ip_masq: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} ({text:?}): {why}")]
pub struct SubnetFileProblem {
    pub line: usize,
    pub text: String,
    pub why: String,
}

impl SubnetFile {
    /// The whole file, byte for byte as the Go flannel writes it.
    pub fn render(&self) -> String {
        let lines = [
            list(NETWORK, &self.networks),
            self.gateway().map(|net| format!("{SUBNET}={net}\n")),
            list(IPV6_NETWORK, &self.ipv6_networks),
            self.ipv6_gateway().map(|net| format!("{IPV6_SUBNET}={net}\n")),
            self.mtu.map(|mtu| format!("{MTU}={mtu}\n")),
            self.ip_masq.map(|ip_masq| format!("{IP_MASQ}={ip_masq}\n")),
        ];
        lines.into_iter().flatten().collect()
    }

    /// Reads what is of use, as a shell would, and tells what is not.
    pub fn parse(text: &str) -> (Self, Vec<SubnetFileProblem>) {
        let (assignments, problems) = dotenv::parse(text);
        let mut reader = Reader { assignments, problems };
        let file = Self {
            networks: reader.networks(NETWORK),
            subnet: reader.subnet(SUBNET),
            ipv6_networks: reader.networks(IPV6_NETWORK),
            ipv6_subnet: reader.subnet(IPV6_SUBNET),
            mtu: reader.mtu(),
            ip_masq: reader.assignments.get(IP_MASQ).map(|(_, value)| value == "true"),
        };
        let mut problems = reader.problems;
        problems.sort_by_key(|(line, _)| *line);
        let problem = |(line, why): (usize, String)| {
            let text = text.lines().nth(line - 1).unwrap_or_default().to_owned();
            SubnetFileProblem { line, text, why }
        };
        (file, problems.into_iter().map(problem).collect())
    }

    /// Reads a file that has all that a pod needs. `path` is for the error.
    pub fn parse_complete(text: &str, path: &Path) -> Result<Self, String> {
        let (file, problems) = Self::parse(text);
        let path = path.display();
        // Lines that are not flannel's are nobody's business here.
        if let Some(problem) = problems.iter().find(|it| it.text.contains(PREFIX)) {
            return Err(format!("{path}: {problem}"));
        }
        match file.missing()[..] {
            [] => Ok(file),
            ref keys => Err(format!("{path} is missing {}", keys.join(", "))),
        }
    }

    fn missing(&self) -> Vec<&'static str> {
        let no_network = self.networks.is_empty() && self.ipv6_networks.is_empty();
        let no_subnet = self.subnet.is_none() && self.ipv6_subnet.is_none();
        let keys = [
            (no_network, [NETWORK, IPV6_NETWORK].as_slice()),
            (no_subnet, &[SUBNET, IPV6_SUBNET]),
            (self.mtu.is_none(), &[MTU]),
            (self.ip_masq.is_none(), &[IP_MASQ]),
        ];
        keys.into_iter().filter(|(is, _)| *is).flat_map(|(_, keys)| keys).copied().collect()
    }

    pub fn all_networks(&self) -> Vec<IpNet> {
        let v4 = self.networks.iter().copied().map(IpNet::V4);
        v4.chain(self.ipv6_networks.iter().copied().map(IpNet::V6)).collect()
    }

    pub fn subnets(&self) -> Vec<IpNet> {
        let v4 = self.subnet.map(IpNet::V4);
        v4.into_iter().chain(self.ipv6_subnet.map(IpNet::V6)).collect()
    }

    pub fn lease_subnet(&self) -> Option<Subnet> {
        Subnet::new(self.subnet, self.ipv6_subnet)
    }

    /// The first address after the subnet's own, with its length: the node's own address among its pods.
    pub fn gateway(&self) -> Option<Ipv4Net> {
        let net = self.subnet?.trunc();
        let address = net.addr().to_bits().wrapping_add(1).into();
        Some(Ipv4Net::new_assert(address, net.prefix_len()))
    }

    pub fn ipv6_gateway(&self) -> Option<Ipv6Net> {
        let net = self.ipv6_subnet?.trunc();
        let address = net.addr().to_bits().wrapping_add(1).into();
        Some(Ipv6Net::new_assert(address, net.prefix_len()))
    }
}

fn list<N: Net>(key: &str, nets: &[N]) -> Option<String> {
    let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
    (!nets.is_empty()).then(|| format!("{key}={}\n", nets.join(",")))
}

struct Reader {
    assignments: Assignments,
    problems: Vec<(usize, String)>,
}

impl Reader {
    /// Each once. One of length 0 stands for none.
    fn networks<N: Net>(&mut self, key: &str) -> Vec<N> {
        let mut nets: Vec<N> = Vec::new();
        let Some((line, value)) = self.assignments.get(key) else { return nets };
        for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match N::parse_cidr(part) {
                Some(net) if net.prefix_len() == 0 || nets.contains(&net) => {}
                Some(net) => nets.push(net),
                None => self.problems.push((*line, format!("invalid CIDR address: {part}"))),
            }
        }
        nets
    }

    fn subnet<N: Net>(&mut self, key: &str) -> Option<N> {
        let nets: Vec<N> = self.networks(key);
        let why = match nets[..] {
            [] => return None,
            // No lease could have that name.
            [net] if net.prefix_len() == N::BITS => "a single address is no subnet",
            [net] => return Some(net),
            _ => "more than one subnet",
        };
        let line = self.assignments.get(key).map_or(1, |(line, _)| *line);
        self.problems.push((line, why.to_owned()));
        None
    }

    fn mtu(&mut self) -> Option<u32> {
        let (line, value) = self.assignments.get(MTU)?;
        let mtu = value.parse().ok();
        if mtu.is_none() {
            self.problems.push((*line, format!("{value:?} is not an MTU")));
        }
        mtu
    }
}
