//! The `Backend` part of the config: which backend, and its options. What the options are is the
//! backend's business; here they get types, bounds and messages that name them.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::ConfigError;
use super::folded::{NO_BOOL, WRITE_BOOL, brief};

/// `Debug` and `Display` hide the values of options that look like secrets.
#[derive(Clone, PartialEq)]
pub struct BackendConfig {
    /// In lower case.
    pub kind: String,
    /// Names in lower case.
    options: Map<String, Value>,
}

const HIDDEN: &str = "<hidden>";

impl BackendConfig {
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_ascii_lowercase(), options: Map::new() }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.options.insert(key.to_ascii_lowercase(), value.into());
        self
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.options.get(&key.to_ascii_lowercase()).filter(|value| !value.is_null())
    }

    pub fn bool(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(self.invalid(key, NO_BOOL, WRITE_BOOL)),
        }
    }

    pub fn int(
        &self,
        key: &str,
        default: i64,
        range: RangeInclusive<i64>,
    ) -> Result<i64, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let (low, high) = (range.start(), range.end());
        let fix = format!("write a number from {low} to {high}, without quotes or fraction");
        match value.as_i64() {
            Some(value) if range.contains(&value) => Ok(value),
            Some(_) => Err(self.invalid(key, "is out of range", fix)),
            None if value.is_u64() => Err(self.invalid(key, "is out of range", fix)),
            None => Err(self.invalid(key, "is not a whole number", fix)),
        }
    }

    pub fn string(&self, key: &str) -> Result<Option<String>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value.clone())),
            Some(_) => Err(self.invalid(key, "is not text", "write it in double quotes")),
        }
    }

    /// A list of texts, or a single text; empty when absent.
    pub fn string_list(&self, key: &str) -> Result<Vec<String>, ConfigError> {
        let wrong =
            || self.invalid(key, "is not a list of texts", "write it as [\"...\", \"...\"]");
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(value)) => Ok(vec![value.clone()]),
            Some(Value::Array(items)) => {
                items.iter().map(|item| item.as_str().map(String::from).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    /// The error for an option whose value the backend cannot use; a secret's value is not shown.
    pub fn invalid(
        &self,
        key: &str,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfigError {
        let value = match self.get(key) {
            Some(_) if is_secret(key) => HIDDEN.into(),
            Some(value) => brief(&shown(value)),
            None => "(absent)".into(),
        };
        ConfigError::invalid(format!("Backend.{key}"), value, problem, fix)
    }

    pub fn missing(&self, key: &str, fix: impl Into<String>) -> ConfigError {
        ConfigError::missing(format!("Backend.{key}"), fix)
    }

    pub(super) fn read(backend: Option<&Value>) -> Result<Self, ConfigError> {
        let fix = "name a backend, for example \"Backend\": {\"Type\": \"vxlan\"}";
        let Some(backend) = backend else { return Ok(Self::new("udp")) };
        let Value::Object(members) = backend else {
            let value = brief(&shown(backend));
            return Err(ConfigError::invalid("Backend", value, "is not an object", fix));
        };
        let mut options = members.clone();
        match options.remove("type") {
            Some(Value::String(kind)) if !kind.is_empty() => {
                Ok(Self { kind: kind.to_ascii_lowercase(), options })
            }
            Some(Value::Null) | None => Err(ConfigError::missing("Backend.Type", fix)),
            Some(other) => {
                let problem = "is not the name of a backend";
                Err(ConfigError::invalid("Backend.Type", brief(&other), problem, fix))
            }
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut object = self.options.clone();
        object.insert("Type".into(), self.kind.as_str().into());
        Value::Object(object)
    }
}

impl fmt::Debug for BackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, Value::Object(without_secrets(&self.options)))
    }
}

impl fmt::Display for BackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn without_secrets(options: &Map<String, Value>) -> Map<String, Value> {
    let shown = |key: &str, value| if is_secret(key) { HIDDEN.into() } else { shown(value) };
    options.iter().map(|(key, value)| (key.clone(), shown(key, value))).collect()
}

pub(super) fn shown(value: &Value) -> Value {
    match value {
        Value::String(text) => flannel_common::without_secrets(text).into(),
        Value::Object(nested) => Value::Object(without_secrets(nested)),
        Value::Array(items) => Value::Array(items.iter().map(shown).collect()),
        plain => plain.clone(),
    }
}

fn is_secret(key: &str) -> bool {
    flannel_common::is_secret_name(key) || key.to_ascii_lowercase().contains("key")
}
