//! Answers in JSON, read by paths as EC2's XML is read by names. What an answer does not hold is empty.

use serde_json::Value;

pub(crate) fn text<'a>(of: &'a Value, path: &str) -> &'a str {
    of.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn items<'a>(of: &'a Value, path: &str) -> &'a [Value] {
    of.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
