//! Times as people type them: `500ms`, `90s`, `1h30m`, or a bare number of the unit that the flag names.

use std::time::Duration;

/// Reads a time; a bare number counts seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => with_unit(text),
    }
}

/// Reads a time into milliseconds, which a bare number counts.
pub fn milliseconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(milliseconds) => Ok(milliseconds),
        Err(_) => u64::try_from(with_unit(text)?.as_millis()).map_err(|_| wrong()),
    }
}

/// The limit of a test: from five seconds to fifty minutes.
pub fn test_limit(text: &str) -> Result<Duration, String> {
    let limit = seconds(text)?;
    let allowed = Duration::from_secs(5)..=Duration::from_secs(3_000);
    allowed.contains(&limit).then_some(limit).ok_or_else(|| "use 5s to 50m".to_owned())
}

fn with_unit(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(time).map_err(|_| wrong())
}

fn wrong() -> String {
    "use a time such as 500ms, 90s or 1h30m".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!((milliseconds("500"), milliseconds("500ms")), (Ok(500), Ok(500)));
        assert_eq!(milliseconds("1.5s"), Ok(1_500));
        for text in ["", "-1s", "5x", "ten"] {
            assert!(seconds(text).is_err(), "{text:?} must be refused");
        }
        assert!(test_limit("1s").is_err() && test_limit("2h").is_err());
    }
}
