//! What came of a test, for people and for programs. Pure.

use std::time::Duration;

use flannel_connectivity::protocol::{Cause, TestReport, TestState, TrialOutcome, TrialResult};
use flannel_store::NodeAnswer;
use serde::Serialize;

use super::choice::{Chosen, Node};
use crate::commands::daemon::{foreign, plain};
use flannel_cli::table::{Colour, Matrix, MatrixCell, Paint, Table, write_matrix};

const MAX_FIXES: usize = 10;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Whether nothing that was tried has failed, and something was tried.
    pub(super) whole: bool,
    pub(super) tested_pairs: usize,
    pub(super) broken_pairs: usize,
    /// Of how many nodes those that were tried are a sample, if not all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sample_of: Option<usize>,
    pub(super) nodes: Vec<NodeReport>,
    /// From each node to each other, one for each family that both have.
    pub(super) pairs: Vec<PairReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeReport {
    pub(super) name: String,
    pub(super) subnet: String,
    pub(super) tested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mtu: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PairReport {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) family: &'static str,
    pub(super) whole: bool,
    pub(super) tests: Vec<PairTest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PairTest {
    /// `tcp`, `udp`, `mtu` (a packet of full size), `node` (from the node itself, as to a NodePort).
    pub(super) test: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

pub(super) fn said_by<'a>(
    node: &Node,
    said: &'a [(NodeAnswer, TestReport)],
) -> Option<&'a TestReport> {
    said.iter().find(|(answer, _)| answer.node.overlaps(&node.subnet)).map(|(_, said)| said)
}

impl Report {
    pub(super) fn new(chosen: &Chosen, said: &[(NodeAnswer, TestReport)]) -> Self {
        let name_of = |subnet: &str| {
            let node = chosen.nodes.iter().find(|node| node.subnet.to_string() == subnet);
            node.map_or_else(|| subnet.to_owned(), |node| node.name.clone())
        };
        let mut pairs = Vec::new();
        for node in &chosen.nodes {
            let found = said_by(node, said).map(|said| said.found.as_slice()).unwrap_or_default();
            pairs.extend(found.iter().map(|found| pair(&node.name, name_of(&found.to), found)));
        }
        let nodes = chosen.nodes.iter().map(|node| node_report(node, said_by(node, said)));
        let broken_pairs = pairs.iter().filter(|pair| !pair.whole).count();
        Self {
            whole: broken_pairs == 0 && !pairs.is_empty(),
            tested_pairs: pairs.len(),
            broken_pairs,
            sample_of: chosen.sample_of,
            nodes: nodes.collect(),
            pairs,
        }
    }

    /// One cell for each ordered pair of nodes: the round trip, or what failed.
    fn write_matrix(&self, out: impl std::io::Write, paint: Paint) -> std::io::Result<()> {
        let labels: Vec<String> = self.nodes.iter().map(|node| plain(&node.name)).collect();
        let cell = |from: &NodeReport, to: &NodeReport| {
            let of = |pair: &&PairReport| pair.from == from.name && pair.to == to.name;
            let pairs: Vec<&PairReport> = self.pairs.iter().filter(of).collect();
            let broken: Vec<&PairReport> =
                pairs.iter().copied().filter(|pair| !pair.whole).collect();
            if pairs.is_empty() {
                return None;
            }
            if !broken.is_empty() {
                let reasons: Vec<String> = broken.iter().map(|pair| reason(pair)).collect();
                return Some(Err(reasons.join("; ")));
            }
            let udp = pairs.iter().flat_map(|pair| &pair.tests).filter(|it| it.test == "udp");
            let longest = udp.filter_map(|it| it.micros).max().unwrap_or_default();
            Some(Ok(Duration::from_micros(longest)))
        };
        let row = |from| self.nodes.iter().map(|to| cell(from, to)).collect();
        let cells: Vec<Vec<MatrixCell>> = self.nodes.iter().map(row).collect();
        write_matrix(out, Matrix { labels: &labels, cells: &cells }, paint)
    }

