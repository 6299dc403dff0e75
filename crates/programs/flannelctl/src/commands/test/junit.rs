//! What came of a test, as JUnit's XML, which build servers show.

use std::fmt::Write as _;

use super::report::{NodeReport, PairReport, PairTest, Report};

pub(super) fn write(report: &Report, seconds: f64) -> String {
    let tests: usize = report.pairs.iter().map(|pair| pair.tests.len()).sum();
    let failed = |pair: &PairReport| pair.tests.iter().filter(|it| it.failure.is_some()).count();
    let failures: usize = report.pairs.iter().map(failed).sum();
    let untested: Vec<&NodeReport> = report.nodes.iter().filter(|node| !node.tested).collect();
    let (skipped, all) = (untested.len(), tests + untested.len());
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let counts = format!(
        "tests=\"{all}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\" time=\"{seconds:.3}\""
    );
    let _ = writeln!(text, "<testsuites {counts}>");
    let _ = writeln!(text, "  <testsuite name=\"flannel connectivity\" {counts}>");
    for pair in &report.pairs {
        pair.tests.iter().for_each(|test| case(&mut text, pair, test));
    }
    for node in untested {
        let (name, why) = (escape(&node.name), escape(node.why.as_deref().unwrap_or_default()));
        let _ = writeln!(
            text,
            "    <testcase classname=\"{name}\" name=\"test pod\" time=\"0\"><skipped message=\"{why}\"/></testcase>"
        );
    }
    text + "  </testsuite>\n</testsuites>\n"
}

fn case(text: &mut String, pair: &PairReport, test: &PairTest) {
    let time = test.micros.unwrap_or_default() as f64 / 1e6;
    let name = escape(&format!("to {} {} {}", pair.to, pair.family, test.test));
    let _ = write!(
        text,
        "    <testcase classname=\"{}\" name=\"{name}\" time=\"{time:.6}\"",
        escape(&pair.from)
    );
    let Some(failure) = &test.failure else { return text.push_str("/>\n") };
    let fix = pair.fix.as_deref().map(|fix| format!("\n{} advises: {fix}", pair.from));
    let why = pair.why.clone().unwrap_or_default() + &fix.unwrap_or_default();
    let _ = writeln!(
        text,
        "><failure type=\"{}\" message=\"{}\">{}</failure></testcase>",
        escape(pair.layer.as_deref().unwrap_or("unknown")),
        escape(failure),
        escape(&why)
    );
}

/// What XML cannot carry at all is left out.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_of_each_pair_is_a_case_and_who_was_not_tested_is_skipped() {
        let text = write(&super::super::report::tests::report(), 1.5);
        assert!(text.contains("tests=\"7\" failures=\"3\" errors=\"0\" skipped=\"1\""), "{text}");
        assert_eq!(text.matches("<testcase ").count(), 7);
        assert_eq!(text.matches("<failure type=\"tunnel\"").count(), 3);
        assert!(text.contains("advises: open &lt;it&gt;"), "{text}");
    }

    #[test]
    fn what_others_have_written_stays_text() {
        assert_eq!(escape("<a b=\"c\">&\u{1b}"), "&lt;a b=&quot;c&quot;&gt;&amp;\u{fffd}");
    }
}
