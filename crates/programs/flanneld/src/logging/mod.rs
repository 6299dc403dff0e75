//! The log: klog-like lines on stderr, from `tracing` events, as operators and their tools know them of the Go flannel; fields
//! follow the text as `key=value`. What is shown is in [`Verbosity`].

mod line;

use std::backtrace::Backtrace;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use flannel_node::verbosity::Verbosity;
use flannel_state::HistoryEvent;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::{Interest, SetGlobalDefaultError};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::history::History;
use line::{Body, Head, severity};

/// Target of an error after which the process ends: `error!(target: FATAL, "...")` has the letter `F`.
pub const FATAL: &str = "fatal";

/// Sends events to stderr, and what is worth remembering to the history. Fails when there is a log already.
pub fn init(verbosity: Verbosity, history: History) -> Result<(), SetGlobalDefaultError> {
    let zone = local_zone();
    let now = move || zone.to_datetime(Timestamp::now());
    let log = Klog::new(verbosity, history, std::io::stderr, now);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(log))
}

/// As the machine has it, read directly: to find a zone by its name, jiff first walks through all that there are.
fn local_zone() -> TimeZone {
    if std::env::var_os("TZ").is_some() {
        return TimeZone::system();
    }
    let zone = std::fs::read("/etc/localtime").ok();
    zone.and_then(|zone| TimeZone::tzif("", &zone).ok()).unwrap_or(TimeZone::UTC)
}

struct Fields {
    text: String,
    network: Option<String>,
}

/// Writes each event as one line to what `sink` gives, at once and in one piece.
pub struct Klog<S, C> {
    verbosity: Verbosity,
    history: History,
    sink: S,
    clock: C,
    pid: u32,
}

impl<S, W, C> Klog<S, C>
where
    S: Fn() -> W,
    W: Write,
    C: Fn() -> DateTime,
{
    pub fn new(verbosity: Verbosity, history: History, sink: S, clock: C) -> Self {
        Self { verbosity, history, sink, clock, pid: std::process::id() }
    }

    fn is_of_use(&self, metadata: &Metadata<'_>) -> bool {
        self.verbosity.shows(metadata) || History::wants(metadata)
    }
}

impl<T, S, W, C> Layer<T> for Klog<S, C>
where
    T: Subscriber + for<'a> LookupSpan<'a>,
    S: Fn() -> W + 'static,
    W: Write,
    C: Fn() -> DateTime + 'static,
{
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_of_use(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, T>) -> bool {
        self.is_of_use(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // A module may be more verbose than the rest.
        Some(LevelFilter::TRACE)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, T>) {
        let mut body = Body::default();
        attributes.record(&mut body);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Fields { text: body.fields, network: body.network });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, T>) {
        let metadata = event.metadata();
        let mut body = Body::default();
        event.record(&mut body);
        let kind = body.event.take().or_else(|| History::kind(metadata).map(str::to_owned));
        let happened = kind.map(|kind| (kind, format!("{}{}", body.message, body.fields)));
        // What the event is a part of: of which network it tells, where there are several.
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(Fields { text, network }) = span.extensions().get() {
                body.fields.push_str(text);
                body.network = body.network.or_else(|| network.clone());
            }
        }
        if let Some((kind, what)) = happened {
            self.history.add(HistoryEvent {
                kind,
                what,
                network: body.network.take(),
                undone_by: body.undone_by,
                after_micros: body.after_micros,
                entries: body.entries,
                ..HistoryEvent::default()
            });
            if !self.verbosity.shows(metadata) {
                return;
            }
        }
        let path = metadata.file().unwrap_or("unknown");
        let file = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path);
        let line = metadata.line().unwrap_or_default();
        let severity = severity(metadata.level(), metadata.target() == FATAL);
        let head = Head { severity, time: (self.clock)(), pid: self.pid, file, line };
        let mut text = format!("{head}{}{}\n", body.message, body.fields);
        if self.verbosity.backtrace_at.as_ref().is_some_and(|at| at.is(file, line)) {
            let _ = writeln!(text, "{}", Backtrace::force_capture());
        }
        // Nobody can be told that the log cannot be written.
        let _ = (self.sink)().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests;
