//! One log line, as klog writes it:
//! `I0904 20:43:06.999999       1 main.rs:213] text key=value`.

use std::fmt::{self, Write};

use jiff::civil::DateTime;
use tracing::Level;
use tracing::field::{Field, Visit};

use crate::history;

pub(super) struct Head<'a> {
    pub(super) severity: char,
    pub(super) time: DateTime,
    pub(super) pid: u32,
    pub(super) file: &'a str,
    pub(super) line: u32,
}

pub(super) fn severity(level: &Level, fatal: bool) -> char {
    match *level {
        Level::ERROR if fatal => 'F',
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO | Level::DEBUG | Level::TRACE => 'I',
    }
}

impl fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, time, pid, file, line } = self;
        write!(
            f,
            "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:>7} {file}:{line}] ",
            time.month(),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.subsec_nanosecond() / 1000,
        )
    }
}

#[derive(Default)]
pub(super) struct Body {
    pub(super) message: String,
    pub(super) fields: String,
    /// The kind of event that the line tells of, for the history.
    pub(super) event: Option<String>,
    pub(super) undone_by: Option<String>,
    pub(super) after_micros: Option<u64>,
    pub(super) entries: Option<u64>,
    pub(super) network: Option<String>,
}

impl Body {
    fn add(&mut self, field: &Field, value: impl fmt::Display) {
        match field.name() {
            history::FIELD => return self.event = Some(one_line(value)),
            history::UNDONE_BY => return self.undone_by = Some(one_line(value)),
            history::AFTER_MICROS => return self.after_micros = value.to_string().parse().ok(),
            history::ENTRIES => return self.entries = value.to_string().parse().ok(),
            // Writing to a `String` cannot fail; a `Display` that does loses only its own text.
            "message" => return write!(OneLine(&mut self.message), "{value}").unwrap_or_default(),
            "network" => self.network = Some(value.to_string()),
            _ => {}
        }
        let text = one_line(value);
        let plain = !text.is_empty() && !text.contains([' ', '"', '=']);
        let _ = match plain {
            _ if self.fields.len() >= LONGEST_TEXT => Ok(()),
            true => write!(self.fields, " {}={text}", field.name()),
            // Control characters are escaped by now, so only quotes remain to be.
            false => write!(self.fields, " {}=\"{}\"", field.name(), text.replace('"', "\\\"")),
        };
    }
}

impl Visit for Body {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value);
        let mut cause = value.source();
        while let Some(error) = cause {
            let _ = write!(
                OneLine(&mut self.fields),
                " {}.cause={:?}",
                field.name(),
                error.to_string()
            );
            cause = error.source();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

/// Most bytes that are written of a message, and of its fields.
const LONGEST_TEXT: usize = 8 << 10;

fn one_line(value: impl fmt::Display) -> String {
    let mut text = String::new();
    let _ = write!(OneLine(&mut text), "{value}");
    text
}

/// Escapes control characters, and stops when it is enough: one event is one line, whatever a peer put into it.
struct OneLine<'a>(&'a mut String);

impl Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.0.len() >= LONGEST_TEXT {
                if !self.0.ends_with('…') {
                    self.0.push('…');
                }
                break;
            }
            match c {
                '\t' => self.0.push(c),
                c if c.is_control() => self.0.extend(c.escape_default()),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_klogs() {
        let time = jiff::civil::date(2026, 9, 4).at(20, 3, 6, 42_000);
        let head = Head { severity: 'I', time, pid: 1, file: "main.rs", line: 213 };
        assert_eq!(head.to_string(), "I0904 20:03:06.000042       1 main.rs:213] ");
        let head = Head { severity: 'E', pid: 12_345_678, ..head };
        assert_eq!(head.to_string(), "E0904 20:03:06.000042 12345678 main.rs:213] ");
    }

    #[test]
    fn a_line_has_a_size_whatever_is_in_it() {
        let mut text = String::new();
        let _ = write!(OneLine(&mut text), "{} {}", "ü".repeat(1 << 20), "x".repeat(1 << 20));
        assert!(text.len() <= LONGEST_TEXT + 4 && text.ends_with('…'), "{}", text.len());
    }

    #[test]
    fn a_level_is_one_letter() {
        let letters: String = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE]
            .iter()
            .map(|level| severity(level, false))
            .collect();
        assert_eq!(letters, "EWIII");
        assert_eq!(severity(&Level::ERROR, true), 'F');
    }
}
