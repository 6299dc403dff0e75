//! A change of a table, in the words of `iptables-restore`: all of it is done, or nothing.

use std::fmt::Write;

use super::NAT;
use super::program::Program;
use crate::protocol::Error;

/// What a rule looks for and does, word by word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule(pub(super) Vec<String>);

impl Rule {
    /// Of words that hold no blanks.
    pub(crate) fn new(words: &str) -> Self {
        Self::default().and(words)
    }

    #[must_use]
    pub(crate) fn and(mut self, words: &str) -> Self {
        self.0.extend(words.split_whitespace().map(str::to_owned));
        self
    }

    /// One word as it is, whatever it holds.
    #[must_use]
    pub(crate) fn word(mut self, word: impl Into<String>) -> Self {
        self.0.push(word.into());
        self
    }

    #[must_use]
    pub(crate) fn comment(self, comment: &str) -> Self {
        self.and("-m comment --comment").word(comment)
    }

    #[must_use]
    pub(crate) fn jump(self, chain: &str) -> Self {
        self.and("-j").word(chain)
    }
}

#[derive(Default)]
pub(super) struct Transaction {
    lines: Vec<String>,
}

/// Why nothing was done.
pub(super) struct Refusal {
    /// The line that was the reason, and its number, if that is known.
    pub(super) line: Option<(usize, String)>,
    said: String,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let line = refusal.line.map(|(_, line)| format!(" \"{line}\"")).unwrap_or_default();
        Self::internal(format_args!("iptables refused{line}: {}", refusal.said))
    }
}

impl Transaction {
    /// Adds a command. `-C` ends all unless there is such a rule, and `-N` if there is the chain.
    pub(super) fn push(&mut self, command: &str, chain: &str, rule: &Rule) {
        let mut line = format!("{command} {chain}");
        for word in &rule.0 {
            let _ = write!(line, " {}", quoted(word));
        }
        self.lines.push(line);
    }

    /// A chain without rules, whether or not there was one.
    pub(super) fn empty_chain(&mut self, chain: &str) {
        self.lines.push(format!(":{chain} - [0:0]"));
    }

    pub(super) fn delete_chain(&mut self, chain: &str) {
        self.push("-F", chain, &Rule::default());
        self.push("-X", chain, &Rule::default());
    }

    pub(super) fn commit(&self, program: &Program) -> Result<(), Refusal> {
        self.run(program, &[])
    }

    /// With `--test` among the options it does as if, and changes nothing.
    pub(super) fn run(&self, program: &Program, options: &[&str]) -> Result<(), Refusal> {
        let text = format!("*{NAT}\n{}\nCOMMIT\n", self.lines.join("\n"));
        let unknown = |error: Error| Refusal { line: None, said: error.to_string() };
        let output = program.restore(options, &text).map_err(unknown)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // The first line is the table's name; the last one is the commit, which names no culprit.
        let line = refused_line(&said)
            .and_then(|number| number.checked_sub(2))
            .and_then(|at| Some((at, self.lines.get(at)?.clone())));
        let said = said.lines().next().unwrap_or("it did not say why").to_owned();
        Err(Refusal { line, said })
    }
}

/// The number in `line 7 failed` or `Error occurred at line: 7`.
fn refused_line(said: &str) -> Option<usize> {
    said.match_indices("line").find_map(|(at, word)| {
        let rest = said[at + word.len()..].trim_start_matches([':', ' ']);
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

/// As `iptables-save` writes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:/!=+@%[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_cut_to_the_same_words() {
        let rule =
            Rule::new("! -s 10.0.0.0/8").comment("name: \"a\\b\" id: \"\"").word("").jump("X");
        let mut transaction = Transaction::default();
        transaction.push("-A", "Y", &rule);
        assert_eq!(flannel_nft::split_words(&transaction.lines[0])[2..], rule.0);
    }

    #[test]
    fn the_line_that_was_refused_is_known_from_either_kind_s_words() {
        assert_eq!(refused_line("iptables-restore: line 7 failed"), Some(7));
        assert_eq!(refused_line("iptables-nft-restore: line 12 failed: Bad rule (does"), Some(12));
        let two = "Chain 'online' does not exist\nError occurred at line: 3\n";
        assert_eq!(refused_line(two), Some(3));
        assert_eq!(refused_line("no permission"), None);
    }
}
