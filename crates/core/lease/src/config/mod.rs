//! The network config: JSON an operator writes, parsed, completed and validated in one step, so that
//! a `NetworkConfig` in hand is one that works.
//!
//! Member names are matched as Go does, without regard to case; unknown ones are ignored; the last of
//! several with the same name counts. [`remarks`] reports both.

mod backend;
mod derive;
mod error;
mod folded;
mod remark;

use flannel_common::Family;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::{Map, Value};

pub use backend::BackendConfig;
pub use error::ConfigError;
pub use remark::remarks;

use crate::{Net, Subnet, SubnetOrigin, SubnetSource, SubnetSource4, SubnetSource6};
use derive::FamilyKeys;
use folded::{FoldedObject, brief};

const MASQUERADE_EXCLUDE: &str = "MasqueradeExclude";
const REPLACES: &str = "Replaces";

#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Present when IPv4 is enabled; and so for `v6`. At least one of them is.
    pub v4: Option<SubnetSource4>,
    pub v6: Option<SubnetSource6>,
    pub nftables: bool,
    /// Destinations that pods reach under their own address despite masquerading; the Go flannel ignores the key.
    pub masquerade_exclude: Vec<IpNet>,
    /// Networks whose subnets running nodes may give up for one of this config: an operator's word that the
    /// pods' network moves. The Go flannel ignores the key, and reads a config only when it starts.
    pub replaces: Vec<IpNet>,
    pub backend: BackendConfig,
}

impl NetworkConfig {
    /// Reads a config for a store that hands out subnets of a pool.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::read(text, SubnetOrigin::Pool)
    }

    /// Whether a lease of `subnet` fits: it has exactly the enabled families, in networks that may be a node's.
    pub fn accepts(&self, subnet: &Subnet) -> bool {
        fits(self.v4, subnet.v4()) && fits(self.v6, subnet.v6())
    }

    pub fn network(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.v4.map(|source| source.network().into()),
            Family::V6 => self.v6.map(|source| source.network().into()),
        }
    }

    pub fn networks(&self) -> impl Iterator<Item = IpNet> + use<> {
        Family::BOTH.map(|family| self.network(family)).into_iter().flatten()
    }

    pub fn families(&self) -> impl Iterator<Item = Family> + use<> {
        self.networks().map(|network| Family::of(network.addr()))
    }

    /// Whether a config names its backend. Without one it means udp, as in Go, which its writer seldom wants.
    pub fn names_backend(text: &str) -> bool {
        FoldedObject::parse(text).is_ok_and(|object| object.get("Backend").is_some())
    }

    /// Text of a config with `Replaces` of these networks, if it has none yet; every other byte stays.
    pub fn with_replaces(text: &str, networks: impl IntoIterator<Item = IpNet>) -> String {
        let has_word = FoldedObject::parse(text).is_ok_and(|object| object.get(REPLACES).is_some());
        let networks: Vec<String> = networks.into_iter().map(|net| format!("\"{net}\"")).collect();
        match text.split_once('{') {
            Some((before, rest)) if !has_word && !networks.is_empty() => {
                format!("{before}{{\"{REPLACES}\":[{}],{rest}", networks.join(","))
            }
            _ => text.to_owned(),
        }
    }

    /// The config with every derived value; reads as the same. It has the backend's secrets: it must not be logged.
    pub fn to_json(&self) -> String {
        let mut object = Map::new();
        object.insert("EnableIPv4".into(), self.v4.is_some().into());
        object.insert("EnableIPv6".into(), self.v6.is_some().into());
        object.insert("EnableNFTables".into(), self.nftables.into());
        for (key, nets) in
            [(MASQUERADE_EXCLUDE, &self.masquerade_exclude), (REPLACES, &self.replaces)]
        {
            if !nets.is_empty() {
                let nets: Vec<String> = nets.iter().map(IpNet::to_string).collect();
                object.insert(key.into(), nets.into());
            }
        }
        derive::write(&derive::V4, self.v4, &mut object);
        derive::write(&derive::V6, self.v6, &mut object);
        object.insert("Backend".into(), self.backend.to_json());
        Value::Object(object).to_string()
    }

    /// The same for people: without secrets.
    pub fn shown(&self) -> Value {
        let config = serde_json::from_str(&self.to_json()).unwrap_or_default();
        backend::shown(&config)
    }

    /// Where the store assigns subnets, `SubnetLen`, `SubnetMin` and `SubnetMax` do not count, nor the network's size.
    pub fn read(text: &str, subnets: SubnetOrigin) -> Result<Self, ConfigError> {
        let object = FoldedObject::parse(text)?;
        let enable_v4 = object.bool("EnableIPv4", true)?;
        let enable_v6 = object.bool("EnableIPv6", false)?;
        let nftables = object.bool("EnableNFTables", false)?;
        let masquerade_exclude = read_nets(&object, MASQUERADE_EXCLUDE)?;
        let replaces = read_nets(&object, REPLACES)?;
        let backend = BackendConfig::read(object.get("Backend"))?;
        let v4 = read_family(&object, &derive::V4, enable_v4, subnets)?;
        let v6 = read_family(&object, &derive::V6, enable_v6, subnets)?;
        if v4.is_none() && v6.is_none() {
            return Err(ConfigError::NoFamily);
        }
        Ok(Self { v4, v6, nftables, masquerade_exclude, replaces, backend })
    }
}

fn read_nets(object: &FoldedObject, key: &str) -> Result<Vec<IpNet>, ConfigError> {
    let fix = "write a list of networks, for example [\"10.0.0.0/8\", \"fd00::/8\"]";
    let items = match object.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(ConfigError::invalid(key, brief(other), "is not a list", fix)),
    };
    let read = |item: &Value| {
        let text = item.as_str()?;
        let v4 = Ipv4Net::parse_cidr(text).map(IpNet::V4);
        v4.or_else(|| Ipv6Net::parse_cidr(text).map(IpNet::V6))
    };
    let wrong = |item| ConfigError::invalid(key, brief(item), "is not a network", fix);
    items.iter().map(|item| read(item).ok_or_else(|| wrong(item))).collect()
}

fn fits<N: Net>(source: Option<SubnetSource<N>>, net: Option<N>) -> bool {
    match (source, net) {
        (Some(source), Some(net)) => source.accepts(net),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Reads a family. A disabled one must be readable too: a mistake would show only when it is turned on.
fn read_family<N: Net>(
    object: &FoldedObject,
    keys: &FamilyKeys,
    enabled: bool,
    subnets: SubnetOrigin,
) -> Result<Option<SubnetSource<N>>, ConfigError> {
    let given = derive::GivenRange::<N>::read(object, keys)?;
    if !enabled {
        return Ok(None);
    }
    Ok(Some(match subnets {
        SubnetOrigin::Pool => SubnetSource::Pool(derive::pool(&given, keys)?),
        SubnetOrigin::Store => SubnetSource::Assigned { network: derive::network(&given, keys)? },
    }))
}
