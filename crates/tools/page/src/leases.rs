//! Where leases come from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use async_trait::async_trait;
use flannel_lease::{Expiry, NetworkName, Subnet, SubnetOrigin};
use flannel_store::{Held, OperatorStore};

#[async_trait]
pub trait LeaseSource: Send + Sync {
    fn store(&self) -> String;

    fn networks(&self) -> Vec<NetworkName>;

    /// Reads all leases. The error is for an operator.
    async fn read(&self, network: &NetworkName) -> Result<LeaseTable, String>;
}

#[derive(Clone, Debug)]
pub struct LeaseTable {
    /// Network config as it was written. It may hold secrets: it is read, never shown.
    pub config: Option<String>,
    pub subnets: SubnetOrigin,
    pub leases: Vec<LeaseRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub subnet: Subnet,
    pub name: Option<String>,
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
    pub backend: String,
    pub ends: Option<SystemTime>,
}

impl LeaseRow {
    pub fn address(&self) -> Option<IpAddr> {
        self.v4.map(IpAddr::V4).or(self.v6.map(IpAddr::V6))
    }
}

impl From<&Held> for LeaseRow {
    fn from(held: &Held) -> Self {
        let attrs = &held.lease.attrs;
        Self {
            subnet: held.lease.subnet,
            name: attrs.owner_name().map(str::to_owned),
            v4: attrs.public_ip,
            v6: attrs.public_ipv6,
            backend: attrs.backend_type.to_string(),
            ends: match held.expiry {
                Expiry::Never => None,
                Expiry::At(end) => Some(end),
            },
        }
    }
}

pub struct StoreLeases {
    kind: &'static str,
    networks: Vec<(NetworkName, Box<dyn OperatorStore>)>,
}

impl StoreLeases {
    pub fn new(kind: &'static str, networks: Vec<(NetworkName, Box<dyn OperatorStore>)>) -> Self {
        Self { kind, networks }
    }
}

#[async_trait]
impl LeaseSource for StoreLeases {
    fn store(&self) -> String {
        self.kind.to_owned()
    }

    fn networks(&self) -> Vec<NetworkName> {
        self.networks.iter().map(|(name, _)| name.clone()).collect()
    }

    async fn read(&self, network: &NetworkName) -> Result<LeaseTable, String> {
        let store = self.networks.iter().find(|(name, _)| name == network);
        let (_, store) = store.ok_or_else(|| format!("there is no network {network}"))?;
        let config = store.config().await.map_err(|error| error.to_string())?;
        let leases = store.list().await.map_err(|error| error.to_string())?;
        let leases = leases.iter().map(LeaseRow::from).collect();
        Ok(LeaseTable { config, subnets: store.subnets(), leases })
    }
}
