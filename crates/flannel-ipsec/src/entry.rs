//! What can be wanted of charon: that it runs, secrets, connections.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use flannel_common::Secret;
use flannel_netlink::xfrm::ESP_REQID;
use flannel_wanted::KeyedEntry;
use ipnet::IpNet;

use crate::vici::Message;

/// As the Go flannel has it: what each pair of nodes agrees on before there are any secrets.
const IKE_PROPOSAL: &str = "aes256-sha256-modp4096";
/// What the names of secrets begin with that are flannel's.
const SECRET_PREFIX: &str = "flannel-";
/// A node that is silent for so long is asked whether it is there.
const ASK_AFTER: &str = "30s";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpsecEntry {
    /// charon runs, and answers.
    Daemon,
    Secret(SharedSecret),
    /// Boxed: it is several times the size of the others.
    Connection(Box<Connection>),
}

/// In the order in which they are told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpsecKey {
    Daemon,
    Secret(IpAddr),
    Connection(ConnectionName),
}

/// By what a node at an address proves that it is one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSecret {
    pub owner: IpAddr,
    pub secret: Secret,
}

/// A tunnel between this node and another, for the packets between their subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub name: ConnectionName,
    /// The address that this node sends from. Behind a NAT it is another than the one it is known by.
    pub source: IpAddr,
    pub esp_proposal: String,
    pub udp_encap: bool,
}

/// As the Go flannel names them, by which each takes over those of the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionName {
    pub local: IpAddr,
    pub local_subnet: IpNet,
    pub remote_subnet: IpNet,
    pub remote: IpAddr,
}

impl ConnectionName {
    /// What its only child is called.
    pub(crate) fn child(&self) -> String {
        format!("{}-{}", self.local_subnet, self.remote_subnet)
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local, local_subnet, remote_subnet, remote } = self;
        write!(f, "{local}-{local_subnet}-{remote_subnet}-{remote}")
    }
}

/// `Err`: it is not one of flannel's.
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

impl SharedSecret {
    /// What charon knows a secret by.
    pub(crate) fn id(owner: &IpAddr) -> String {
        format!("{SECRET_PREFIX}{owner}")
    }

    /// Whose secret that is, if it is one of flannel's.
    pub(crate) fn owner_of(id: &str) -> Option<IpAddr> {
        id.strip_prefix(SECRET_PREFIX)?.parse().ok()
    }

    pub(crate) fn message(&self) -> Message {
        Message::default()
            .text("id", Self::id(&self.owner))
            .text("type", "IKE")
            .text("data", self.secret.reveal())
            .list("owners", [self.owner.to_string()])
    }
}

impl Connection {
    pub(crate) fn message(&self) -> Message {
        let ConnectionName { local, local_subnet, remote_subnet, remote } = &self.name;
        let child = Message::default()
            .list("local_ts", [local_subnet.to_string()])
            .list("remote_ts", [remote_subnet.to_string()])
            .list("esp_proposals", [self.esp_proposal.as_str()])
            .text("start_action", "start")
            // What is closed is opened again by whoever looks after it.
            .text("close_action", "none")
            .text("dpd_action", "restart")
            .text("mode", "tunnel")
            .text("reqid", ESP_REQID.to_string())
            .text("rekey_time", "1h")
            // These are kept by the kernel's own applier.
            .text("policies", "no");
        let connection = Message::default()
            .list("local_addrs", [self.source.to_string()])
            .list("remote_addrs", [remote.to_string()])
            .list("proposals", [IKE_PROPOSAL])
            .text("version", "2")
            .text("encap", if self.udp_encap { "yes" } else { "no" })
            .text("keyingtries", "0")
            .text("dpd_delay", ASK_AFTER)
            .section("local", Message::default().text("auth", "psk").text("id", local.to_string()))
            .section("remote", Message::default().text("auth", "psk"))
            .section("children", Message::default().section(&self.name.child(), child));
        Message::default().section(&self.name.to_string(), connection)
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

    fn is_foundation(&self) -> bool {
        matches!(self, Self::Daemon)
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
        assert_eq!(SharedSecret::owner_of(&SharedSecret::id(&secret.owner)), Some(secret.owner));
        assert_eq!(SharedSecret::owner_of("ike-home"), None);
        let message = secret.message();
        assert_eq!(message.get_text("data"), Some(SECRET));
        let entry = IpsecEntry::Secret(secret);
        for shown in [format!("{message:?}"), format!("{entry:?}"), entry.describe()] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}
