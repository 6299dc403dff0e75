//! Figures as people read them.

use std::time::Duration;

pub(crate) fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

/// Prints the usual and the worst of them, and returns the usual.
pub(crate) fn report(name: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let p50 = percentile(&times, 50);
    println!("  {name}: p50 {p50:.0?}, p99 {:.0?}", percentile(&times, 99));
    p50
}

pub(crate) fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64().max(f64::EPSILON)
}

pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
