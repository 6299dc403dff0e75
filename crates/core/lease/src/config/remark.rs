//! Remarks about a config that can be used all the same. Go's decoder ignores members it does not know and takes the last of
//! several; their writer meant something else.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::nearest::nearest;

/// Every member of the config itself.
const KNOWN_MEMBERS: [&str; 14] = [
    "EnableIPv4",
    "EnableIPv6",
    "EnableNFTables",
    "Network",
    "SubnetLen",
    "SubnetMin",
    "SubnetMax",
    "IPv6Network",
    "IPv6SubnetLen",
    "IPv6SubnetMin",
    "IPv6SubnetMax",
    "MasqueradeExclude",
    "Replaces",
    "Backend",
];
const BACKEND: &str = "Backend";
const TYPE: &str = "Type";
/// Members of the Go flannel on Windows, in configs that nodes with Linux share; they mean nothing there.
const WINDOWS_MEMBERS: [&str; 3] = ["MacPrefix", "Name", "DNSServerList"];
/// Most characters of a name that are shown, and most remarks.
const MAX_SHOWN_CHARS: usize = 60;
const MAX_REMARKS: usize = 16;

/// Shown to an operator as it is. It quotes names, never values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark {
    /// No flannel reads it.
    Unknown {
        key: String,
        nearest: Option<String>,
    },
    Repeated {
        key: String,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key, nearest: Some(nearest) } => {
                write!(
                    f,
                    "{key} is not a key of the network config and is ignored: did you mean {nearest}?"
                )
            }
            Self::Unknown { key, nearest: None } => {
                write!(f, "{key} is not a key of the network config and is ignored: leave it out")
            }
            Self::Repeated { key } => {
                write!(
                    f,
                    "{key} is given more than once and the last one counts: leave the others out"
                )
            }
        }
    }
}

/// Remarks about a text that [`super::NetworkConfig::parse`] has read. `options` are those of its backend.
pub fn remarks(text: &str, options: &[&str]) -> Vec<Remark> {
    let Ok(Members(members)) = serde_json::from_str(text) else { return Vec::new() };
    let mut remarks = remarks_of(&members, "", &KNOWN_MEMBERS, &[]);
    let backend = members.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(BACKEND));
    if let Some(Ok(Members(members))) = backend.map(|(_, raw)| serde_json::from_str(raw.get())) {
        let known: Vec<&str> = options.iter().copied().chain([TYPE]).collect();
        remarks.extend(remarks_of(&members, "Backend.", &known, &WINDOWS_MEMBERS));
    }
    remarks
}

fn remarks_of(
    members: &[(String, &RawValue)],
    prefix: &str,
    known: &[&str],
    passed: &[&str],
) -> Vec<Remark> {
    let among = |name: &str, list: &[&str]| list.iter().any(|of| of.eq_ignore_ascii_case(name));
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let remark = |(name, _): &(String, &RawValue)| {
        let key =
            || format!("{prefix}{}", name.escape_debug().take(MAX_SHOWN_CHARS).collect::<String>());
        let times = times.entry(name.to_ascii_lowercase()).or_default();
        *times += 1;
        match *times {
            1 if !among(name, known) && !among(name, passed) => {
                let nearest = nearest_of(name, known).map(|near| format!("{prefix}{near}"));
                Some(Remark::Unknown { key: key(), nearest })
            }
            2 => Some(Remark::Repeated { key: key() }),
            _ => None,
        }
    };
    members.iter().filter_map(remark).take(MAX_REMARKS).collect()
}

/// Case does not matter, so it is not a slip either.
fn nearest_of<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded: Vec<String> = known.iter().map(|of| of.to_ascii_lowercase()).collect();
    let near = nearest(&name.to_ascii_lowercase(), folded.iter().map(String::as_str))?;
    known.iter().copied().find(|of| of.eq_ignore_ascii_case(near))
}

/// Members of a JSON object as they are written, in their order.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}
