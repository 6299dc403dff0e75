//! Entries of charon: the running daemon, secrets, connections.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use flannel_common::Secret;
use flannel_wanted::{Importance, KeyedEntry};
use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpsecEntry {
    /// charon runs, and answers.
    Daemon,
    Secret(SharedSecret),
    /// Boxed: it is several times the size of the others.
    Connection(Box<Connection>),
}

/// Key of an entry. charon is told of entries in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpsecKey {
    Daemon,
    Secret(IpAddr),
    Connection(ConnectionName),
}

/// Secret by which a node at an address proves that it is one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSecret {
    pub owner: IpAddr,
    pub secret: Secret,
}

/// A tunnel between this node and another, for the packets between their subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub name: ConnectionName,
    /// Address that this node sends from. Behind a NAT it differs from the public one.
    pub source: IpAddr,
    pub esp_proposal: String,
    pub udp_encap: bool,
}

/// Name of a connection, the same as the Go flannel's, so that each takes over those of the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionName {
    pub local: IpAddr,
    pub local_subnet: IpNet,
    pub remote_subnet: IpNet,
    pub remote: IpAddr,
}

impl ConnectionName {
    pub fn child(&self) -> String {
        format!("{}-{}", self.local_subnet, self.remote_subnet)
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local, local_subnet, remote_subnet, remote } = self;
        write!(f, "{local}-{local_subnet}-{remote_subnet}-{remote}")
    }
}

/// Reads a name; `Err` if it is not one of flannel's.
impl FromStr for ConnectionName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('-').collect();
        let [local, local_subnet, remote_subnet, remote] = parts[..] else { return Err(()) };
        Ok(Self {
            local: local.parse().map_err(drop)?,
            local_subnet: local_subnet.parse().map_err(drop)?,
            remote_subnet: remote_subnet.parse().map_err(drop)?,
            remote: remote.parse().map_err(drop)?,
        })
    }
}

impl KeyedEntry for IpsecEntry {
    type Key = IpsecKey;
    type Device = IpsecKey;

    fn key(&self) -> IpsecKey {
        match self {
            Self::Daemon => IpsecKey::Daemon,
            Self::Secret(secret) => IpsecKey::Secret(secret.owner),
            Self::Connection(connection) => IpsecKey::Connection(connection.name.clone()),
        }
    }

    fn devices(&self) -> impl Iterator<Item = IpsecKey> {
        std::iter::once(IpsecKey::Daemon)
    }

    fn describe(&self) -> String {
        match self {
            Self::Daemon => "charon".to_owned(),
            Self::Secret(secret) => format!("secret of {}", secret.owner),
            Self::Connection(connection) => {
                let ConnectionName { remote_subnet, remote, .. } = &connection.name;
                format!("ipsec connection to {remote_subnet} at {remote}")
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Daemon => "charon",
            Self::Secret(_) => "ipsec-secret",
            Self::Connection(_) => "ipsec-connection",
        }
    }

    fn importance(&self) -> Importance {
        if matches!(self, Self::Daemon) { Importance::Foundation } else { Importance::Ordinary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "hunter2hunter2";

    fn name() -> ConnectionName {
        ConnectionName {
            local: [192, 168, 100, 1].into(),
            local_subnet: "10.244.1.0/24".parse().expect("a subnet"),
            remote_subnet: "10.244.2.0/24".parse().expect("a subnet"),
            remote: [192, 168, 100, 2].into(),
        }
    }

    #[test]
    fn a_connection_is_named_as_the_go_flannel_names_it() {
        let text = "192.168.100.1-10.244.1.0/24-10.244.2.0/24-192.168.100.2";
        assert_eq!(name().to_string(), text);
        assert_eq!(text.parse(), Ok(name()));
        assert_eq!(name().child(), "10.244.1.0/24-10.244.2.0/24");
        for other in ["home", "a-b-c-d", "192.168.100.1-10.244.1.0/24-10.244.2.0/24", ""] {
            assert_eq!(other.parse::<ConnectionName>(), Err(()), "{other}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let secret = SharedSecret { owner: name().remote, secret: Secret::new(SECRET) };
        let entry = IpsecEntry::Secret(secret);
        for shown in [format!("{entry:?}"), entry.describe()] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}
