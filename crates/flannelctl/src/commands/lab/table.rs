//! Aligned text, with colour where a person looks.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use flannel_lab::Matrix;

/// More places than this make a table that no terminal is wide enough for.
const WIDEST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Plain,
    Bold,
    Good,
    Bad,
    Faint,
}

/// Whether colours are shown at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Colours on a terminal only, and not if the user has said no.
    pub(crate) fn for_stdout() -> Self {
        Self(io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    /// For tests.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(false)
    }

    pub(crate) fn text(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Bold => "1",
            Colour::Good => "32",
            Colour::Bad => "31",
            Colour::Faint => "2",
            Colour::Plain => return text.to_owned(),
        };
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Rows of cells; the first row is the heading.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(Colour, String)>>,
    right: bool,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|text| (Colour::Faint, (*text).to_owned())).collect();
        Self { rows: vec![heading], right: false }
    }

    /// Aligns all columns but the first to the right.
    pub(crate) fn right(mut self) -> Self {
        self.right = true;
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<(Colour, String)>) {
        self.rows.push(cells);
    }

    pub(crate) fn write(&self, mut out: impl Write, paint: Paint) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|(_, text)| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::from("  ");
            for (column, (colour, text)) in row.iter().enumerate() {
                let gap = " ".repeat(widths[column].saturating_sub(text.chars().count()));
                let text = paint.text(*colour, text);
                let last = column + 1 == row.len();
                match (self.right && column > 0, last) {
                    (true, _) => line += &format!("{gap}{text}"),
                    (false, true) => line += &text,
                    (false, false) => line += &format!("{text}{gap}"),
                }
                if !last {
                    line += "  ";
                }
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// Shows who reaches whom: a table with round trips, or for many places what matters of it.
pub(crate) fn write_matrix(mut out: impl Write, matrix: &Matrix, paint: Paint) -> io::Result<()> {
    let places = matrix.labels.len();
    let pairs = matrix.pairs();
    if places <= WIDEST {
        let heading: Vec<&str> =
            std::iter::once("ms").chain(matrix.labels.iter().map(String::as_str)).collect();
        let mut table = Table::new(&heading).right();
        for (label, cells) in matrix.labels.iter().zip(&matrix.cells) {
            let mut row = vec![(Colour::Faint, label.clone())];
            row.extend(cells.iter().map(|cell| match cell {
                None => (Colour::Faint, "-".to_owned()),
                Some(Ok(round_trip)) => (Colour::Good, millis(*round_trip)),
                Some(Err(_)) => (Colour::Bad, "no".to_owned()),
            }));
            table.row(row);
        }
        table.write(&mut out, paint)?;
    }
    let failures: Vec<_> = matrix.failures().collect();
    if failures.is_empty() {
        let trips = matrix.cells.iter().flatten().filter_map(|cell| cell.as_ref()?.as_ref().ok());
        let mut trips: Vec<Duration> = trips.copied().collect();
        trips.sort_unstable();
        let middle = trips.get(trips.len() / 2).copied().unwrap_or_default();
        let longest = trips.last().copied().unwrap_or_default();
        let (middle, longest) = (millis(middle), millis(longest));
        let all = if pairs == places * places.saturating_sub(1) { "all" } else { "the tried" };
        let text = format!("{all} {pairs} pairs reach each other");
        let text = paint.text(Colour::Good, &text);
        return writeln!(out, "{text} (round trip: median {middle} ms, longest {longest} ms)");
    }
    let text = format!("{} of {pairs} tried pairs do not reach each other", failures.len());
    writeln!(out, "{}", paint.text(Colour::Bad, &text))?;
    for (from, to, reason) in failures.iter().take(WIDEST) {
        writeln!(out, "  {from} -> {to}: {reason}")?;
    }
    if failures.len() > WIDEST {
        writeln!(out, "  … and {} more", failures.len() - WIDEST)?;
    }
    Ok(())
}

fn millis(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(cells: Vec<Vec<Option<Result<Duration, String>>>>) -> Matrix {
        Matrix { labels: vec!["pod1".into(), "pod2".into()], cells }
    }

    fn shown(matrix: &Matrix, colours: bool) -> String {
        let mut out = Vec::new();
        write_matrix(&mut out, matrix, Paint(colours)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_complete_matrix_shows_round_trips() {
        let trip = |micros| Some(Ok(Duration::from_micros(micros)));
        let matrix = matrix(vec![vec![None, trip(80)], vec![trip(1234), None]]);
        let expected = "  ms    pod1  pod2\n  pod1     -  0.08\n  pod2  1.23     -\n\
                        all 2 pairs reach each other (round trip: median 1.23 ms, longest 1.23 ms)\n";
        assert_eq!(shown(&matrix, false), expected);
        assert!(shown(&matrix, true).contains("\x1b[32m0.08\x1b[0m"));
    }

    #[test]
    fn pairs_that_do_not_reach_each_other_are_named() {
        let matrix = matrix(vec![
            vec![None, Some(Err("10.244.2.2: no answer".into()))],
            vec![Some(Ok(Duration::from_micros(80))), None],
        ]);
        let text = shown(&matrix, false);
        assert!(text.contains("pod1     -    no"), "{text}");
        assert!(text.contains("1 of 2 tried pairs do not"), "{text}");
        assert!(text.contains("pod1 -> pod2: 10.244.2.2: no answer"), "{text}");
    }
}
