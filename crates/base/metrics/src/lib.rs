//! Metrics for Prometheus: every one of them by name and meaning ([`node`], [`server`]), and their text.
//!
//! There is no registry. Whoever serves metrics collects them in a [`Scrape`], from what is known
//! anyway, so they cost nothing while nobody asks; only how long things take is kept as it happens ([`Latency`]).
//! No label tells one peer from another: how much there is to read does not depend on the size of a network.

#![forbid(unsafe_code)]

mod latency;
pub mod node;
mod scrape;
pub mod server;

pub use latency::Latency;
pub use prometheus_client::metrics::MetricType;
pub use scrape::{Format, Scrape};

/// One metric: what is known of it before it has a value.
#[derive(Debug)]
pub struct Metric {
    /// As Prometheus knows it; a counter's ends with `_total`.
    pub name: &'static str,
    pub kind: MetricType,
    pub labels: &'static [&'static str],
    /// A sentence without its full stop.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($it:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $it: $crate::Metric = $crate::Metric {
                name: $name,
                kind: $crate::MetricType::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// All of them, in the order in which they are documented.
        pub static ALL: &[&$crate::Metric] = &[$(&$it),*];
    };
}
pub(crate) use metrics;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/metrics.md, as it is to be.
    fn table(metrics: &[&Metric]) -> String {
        let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
        for Metric { name, kind, labels, help } in metrics {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let (kind, labels) = (kind.as_str(), labels.join(", "));
            table += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
        }
        table
    }

    #[test]
    fn every_metric_is_documented() {
        // Cargo runs tests in the directory of their package.
        let file = "../../../docs/metrics.md";
        let mut text = std::fs::read_to_string(file).expect("docs/metrics.md");
        for (of, metrics) in [("node", node::ALL), ("server", server::ALL)] {
            let (begin, end) = (format!("<!-- {of} -->\n"), format!("<!-- end of {of} -->\n"));
            let from = text.find(&begin).expect("where the table begins") + begin.len();
            let to = text.find(&end).expect("where the table ends");
            let right = table(metrics);
            if std::env::var_os("UPDATE_DOCS").is_some() {
                text.replace_range(from..to, &right);
                std::fs::write(file, &text).expect("it is written");
            }
            let to = text.find(&end).expect("where the table ends");
            assert_eq!(text[from..to], right, "UPDATE_DOCS=1 cargo test -p flannel-metrics");
        }
    }

    #[test]
    fn names_follow_the_conventions() {
        for metric in node::ALL.iter().chain(server::ALL) {
            let Metric { name, kind, labels, help } = metric;
            assert!(name.starts_with("flannel_"), "{name}");
            assert_eq!(matches!(kind, MetricType::Counter), name.ends_with("_total"), "{name}");
            assert_eq!(
                matches!(kind, MetricType::Histogram),
                name.ends_with("_duration_seconds"),
                "{name}"
            );
            assert!(!help.ends_with('.') && !help.is_empty(), "{name}: {help}");
            for label in *labels {
                assert!(!["peer", "subnet", "node", "le"].contains(label), "{name}: {label}");
            }
        }
    }
}
