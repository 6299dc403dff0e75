//! JSON text kept as text: ten thousand leases are held with data that this crate does not interpret.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Valid JSON other than `null`, member order and literals as they were written, without blanks.
/// `<`, `>` and `&` inside strings are kept escaped, which is how Go writes them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawJson(Box<str>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "backend data is not what was expected ({0}): restart flanneld on the host that wrote the lease"
)]
pub struct RawJsonError(String);

const MAX_MESSAGE_BYTES: usize = 200;

impl RawJson {
    /// Reads JSON text; blank text and `null` mean that there is no data.
    pub fn read(text: &str) -> Result<Option<Self>, RawJsonError> {
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        Ok(Self::from_raw(serde_json::from_str(text)?))
    }

    /// `None` for `null`, which means that there is no data.
    pub(crate) fn from_raw(value: &RawValue) -> Option<Self> {
        (value.get() != "null").then(|| Self(compact(value.get())))
    }

    /// Members come out in the order in which `T` declares them.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, RawJsonError> {
        Ok(Self(compact(&serde_json::to_string(value)?)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn depth(&self) -> usize {
        let (mut depth, mut deepest) = (0usize, 0);
        let (mut in_string, mut escaped) = (false, false);
        for byte in self.0.bytes() {
            match byte {
                b'[' | b'{' if !in_string => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
            in_string ^= byte == b'"' && !escaped;
            escaped = in_string && byte == b'\\' && !escaped;
        }
        deepest
    }

    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, RawJsonError> {
        Ok(serde_json::from_str(&self.0)?)
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<serde_json::Error> for RawJsonError {
    fn from(error: serde_json::Error) -> Self {
        // The message may quote the value, which anybody can have written.
        Self(flannel_common::shorten(&error.to_string(), MAX_MESSAGE_BYTES).into_owned())
    }
}

pub(crate) struct Members<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The last member of that name in any case, which is the one that counts for Go.
    pub(crate) fn last(&self, name: &str) -> Option<&'a RawValue> {
        let last = self.0.iter().rev().find(|(other, _)| other.eq_ignore_ascii_case(name));
        last.map(|(_, value)| *value)
    }
}

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

/// Drops blanks between the tokens of valid JSON and escapes as Go's encoder does, so that a value that
/// went through us has the same bytes as one that went through the Go flannel.
pub(crate) fn compact(json: &str) -> Box<str> {
    // The two above ASCII that are escaped begin with 0xe2, and so do many that are not.
    let compact = |byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'<' | b'>' | b'&' | 0xe2);
    if json.bytes().all(compact) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len());
    let mut in_string = false;
    let mut escaped = false;
    for c in json.chars() {
        match c {
            ' ' | '\t' | '\r' | '\n' if !in_string => continue,
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
        in_string ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
    }
    out.into_boxed_str()
}
