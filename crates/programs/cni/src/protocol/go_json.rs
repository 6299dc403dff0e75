//! JSON as Go's encoder writes it, byte for byte: programs written in Go compare it and read it back.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

/// On one line.
pub fn compact(value: &impl Serialize) -> String {
    render(value, GoNumbers)
}

/// Indented by four spaces, without a newline at the end. Of numbers with fractions nothing is known.
pub fn indented(value: &impl Serialize) -> String {
    render(value, PrettyFormatter::with_indent(b"    "))
}

fn render(value: &impl Serialize, formatter: impl Formatter) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    // Writing to memory cannot fail, and no map of ours has keys that are not text.
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok(), "{written:?}");
    escaped(&String::from_utf8(text).unwrap_or_default())
}

/// What Go escapes beyond the rest of the world. Outside of strings JSON has none of it.
fn escaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => all += &format!("\\u{:04x}", u32::from(c)),
            _ => all.push(c),
        }
    }
    all
}

struct GoNumbers;

impl Formatter for GoNumbers {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if size != 0.0 && !(1e-6..1e21).contains(&size) {
            // Rust writes 1e21 where Go writes 1e+21; both write 1e-7.
            let text = format!("{value:e}");
            return match text.split_once('e') {
                Some((digits, power)) if !power.starts_with('-') => {
                    write!(writer, "{digits}e+{power}")
                }
                _ => writer.write_all(text.as_bytes()),
            };
        }
        write!(writer, "{value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn maps_are_sorted_at_every_level() {
        let value: Value =
            serde_json::from_str(r#"{"b":{"z":1,"a":[{"y":1,"x":2}]},"a":null}"#).unwrap();
        assert_eq!(compact(&value), r#"{"a":null,"b":{"a":[{"x":2,"y":1}],"z":1}}"#);
    }

    #[test]
    fn strings_are_safe_inside_html_as_go_wants_them() {
        assert_eq!(
            compact(&json!("a<b>&\u{2028}\u{1}\n\"ü")),
            r#""a\u003cb\u003e\u0026\u2028\u0001\n\"ü""#
        );
    }

    #[test]
    fn numbers_are_spelt_as_go_spells_a_float() {
        for (text, go) in [
            ("1450", "1450"),
            ("1.0", "1"),
            ("1e3", "1000"),
            ("-0.5", "-0.5"),
            ("1e-7", "1e-7"),
            ("1e21", "1e+21"),
            ("123456789012", "123456789012"),
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(compact(&value), go, "{text}");
        }
    }

    #[test]
    fn indentation_is_four_spaces_and_empty_things_stay_on_their_line() {
        assert_eq!(
            indented(&json!({"a": {}, "b": [1]})),
            "{\n    \"a\": {},\n    \"b\": [\n        1\n    ]\n}"
        );
    }
}