    pub(super) fn text(&self, wide: bool, paint: Paint) -> String {
        let mut out = Vec::new();
        if self.tested_pairs > 0 {
            let _ = self.write_matrix(&mut out, paint);
        }
        if wide {
            let _ = self.wide().write(&mut out, paint);
        }
        let mut text = String::from_utf8_lossy(&out).into_owned();
        let mut fixes: Vec<(&str, &str, &str)> = Vec::new();
        for pair in &self.pairs {
            if let (Some(layer), Some(fix)) = (&pair.layer, &pair.fix)
                && !fixes.iter().any(|(_, l, f)| (*l, *f) == (layer.as_str(), fix.as_str()))
            {
                fixes.push((&pair.from, layer, fix));
            }
        }
        for (from, layer, fix) in fixes.iter().take(MAX_FIXES) {
            text += &format!("{} advises ({}): {}\n", plain(from), plain(layer), plain(fix));
        }
        let untested: Vec<&NodeReport> = self.nodes.iter().filter(|node| !node.tested).collect();
        if self.tested_pairs == 0 {
            text += &paint.text(Colour::Bad, "nothing was tested");
            text.push('\n');
        }
        if !untested.is_empty() {
            text += &format!("not tested: {} of {} nodes\n", untested.len(), self.nodes.len());
        }
        for node in untested {
            let why = node.why.as_deref().unwrap_or_default();
            text += &format!("  {} ({}): {}\n", plain(&node.name), node.subnet, plain(why));
        }
        if let Some(all) = self.sample_of {
            let of = self.nodes.len();
            text +=
                &format!("a sample of {of} of {all} nodes; --sample and --nodes choose others\n");
        }
        text
    }

    fn wide(&self) -> Table {
        let mut table = Table::new(&["from", "to", "family", "tcp", "udp", "mtu", "node"]);
        for pair in &self.pairs {
            let mut row = vec![
                (Colour::Plain, plain(&pair.from)),
                (Colour::Plain, plain(&pair.to)),
                (Colour::Plain, pair.family.to_owned()),
            ];
            for name in ["tcp", "udp", "mtu", "node"] {
                let test = pair.tests.iter().find(|it| it.test == name);
                row.push(match test.map(|it| it.micros) {
                    None => (Colour::Faint, "-".to_owned()),
                    Some(Some(micros)) => (Colour::Good, format!("{:.2}", micros as f64 / 1000.0)),
                    Some(None) => (Colour::Bad, "no".to_owned()),
                });
            }
            table.row(row);
        }
        table
    }
}

pub(super) fn reason(pair: &PairReport) -> String {
    let failed: Vec<&PairTest> = pair.tests.iter().filter(|it| it.failure.is_some()).collect();
    let names: Vec<&str> = failed.iter().map(|it| it.test).collect();
    let seen = failed.first().and_then(|it| it.failure.as_deref()).unwrap_or_default();
    let why = match (&pair.layer, &pair.why) {
        (Some(layer), Some(why)) => format!(" ({layer}: {why})"),
        _ => String::new(),
    };
    plain(&format!("{} {}: {seen}{why}", pair.family, names.join(", ")))
}

fn node_report(node: &Node, said: Option<&TestReport>) -> NodeReport {
    let why = match said {
        None if node.is_likely => Some(
            "its daemon has not answered: it is not running, has no contact to the store, or is older than this test",
        ),
        None => {
            Some("its daemon does not answer: it runs the Go flannel, or is older than this test")
        }
        Some(said) if said.state == TestState::Failed => {
            Some(said.why.as_deref().unwrap_or("it cannot make a test pod"))
        }
        Some(said) if said.found.is_empty() => {
            Some("it has made a test pod, and then said no more")
        }
        Some(_) => None,
    };
    NodeReport {
        name: node.name.clone(),
        subnet: node.subnet.to_string(),
        tested: why.is_none(),
        why: why.map(str::to_owned),
        mtu: said.map(|said| said.mtu).filter(|mtu| *mtu > 0),
    }
}

