//! Parsing of paths and queries. No I/O.

use std::borrow::Cow;
use std::time::Duration;

use flannel_lease::{NetworkName, Subnet};
use flannel_store::{LogPosition, RequestId, wire};
use percent_encoding::percent_decode_str;

use crate::answer::Fault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Networks,
    Config(NetworkName),
    Node(NetworkName),
    Leases(NetworkName),
    Lease(NetworkName, Subnet),
    Events(NetworkName),
    Reservations(NetworkName),
    Reservation(NetworkName, Subnet),
    /// A request of an operator to nodes.
    Request(NetworkName, RequestId),
    Answers(NetworkName, RequestId),
    Answer(NetworkName, RequestId, Subnet),
    OpenApi,
    Healthz,
    Metrics,
}

impl Route {
    pub(crate) fn read(path: &str) -> Result<Self, Fault> {
        let parts: Vec<String> = path
            .split('/')
            .skip(1)
            .map(|part| unescape(part).ok_or_else(|| Fault::bad("the path is not UTF-8 text")))
            .collect::<Result<_, _>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let name = |text: &str| text.parse::<NetworkName>().map_err(Fault::bad);
        let subnet = |text: &str| text.parse::<Subnet>().map_err(Fault::bad);
        let request = |text: &str| text.parse::<RequestId>().map_err(Fault::bad);
        Ok(match parts[..] {
            ["v1"] | ["v1", ""] => Self::Networks,
            ["v1", network, "config"] => Self::Config(name(network)?),
            ["v1", network, "node"] => Self::Node(name(network)?),
            ["v1", network, "leases"] => Self::Leases(name(network)?),
            ["v1", network, "leases", key] => Self::Lease(name(network)?, subnet(key)?),
            ["v1", network, "events"] => Self::Events(name(network)?),
            ["v1", network, "reservations"] => Self::Reservations(name(network)?),
            ["v1", network, "reservations", key] => Self::Reservation(name(network)?, subnet(key)?),
            ["v1", network, "requests", id] => Self::Request(name(network)?, request(id)?),
            ["v1", network, "requests", id, "answers"] => {
                Self::Answers(name(network)?, request(id)?)
            }
            ["v1", network, "requests", id, "answers", key] => {
                Self::Answer(name(network)?, request(id)?, subnet(key)?)
            }
            ["openapi.json"] => Self::OpenApi,
            ["healthz"] => Self::Healthz,
            ["metrics"] => Self::Metrics,
            _ => return Err(Fault::not_found("no such path; see /openapi.json")),
        })
    }

    pub(crate) fn methods(&self) -> &'static str {
        match self {
            Self::Networks
            | Self::Events(_)
            | Self::Answers(..)
            | Self::OpenApi
            | Self::Healthz
            | Self::Metrics => "GET",
            Self::Request(..) => "PUT, DELETE",
            Self::Answer(..) => "PUT",
            Self::Config(_) | Self::Lease(..) => "GET, PUT, DELETE",
            Self::Node(_) => "GET, PUT",
            Self::Leases(_) | Self::Reservations(_) => "GET, POST",
            Self::Reservation(..) => "DELETE",
        }
    }

    pub(crate) fn is_public(&self) -> bool {
        matches!(self, Self::OpenApi | Self::Healthz)
    }
}

/// The parameters of a query that mean something; others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) next: Option<LogPosition>,
    pub(crate) wait: Option<Duration>,
    pub(crate) previous: Option<Subnet>,
    pub(crate) version: Option<u64>,
    pub(crate) force: bool,
    pub(crate) import: bool,
    pub(crate) raw: bool,
    pub(crate) requests: bool,
    pub(crate) findings: bool,
}

impl Query {
    pub(crate) fn read(query: &str) -> Result<Self, Fault> {
        let mut read = Self::default();
        let (mut revision, mut history) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain =
                |text| unescape(text).ok_or_else(|| Fault::bad("the query is not UTF-8 text"));
            let (key, value) = (plain(key)?, plain(&value.replace('+', " "))?);
            match key.as_str() {
                "next" => revision = Some(number("next", &value)?),
                "history" => {
                    let wrong = || Fault::bad("history is not a hexadecimal number");
                    history = Some(wire::read_history(&value).ok_or_else(wrong)?);
                }
                "wait" => read.wait = Some(Duration::from_secs(number("wait", &value)?)),
                "previous" => read.previous = Some(value.parse().map_err(Fault::bad)?),
                "version" => read.version = Some(number("version", &value)?),
                "force" => read.force = flag("force", &value)?,
                "import" => read.import = flag("import", &value)?,
                "raw" => read.raw = flag("raw", &value)?,
                "requests" => read.requests = flag("requests", &value)?,
                "findings" => read.findings = flag("findings", &value)?,
                _ => {}
            }
        }
        read.next = revision.map(|revision| LogPosition { revision, history });
        Ok(read)
    }
}

fn number(key: &str, value: &str) -> Result<u64, Fault> {
    // `parse` takes a sign, too.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|_| digits);
    number.ok_or_else(|| Fault::bad(format!("{key} is not a number")))
}

fn flag(key: &str, value: &str) -> Result<bool, Fault> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Fault::bad(format!("{key} is neither true nor false"))),
    }
}

/// `%2F` → `/`. A lone `%` stands for itself.
fn unescape(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn paths_name_networks_and_subnets() {
        let default = NetworkName::default;
        assert_eq!(Route::read("/v1/"), Ok(Route::Networks));
        assert_eq!(Route::read("/v1/_/config"), Ok(Route::Config(default())));
        let key: Subnet = "10.5.1.0-24&fd00:5:1::-64".parse().unwrap();
        for path in
            ["/v1/_/leases/10.5.1.0-24&fd00:5:1::-64", "/v1/_/leases/10.5.1.0-24%26fd00%3a5:1::-64"]
        {
            assert_eq!(Route::read(path), Ok(Route::Lease(default(), key)), "{path}");
        }
        let id: RequestId = "a-1".parse().unwrap();
        let subnet: Subnet = "10.5.1.0-24".parse().unwrap();
        for (path, route) in [
            ("/v1/_/requests/a-1", Route::Request(default(), id.clone())),
            ("/v1/_/requests/a-1/answers", Route::Answers(default(), id.clone())),
            ("/v1/_/requests/a-1/answers/10.5.1.0-24", Route::Answer(default(), id, subnet)),
        ] {
            assert_eq!(Route::read(path), Ok(route), "{path}");
        }
        for path in ["/", "", "/v1/_/requests", "/v2/_/config", "/v1/_/config/x", "/v1/_"] {
            let status = Route::read(path).map_err(|fault| fault.status);
            assert_eq!(status, Err(StatusCode::NOT_FOUND), "{path}");
        }
        for path in
            ["/v1/../config", "/v1/a%2fb/config", "/v1/_/leases/10.5.1.1-24", "/v1/_/leases/"]
        {
            let status = Route::read(path).map_err(|fault| fault.status);
            assert_eq!(status, Err(StatusCode::BAD_REQUEST), "{path}");
        }
    }

    #[test]
    fn queries_hold_numbers_and_flags() {
        let query = Query::read("next=12&history=00ff&wait=3&force&x=y").unwrap();
        assert_eq!(query.wait, Some(Duration::from_secs(3)));
        assert_eq!(query.next, Some(LogPosition { revision: 12, history: Some(255) }));
        assert!(query.force && !query.import);
        for query in
            ["next=", "next=-1", "next=1e3", "wait=x", "history=xyz", "force=maybe", "previous=10"]
        {
            assert!(Query::read(query).is_err(), "{query}");
        }
    }
}
