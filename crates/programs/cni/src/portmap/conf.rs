//! The portmap plugin's configuration: which ports of the host lead to which ports of the container.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ipam::addr;
use crate::iptables::Backend;
use crate::protocol::{Call, Error, FieldError, Fields, Outcome, Result};

/// The bit of a packet's mark that says: masquerade me. Kubernetes uses 14 and 15.
const DEFAULT_MARK_BIT: i64 = 13;

#[derive(Clone)]
pub(super) struct PortmapConf {
    pub(super) mappings: Vec<Mapping>,
    /// Masquerade what would otherwise be answered past the host.
    pub(super) snat: bool,
    pub(super) masquerade_all: bool,
    pub(super) mark: u32,
    /// Somebody else's chain of iptables that marks what is to be masqueraded, and who sees to it.
    pub(super) set_mark_chain: Option<String>,
    /// What a connection must be like besides, in the words of iptables or of nft: of IPv4 and of IPv6.
    conditions: [Vec<String>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) host_port: u16,
    pub(super) container_port: u16,
    pub(super) protocol: Protocol,
    /// Only connections to this address of the host.
    pub(super) host_ip: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

impl PortmapConf {
    pub(super) fn read(call: &Call) -> Result<Self> {
        Self::of_fields(call).map_err(invalid)
    }

    fn of_fields(call: &Call) -> Result<Self, FieldError> {
        let fields = call.conf.fields();
        let bit = fields.integer("markMasqBit")?.unwrap_or(DEFAULT_MARK_BIT);
        if !(0..32).contains(&bit) {
            return Err(FieldError::new("markMasqBit", "a number from 0 to 31", &bit.into()));
        }
        Ok(Self {
            mappings: fields.object("runtimeConfig")?.objects("portMappings", Mapping::read)?,
            snat: fields.bool("snat")?.unwrap_or(true),
            masquerade_all: fields.flag("masqAll")?,
            mark: 1 << bit,
            set_mark_chain: fields.string("externalSetMarkChain")?.map(str::to_owned),
            conditions: [fields.strings("conditionsV4")?, fields.strings("conditionsV6")?],
        })
    }

    /// Of the family of an address.
    pub(super) fn conditions(&self, ip: IpAddr) -> &[String] {
        &self.conditions[usize::from(ip.is_ipv6())]
    }

    /// Where the mappings are to be written. Refuses options that mean nothing there.
    pub(super) fn backend(&self, call: &Call) -> Result<Backend> {
        let fields = call.conf.fields();
        let asked = Backend::read(fields, "backend").map_err(invalid)?;
        // Nobody needs to look what the host has when there is nothing to write.
        let is_idle = self.mappings.is_empty()
            && self.set_mark_chain.is_none()
            && self.conditions.iter().all(Vec::is_empty);
        let backend = match asked {
            Some(backend) => backend,
            None if is_idle => Backend::Nftables,
            None => Backend::of_host(),
        };
        let refuse = |msg: String| Err(Error::config(msg));
        if fields.get("markMasqBit").is_some() && self.set_mark_chain.is_some() {
            return refuse("Cannot specify externalSetMarkChain and markMasqBit".into());
        }
        for (key, words) in ["conditionsV4", "conditionsV6"].into_iter().zip(&self.conditions) {
            if words.iter().any(|word| word.contains(char::is_control)) {
                return refuse(format!("'{key}' holds a line break or another control character"));
            }
        }
        let elsewhere = self.words_of_another(backend);
        if elsewhere.is_empty() {
            return Ok(backend);
        }
        let (here, there) = match backend {
            Backend::Iptables => ("iptables", "nftables"),
            Backend::Nftables => ("nftables", "iptables"),
        };
        let msg = format!(
            "{here} backend was requested but configuration contains {there}-specific options [{}]",
            elsewhere.join(" ")
        );
        let details = match asked {
            Some(_) => format!("set \"backend\" to \"{there}\", or remove them"),
            None => format!("this host's default is {here}: set \"backend\": \"{there}\""),
        };
        Err(Error::config(msg).with_details(details))
    }