fn pair(from: &str, to: String, found: &TrialResult) -> PairReport {
    let test = |(test, outcome): (&'static str, &TrialOutcome)| match outcome {
        TrialOutcome::Passed(micros) => PairTest { test, micros: Some(*micros), failure: None },
        TrialOutcome::Failed(why) => PairTest { test, micros: None, failure: Some(why.clone()) },
    };
    let cause = found.cause.as_ref();
    PairReport {
        from: from.to_owned(),
        to,
        family: if found.address.is_ipv4() { "IPv4" } else { "IPv6" },
        whole: found.is_whole(),
        tests: found.outcomes().map(test).collect(),
        layer: cause.map(|Cause { layer, .. }| foreign(layer)),
        why: cause.map(|Cause { why, .. }| foreign(why)),
        fix: cause.and_then(|Cause { fix, .. }| fix.as_deref().map(foreign)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn node(number: u8) -> Node {
        Node {
            subnet: format!("10.5.{number}.0-24").parse().expect("a subnet"),
            name: format!("node-{number}"),
            is_likely: number != 3,
        }
    }

    /// Node 1 reaches node 2 and not the other way round; node 3 says nothing.
    pub(in super::super) fn report() -> Report {
        let nodes = vec![node(1), node(2), node(3)];
        let chosen = Chosen { nodes, sample_of: Some(10) };
        let found = |to: u8, passes: bool| {
            let outcome = || match passes {
                true => TrialOutcome::Passed(310),
                false => TrialOutcome::Failed("no answer within 3 s".to_owned()),
            };
            let cause = Cause {
                layer: "tunnel".to_owned(),
                why: "UDP port 8472 does not arrive there".to_owned(),
                fix: Some("open <it>".to_owned()),
            };
            TrialResult {
                to: node(to).subnet.to_string(),
                address: [10, 5, to, 254].into(),
                tcp: outcome(),
                udp: outcome(),
                full: outcome(),
                node: None,
                cause: (!passes).then_some(cause),
            }
        };
        let said = |number: u8, found: TrialResult| {
            let said = TestReport {
                state: TestState::Done,
                pod: None,
                mtu: 1450,
                why: None,
                found: vec![found],
            };
            (NodeAnswer { node: node(number).subnet, body: serde_json::Value::Null }, said)
        };
        Report::new(&chosen, &[said(1, found(2, true)), said(2, found(1, false))])
    }

    #[test]
    fn what_failed_is_told_with_its_layer_and_what_mends_it_and_who_was_not_tested() {
        let report = report();
        assert!(!report.whole);
        assert_eq!((report.tested_pairs, report.broken_pairs), (2, 1));
        let text = report.text(false, Paint::never());
        for wanted in [
            "0.31",
            "1 of 2 tried pairs do not reach each other",
            "node-2 -> node-1: IPv4 tcp, udp, mtu: no answer within 3 s (tunnel: UDP port 8472",
            "advises (tunnel): open <it>",
            "not tested: 1 of 3 nodes",
            "node-3 (10.5.3.0-24): its daemon does not answer: it runs the Go flannel",
            "a sample of 3 of 10 nodes",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        let wide = report.text(true, Paint::never());
        assert!(wide.contains("node-1  node-2  IPv4    0.31  0.31  0.31  -"), "{wide}");
    }

    #[test]
    fn nobody_who_answers_is_not_whole() {
        let chosen = Chosen { nodes: vec![node(1), node(2)], sample_of: None };
        let report = Report::new(&chosen, &[]);
        assert!(!report.whole);
        assert!(report.text(false, Paint::never()).contains("nothing was tested"));
    }
}
