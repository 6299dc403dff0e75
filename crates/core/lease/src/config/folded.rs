//! JSON read the way Go's decoder matches members to fields: names in lower case at every level, and the
//! later of two members that differ in case alone wins, which a plain map cannot tell.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::ConfigError;
use crate::raw_json::Members;

pub(super) const NO_BOOL: &str = "is neither true nor false";
pub(super) const WRITE_BOOL: &str = "write true or false, without quotes";

pub(super) struct FoldedObject(Map<String, Value>);

impl FoldedObject {
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        let syntax = |detail: &str| ConfigError::Syntax { detail: detail.into() };
        if text.trim_ascii().is_empty() {
            return Err(syntax("it is empty"));
        }
        // Read completely first: that refuses what is nested too deep for `fold`.
        match serde_json::from_str::<Value>(text).and_then(|_| fold(text)) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(_) => Err(syntax("it is JSON but not an object")),
            Err(error) => Err(syntax(&error.to_string())),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(&key.to_ascii_lowercase())
    }

    pub(super) fn bool(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(ConfigError::invalid(key, brief(other), NO_BOOL, WRITE_BOOL)),
        }
    }
}

pub(super) fn brief(value: &Value) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Reads valid JSON, with the names of all objects in it in lower case.
fn fold(json: &str) -> serde_json::Result<Value> {
    match json.trim_ascii_start().as_bytes().first() {
        Some(b'{') => {
            let Members(members) = serde_json::from_str(json)?;
            let fold = |(name, raw): (String, &RawValue)| {
                Ok((name.to_ascii_lowercase(), fold(raw.get())?))
            };
            members.into_iter().map(fold).collect::<serde_json::Result<_>>().map(Value::Object)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(json)?;
            items.into_iter().map(|raw| fold(raw.get())).collect()
        }
        _ => serde_json::from_str(json),
    }
}
