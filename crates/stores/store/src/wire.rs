//! The lease server's JSON, written and read in one place: what server and client say to each other.
//! Member names and shapes are those of the flannel 0.5-0.7 server; what is new is added beside.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flannel_lease::{Expiry, Lease, LeaseAttrs, Subnet, SubnetOrigin, Version, owner_name};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{AnnouncedSince, KeptLease, LogPosition, Millis, NodeNetwork, StoredLease};

/// Go's zero time, which stands for "never".
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Header with the server's time in milliseconds, by which leases end there, whatever our clock says.
pub const TIME_HEADER: &str = "flannel-time";

/// Header with a secret that a node has made for itself, to be told from another machine with the same token.
pub const NODE_SECRET_HEADER: &str = "flannel-node-secret";

/// Longest life of a lease that is read from the other side, a hundred years, so that its end can be computed.
const MAX_LIFE: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(pub String);

/// A lease as JSON. `ttl` is added where the reader's clock may be wrong.
pub fn lease_json(subnet: &Subnet, entry: &KeptLease, ttl: Option<Duration>) -> String {
    let lease = RawLease {
        v4: subnet.v4().map(|net| net.to_string()),
        v6: subnet.v6().map(|net| net.to_string()),
        attrs: &RawValue::from_string(entry.attrs.to_json()).unwrap_or_default(),
        expiration: Some(entry.expires.map_or_else(|| NEVER.to_owned(), rfc3339)),
        version: Some(entry.version),
        owner: entry.owner.as_deref().map(|owner| owner_name(owner).to_owned()),
        since: entry.since.map(AnnouncedSince::number),
        since_is_exact: entry.since.is_some_and(AnnouncedSince::is_exact),
        ttl: ttl.map(|ttl| ttl.as_secs()),
    };
    serde_json::to_string(&lease).unwrap_or_default()
}

/// The lease in an event that says it is gone: nothing but its subnet is known for sure.
pub fn gone_json(subnet: &Subnet) -> String {
    lease_json(subnet, &KeptLease::new(LeaseAttrs::default(), None, None), None)
}

fn rfc3339(at: Millis) -> String {
    let at = jiff::Timestamp::from_millisecond(at.cast_signed()).unwrap_or(jiff::Timestamp::MAX);
    at.to_string()
}

#[derive(Clone, Debug, PartialEq)]
pub struct WireLease {
    pub subnet: Option<Subnet>,
    pub attrs: LeaseAttrs,
    pub expiry: Option<Expiry>,
    pub version: Option<u64>,
    pub ttl: Option<Duration>,
    /// Whom the server has given it to.
    pub owner: Option<String>,
    /// When it began to announce what it does, by the account of the server's store.
    pub since: Option<AnnouncedSince>,
}

#[derive(Serialize, Deserialize)]
struct RawLease<'a> {
    #[serde(rename = "Subnet", skip_serializing_if = "Option::is_none")]
    v4: Option<String>,
    #[serde(rename = "IPv6Subnet", skip_serializing_if = "Option::is_none")]
    v6: Option<String>,
    #[serde(rename = "Attrs", borrow)]
    attrs: &'a RawValue,
    #[serde(rename = "Expiration", skip_serializing_if = "Option::is_none")]
    expiration: Option<String>,
    #[serde(rename = "Version", skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(rename = "Owner", skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(rename = "Since", skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    #[serde(rename = "SinceIsExact", default, skip_serializing_if = "std::ops::Not::not")]
    since_is_exact: bool,
    #[serde(rename = "TTL", skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
}

impl WireLease {
    pub fn read(json: &str) -> Result<Self, WireError> {
        let raw: RawLease<'_> = from_json(json)?;
        let subnet = read_subnet(raw.v4.as_deref(), raw.v6.as_deref())?;
        let attrs = LeaseAttrs::from_json(raw.attrs.get().as_bytes())
            .map_err(|error| WireError(error.to_string()))?;
        let expiry = raw.expiration.as_deref().map(read_expiry).transpose()?;
        let ttl = raw.ttl.map(|seconds| Duration::from_secs(seconds).min(MAX_LIFE));
        let named = LeaseAttrs { owner: raw.owner.as_deref().map(Into::into), ..attrs };
        named.check_size().map_err(|error| WireError(error.to_string()))?;
        // Nobody says of himself whose a lease is.
        let attrs = LeaseAttrs { owner: None, ..named };
        let (version, owner) = (raw.version, raw.owner);
        let since = raw.since.and_then(|number| AnnouncedSince::read(number, raw.since_is_exact));
        Ok(Self { subnet, attrs, expiry, version, ttl, owner, since })
    }

    /// The lease itself; without a subnet it is not one.
    pub fn lease(&self) -> Result<Lease, WireError> {
        let subnet = self.subnet.ok_or_else(|| WireError("a lease without Subnet".to_owned()))?;
        Ok(Lease { subnet, attrs: self.attrs.clone() })
    }

