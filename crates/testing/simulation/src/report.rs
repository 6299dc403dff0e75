//! A history of a seed that failed, as somebody reads it who has never seen one: what was violated, by whom and when, what
//! the simulation had done before, and the last of those who are concerned.

use std::collections::BTreeSet;

/// Lines that are shown of each kind.
const SHOWN_DEEDS: usize = 12;
const SHOWN_OF_ONE: usize = 8;
const SHOWN_OF_ALL: usize = 25;
/// Subjects that have lines of their own.
const SHOWN_SUBJECTS: usize = 4;

/// Begins lines of the history of answers that no order explains.
pub(crate) const UNEXPLAINED: &str = "clients, unexplained: ";

const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];

/// The text for one seed, each line indented.
pub(crate) fn report(violation: &str, history: &[&str]) -> String {
    let history: Vec<Line<'_>> = history.iter().map(|text| Line::read(text)).collect();
    let mut out = String::new();
    let mut say = |text: &str| {
        out += text;
        out.push('\n');
    };
    let found_at = history.iter().rev().find(|line| line.text.starts_with("VIOLATED"));
    if let Some(line) = found_at {
        say(&format!("  found {} s after the cluster began", line.time));
    }
    say(
        "  Columns: seconds since the cluster began; who, with level and text of its log. \"kernel of\": changes of",
    );
    say(
        "  that machine's kernel. A line of nobody is what the simulation did. What the clocks of machines say may differ.",
    );
    let (told, rest): (Vec<&Line<'_>>, Vec<&Line<'_>>) =
        history.iter().partition(|line| line.whole.starts_with(UNEXPLAINED));
    if !told.is_empty() {
        say("  what clients asked the lease server and were told, the last of which cannot be:");
        told.iter().for_each(|line| say(&format!("    {}", &line.whole[UNEXPLAINED.len()..])));
    }
    // Histories are checked at the end; what happened after the answer did not lead to it.
    let until = violation.rsplit_once(" was told at ").and_then(|(_, at)| at.parse::<f64>().ok());
    let is_before = |line: &Line<'_>| {
        let at = line.time.parse::<f64>().unwrap_or_default();
        until.is_none_or(|until| at <= until) && !line.text.starts_with("VIOLATED")
    };
    let before: Vec<&Line<'_>> = rest.into_iter().filter(|line| is_before(line)).collect();
    show(&mut say, "what the simulation did last", SHOWN_DEEDS, &before, |line| line.who.is_none());
    for subject in subjects(violation) {
        let title = format!("the last of {subject}");
        show(&mut say, &title, SHOWN_OF_ONE, &before, |line| line.concerns(&subject));
    }
    show(&mut say, "the last of all", SHOWN_OF_ALL, &before, |_| true);
    out
}

fn show(
    say: &mut impl FnMut(&str),
    title: &str,
    most: usize,
    lines: &[&Line<'_>],
    is_wanted: impl Fn(&Line<'_>) -> bool,
) {
    let wanted: Vec<_> = lines.iter().filter(|line| is_wanted(line)).collect();
    if wanted.is_empty() {
        return;
    }
    say(&format!("  {title}:"));
    for line in &wanted[wanted.len().saturating_sub(most)..] {
        say(&format!("    {:>9} {}", line.time, line.whole));
    }
}

/// Hosts and addresses that a violation names.
fn subjects(violation: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '.';
    let words = violation.split(|letter| !is_part(letter)).map(|word| word.trim_matches('.'));
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for word in words {
        let is_host = word.strip_prefix("node-").is_some_and(|rest| rest.parse::<u32>().is_ok());
        let address = word.split('-').next().unwrap_or_default();
        let is_address = address.parse::<std::net::Ipv4Addr>().is_ok();
        let subject = if is_address { address } else { word };
        if (is_host || is_address) && known.insert(subject.to_owned()) {
            found.push(subject.to_owned());
        }
    }
    found.truncate(SHOWN_SUBJECTS);
    found
}

struct Line<'a> {
    time: &'a str,
    /// Everything but the time.
    whole: &'a str,
    who: Option<&'a str>,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn read(text: &'a str) -> Self {
        let (time, whole) = text.trim_start().split_once(' ').unwrap_or(("", text));
        let of = whole.split_once(": ").filter(|(who, rest)| {
            let level = rest.split(' ').next().unwrap_or_default();
            who.starts_with("kernel of ") || who.starts_with("clients") || LEVELS.contains(&level)
        });
        match of {
            Some((who, rest)) => Self { time, whole, who: Some(who), text: rest },
            None => Self { time, whole, who: None, text: whole },
        }
    }

    fn concerns(&self, subject: &str) -> bool {
        let end = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
        self.whole.match_indices(subject).any(|(at, _)| end(&self.whole[at + subject.len()..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_answers_shows_them_and_what_came_before() {
        let unexplained =
            format!("      9.000 {UNEXPLAINED}node-2: list the leases: nobody has it");
        let history =
            ["      1.000 node-1 boots", "      5.000 node-1 loses its power", &unexplained];
        let text = report("no order explains what node-2 was told at 3.500", &history);
        assert!(text.contains("\n    node-2: list the leases: nobody has it\n"), "{text}");
        assert!(text.contains("node-1 boots") && !text.contains("loses its power"), "{text}");
    }

    #[test]
    fn a_report_shows_deeds_and_the_last_of_who_is_named() {
        let history = [
            "      1.000 node-1 boots",
            "      2.000 node-1: INFO leads to 10.1.2.0/24 ",
            "      2.500 kernel of node-1: route 10.1.2.0/24 via None",
            "      3.000 node-12: WARN something else ",
            "      4.000 VIOLATED: node-1 removed its route to 10.1.2.0/24",
        ];
        let text = report("node-1 removed its route to 10.1.2.0/24", &history);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  found 4.000 s after the cluster began");
        let at = |title: &str| lines.iter().position(|line| line.trim() == title).unwrap();
        assert!(lines[at("what the simulation did last:") + 1].ends_with("1.000 node-1 boots"));
        let of_node = &lines[at("the last of node-1:") + 1..at("the last of 10.1.2.0:")];
        assert_eq!(of_node.len(), 3, "{of_node:?}");
        assert!(!of_node.iter().any(|line| line.contains("node-12")));
    }
}
