//! The text of one value → the value, by Go's rules; times may have units, too.

use super::flags::{Flag, Kind, TimeUnit, Typed};

/// Sets `flag` from `text`, or says what would have been right and leaves everything as it was.
pub(super) fn set(typed: &mut Typed, flag: &Flag, text: &str) -> Result<(), String> {
    match flag.kind {
        Kind::Text(_, at) => text.clone_into(at(typed)),
        Kind::List(at) => at(typed).push(text.to_owned()),
        Kind::Integer(_, at) => *at(typed) = integer(text)?,
        Kind::Span(unit, _, at) => *at(typed) = span(text, unit)?,
        Kind::Bool(_, at) => *at(typed) = boolean(text)?,
        Kind::Level(at) => {
            *at(typed) = text.parse().map_err(|_| "use a decimal number, such as 2".to_owned())?;
        }
        Kind::Modules(at) => *at(typed) = text.parse()?,
        Kind::SourceLine(at) => {
            *at(typed) = if text.is_empty() { None } else { Some(text.parse()?) };
        }
    }
    Ok(())
}

/// Go's `strconv.ParseBool`.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("use true or false".to_owned()),
    }
}

/// A number of units, bare or as a time that is a whole number of them.
fn span(text: &str, unit: TimeUnit) -> Result<i64, String> {
    if let Ok(number) = integer(text) {
        return Ok(number);
    }
    let (seconds, plural, example) = match unit {
        TimeUnit::Seconds => (1, "seconds", "10 or 10s"),
        TimeUnit::Minutes => (60, "minutes", "10, 10m or 1h30m"),
    };
    let wrong = || format!("use a whole number of {plural}, such as {example}");
    let time: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let is_whole = time.subsec_nanos() == 0 && time.as_secs() % seconds == 0;
    is_whole.then(|| time.as_secs() / seconds).ok_or_else(wrong)
}

/// Go's `strconv.ParseInt(text, 0, 64)`: sign, base prefix (`0x`, `0o`, `0b`, `0`), and `_` between digits.
fn integer(text: &str) -> Result<i64, String> {
    let wrong = || "use a whole number without a unit, such as 10 or 0x10".to_owned();
    let (negative, magnitude) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let lower = magnitude.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    // An underscore may follow a base prefix, but must otherwise stand between two digits.
    let digits = if radix == 10 { digits } else { digits.strip_prefix('_').unwrap_or(digits) };
    let well_formed = digits
        .split('_')
        .all(|group| !group.is_empty() && group.chars().all(|digit| digit.is_digit(radix)));
    if !well_formed {
        return Err(wrong());
    }
    // With the sign in front, so that the smallest number, which has no positive twin, is read too.
    let signed = format!("{}{}", if negative { "-" } else { "" }, digits.replace('_', ""));
    i64::from_str_radix(&signed, radix)
        .map_err(|_| format!("use a number from {} to {}", i64::MIN, i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_go_reads_them() {
        for (text, value) in [
            ("10", 10),
            ("+10", 10),
            ("-1", -1),
            ("0", 0),
            ("-0", 0),
            ("0x10", 16),
            ("0XfF", 255),
            ("0o17", 15),
            ("017", 15),
            ("0b101", 5),
            ("1_000", 1000),
            ("0x_1f", 31),
            ("0_7", 7),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        for text in [
            "",
            " 1",
            "1 ",
            "+",
            "-",
            "--1",
            "+-1",
            "1m",
            "60s",
            "1.0",
            "1e3",
            "08",
            "0x",
            "0b2",
            "_1",
            "1_",
            "1__0",
            "0__7",
            "ten",
            "１",
            "9223372036854775808",
            "-9223372036854775809",
        ] {
            assert!(integer(text).is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        use TimeUnit::{Minutes, Seconds};
        for (text, unit, value) in [
            ("5", Seconds, 5),
            ("5s", Seconds, 5),
            ("2m", Seconds, 120),
            ("5000ms", Seconds, 5),
            ("60", Minutes, 60),
            ("1h30m", Minutes, 90),
            ("120s", Minutes, 2),
            ("-1", Minutes, -1),
        ] {
            assert_eq!(span(text, unit), Ok(value), "{text}");
        }
        for (text, unit) in [("500ms", Seconds), ("90s", Minutes), ("", Seconds), ("5x", Seconds)] {
            assert!(span(text, unit).is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn booleans_are_read_as_go_reads_them() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false), "{text}");
        }
        for text in ["", "yes", "no", "on", "tRUE", "2", " true"] {
            assert!(boolean(text).is_err(), "{text:?} must be refused");
        }
    }
}
