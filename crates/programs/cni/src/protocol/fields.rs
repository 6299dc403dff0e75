//! A JSON object read field by field, matching names without regard to case as Go's decoder does,
//! and saying of a wrong field which one it is, what it holds and what it should hold.

use serde_json::{Map, Value};

/// The members of an object; of one that is not there, none.
#[derive(Clone, Copy)]
pub struct Fields<'a>(Option<&'a Map<String, Value>>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{key}' must be {wanted}, not {got}")]
pub struct FieldError {
    key: String,
    wanted: &'static str,
    got: String,
}

impl FieldError {
    pub fn new(key: &str, wanted: &'static str, got: &Value) -> Self {
        Self { key: key.to_owned(), wanted, got: brief(got) }
    }
}

impl<'a> Fields<'a> {
    pub fn new(members: &'a Map<String, Value>) -> Self {
        Self(Some(members))
    }

    /// `null` is as good as absent.
    pub fn get(self, key: &str) -> Option<&'a Value> {
        let members = self.0?;
        let found = members.get(key).or_else(|| {
            members.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
        })?;
        (!found.is_null()).then_some(found)
    }

    pub fn string(self, key: &str) -> Result<Option<&'a str>, FieldError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An empty text is as good as none.
    pub fn text(self, key: &str) -> Result<Option<&'a str>, FieldError> {
        Ok(self.string(key)?.filter(|text| !text.is_empty()))
    }

    pub fn owned(self, key: &str) -> Result<String, FieldError> {
        self.string(key).map(|text| text.unwrap_or_default().to_owned())
    }

    pub fn flag(self, key: &str) -> Result<bool, FieldError> {
        self.bool(key).map(Option::unwrap_or_default)
    }

    pub fn bool(self, key: &str) -> Result<Option<bool>, FieldError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn integer(self, key: &str) -> Result<Option<i64>, FieldError> {
        self.typed(key, "a whole number", Value::as_i64)
    }

    pub fn unsigned(self, key: &str) -> Result<Option<u64>, FieldError> {
        self.typed(key, "a whole number, 0 or more", Value::as_u64)
    }

    pub fn object(self, key: &str) -> Result<Self, FieldError> {
        self.map(key).map(Self)
    }

    pub fn map(self, key: &str) -> Result<Option<&'a Map<String, Value>>, FieldError> {
        self.typed(key, "an object", Value::as_object)
    }

    pub fn array(self, key: &str) -> Result<&'a [Value], FieldError> {
        Ok(self.typed(key, "a list", Value::as_array)?.map_or(&[][..], Vec::as_slice))
    }

    /// A list of objects, of which each must make sense as a `T`.
    pub fn objects<T>(
        self,
        key: &str,
        read: impl Fn(Self) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        self.each(key, "a list of objects", Value::as_object)?
            .into_iter()
            .map(|members| read(Self::new(members)))
            .collect()
    }

    pub fn strings(self, key: &str) -> Result<Vec<String>, FieldError> {
        self.each(key, "a list of strings", |value| value.as_str().map(str::to_owned))
    }

    /// A text that must make sense as a `T`.
    pub fn parsed<T: std::str::FromStr>(
        self,
        key: &str,
        wanted: &'static str,
    ) -> Result<Option<T>, FieldError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| FieldError::new(key, wanted, &text.into()))
    }

    fn typed<T>(
        self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| FieldError::new(key, wanted, value))
    }

    pub fn each<T>(
        self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Vec<T>, FieldError> {
        each_of(self.array(key)?, key, wanted, read)
    }
}

/// Every value of the list under a key, each of which must make sense to `read`.
pub fn each_of<'a, T>(
    list: &'a [Value],
    key: &str,
    wanted: &'static str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Vec<T>, FieldError> {
    let wrong = |value| FieldError::new(key, wanted, value);
    list.iter().map(|value| read(value).ok_or_else(|| wrong(value))).collect()
}

/// A value as it may stand in a message: short.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_match_in_any_case_and_null_is_absent() {
        let value = json!({"MTU": 1450, "isgateway": true, "bridge": null});
        let fields = Fields::new(value.as_object().unwrap());
        assert_eq!(fields.integer("mtu"), Ok(Some(1450)));
        assert_eq!(fields.bool("isGateway"), Ok(Some(true)));
        assert_eq!(fields.string("bridge"), Ok(None));
    }

    #[test]
    fn a_wrong_field_is_named_with_what_it_holds() {
        let value = json!({"mtu": "large"});
        let error = Fields::new(value.as_object().unwrap()).integer("mtu").unwrap_err();
        assert_eq!(error.to_string(), r#"'mtu' must be a whole number, not "large""#);
    }
}