    /// The options that mean nothing in a place, or something else.
    fn words_of_another(&self, backend: Backend) -> Vec<&'static str> {
        let mut found = Vec::new();
        if backend == Backend::Nftables && self.set_mark_chain.is_some() {
            found.push("externalSetMarkChain");
        }
        for (key, words) in ["conditionsV4", "conditionsV6"].into_iter().zip(&self.conditions) {
            // Conditions of iptables are options; no word of nft begins like one.
            let language = words.first().filter(|word| !word.is_empty()).map(|word| {
                if word.starts_with(['-', '!']) { Backend::Iptables } else { Backend::Nftables }
            });
            if language.is_some_and(|language| language != backend) {
                found.push(key);
            }
        }
        found
    }

    /// The mappings that an address of the container can serve.
    pub(super) fn for_address(&self, ip: IpAddr) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(move |mapping| {
            mapping.host_ip.is_none_or(|host_ip| addr::same_family(host_ip, ip))
        })
    }
}

impl Mapping {
    fn read(fields: Fields<'_>) -> Result<Self, FieldError> {
        let port = |key: &str| {
            let number = fields.integer(key)?.unwrap_or_default();
            u16::try_from(number)
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| FieldError::new(key, "a port number", &number.into()))
        };
        Ok(Self {
            host_port: port("hostPort")?,
            container_port: port("containerPort")?,
            protocol: Protocol::read(fields)?,
            host_ip: addr::read(fields, "hostIP")?,
        })
    }

    /// The host's address to match: none for one that means all of them.
    pub(super) fn destination(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    fn read(fields: Fields<'_>) -> Result<Self, FieldError> {
        let text = fields.string("protocol")?.unwrap_or("tcp");
        Ok(match text.to_ascii_lowercase().as_str() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "sctp" => Self::Sctp,
            _ => return Err(FieldError::new("protocol", "tcp, udp or sctp", &text.into())),
        })
    }
}

fn invalid(error: FieldError) -> Error {
    Error::config(format!("failed to parse config: {error}"))
}

/// The container's addresses in the earlier plugins' result: the first of each family inside it.
pub(super) fn container_addresses(result: &Outcome, ifname: &str) -> Vec<IpNet> {
    let mut found: Vec<IpNet> = Vec::new();
    for ip in &result.ips {
        let interface =
            ip.interface.and_then(|at| result.interfaces.get(usize::try_from(at).ok()?));
        let is_elsewhere = interface.is_some_and(|it| it.name != ifname || it.sandbox.is_empty());
        if !is_elsewhere && !found.iter().any(|it| addr::same_family(it.addr(), ip.address.addr()))
        {
            found.push(ip.address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Interface, IpConfig};
    use serde_json::json;

    #[test]
    fn mappings_are_read_and_nonsense_is_refused() {
        let read =
            |value: serde_json::Value| Mapping::read(Fields::new(value.as_object().unwrap()));
        let mapping = read(
            json!({"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": "0.0.0.0"}),
        )
        .unwrap();
        assert_eq!(
            (mapping.host_port, mapping.container_port, mapping.protocol),
            (8080, 80, Protocol::Tcp)
        );
        assert_eq!(mapping.destination(), None, "all addresses is not an address");
        for wrong in [
            json!({"hostPort": 0, "containerPort": 80}),
            json!({"hostPort": 80, "containerPort": 65536}),
            json!({"hostPort": 80, "containerPort": 80, "protocol": "icmp"}),
            json!({"hostPort": 80, "containerPort": 80, "hostIP": "x"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_addresses_inside_the_container_count_and_one_of_each_family() {
        let ip = |text: &str, interface| IpConfig {
            interface,
            address: text.parse().unwrap(),
            gateway: None,
            family: None,
        };
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.into(),
            sandbox: sandbox.into(),
            ..Interface::default()
        };
        let result = Outcome {
            interfaces: vec![interface("cni0", ""), interface("eth0", "/run/netns/p")],
            ips: vec![
                ip("10.0.0.1/24", Some(0)),
                ip("10.0.0.2/24", Some(1)),
                ip("10.0.0.3/24", Some(1)),
                ip("fd00::2/64", None),
            ],
            ..Outcome::default()
        };
        let found: Vec<String> =
            container_addresses(&result, "eth0").iter().map(IpNet::to_string).collect();
        assert_eq!(found, ["10.0.0.2/24", "fd00::2/64"]);
    }
}
