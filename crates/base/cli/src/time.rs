//! Times as people type them, `500ms`, `90s`, `1h30m` or a bare number of the unit that the flag names, and read them.

use std::time::Duration;

/// Reads a time; a bare number counts seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).or_else(|_| with_unit(text))
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

/// A duration in its two largest units.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Seconds from one moment to another, both as a daemon says them; zero for what is not a moment.
pub fn seconds_between(earlier: &str, later: &str) -> u64 {
    let read = |text: &str| text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
    let between = read(earlier).zip(read(later)).map(|(earlier, later)| later - earlier);
    between.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default()
}

fn wrong() -> String {
    "use a time such as 500ms, 90s or 1h30m".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_its_two_largest_units() {
        let told = [5, 65, 3_700, 86_400 * 3 + 7_200].map(span);
        assert_eq!(told, ["5s", "1m05s", "1h01m", "3d02h"]);
    }

    #[test]
    fn moments_that_are_none_are_no_time_apart() {
        assert_eq!(seconds_between("2026-11-16T10:00:00Z", "2026-11-16T10:01:05Z"), 65);
        assert_eq!(seconds_between("2026-11-16T10:01:05Z", "2026-11-16T10:00:00Z"), 0);
        assert_eq!(seconds_between("", "2026-11-16T10:00:00Z"), 0);
    }

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
