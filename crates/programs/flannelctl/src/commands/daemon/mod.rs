//! `flannelctl status`, `peers`, `events`, `diff` and `repair`: all that ask the daemon of this node.

pub(crate) mod client;
pub(crate) mod diff;
mod events;
mod peers;
mod probing;
mod repair;
mod status;

use std::path::PathBuf;

use clap::Args;

pub(crate) use diff::DiffArgs;
pub(crate) use events::EventsArgs;
pub(crate) use peers::PeersArgs;
pub(crate) use repair::RepairArgs;
pub(crate) use status::StatusArgs;

use super::output::OutputArgs;

/// Which daemon, and how to show what it says
#[derive(Debug, Args)]
struct Asking {
    /// The daemon's socket, beside its subnet file
    #[arg(long, default_value = flannel_state::SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Seconds from one moment to another, both as the daemon says them; zero for what is not a moment.
fn seconds_between(earlier: &str, later: &str) -> u64 {
    let read = |text: &str| text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
    let between = read(earlier).zip(read(later)).map(|(earlier, later)| later - earlier);
    between.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default()
}

/// Text of others on one line of a terminal, without what a terminal takes as a command.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

const LONGEST_FOREIGN_TEXT: usize = 600;

/// Text of another node as its own words: on one line, without what a terminal takes as a command, and not endless.
pub(crate) fn foreign(text: &str) -> String {
    let mut characters = text.chars();
    let mut shown = plain(&characters.by_ref().take(LONGEST_FOREIGN_TEXT).collect::<String>());
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_node_says_is_one_line_and_not_endless() {
        assert_eq!(foreign("open\u{1b}[2J it\nnow"), "open\u{fffd}[2J it\u{fffd}now");
        let long = foreign(&"ä".repeat(1_000_000));
        assert_eq!(long.chars().count(), LONGEST_FOREIGN_TEXT + 1);
        assert!(long.ends_with("ä…"));
    }

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
}