    pub fn version(&self) -> Version {
        self.version.map_or(Version::UNKNOWN, Version::new)
    }

    /// The lease as the server has it, with the name of whom it has given it to.
    pub fn stored(&self) -> Result<StoredLease, WireError> {
        let reserved = self.expiry == Some(Expiry::Never);
        let mut lease = self.lease()?;
        lease.attrs.owner = self.owner.as_deref().map(Box::from);
        Ok(StoredLease { lease, version: self.version(), since: self.since, reserved })
    }
}

fn read_expiry(text: &str) -> Result<Expiry, WireError> {
    if text == NEVER {
        return Ok(Expiry::Never);
    }
    let at: jiff::Timestamp = text
        .parse()
        .map_err(|_| WireError(format!("Expiration {:?} is not an RFC 3339 time", shown(text))))?;
    Ok(Expiry::At(SystemTime::from(at)))
}

/// From `Subnet` and `IPv6Subnet`, as CIDRs.
pub fn read_subnet(v4: Option<&str>, v6: Option<&str>) -> Result<Option<Subnet>, WireError> {
    let wrong = |key: &str, text: &str| WireError(format!("{key} {:?} is not a CIDR", shown(text)));
    let v4 = v4.filter(|text| !text.is_empty());
    let v6 = v6.filter(|text| !text.is_empty());
    let v4 = v4.map(|t| t.parse::<Ipv4Net>().map_err(|_| wrong("Subnet", t))).transpose()?;
    let v6 = v6.map(|t| t.parse::<Ipv6Net>().map_err(|_| wrong("IPv6Subnet", t))).transpose()?;
    // Anything else than the one form in which we would write it could be two names of one subnet.
    if v4.is_some_and(|net| net.trunc() != net) || v6.is_some_and(|net| net.trunc() != net) {
        return Err(WireError("the subnet has bits set below its length".to_owned()));
    }
    Ok(Subnet::new(v4, v6))
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

/// `{"Subnet":"..","IPv6Subnet":"..","PublicIP":"..","PublicIPv6":".."}`
#[derive(Clone, Debug, PartialEq)]
pub struct WireReservation {
    pub subnet: Subnet,
    pub attrs: LeaseAttrs,
}

impl WireReservation {
    pub fn read(json: &str) -> Result<Self, WireError> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(rename = "Subnet", default)]
            v4: Option<String>,
            #[serde(rename = "IPv6Subnet", default)]
            v6: Option<String>,
        }
        let raw: Raw = from_json(json)?;
        let subnet = read_subnet(raw.v4.as_deref(), raw.v6.as_deref())?
            .ok_or_else(|| WireError("Subnet is missing".to_owned()))?;
        // The addresses have the names they have in lease attributes.
        let attrs =
            LeaseAttrs::from_json(json.as_bytes()).map_err(|error| WireError(error.to_string()))?;
        let LeaseAttrs { public_ip, public_ipv6, .. } = attrs;
        if public_ip.is_none() && public_ipv6.is_none() {
            return Err(WireError("PublicIP is missing".to_owned()));
        }
        let attrs = LeaseAttrs { public_ip, public_ipv6, ..LeaseAttrs::default() };
        Ok(Self { subnet, attrs })
    }

    pub fn to_json(subnet: &Subnet, attrs: &LeaseAttrs) -> String {
        let members = [
            ("Subnet", subnet.v4().map(|net| net.to_string())),
            ("IPv6Subnet", subnet.v6().map(|net| net.to_string())),
            ("PublicIP", attrs.public_ip.map(|ip| ip.to_string())),
            ("PublicIPv6", attrs.public_ipv6.map(|ip| ip.to_string())),
        ];
        let given = members.into_iter().filter_map(|(key, value)| Some((key, value?)));
        serde_json::Value::from_iter(given).to_string()
    }
}

/// The code of the refusal that says: nothing is assigned to this node yet.
pub const NOT_ASSIGNED_YET: &str = "not-assigned-yet";

/// The server's answer to a node about the node itself. An older server says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireNode {
    pub name: Option<String>,
    pub subnets: SubnetOrigin,
    /// At which an operator wants it to be known to others.
    #[serde(rename = "PublicIP")]
    pub v4: Option<Ipv4Addr>,
    #[serde(rename = "PublicIPv6")]
    pub v6: Option<Ipv6Addr>,
}

impl WireNode {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    pub fn read(json: &str) -> Result<Self, WireError> {
        from_json(json)
    }
}

const WORKS: &str = "works";
const FAILS: &str = "fails";

