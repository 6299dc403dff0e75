//! Aligned, coloured text: [`Table`] where all rows are at hand, [`line`] for rows printed as they arrive.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

/// More places than this make a table that no terminal is wide enough for.
const WIDEST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Plain,
    Bold,
    Good,
    Bad,
    Faint,
}

#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// Colours on a terminal only, and not if the user has said no.
    pub fn for_stdout() -> Self {
        Self(io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    pub fn never() -> Self {
        Self(false)
    }

    pub fn text(self, colour: Colour, text: &str) -> String {
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
pub struct Table {
    rows: Vec<Vec<(Colour, String)>>,
    right: bool,
    indent: &'static str,
}

/// Cells of a row, each padded to its width and followed by a space. The last one is not padded, whatever its width.
pub fn line(cells: &[(&str, usize)]) -> String {
    let cells: Vec<_> = cells.iter().map(|(text, width)| (Colour::Plain, *text, *width)).collect();
    painted_line(Paint::never(), 0, &cells)
}

pub fn painted_line(paint: Paint, indent: usize, cells: &[(Colour, &str, usize)]) -> String {
    let mut line = " ".repeat(indent);
    for (colour, text, width) in cells {
        let gap = width.saturating_sub(text.chars().count()) + 1;
        line += &format!("{}{}", paint.text(*colour, text), " ".repeat(gap));
    }
    line.truncate(line.trim_end().len());
    line
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|text| (Colour::Faint, (*text).to_owned())).collect();
        Self { rows: vec![heading], right: false, indent: "  " }
    }

    /// Aligns all columns but the first to the right.
    pub fn right(mut self) -> Self {
        self.right = true;
        self
    }

    pub fn flush_left(mut self) -> Self {
        self.indent = "";
        self
    }

    pub fn row(&mut self, cells: Vec<(Colour, String)>) {
        self.rows.push(cells);
    }

    pub fn write(&self, mut out: impl Write, paint: Paint) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|(_, text)| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::from(self.indent);
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
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    pub fn text(&self) -> String {
        let mut out = Vec::new();
        // Writing into memory does not fail.
        let _ = self.write(&mut out, Paint::never());
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Cell of a [`Matrix`]: the round trip, or why there is none; `None` where nothing was tried.
pub type MatrixCell = Option<Result<Duration, String>>;

/// Who reaches whom: `cells[from][to]`, with a label for each place.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub labels: &'a [String],
    pub cells: &'a [Vec<MatrixCell>],
}

/// Shows who reaches whom: a table with round trips, or for many places what matters of it.
pub fn write_matrix(mut out: impl Write, matrix: Matrix<'_>, paint: Paint) -> io::Result<()> {
    let places = matrix.labels.len();
    let pairs = matrix.cells.iter().flatten().flatten().count();
    if places <= WIDEST {
        let heading: Vec<&str> =
            std::iter::once("ms").chain(matrix.labels.iter().map(String::as_str)).collect();
        let mut table = Table::new(&heading).right();
        for (label, cells) in matrix.labels.iter().zip(matrix.cells) {
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
    let failures: Vec<(&str, &str, &str)> = matrix
        .labels
        .iter()
        .zip(matrix.cells)
        .flat_map(|(from, row)| {
            row.iter().zip(matrix.labels).filter_map(move |(cell, to)| {
                let reason = cell.as_ref()?.as_ref().err()?;
                Some((from.as_str(), to.as_str(), reason.as_str()))
            })
        })
        .collect();
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

    fn shown(cells: &[Vec<MatrixCell>], colours: bool) -> String {
        let (mut out, labels) = (Vec::new(), ["pod1".to_owned(), "pod2".to_owned()]);
        write_matrix(&mut out, Matrix { labels: &labels, cells }, Paint(colours)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_complete_matrix_shows_round_trips() {
        let trip = |micros| Some(Ok(Duration::from_micros(micros)));
        let matrix = [vec![None, trip(80)], vec![trip(1234), None]];
        let expected = "  ms    pod1  pod2\n  pod1     -  0.08\n  pod2  1.23     -\n\
                        all 2 pairs reach each other (round trip: median 1.23 ms, longest 1.23 ms)\n";
        assert_eq!(shown(&matrix, false), expected);
        assert!(shown(&matrix, true).contains("\x1b[32m0.08\x1b[0m"));
    }

    #[test]
    fn rows_are_aligned_and_do_not_end_with_spaces() {
        let mut table = Table::new(&["name", "data"]).flush_left();
        table.row(vec![(Colour::Plain, "a-long-name".to_owned()), (Colour::Plain, String::new())]);
        assert_eq!(table.text(), "name         data\na-long-name\n");
        assert_eq!(line(&[("a", 3), ("long", 2), ("", 4)]), "a   long");
    }

    #[test]
    fn pairs_that_do_not_reach_each_other_are_named() {
        let matrix = [
            vec![None, Some(Err("10.244.2.2: no answer".into()))],
            vec![Some(Ok(Duration::from_micros(80))), None],
        ];
        let text = shown(&matrix, false);
        assert!(text.contains("pod1     -    no"), "{text}");
        assert!(text.contains("1 of 2 tried pairs do not"), "{text}");
        assert!(text.contains("pod1 -> pod2: 10.244.2.2: no answer"), "{text}");
    }
}
