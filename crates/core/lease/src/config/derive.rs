//! From the members of one address family to its pool: defaults where the operator gave nothing, and
//! a refusal with a remedy where what was given cannot work.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::folded::{FoldedObject, brief};
use super::{ConfigError, Net};
use crate::{Pool, SubnetSource};

pub(super) struct FamilyKeys {
    family: &'static str,
    enable: &'static str,
    network: &'static str,
    len: &'static str,
    min: &'static str,
    max: &'static str,
    example: &'static str,
    example_address: &'static str,
    /// The length of a subnet unless the network is too small for four of them.
    default_len: u8,
    /// Go holds these as pointers, for which `null` means "not given".
    null_bounds: bool,
}

pub(super) const V4: FamilyKeys = FamilyKeys {
    family: "IPv4",
    enable: "EnableIPv4",
    network: "Network",
    len: "SubnetLen",
    min: "SubnetMin",
    max: "SubnetMax",
    example: "10.244.0.0/16",
    example_address: "10.244.10.0",
    default_len: 24,
    null_bounds: false,
};

pub(super) const V6: FamilyKeys = FamilyKeys {
    family: "IPv6",
    enable: "EnableIPv6",
    network: "IPv6Network",
    len: "IPv6SubnetLen",
    min: "IPv6SubnetMin",
    max: "IPv6SubnetMax",
    example: "fd00:244::/48",
    example_address: "fd00:244:0:10::",
    default_len: 64,
    null_bounds: true,
};

/// Values that the operator wrote, readable but not yet checked against each other.
pub(super) struct GivenRange<N> {
    network: Option<N>,
    len: u64,
    min: Option<u128>,
    max: Option<u128>,
}

impl<N: Net> GivenRange<N> {
    pub(super) fn read(object: &FoldedObject, keys: &FamilyKeys) -> Result<Self, ConfigError> {
        Ok(Self {
            network: read_network(object, keys)?,
            len: read_len(object, keys.len)?,
            min: read_bound::<N>(object, keys, keys.min)?,
            max: read_bound::<N>(object, keys, keys.max)?,
        })
    }
}

pub(super) fn network<N: Net>(given: &GivenRange<N>, keys: &FamilyKeys) -> Result<N, ConfigError> {
    let FamilyKeys { family, enable, network: key, example, .. } = keys;
    let network = given.network.ok_or_else(|| {
        let fix = format!(
            "{family} is enabled, so the config needs the network of all pods, for example \
             \"{key}\": \"{example}\"; or turn {family} off with \"{enable}\": false"
        );
        ConfigError::missing(*key, fix)
    })?;
    let disguised = N::disguised()
        .filter(|it| network.start() <= it.end() && it.start() <= network.end())
        .map(|it| format!("takes in {it}, where IPv4 addresses live"));
    let reserved = N::RESERVED.iter().find_map(|(first, len, what)| {
        let reserved = N::around(*first, *len);
        (reserved.start() <= network.start() && network.end() <= reserved.end())
            .then(|| format!("is a part of {reserved}, where {what} live"))
    });
    match disguised.or(reserved) {
        None => Ok(network),
        Some(problem) => {
            let fix = format!("use another network, for example \"{example}\"");
            Err(ConfigError::invalid(*key, network, problem, fix))
        }
    }
}

pub(super) fn pool<N: Net>(
    given: &GivenRange<N>,
    keys: &FamilyKeys,
) -> Result<Pool<N>, ConfigError> {
    let network = network(given, keys)?;
    let len = subnet_len(given.len, network, keys)?;
    let size = 1u128 << (N::BITS - len);
    // The first subnet is left out: its address is also that of the whole network.
    let min = check_bound::<N>(given.min, network.start() + size, network, len, keys, keys.min)?;
    let max =
        check_bound::<N>(given.max, network.end() - (size - 1), network, len, keys, keys.max)?;
    if min > max {
        let problem = format!("is above {} {}", keys.max, N::address(max));
        let all = keys.network;
        let fix = format!("exchange them, or leave both out to use all of {all} {network}");
        return Err(ConfigError::invalid(keys.min, N::address(min), problem, fix));
    }
    Ok(Pool::new(network, len, min, max))
}

