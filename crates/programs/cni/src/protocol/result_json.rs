//! Results as JSON in every version of the protocol, in the order of members in which the Go
//! implementation prints them.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Map, Value};

use super::fields::{FieldError, Fields};
use super::go_json::{Sorted, indented};
use super::result::as_text;
use super::{Dns, Interface, IpConfig, Outcome, Route, Version};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResultError {
    #[error("a result is not JSON: {0}")]
    Syntax(String),
    #[error("a result names version {0:?}, which is not known")]
    UnknownVersion(String),
    #[error("a field of the result is wrong: {0}")]
    Field(#[from] FieldError),
    /// Versions before 0.3.0 cannot express a result without an address.
    #[error("cannot convert: no valid IP addresses")]
    NoAddress,
}

impl Outcome {
    /// Indented, as the Go implementation prints it.
    pub fn to_json(&self, version: Version) -> Result<String, ResultError> {
        Ok(match version {
            Version::V010 | Version::V020 => indented(&Result02::of(self, version)?),
            Version::V030 | Version::V031 | Version::V040 => indented(&Result04::of(self, version)),
            // The reference prints these through a map, so the keys are sorted at every level.
            Version::V100 | Version::V110 => {
                let mut value =
                    serde_json::to_value(Result04::of(self, version)).unwrap_or_default();
                modernise(self, &mut value);
                indented(&Sorted(&value))
            }
        })
    }

    /// A plugin that names no version in its result speaks that of the configuration.
    pub fn parse(text: &[u8], assumed: Version) -> Result<(Self, Version), ResultError> {
        let value: Value =
            serde_json::from_slice(text).map_err(|error| ResultError::Syntax(error.to_string()))?;
        match value {
            Value::Object(members) => Self::of_members(&members, assumed),
            Value::Null => Ok((Self::default(), assumed)),
            _ => Err(ResultError::Syntax("it is not an object".into())),
        }
    }

    pub fn of_members(
        members: &Map<String, Value>,
        assumed: Version,
    ) -> Result<(Self, Version), ResultError> {
        let fields = Fields::new(members);
        let version = match fields.string("cniVersion")? {
            None | Some("") => assumed,
            Some(text) => Version::of_text(text)
                .ok_or_else(|| ResultError::UnknownVersion(text.to_owned()))?,
        };
        let dns = fields.object("dns")?.map(Dns::read).transpose()?.unwrap_or_default();
        let mut outcome = if version < Version::V030 {
            read_02(fields, dns)?
        } else {
            Self {
                interfaces: fields
                    .objects("interfaces")?
                    .into_iter()
                    .map(read_interface)
                    .collect::<Result<_, _>>()?,
                ips: fields.objects("ips")?.into_iter().map(read_ip).collect::<Result<_, _>>()?,
                routes: fields
                    .objects("routes")?
                    .into_iter()
                    .map(Route::read)
                    .collect::<Result<_, _>>()?,
                dns,
            }
        };
        if version >= Version::V100 {
            outcome.ips.iter_mut().for_each(|ip| ip.family = None);
        }
        Ok((outcome, version))
    }
}

impl Route {
    pub fn read(fields: Fields<'_>) -> Result<Self, FieldError> {
        Ok(Self {
            dst: network(fields, "dst")?,
            gw: fields.parsed("gw", "an IP address")?,
            mtu: fields.integer("mtu")?.unwrap_or_default(),
            advmss: fields.integer("advmss")?.unwrap_or_default(),
            priority: fields.integer("priority")?.unwrap_or_default(),
            table: fields.integer("table")?,
            scope: fields.integer("scope")?,
        })
    }
}

// --- Reading ---------------------------------------------------------------------------------

fn read_interface(fields: Fields<'_>) -> Result<Interface, FieldError> {
    let text = |key| fields.string(key).map(|text| text.unwrap_or_default().to_owned());
    Ok(Interface {
        name: text("name")?,
        mac: text("mac")?,
        mtu: fields.integer("mtu")?.unwrap_or_default(),
        sandbox: text("sandbox")?,
        socket_path: text("socketPath")?,
        pci_id: text("pciID")?,
    })
}

fn read_ip(fields: Fields<'_>) -> Result<IpConfig, FieldError> {
    Ok(IpConfig {
        interface: fields.integer("interface")?,
        address: network(fields, "address")?,
        gateway: fields.parsed("gateway", "an IP address")?,
        family: Some(fields.string("version")?.unwrap_or_default().to_owned()),
    })
}

impl Dns {
    pub fn read(fields: Fields<'_>) -> Result<Self, FieldError> {
        Ok(Self {
            nameservers: fields.strings("nameservers")?,
            domain: fields.string("domain")?.unwrap_or_default().to_owned(),
            search: fields.strings("search")?,
            options: fields.strings("options")?,
        })
    }
}

fn read_02(fields: Fields<'_>, dns: Dns) -> Result<Outcome, FieldError> {
    let mut outcome = Outcome { dns, ..Outcome::default() };
    for (key, family) in [("ip4", "4"), ("ip6", "6")] {
        let Some(ip) = fields.object(key)? else { continue };
        outcome.ips.push(IpConfig {
            interface: None,
            address: network(ip, "ip")?,
            gateway: ip.parsed("gateway", "an IP address")?,
            family: Some(family.to_owned()),
        });
        for route in ip.objects("routes")? {
            outcome.routes.push(Route::read(route)?);
        }
    }
    Ok(outcome)
}

fn network(fields: Fields<'_>, key: &str) -> Result<IpNet, FieldError> {
    const WANTED: &str = "an address with a prefix length";
    match fields.parsed(key, WANTED)? {
        Some(network) => Ok(network),
        None => Err(FieldError::new(key, WANTED, fields.get(key).unwrap_or(&Value::Null))),
    }
}

// --- Writing ---------------------------------------------------------------------------------

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result04<'a> {
    cni_version: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface04<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip04<'a>>,
    #[serde(skip_serializing_if = "no_routes")]
    routes: &'a [Route],
    dns: &'a Dns,
}

