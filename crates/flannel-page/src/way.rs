//! How the probe ports of nodes are reached from where the page is served.

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::leases::LeaseRow;

/// Of which a node is asked.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[async_trait]
pub trait Way: Send + Sync {
    fn pace(&self) -> Pace;

    /// A connection to a node's probe port. The error is for an operator.
    async fn connect(&self, node: &LeaseRow) -> Result<Box<dyn Stream>, String>;

    /// What is said of a node that does not answer: who it is, `: `, and what it says on all nodes alike.
    fn words(&self, node: &LeaseRow, why: &str) -> String;

    /// What to do if no node answers.
    fn advice(&self) -> String;
}

/// How much may be asked that way, whatever the number of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Nodes that are asked in a tenth of a second, and that may be waited for at once.
    pub per_tick: usize,
    pub at_once: usize,
    /// Between two questions to one node.
    pub shortest_period: Duration,
    /// For a connection, and for each answer.
    pub patience: Duration,
}

/// By the address in its lease, on a port that is the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    pub port: u16,
}

#[async_trait]
impl Way for Direct {
    fn pace(&self) -> Pace {
        Pace {
            per_tick: 20,
            at_once: 64,
            shortest_period: Duration::from_secs(2),
            patience: Duration::from_secs(2),
        }
    }

    async fn connect(&self, node: &LeaseRow) -> Result<Box<dyn Stream>, String> {
        let address = node.address().ok_or("its lease has no address")?;
        match TcpStream::connect((address, self.port)).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(format!("cannot connect: {error}")),
        }
    }

    fn words(&self, node: &LeaseRow, why: &str) -> String {
        let port = self.port;
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
