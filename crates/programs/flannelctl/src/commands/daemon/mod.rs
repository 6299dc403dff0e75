//! `flannelctl status`, `peers`, `events`, `diff` and `repair`: all that ask the daemon of this node.

pub(crate) mod client;
pub(crate) mod diff;
pub(crate) mod events;
pub(crate) mod peers;
mod probing;
pub(crate) mod repair;
pub(crate) mod status;

use std::path::PathBuf;

use clap::Args;

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

/// Text of others on one line of a terminal, without what a terminal takes as a command.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

const LONGEST_FOREIGN_TEXT: usize = 600;

/// Text of another node as its own words: on one line, without what a terminal takes as a command, and not endless.
pub(crate) fn foreign(text: &str) -> String {
    let shown: String = text.chars().take(LONGEST_FOREIGN_TEXT).collect();
    plain(&shown) + if shown.len() < text.len() { "…" } else { "" }
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
}
