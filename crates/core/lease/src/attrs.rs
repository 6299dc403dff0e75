//! Lease attributes: what a host announces to its peers, as the JSON value of its subnet key.
//! The bytes are those the Go flannel writes; reading is as lenient as Go is with member names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU64};

use flannel_common::Family;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::{RawValue, Value};

use crate::raw_json::{RawJson, compact};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseAttrs {
    /// Never `0.0.0.0` when it was read from a store.
    pub public_ip: Option<Ipv4Addr>,
    pub public_ipv6: Option<Ipv6Addr>,
    /// Empty for backends that do not name themselves (udp, alloc, tencent-vpc).
    pub backend_type: Box<str>,
    pub backend_data: Option<RawJson>,
    pub backend_v6_data: Option<RawJson>,
    /// Whom a lease server has given it to, with the machine, or the Node that has it in Kubernetes. Nodes that write
    /// their own lease do not name themselves. [`LeaseAttrs::owner_name`] is the part for people.
    pub owner: Option<Box<str>>,
    /// Port at which the node answers probes of its peers. Nodes of the Go flannel do not, and say nothing of it.
    pub probe_port: Option<NonZeroU16>,
    /// [`machine_hash`](crate::machine_hash) of the node, equal in copies of a machine; not in Go's leases.
    pub machine: Option<NonZeroU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AttrsError(String);

/// Name of an owner without a lease server's note of the machine: `node-2` of `node-2#4be1…` and `node-2@192.0.2.2`.
pub fn owner_name(owner: &str) -> &str {
    owner.split(['#', '@']).next().unwrap_or(owner)
}

impl LeaseAttrs {
    pub fn owner_name(&self) -> Option<&str> {
        self.owner.as_deref().map(owner_name)
    }

    pub fn public_address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.public_ip.map(IpAddr::V4),
            Family::V6 => self.public_ipv6.map(IpAddr::V6),
        }
    }

    pub fn public_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let (v4, v6) = (self.public_ip.map(IpAddr::V4), self.public_ipv6.map(IpAddr::V6));
        v4.into_iter().chain(v6)
    }

    pub fn data(&self, family: Family) -> Option<&RawJson> {
        match family {
            Family::V4 => self.backend_data.as_ref(),
            Family::V6 => self.backend_v6_data.as_ref(),
        }
    }

    /// Whether nodes say the same of themselves. Owner, and in Kubernetes machine, are what a store says of them.
    pub fn announce_the_same_as(&self, other: &Self) -> bool {
        let announced = |attrs: &Self| Self { owner: None, machine: None, ..attrs.clone() };
        announced(self) == announced(other)
    }

    pub fn from_json(json: &[u8]) -> Result<Self, AttrsError> {
        // Go replaces bytes that are not UTF-8 instead of refusing the value.
        let text = String::from_utf8_lossy(json);
        let mut json = serde_json::Deserializer::from_str(&text);
        let members = json.deserialize_map(AttrsVisitor);
        let members = members.and_then(|members| json.end().map(|()| members));
        let members = members.map_err(|error| AttrsError::json(&error))?;
        let attrs = Self {
            public_ip: members.public_ip.map_or(Ok(None), |text| read_v4(&text))?,
            public_ipv6: members.public_ipv6.map_or(Ok(None), |text| read_v6(&text))?,
            backend_type: members.backend_type.unwrap_or_default().into(),
            backend_data: members.backend_data.and_then(RawJson::from_raw),
            backend_v6_data: members.backend_v6_data.and_then(RawJson::from_raw),
            owner: members.owner.filter(|owner| !owner.is_empty()).map(Into::into),
            probe_port: members.probe_port,
            machine: members.machine,
        };
        attrs.check_size().map(|()| attrs)
    }

    /// Refuses what no backend needs: every node keeps the leases of all.
    pub fn check_size(&self) -> Result<(), AttrsError> {
        let owner = self.owner.as_deref().map_or(0, str::len);
        for (key, size, most) in [
            ("BackendType", self.backend_type.len(), MAX_BACKEND_TYPE_BYTES),
            ("BackendData", self.weight(), MAX_DATA_BYTES),
            ("Owner", owner, MAX_OWNER_BYTES),
        ] {
            if size > most {
                return Err(AttrsError(format!(
                    "lease attribute {key} has {size} bytes, and may have {most}: restart flanneld on the node that \
                     wrote it"
                )));
            }
        }
        Ok(())
    }

    /// Whether every reader can parse the backend's data: many go down one level of their stack for each bracket.
    pub fn check_depth(&self) -> Result<(), AttrsError> {
        let data = [("BackendData", &self.backend_data), ("BackendV6Data", &self.backend_v6_data)];
        for (key, data) in data {
            let depth = data.as_ref().map_or(0, RawJson::depth);
            if depth > MAX_JSON_DEPTH {
                return Err(AttrsError(format!(
                    "lease attribute {key} is nested {depth} deep: {MAX_JSON_DEPTH} is the most"
                )));
            }
        }
        Ok(())
    }

    /// Bytes of text that the node has chosen.
    pub fn weight(&self) -> usize {
        let data = |data: &Option<RawJson>| data.as_ref().map_or(0, |data| data.as_str().len());
        self.backend_type.len() + data(&self.backend_data) + data(&self.backend_v6_data)
    }

    pub fn to_json(&self) -> String {
        let mut out =
            format!("{{\"PublicIP\":\"{}\"", self.public_ip.unwrap_or(Ipv4Addr::UNSPECIFIED));
        match self.public_ipv6 {
            Some(ip) => out += &format!(",\"PublicIPv6\":\"{ip}\""),
            None => out += ",\"PublicIPv6\":null",
        }
        if !self.backend_type.is_empty() {
            out += &format!(",\"BackendType\":{}", quoted(&self.backend_type));
        }
        if let Some(data) = &self.backend_data {
            out += &format!(",\"BackendData\":{data}");
        }
        if let Some(data) = &self.backend_v6_data {
            out += &format!(",\"BackendV6Data\":{data}");
        }
        if let Some(owner) = &self.owner {
            out += &format!(",\"Owner\":{}", quoted(owner));
        }
        if let Some(port) = self.probe_port {
            out += &format!(",\"ProbePort\":{port}");
        }
        if let Some(machine) = self.machine {
            out += &format!(",\"Machine\":\"{machine:016x}\"");
        }
        out.push('}');
        out
    }
}

