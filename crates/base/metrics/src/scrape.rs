//! One answer to somebody who asks for metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric as _, LabelSetEncoder, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::registry::Registry;

use crate::{Latency, Metric, MetricType};

const SUFFIX: &str = "_total";

/// What has been collected. In the order of names, so that answers can be compared.
#[derive(Debug, Default)]
pub struct Scrape(BTreeMap<&'static str, Samples>);

/// In which words: Prometheus asks for the first and is content with the second, which people's tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// By the header `Accept` of whoever asks.
    pub fn accepted(accept: Option<&str>) -> Self {
        let open = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if open { Self::OpenMetrics } else { Self::Text }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Debug)]
struct Samples {
    metric: &'static Metric,
    values: Vec<(Vec<String>, Value)>,
}

#[derive(Debug)]
enum Value {
    Count(u64),
    Number(f64),
    Latency(Latency),
}

impl Scrape {
    /// Labels are in the order in which the metric names them.
    pub fn count(&mut self, metric: &'static Metric, labels: &[&str], count: u64) {
        self.add(metric, labels, Value::Count(count));
    }

    pub fn number(&mut self, metric: &'static Metric, labels: &[&str], number: f64) {
        self.add(metric, labels, Value::Number(number));
    }

    pub fn latency(&mut self, metric: &'static Metric, labels: &[&str], latency: &Latency) {
        self.add(metric, labels, Value::Latency(latency.clone()));
    }

    pub fn is(&mut self, metric: &'static Metric, labels: &[&str], is: bool) {
        self.number(metric, labels, f64::from(u8::from(is)));
    }

    /// In seconds since 1970.
    pub fn moment(&mut self, metric: &'static Metric, labels: &[&str], at: SystemTime) {
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.number(metric, labels, seconds);
    }

    pub fn append(&mut self, other: Self) {
        for (name, samples) in other.0 {
            let new = || Samples { metric: samples.metric, values: Vec::new() };
            self.0.entry(name).or_insert_with(new).values.extend(samples.values);
        }
    }

    fn add(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let new = || Samples { metric, values: Vec::new() };
        self.0.entry(metric.name).or_insert_with(new).values.push((labels, value));
    }

    pub fn text(self, format: Format) -> String {
        let counters: Vec<String> = self
            .0
            .values()
            .filter(|samples| matches!(samples.metric.kind, MetricType::Counter))
            .map(|samples| samples.name().to_owned())
            .collect();
        let mut registry = Registry::default();
        for samples in self.0.into_values() {
            registry.register_collector(Box::new(samples));
        }
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut text, &registry);
        match format {
            Format::OpenMetrics => text,
            Format::Text => as_plain_text(&text, &counters),
        }
    }
}

/// The older format calls a counter by the name of its samples, and has no mark at its end.
fn as_plain_text(text: &str, counters: &[String]) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let about = (words.next(), words.next(), words.next(), words.next());
        match about {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest))
                if counters.iter().any(|counter| counter == name) =>
            {
                plain += &format!("# {what} {name}{SUFFIX} {rest}");
            }
            _ => plain += line,
        }
        plain.push('\n');
    }
    plain
}

impl Samples {
    /// As the encoder takes it, which adds a counter's ending itself.
    fn name(&self) -> &'static str {
        self.metric.name.strip_suffix(SUFFIX).unwrap_or(self.metric.name)
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Metric { kind, help, .. } = self.metric;
        let mut family = encoder.encode_descriptor(self.name(), help, None, *kind)?;
        if self.metric.labels.is_empty() {
            return self.values.first().map_or(Ok(()), |(_, value)| value.encode(family));
        }
        for (values, value) in &self.values {
            value.encode(family.encode_family(&Labels(self.metric.labels, values))?)?;
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, mut metric: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => metric.encode_counter::<NoLabelSet, _, u64>(count, None),
            Self::Number(number) => metric.encode_gauge(number),
            Self::Latency(latency) => latency.0.encode(metric),
        }
    }
}

struct Labels<'a>(&'a [&'static str], &'a [String]);

impl prometheus_client::encoding::EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel as _;
        for (label, value) in self.0.iter().zip(self.1) {
            (*label, value.as_str()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{node, server};

    fn scrape() -> Scrape {
        let mut scrape = Scrape::default();
        scrape.count(&node::RESYNCS, &["a \"b\"\\\n"], 3);
        scrape.number(&server::WATCHERS, &[], 2.0);
        let latency = Latency::default();
        latency.observe(Duration::from_millis(2));
        scrape.latency(&server::SYNC, &[], &latency);
        scrape
    }

    #[test]
    fn the_older_format_names_counters_by_their_samples() {
        let text = scrape().text(Format::Text);
        for line in [
            "# TYPE flannel_resyncs_total counter",
            r#"flannel_resyncs_total{network="a \"b\"\\\n"} 3"#,
            "# TYPE flannel_server_sync_duration_seconds histogram",
            r#"flannel_server_sync_duration_seconds_bucket{le="0.0016"} 0"#,
            r#"flannel_server_sync_duration_seconds_bucket{le="0.0064"} 1"#,
            "flannel_server_sync_duration_seconds_count 1",
            "flannel_server_watchers 2.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(!text.contains("# EOF") && text.ends_with('\n'), "{text}");
    }

    #[test]
    fn open_metrics_are_for_those_who_ask_for_them() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::accepted(Some("*/*")), Format::Text);
        let text = scrape().text(Format::OpenMetrics);
        assert!(text.contains("# TYPE flannel_resyncs counter\nflannel_resyncs_total{"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
