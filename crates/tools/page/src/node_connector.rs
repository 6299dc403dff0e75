//! How the probe ports of nodes are reached from where the page is served.

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use flannel_lease::check_public_address;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::leases::LeaseRow;

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[async_trait]
pub trait NodeConnector: Send + Sync {
    fn pace(&self) -> Pace;

    /// Connects to a node's probe port. The error is for an operator.
    async fn connect(&self, node: &LeaseRow) -> Result<Box<dyn Stream>, String>;

    /// Describes a node that does not answer: its address, `: `, and a reason that is the same for all nodes.
    fn words(&self, node: &LeaseRow, why: &str) -> String;

    fn advice(&self) -> String;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Number of nodes that are asked in a tenth of a second, and of those that may be waited for at once.
    pub per_tick: usize,
    pub at_once: usize,
    pub shortest_period: Duration,
    pub timeout: Duration,
}

/// Reaches a node by the address in its lease, on a port that is the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    pub port: u16,
}

/// Whether an address can be a node's: a lease must not make this host ask itself or its cloud's services.
fn is_of_a_node(address: IpAddr) -> bool {
    let is_ipv4_in_ipv6 = matches!(address, IpAddr::V6(ip) if ip.to_ipv4().is_some());
    !is_ipv4_in_ipv6 && check_public_address(address, &[]).is_ok()
}

#[async_trait]
impl NodeConnector for Direct {
    fn pace(&self) -> Pace {
        let shortest_period = Duration::from_secs(2);
        Pace { per_tick: 20, at_once: 64, shortest_period, timeout: Duration::from_secs(2) }
    }

    async fn connect(&self, node: &LeaseRow) -> Result<Box<dyn Stream>, String> {
        let address = node.address().ok_or("its lease has no address")?;
        if !is_of_a_node(address) {
            return Err(format!("its lease says {address}, which is no address of another node"));
        }
        match TcpStream::connect((address, self.port)).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(format!("cannot connect: {error}")),
        }
    }

    fn words(&self, node: &LeaseRow, why: &str) -> String {
        let port = self.port;
        if node.address().is_some_and(|address| !is_of_a_node(address)) {
            return format!("{why}: the node must announce another (--public-ip)");
        }
        let address = node.address().map(|ip| ip.to_string()).unwrap_or_default();
        format!(
            "{address} port {port}: {why}; is flanneld running there, with --healthz-port={port}?"
        )
    }

    fn advice(&self) -> String {
        format!(
            "All probe ports are closed to this page: start flanneld with --healthz-port={} (and a --healthz-ip \
             that can be reached from here), or tell the page another port.",
            self.port
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: IpAddr) -> LeaseRow {
        let (v4, v6) = match address {
            IpAddr::V4(ip) => (Some(ip), None),
            IpAddr::V6(ip) => (None, Some(ip)),
        };
        let subnet = "10.244.1.0-24".parse().unwrap();
        LeaseRow { subnet, name: None, v4, v6, backend: "vxlan".to_owned(), ends: None }
    }

    #[tokio::test]
    async fn a_lease_with_an_address_of_this_host_is_not_asked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Direct { port: listener.local_addr().unwrap().port() };
        let asked = way.connect(&row("127.0.0.1".parse().unwrap())).await;
        let why = asked.err().expect("somebody who listens there is not asked");
        assert!(why.contains("no address of another node"), "{why}");
    }

    #[test]
    fn addresses_that_no_node_has_are_told() {
        for address in [
            "127.0.0.53",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
        ] {
            assert!(!is_of_a_node(address.parse().unwrap()), "{address}");
        }
        for address in ["192.168.1.1", "10.0.0.1", "203.0.113.5", "fd00::1", "2001:db8::1"] {
            assert!(is_of_a_node(address.parse().unwrap()), "{address}");
        }
    }
}
