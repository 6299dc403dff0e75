//! Results as JSON in every version of the protocol, with members in the Go implementation's order.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Map, Value};

use super::go_json::indented;
use super::{
    Dns, Error, ErrorContext, FieldError, Fields, Interface, IpConfig, Outcome, Result, Route,
    Version, internal,
};

impl Outcome {
    /// Indented, as the Go implementation prints it.
    pub fn to_json(&self, version: Version) -> Result<String> {
        let cni_version = version.as_str();
        if version < Version::V030 {
            return Ok(indented(&Result02::of(self, cni_version)?));
        }
        if version < Version::V100 {
            return Ok(indented(&PrintedResult { cni_version, outcome: self.in_old_words() }));
        }
        // The reference prints these through a map, so the keys are sorted at every level.
        let mut outcome = self.clone();
        outcome.ips.iter_mut().for_each(|ip| ip.family = None);
        let mut value = serde_json::to_value(PrintedResult { cni_version, outcome })
            .or_cni("could not write the result")?;
        if let Some(members) = value.as_object_mut().filter(|_| self.dns.is_empty()) {
            members.remove("dns");
        }
        Ok(indented(&value))
    }

    /// A plugin that names no version in its result speaks that of the configuration.
    pub fn parse(text: &[u8], assumed: Version) -> Result<(Self, Version)> {
        match serde_json::from_slice(text).or_cni("a result is not JSON")? {
            Value::Object(members) => Self::of_members(&members, assumed),
            Value::Null => Ok((Self::default(), assumed)),
            _ => Err(Error::internal("a result is not JSON: it is not an object")),
        }
    }

    pub fn of_members(members: &Map<String, Value>, assumed: Version) -> Result<(Self, Version)> {
        const WRONG: &str = "a field of the result is wrong";
        let fields = Fields::new(members);
        let version = match fields.text("cniVersion").or_cni(WRONG)? {
            None => assumed,
            Some(text) => Version::of_text(text)
                .ok_or_else(|| internal!("a result names version {text:?}, which is not known"))?,
        };
        let read = if version < Version::V030 { read_02 } else { read };
        let mut outcome = read(fields).or_cni(WRONG)?;
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

impl Dns {
    pub fn read(fields: Fields<'_>) -> Result<Self, FieldError> {
        Ok(Self {
            nameservers: fields.strings("nameservers")?,
            domain: fields.owned("domain")?,
            search: fields.strings("search")?,
            options: fields.strings("options")?,
        })
    }
}

// --- Reading ---------------------------------------------------------------------------------

fn read(fields: Fields<'_>) -> Result<Outcome, FieldError> {
    Ok(Outcome {
        interfaces: fields.objects("interfaces", read_interface)?,
        ips: fields.objects("ips", read_ip)?,
        routes: fields.objects("routes", Route::read)?,
        dns: Dns::read(fields.object("dns")?)?,
    })
}

fn read_interface(fields: Fields<'_>) -> Result<Interface, FieldError> {
    Ok(Interface {
        name: fields.owned("name")?,
        mac: fields.owned("mac")?,
        mtu: fields.integer("mtu")?.unwrap_or_default(),
        sandbox: fields.owned("sandbox")?,
        socket_path: fields.owned("socketPath")?,
        pci_id: fields.owned("pciID")?,
    })
}

fn read_ip(fields: Fields<'_>) -> Result<IpConfig, FieldError> {
    Ok(IpConfig {
        family: Some(fields.owned("version")?),
        interface: fields.integer("interface")?,
        address: network(fields, "address")?,
        gateway: fields.parsed("gateway", "an IP address")?,
    })
}

fn read_02(fields: Fields<'_>) -> Result<Outcome, FieldError> {
    let mut outcome = Outcome { dns: Dns::read(fields.object("dns")?)?, ..Outcome::default() };
    for (key, family) in [("ip4", "4"), ("ip6", "6")] {
        let Some(ip) = fields.map(key)?.map(Fields::new) else { continue };
        outcome.ips.push(IpConfig {
            family: Some(family.to_owned()),
            interface: None,
            address: network(ip, "ip")?,
            gateway: ip.parsed("gateway", "an IP address")?,
        });
        outcome.routes.extend(ip.objects("routes", Route::read)?);
    }
    Ok(outcome)
}

pub(crate) fn network(fields: Fields<'_>, key: &str) -> Result<IpNet, FieldError> {
    const WANTED: &str = "an address with a prefix length";
    match fields.parsed(key, WANTED)? {
        Some(network) => Ok(network),
        None => Err(FieldError::new(key, WANTED, fields.get(key).unwrap_or(&Value::Null))),
    }
}

// --- Writing ---------------------------------------------------------------------------------

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PrintedResult<'a> {
    cni_version: &'a str,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Outcome {
    /// With what versions before 1 have and lack.
    fn in_old_words(&self) -> Self {
        let mut outcome = self.clone();
        for interface in &mut outcome.interfaces {
            let Interface { name, mac, sandbox, .. } = std::mem::take(interface);
            *interface = Interface { name, mac, sandbox, ..Interface::default() };
        }
        for ip in &mut outcome.ips {
            let family = if ip.address.addr().is_ipv4() { "4" } else { "6" };
            ip.family.get_or_insert_with(|| family.to_owned());
        }
        outcome
    }
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
    ip: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl<'a> Result02<'a> {
    /// Only the first address of each family: there was no room for more.
    fn of(outcome: &'a Outcome, cni_version: &'a str) -> Result<Self> {
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
            return Err(Error::internal("cannot convert: no valid IP addresses"));
        }
        Ok(Self { cni_version, ip4, ip6, dns: &outcome.dns })
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
        assert!(Outcome::default().to_json(Version::V020).is_err(), "it has no address");
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