/// Most bytes of a lease beside its addresses. A backend's data are a MAC or a key.
pub const MAX_DATA_BYTES: usize = 8 << 10;
const MAX_BACKEND_TYPE_BYTES: usize = 64;
/// Most bytes of an owner; the name of a Kubernetes Node has at most 253.
const MAX_OWNER_BYTES: usize = 256;

/// Most levels of JSON; no backend needs more than two.
const MAX_JSON_DEPTH: usize = 32;

impl Serialize for LeaseAttrs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        RawValue::from_string(self.to_json()).map_err(ser::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for LeaseAttrs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        Self::from_json(json.get().as_bytes()).map_err(de::Error::custom)
    }
}

impl AttrsError {
    /// The message may quote the value, which anybody can have written.
    fn json(error: &impl ToString) -> Self {
        let error = shortened(&error.to_string());
        Self(format!(
            "lease attributes are not a JSON object of the known shape ({error}): write them as docs/lease-server.md \
             has them"
        ))
    }
}

/// Text as a string of JSON, escaped as Go does it.
fn quoted(text: &str) -> Box<str> {
    compact(&Value::from(text).to_string())
}

fn shortened(text: &str) -> String {
    const MAX_SHOWN_BYTES: usize = 200;
    flannel_common::shorten(text, MAX_SHOWN_BYTES).into_owned()
}

/// Refuses a text of which no address was read; the unspecified one stands for none.
fn checked<A: Copy + Into<IpAddr>>(
    (key, family): (&str, &str),
    text: &str,
    address: Option<A>,
) -> Result<Option<A>, AttrsError> {
    match address {
        Some(address) => Ok(Some(address).filter(|address| !(*address).into().is_unspecified())),
        None => Err(AttrsError(format!(
            "lease attribute {key} {:?} is not an {family} address: write one, or leave it out",
            shortened(text)
        ))),
    }
}

fn read_v4(text: &str) -> Result<Option<Ipv4Addr>, AttrsError> {
    let text = text.trim_matches('"');
    let mapped = || text.parse::<Ipv6Addr>().ok()?.to_ipv4_mapped();
    checked(("PublicIP", "IPv4"), text, text.parse().ok().or_else(mapped))
}

fn read_v6(text: &str) -> Result<Option<Ipv6Addr>, AttrsError> {
    let text = text.trim_matches('"');
    let ip = text.parse().ok().filter(|ip: &Ipv6Addr| ip.to_ipv4_mapped().is_none());
    checked(("PublicIPv6", "IPv6"), text, ip)
}

fn read_machine(text: &str) -> Option<NonZeroU64> {
    let is_hash = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    NonZeroU64::new(u64::from_str_radix(text, 16).ok().filter(|_| is_hash)?)
}

/// The last member of each name, in one pass: a store lists ten thousand leases.
#[derive(Default)]
struct AttrsMembers<'a> {
    public_ip: Option<String>,
    public_ipv6: Option<String>,
    backend_type: Option<String>,
    backend_data: Option<&'a RawValue>,
    backend_v6_data: Option<&'a RawValue>,
    owner: Option<String>,
    probe_port: Option<NonZeroU16>,
    machine: Option<NonZeroU64>,
}

struct AttrsVisitor;

impl<'de> Visitor<'de> for AttrsVisitor {
    type Value = AttrsMembers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of lease attributes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AttrsMembers<'de>, A::Error> {
        let mut members = AttrsMembers::default();
        while let Some(mut name) = map.next_key::<String>()? {
            name.make_ascii_lowercase();
            match &*name {
                "publicip" => members.public_ip = map.next_value()?,
                "publicipv6" => members.public_ipv6 = map.next_value()?,
                "backendtype" => members.backend_type = map.next_value()?,
                "backenddata" => members.backend_data = map.next_value()?,
                "backendv6data" => members.backend_v6_data = map.next_value()?,
                // Nodes of other versions may write these otherwise.
                "owner" => members.owner = map.next_value::<Value>()?.as_str().map(str::to_owned),
                "probeport" => {
                    let port = map.next_value::<Value>()?.as_u64();
                    members.probe_port =
                        port.and_then(|port| u16::try_from(port).ok()?.try_into().ok());
                }
                "machine" => {
                    members.machine = map.next_value::<Value>()?.as_str().and_then(read_machine);
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(members)
    }
}
