//! JSON read the way Go's decoder matches members to fields: names in lower case at every level, and the
//! later of two members that differ in case alone wins, which a plain map cannot tell.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::ConfigError;

/// A JSON object with names in lower case.
pub(super) struct FoldedObject(Map<String, Value>);

impl FoldedObject {
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        let syntax = |detail: &str| ConfigError::Syntax { detail: detail.into() };
        if text.trim_ascii().is_empty() {
            return Err(syntax("it is empty"));
        }
        match serde_json::from_str(text) {
            Ok(FoldedValue(Value::Object(members))) => Ok(Self(members)),
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
            Some(other) => Err(ConfigError::invalid(
                key,
                brief(other),
                "is neither true nor false",
                "write true or false, without quotes",
            )),
        }
    }
}

/// A value as it may stand in a message: short.
pub(super) fn brief(value: &Value) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

struct FoldedValue(Value);

impl<'de> Deserialize<'de> for FoldedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FoldedVisitor).map(FoldedValue)
    }
}

struct FoldedVisitor;

impl<'de> Visitor<'de> for FoldedVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(FoldedValue(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some((mut name, FoldedValue(value))) = map.next_entry::<String, _>()? {
            name.make_ascii_lowercase();
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}
