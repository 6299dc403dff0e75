//! What happened in a simulation, line by line: what hosts log, and what the simulation does to them. Every task belongs
//! to the host in whose span it was started.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Write as _};
use std::path::Path;
use std::rc::Rc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_core::span::Current;

use crate::clib;
use crate::host::Host;
use crate::operations;

/// Name of the span of a host.
pub(crate) const HOST_SPAN: &str = "simulated host";

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static FINGERPRINT: Cell<u64> = const { Cell::new(0xcbf2_9ce4_8422_2325) };
    static SPANS: RefCell<Vec<SpanOfHost>> = const { RefCell::new(Vec::new()) };
    static ENTERED: RefCell<Vec<(u64, Option<Rc<Host>>)>> = const { RefCell::new(Vec::new()) };
    static HOSTS: RefCell<Vec<Rc<Host>>> = const { RefCell::new(Vec::new()) };
    static ROOT: RefCell<String> = const { RefCell::new(String::new()) };
    static LIVE: Cell<bool> = const { Cell::new(false) };
    static KEEPS_NOTHING: Cell<bool> = const { Cell::new(false) };
}

struct SpanOfHost {
    metadata: &'static Metadata<'static>,
    host: Option<Rc<Host>>,
}

/// Writes a line.
pub(crate) fn note(what: fmt::Arguments<'_>) {
    if KEEPS_NOTHING.get() {
        return;
    }
    let elapsed = clib::elapsed();
    let line = format!("{:>9}.{:03} {what}", elapsed.as_secs(), elapsed.subsec_millis());
    // Where it runs is not part of it.
    let line = ROOT.with_borrow(|root| match root.is_empty() {
        true => line.clone(),
        // Names of files are made of it, too.
        false => {
            let own = root.rsplit('/').next().unwrap_or_default();
            line.replace(root.as_str(), "").replace(own, "")
        }
    });
    let mut print = FINGERPRINT.get();
    for byte in line.bytes() {
        print = (print ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    FINGERPRINT.set(print);
    if LIVE.get() {
        eprintln!("{line}");
    }
    LINES.with_borrow_mut(|lines| lines.push(line));
}

/// Lines are thrown away: those of a large cluster would fill the memory.
pub(crate) fn keep_nothing() {
    KEEPS_NOTHING.set(true);
    operations::keep_nothing();
}

/// Lines are also printed as they come.
pub(crate) fn print_live() {
    LIVE.set(true);
}

/// The directory of all hosts, which lines do not show.
pub(crate) fn set_root(directory: &Path) {
    ROOT.set(directory.display().to_string());
}

pub(crate) fn set_hosts(hosts: &[Rc<Host>]) {
    HOSTS.set(hosts.to_vec());
}

/// All lines so far.
pub(crate) fn take_lines() -> Vec<String> {
    LINES.take()
}

/// A number that two runs have in common if all their lines are the same.
pub(crate) fn fingerprint() -> u64 {
    FINGERPRINT.get()
}

/// Keeps the log of all hosts, and knows whose task runs.
pub(crate) struct Historian {
    pub(crate) level: Level,
}

impl Historian {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
            || *metadata.level() <= self.level && metadata.target().starts_with("flannel")
    }
}

impl Subscriber for Historian {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.wants(metadata)
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let host = if metadata.name() == HOST_SPAN {
            let mut number = Number(0);
            attributes.record(&mut number);
            HOSTS.with_borrow(|hosts| hosts.get(number.0 as usize).cloned())
        } else {
            clib::current_host()
        };
        SPANS.with_borrow_mut(|spans| {
            spans.push(SpanOfHost { metadata, host });
            Id::from_u64(spans.len() as u64)
        })
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let host = clib::current_host().map_or_else(String::new, |host| host.name());
        note(format_args!("{host}: {} {}", event.metadata().level(), text.0));
    }

    fn enter(&self, id: &Id) {
        let number = id.into_u64();
        let host = SPANS.with_borrow(|spans| spans[number as usize - 1].host.clone());
        if let Some(host) = &host {
            host.has_run.set(true);
        }
        let before = clib::enter_host(host);
        ENTERED.with_borrow_mut(|entered| entered.push((number, before)));
    }

    fn exit(&self, _: &Id) {
        if let Some((_, before)) = ENTERED.with_borrow_mut(Vec::pop) {
            drop(clib::enter_host(before));
        }
    }

    fn current_span(&self) -> Current {
        let Some(number) = ENTERED.with_borrow(|entered| entered.last().map(|(number, _)| *number))
        else {
            return Current::none();
        };
        let metadata = SPANS.with_borrow(|spans| spans[number as usize - 1].metadata);
        Current::new(Id::from_u64(number), metadata)
    }
}

struct Number(u64);

impl Visit for Number {
    fn record_u64(&mut self, _: &Field, value: u64) {
        self.0 = value;
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}