fn no_routes(routes: &&[Route]) -> bool {
    routes.is_empty()
}

#[derive(Serialize)]
struct Interface04<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
}

#[derive(Serialize)]
struct Ip04<'a> {
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<i64>,
    #[serde(serialize_with = "as_text")]
    address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

impl<'a> Result04<'a> {
    fn of(outcome: &'a Outcome, version: Version) -> Self {
        Self {
            cni_version: version.as_str(),
            interfaces: outcome
                .interfaces
                .iter()
                .map(|interface| Interface04 {
                    name: &interface.name,
                    mac: &interface.mac,
                    sandbox: &interface.sandbox,
                })
                .collect(),
            ips: outcome
                .ips
                .iter()
                .map(|ip| Ip04 {
                    version: ip.family.as_deref().unwrap_or(if ip.address.addr().is_ipv4() {
                        "4"
                    } else {
                        "6"
                    }),
                    interface: ip.interface,
                    address: ip.address,
                    gateway: ip.gateway,
                })
                .collect(),
            routes: &outcome.routes,
            dns: &outcome.dns,
        }
    }
}

/// What version 1 dropped and what it brought.
fn modernise(outcome: &Outcome, value: &mut Value) {
    if outcome.dns.is_empty()
        && let Some(members) = value.as_object_mut()
    {
        members.remove("dns");
    }
    for ip in items(value, "ips") {
        ip.remove("version");
    }
    for (members, interface) in items(value, "interfaces").zip(&outcome.interfaces) {
        if interface.mtu != 0 {
            members.insert("mtu".into(), interface.mtu.into());
        }
        for (key, text) in [("socketPath", &interface.socket_path), ("pciID", &interface.pci_id)] {
            if !text.is_empty() {
                members.insert(key.into(), text.as_str().into());
            }
        }
    }
}

fn items<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    value
        .get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result02<'a> {
    cni_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Ip02>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Ip02>,
    dns: &'a Dns,
}

#[derive(Serialize)]
struct Ip02 {
    #[serde(serialize_with = "as_text")]
    ip: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl<'a> Result02<'a> {
    /// Only the first address of each family: there was no room for more.
    fn of(outcome: &'a Outcome, version: Version) -> Result<Self, ResultError> {
        let of_family = |v4: bool| {
            let ip = outcome.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4)?;
            Some(Ip02 {
                ip: ip.address,
                gateway: ip.gateway,
                routes: outcome
                    .routes
                    .iter()
                    .filter(|route| route.dst.addr().is_ipv4() == v4)
                    .map(|route| Route::to(route.dst, route.gw))
                    .collect(),
            })
        };
        let (ip4, ip6) = (of_family(true), of_family(false));
        if ip4.is_none() && ip6.is_none() {
            return Err(ResultError::NoAddress);
        }
        Ok(Self { cni_version: version.as_str(), ip4, ip6, dns: &outcome.dns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Outcome {
        Outcome {
            interfaces: vec![
                Interface {
                    name: "cni0".into(),
                    mac: "02:00:00:00:00:01".into(),
                    ..Interface::default()
                },
                Interface {
                    name: "eth0".into(),
                    sandbox: "/run/netns/p".into(),
                    ..Interface::default()
                },
            ],
            ips: vec![IpConfig {
                interface: Some(1),
                address: "10.244.1.2/24".parse().unwrap(),
                gateway: Some("10.244.1.1".parse().unwrap()),
                family: None,
            }],
            routes: vec![Route::to("10.244.0.0/16".parse().unwrap(), None)],
            dns: Dns::default(),
        }
    }

    #[test]
    fn version_1_is_sorted_and_has_neither_family_nor_empty_dns() {
        let text = sample().to_json(Version::V100).unwrap();
        let order: Vec<_> = [
            "cniVersion",
            "interfaces",
            "\"mac\"",
            "\"name\"",
            "ips",
            "\"address\"",
            "\"gateway\"",
            "\"interface\"",
            "routes",
        ]
        .iter()
        .map(|key| text.find(key).unwrap_or_else(|| panic!("no {key} in {text}")))
        .collect();
        assert!(order.is_sorted(), "{text}");
        assert!(!text.contains("dns") && !text.contains("\"version\""), "{text}");
    }

    #[test]
    fn version_0_3_names_the_family_and_always_has_dns() {
        let text = sample().to_json(Version::V031).unwrap();
        assert!(text.contains("\"version\": \"4\",\n            \"interface\": 1,"), "{text}");
        assert!(text.ends_with("    \"dns\": {}\n}"), "{text}");
    }

    #[test]
    fn version_0_2_has_one_address_of_a_family_with_its_routes() {
        let text = sample().to_json(Version::V020).unwrap();
        let (back, version) = Outcome::parse(text.as_bytes(), Version::LATEST).unwrap();
        assert_eq!(version, Version::V020);
        assert_eq!(back.ips[0].address.to_string(), "10.244.1.2/24");
        assert_eq!(back.routes, sample().routes);
        assert_eq!(Outcome::default().to_json(Version::V020), Err(ResultError::NoAddress));
    }

    #[test]
    fn every_version_since_0_3_reads_back_as_it_was() {
        for version in [Version::V030, Version::V031, Version::V040, Version::V100, Version::V110] {
            let text = sample().to_json(version).unwrap();
            let (mut back, read) = Outcome::parse(text.as_bytes(), Version::V010).unwrap();
            back.ips[0].family = None;
            assert_eq!((back, read), (sample(), version));
        }
    }
}
