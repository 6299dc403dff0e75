use std::sync::{Arc, Mutex};

use tracing::{debug, error, info, trace, warn};

use super::*;

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panics while writing").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What `act` logs.
fn logged(verbosity: Verbosity, act: impl FnOnce()) -> String {
    logged_and_remembered(verbosity, History::default(), act)
}

fn logged_and_remembered(verbosity: Verbosity, history: History, act: impl FnOnce()) -> String {
    let memory = Memory::default();
    let sink = memory.clone();
    let clock = || jiff::civil::date(2026, 11, 5).at(1, 2, 3, 4_005_000);
    let log = Klog { pid: 4711, ..Klog::new(verbosity, history, move || sink.clone(), clock) };
    // Without any, who is the first to log decides for all threads that nobody listens.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(log), act);
    let bytes = memory.0.lock().expect("no test panics while writing").clone();
    String::from_utf8(bytes).expect("a log is text")
}

/// Without the heads, whose line numbers would change with this file.
fn texts(verbosity: Verbosity, act: impl FnOnce()) -> Vec<String> {
    let log = logged(verbosity, act);
    log.lines().map(|line| line.split_once("] ").expect("a head").1.to_owned()).collect()
}

#[test]
fn a_line_has_klogs_head_the_text_and_the_fields() {
    let mut line = 0;
    let log = logged(Verbosity::default(), || {
        line = line!() + 1;
        info!(port = 8472, dev = "flannel.1", "Created device");
    });
    let text = "Created device port=8472 dev=flannel.1\n";
    assert_eq!(log, format!("I1105 01:02:03.004005    4711 tests.rs:{line}] {text}"));
}

#[test]
fn every_severity_has_its_letter() {
    let log = logged(Verbosity { level: 4, ..Verbosity::default() }, || {
        trace!("a");
        debug!("a");
        info!("a");
        warn!("a");
        error!("a");
        error!(target: FATAL, "a");
    });
    let letters: String = log.lines().filter_map(|line| line.chars().next()).collect();
    assert_eq!(letters, "IIIWEF");
}

#[test]
fn what_the_verbosity_hides_is_not_written() {
    let act = || {
        debug!("detail");
        trace!("everything");
    };
    assert!(texts(Verbosity::default(), act).is_empty());
    assert_eq!(texts(Verbosity { level: 2, ..Verbosity::default() }, act), ["detail"]);
    let modules = "tests=4".parse().expect("a valid pattern");
    let verbosity = Verbosity { modules, ..Verbosity::default() };
    assert_eq!(texts(verbosity, act), ["detail", "everything"]);
}

#[test]
fn values_that_would_blur_into_the_next_are_quoted() {
    let texts = texts(Verbosity::default(), || {
        info!(a = "two words", b = "", c = "x=y", d = %"say \"no\"", e = ?Some("x"), f = true, "text");
    });
    assert_eq!(texts, [r#"text a="two words" b="" c="x=y" d="say \"no\"" e="Some(\"x\")" f=true"#]);
}

#[test]
fn a_newline_from_outside_cannot_forge_a_line() {
    let evil = "nothing\nE1105 01:02:03.000000       1 main.rs:1] all is lost\u{1b}[2J";
    let log = logged(Verbosity::default(), || info!(peer = evil, "heard {evil}"));
    assert_eq!(log.lines().count(), 1);
    assert!(!log.contains('\u{1b}'));
}

#[test]
fn an_error_is_shown_with_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot write the file")]
    struct Outer(#[source] std::io::Error);
    let error = Outer(std::io::Error::other("disk full"));
    let error: &(dyn std::error::Error + 'static) = &error;
    let texts = texts(Verbosity::default(), || warn!(error, "stopped"));
    assert_eq!(texts, [r#"stopped error="cannot write the file" error.cause="disk full""#]);
}

#[test]
fn a_stack_trace_is_logged_at_the_line_asked_for_only() {
    let line = line!() + 5;
    let backtrace_at = Some(format!("tests.rs:{line}").parse().expect("a source line"));
    let verbosity = Verbosity { backtrace_at, ..Verbosity::default() };
    let log = logged(verbosity, || {
        info!("before");
        info!("here");
        info!("after");
    });
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].ends_with("] before") && lines[1].ends_with("] here"), "{log}");
    assert!(lines.len() > 4, "a stack trace has several lines: {log}");
    assert!(lines[lines.len() - 1].ends_with("] after"), "{log}");
}

#[test]
fn what_is_marked_as_an_event_is_remembered_even_if_it_is_not_shown() {
    let history = History::default();
    let log = logged_and_remembered(Verbosity::default(), history.clone(), || {
        let _network = tracing::info_span!("join", network = "blue").entered();
        info!(event = "store-found", after = 3, "The store is reachable again");
        debug!(event = "peer-gone", "Peer 10.1.2.0/24 is gone");
        let by = Some("ip, process 7");
        debug!(event = "entry-restored", undone_by = by, after_micros = 42u64, "restored it");
        debug!("a detail");
    });
    let shown: Vec<_> = log.lines().map(|line| line.split_once("] ").expect("a head").1).collect();
    assert_eq!(shown, ["The store is reachable again after=3 network=blue"]);
    let events: Vec<_> =
        history.since(0, usize::MAX).into_iter().map(|e| (e.kind, e.what, e.network)).collect();
    let event =
        |kind: &str, what: &str| (kind.to_owned(), what.to_owned(), Some("blue".to_owned()));
    let first = event("store-found", "The store is reachable again after=3");
    let gone = event("peer-gone", "Peer 10.1.2.0/24 is gone");
    assert_eq!(events, [first, gone, event("entry-restored", "restored it")]);
    let restored = &history.since(2, 1)[0];
    assert_eq!(restored.undone_by.as_deref(), Some("ip, process 7"));
    assert_eq!((restored.after_micros, restored.entries), (Some(42), None));
}