/// Spells a network, and the pool in it, out in the config's own members.
pub(super) fn write<N: Net>(
    keys: &FamilyKeys,
    source: Option<SubnetSource<N>>,
    object: &mut Map<String, Value>,
) {
    let Some(source) = source else { return };
    object.insert(keys.network.into(), source.network().to_string().into());
    let Some(pool) = source.pool() else { return };
    object.insert(keys.len.into(), pool.subnet_len().into());
    object.insert(keys.min.into(), N::address(pool.first().start()).to_string().into());
    object.insert(keys.max.into(), N::address(pool.last().start()).to_string().into());
}

fn read_network<N: Net>(
    object: &FoldedObject,
    keys: &FamilyKeys,
) -> Result<Option<N>, ConfigError> {
    let Some(value) = object.get(keys.network) else { return Ok(None) };
    let net = unquoted(value).and_then(N::parse_cidr).ok_or_else(|| {
        let problem = format!("is not an {} network in CIDR form", keys.family);
        let fix = format!("write for example \"{}\"", keys.example);
        ConfigError::invalid(keys.network, brief(value), problem, fix)
    })?;
    // Length 0 is how an unset network looks in the Go flannel.
    Ok(Some(net).filter(|net| net.prefix_len() > 0))
}

fn read_len(object: &FoldedObject, key: &str) -> Result<u64, ConfigError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value.as_u64().ok_or_else(|| {
            let fix = "write a prefix length such as 24, without quotes, sign or slash";
            ConfigError::invalid(key, brief(value), "is not a whole number of bits", fix)
        }),
    }
}

fn read_bound<N: Net>(
    object: &FoldedObject,
    keys: &FamilyKeys,
    key: &str,
) -> Result<Option<u128>, ConfigError> {
    let value = match object.get(key) {
        None => return Ok(None),
        Some(Value::Null) if keys.null_bounds => return Ok(None),
        Some(value) => value,
    };
    let address = unquoted(value).and_then(N::parse_address).ok_or_else(|| {
        let problem = format!("is not an {} address", keys.family);
        let fix = format!("write for example \"{}\", or leave {key} out", keys.example_address);
        ConfigError::invalid(key, brief(value), problem, fix)
    })?;
    // The unspecified address is how an unset bound looks in the Go flannel.
    Ok(Some(address).filter(|address| *address != 0))
}

fn unquoted(value: &Value) -> Option<&str> {
    value.as_str().map(|text| text.trim_matches('"'))
}

fn subnet_len<N: Net>(given: u64, network: N, keys: &FamilyKeys) -> Result<u8, ConfigError> {
    // Four addresses per subnet, four subnets per network (of which the first is not used).
    let longest = N::BITS - 2;
    let largest_network = longest - 2;
    let shortest = network.prefix_len() + 2;
    if network.prefix_len() > largest_network {
        let problem = "is too small to hold four subnets of four addresses";
        let fix = format!("use a network of /{largest_network} or larger");
        return Err(ConfigError::invalid(keys.network, network, problem, fix));
    }
    match given {
        0 => Ok(keys.default_len.max(shortest)),
        len if len > u64::from(longest) => {
            let fix = format!("use {longest} or less");
            Err(ConfigError::invalid(keys.len, len, "is too long", fix))
        }
        len if len < u64::from(shortest) => {
            let of = format!("{} {network}", keys.network);
            let problem = format!("is too short for {of}, which must hold at least four subnets");
            let fix = format!("use {shortest} or more, or a larger network");
            Err(ConfigError::invalid(keys.len, len, problem, fix))
        }
        len => Ok(len as u8),
    }
}

fn check_bound<N: Net>(
    given: Option<u128>,
    default: u128,
    network: N,
    len: u8,
    keys: &FamilyKeys,
    key: &str,
) -> Result<u128, ConfigError> {
    let Some(address) = given else { return Ok(default) };
    let shown: IpAddr = N::address(address);
    if address < network.start() || network.end() < address {
        let default = N::address(default);
        let problem = format!("is outside {} {network}", keys.network);
        let fix = format!("choose an address inside it, or leave {key} out to use {default}");
        return Err(ConfigError::invalid(key, shown, problem, fix));
    }
    let boundary = N::around(address, len).start();
    if address != boundary {
        let fix = format!("with /{len} subnets use {}", N::address(boundary));
        return Err(ConfigError::invalid(key, shown, "is not on a SubnetLen boundary", fix));
    }
    Ok(address)
}
