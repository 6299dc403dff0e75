//! The host-local plugin's configuration: the network's `ipam`, and what a runtime asks on top.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::addr::parse_lenient;
use super::range::{Range, RangeSet};
use crate::protocol::{Call, Error, FieldError, Fields, Result, Route, Version, each_of};

const DATA_DIR: &str = "/var/lib/cni/networks";

pub struct IpamConf {
    pub sets: Vec<RangeSet>,
    pub requested: Vec<IpAddr>,
    pub routes: Vec<Route>,
    pub resolv_conf: Option<PathBuf>,
}

/// Where the reservations are: all that is needed to undo.
pub(super) fn directory(call: &Call) -> Result<PathBuf> {
    let data_dir = ipam(call)?.text("dataDir")?;
    Ok(PathBuf::from(data_dir.unwrap_or(DATA_DIR)).join(&call.conf.name))
}

impl IpamConf {
    pub fn read(call: &Call) -> Result<Self> {
        let ipam = ipam(call)?;
        let sets = sets(call, ipam)?;
        check_together(&sets, call.conf.version)?;
        Ok(Self {
            sets,
            requested: requested(call)?,
            routes: ipam.objects("routes", Route::read)?,
            resolv_conf: ipam.text("resolvConf")?.map(PathBuf::from),
        })
    }
}

fn ipam(call: &Call) -> Result<Fields<'_>> {
    let ipam = call.conf.fields().map("ipam")?;
    ipam.map(Fields::new).ok_or_else(|| Error::config("IPAM config missing 'ipam' key"))
}

/// In the reference's order: what the runtime asks for, a single range of the oldest kind, the rest.
fn sets(call: &Call, ipam: Fields<'_>) -> Result<Vec<RangeSet>> {
    let runtime = call.conf.fields().object("runtimeConfig")?;
    let mut raw = lists(runtime, "ipRanges")?;
    if ipam.get("subnet").is_some() {
        raw.push(vec![ipam]);
    }
    raw.extend(lists(ipam, "ranges")?);
    if raw.is_empty() {
        return Err(Error::config("no IP ranges specified"));
    }
    let set = |(at, ranges): (usize, Vec<Fields<'_>>)| {
        let ranges: Result<_> = ranges.into_iter().map(Range::read).collect();
        ranges
            .and_then(RangeSet::new)
            .map_err(|error| error.context(format_args!("invalid range set {at}")))
    };
    raw.into_iter().enumerate().map(set).collect()
}

fn lists<'a>(fields: Fields<'a>, key: &str) -> Result<Vec<Vec<Fields<'a>>>, FieldError> {
    const WANTED: &str = "a list of lists of ranges";
    let lists = fields.each(key, WANTED, Value::as_array)?;
    let ranges = |list: &'a Vec<Value>| {
        each_of(list, key, WANTED, |range| range.as_object().map(Fields::new))
    };
    lists.into_iter().map(ranges).collect()
}

fn check_together(sets: &[RangeSet], version: Version) -> Result<()> {
    let of_ipv4 = sets.iter().filter(|set| set.is_ipv4()).count();
    if version < Version::V030 && (of_ipv4 > 1 || sets.len() - of_ipv4 > 1) {
        return Err(Error::config(format!(
            "CNI version {version} does not support more than 1 address per family"
        )));
    }
    for (at, set) in sets.iter().enumerate() {
        if let Some(other) = sets[at + 1..].iter().position(|other| set.overlaps(other)) {
            let other = at + 1 + other;
            return Err(Error::config(format!("range set {at} overlaps with {other}")));
        }
    }
    Ok(())
}

/// Addresses asked for by `CNI_ARGS`, by `args` and by the capability `ips`.
fn requested(call: &Call) -> Result<Vec<IpAddr>, FieldError> {
    let fields = call.conf.fields();
    let mut texts: Vec<String> = call.arg("IP").map(str::to_owned).into_iter().collect();
    texts.extend(fields.object("args")?.object("cni")?.strings("ips")?);
    texts.extend(fields.object("runtimeConfig")?.strings("ips")?);
    texts
        .iter()
        .map(|text| {
            parse_lenient(text)
                .ok_or_else(|| FieldError::new("ips", "IP addresses", &text.as_str().into()))
        })
        .collect()
}