/// Report of a node's network: `{"Network":"works"}` or `{"Network":"fails","Reason":"…"}`
pub fn node_network_json(network: &NodeNetwork) -> String {
    match network {
        NodeNetwork::Works => serde_json::json!({"Network": WORKS}).to_string(),
        NodeNetwork::Fails(why) => serde_json::json!({"Network": FAILS, "Reason": why}).to_string(),
    }
}

pub fn read_node_network(json: &str) -> Result<NodeNetwork, WireError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Raw {
        network: String,
        #[serde(default)]
        reason: String,
    }
    let Raw { network, reason } = from_json(json)?;
    match network.as_str() {
        WORKS => Ok(NodeNetwork::Works),
        FAILS => Ok(NodeNetwork::Fails(reason)),
        other => Err(WireError(format!("Network {:?} is neither works nor fails", shown(other)))),
    }
}

/// One answer to a watch, or one line of a stream of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchResult {
    pub events: Vec<WireEvent>,
    pub snapshot: Option<Vec<WireLease>>,
    /// Config in a snapshot of a stream; `None` where there is none.
    pub config: Option<Option<String>>,
    pub cursor: LogPosition,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WireEvent {
    Added(WireLease),
    Removed(Subnet),
    Config(Option<String>),
}

#[derive(Deserialize)]
struct RawResult<'a> {
    #[serde(borrow, default)]
    events: Option<Vec<RawEvent<'a>>>,
    #[serde(borrow, default)]
    snapshot: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    config: Option<&'a RawValue>,
    cursor: String,
    #[serde(default)]
    history: Option<String>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow, default)]
    lease: Option<&'a RawValue>,
    #[serde(borrow, default)]
    config: Option<&'a RawValue>,
}

impl WatchResult {
    pub fn read(json: &str) -> Result<Self, WireError> {
        let raw: RawResult<'_> = from_json(json)?;
        let wrong = || WireError(format!("cursor {:?} is not a number", shown(&raw.cursor)));
        let revision = raw.cursor.parse().map_err(|_| wrong())?;
        // An old server sends no history.
        let history = raw.history.as_deref().and_then(read_history).filter(|it| *it != 0);
        let events = raw.events.unwrap_or_default();
        let events = events.into_iter().filter_map(|e| read_event(&e).transpose());
        let snapshot = raw
            .snapshot
            .map(|leases| leases.into_iter().map(|lease| WireLease::read(lease.get())).collect());
        Ok(Self {
            events: events.collect::<Result<_, _>>()?,
            snapshot: snapshot.transpose()?,
            config: raw.config.map(read_config),
            cursor: LogPosition { revision, history },
        })
    }
}

/// `None` for a kind of event that a newer server may have.
fn read_event(raw: &RawEvent<'_>) -> Result<Option<WireEvent>, WireError> {
    let lease = || {
        let lease = raw.lease.ok_or_else(|| WireError("an event without a lease".to_owned()))?;
        WireLease::read(lease.get())
    };
    Ok(match raw.kind.as_str() {
        "added" => Some(WireEvent::Added(lease()?)),
        "removed" => Some(WireEvent::Removed(lease()?.lease()?.subnet)),
        "config" => raw.config.map(|config| WireEvent::Config(read_config(config))),
        _ => None,
    })
}

fn read_config(raw: &RawValue) -> Option<String> {
    (raw.get() != "null").then(|| raw.get().to_owned())
}

pub fn history_text(history: u64) -> String {
    format!("{history:016x}")
}

pub fn read_history(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// `{"error":"…","code":"…","lease":{…}}`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WireFault {
    pub error: String,
    pub code: String,
    pub lease: Option<Arc<WireLease>>,
}

impl WireFault {
    pub fn to_json(error: &str, code: &str, lease: Option<String>) -> String {
        let (error, code) = (serde_json::Value::from(error), serde_json::Value::from(code));
        let lease = lease.map(|lease| format!(",\"lease\":{lease}")).unwrap_or_default();
        format!("{{\"error\":{error},\"code\":{code}{lease}}}")
    }

    pub fn read(json: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            error: String,
            code: String,
            #[serde(borrow, default)]
            lease: Option<&'a RawValue>,
        }
        let raw: Raw<'_> = serde_json::from_str(json).ok()?;
        let lease = raw.lease.and_then(|lease| WireLease::read(lease.get()).ok()).map(Arc::new);
        Some(Self { error: raw.error, code: raw.code, lease })
    }
}

pub(crate) fn from_json<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, WireError> {
    serde_json::from_str(json).map_err(|error| WireError(shown(&error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_beyond_all_clocks_is_a_long_one() {
        let text = format!(r#"{{"Attrs":{{}},"TTL":{}}}"#, u64::MAX);
        let ttl = WireLease::read(&text).unwrap().ttl.unwrap();
        assert!(SystemTime::now().checked_add(ttl).is_some());
        assert_eq!(ttl, MAX_LIFE);
    }
}
