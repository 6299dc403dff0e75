//! `flannelctl check`: what of this node keeps flannel from working, or will, with or without a daemon.
//!
//! One file a subject, which gathers facts (`look`) and judges them (`judge`, pure); `node_context` is for all of them.

mod bridge;
mod clock;
mod cni;
mod connections;
mod daemon;
mod duplicates;
mod echo;
pub(crate) mod firewall;
mod forwarding;
mod kernel;
mod managers;
mod mtu;
mod nic;
pub(crate) mod node_context;
mod offload;
mod others;
mod ports;
mod ranges;
mod reach;
mod reverse_path;
pub(crate) mod way;

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use flannel_trace::DropCounters;
use serde::{Serialize, Serializer};
use serde_json::json;

use self::clock::ClockQuestions;
use self::node_context::{NetworkSource, NodeContext};
use super::daemon::plain;
use super::output::OutputArgs;
use super::progress::Progress;
use flannel_cli::table::{Colour, Paint, painted_line};
use flannel_state::{Finding, Severity};

const CNI_BIN_DIR: &str = "/opt/cni/bin";

/// Find what keeps flannel from working on this node, before it is installed or when in doubt
///
/// Looks, and changes nothing. If a flanneld runs here, its flags, its store and the daemon itself are asked;
/// otherwise say where the network config is: a file, or the store. Ends with 0 if nothing is broken, 1 if
/// something is.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    source: NetworkSource,
    /// Where the container runtime looks for CNI configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Where it looks for CNI plugins; several are separated by colons
    #[arg(long, value_name = "DIR", default_value = CNI_BIN_DIR)]
    cni_bin_dir: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    node: String,
    verdict: &'static str,
    #[serde(serialize_with = "as_rows")]
    findings: Vec<Finding>,
}

/// Findings under the names that this command has always given their fields.
fn as_rows<S: Serializer>(findings: &[Finding], serializer: S) -> Result<S::Ok, S::Error> {
    let row = |Finding { about, layer, cause, fix, severity, .. }: &Finding| json!({"subject": layer, "severity": severity, "what": about, "why": cause, "fix": fix});
    serializer.collect_seq(findings.iter().map(row))
}

impl CheckArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            rustix::process::geteuid().is_root(),
            "rules, sockets and processes of this node are looked at: run this as root, on the node itself"
        );
        let progress =
            Progress::of("still looking: other nodes are asked, and packets are sent to them");
        let report = Report::make(&self.source, &self.cni_conf_dir, &self.cni_bin_dir)?;
        drop(progress);
        let broken = report.verdict == "broken";
        let paint = Paint::for_stdout();
        self.output.output.show(&report, |wide| screen(&report, wide, paint))?;
        Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

pub(crate) fn report(source: &NetworkSource, cni_conf_dir: &Path) -> anyhow::Result<String> {
    let report = Report::make(source, cni_conf_dir, CNI_BIN_DIR)?;
    Ok(format!("{:#}\n", serde_json::to_value(&report)?))
}

impl Report {
    fn make(
        source: &NetworkSource,
        cni_conf_dir: &Path,
        cni_bin_dir: &str,
    ) -> anyhow::Result<Self> {
        let before = DropCounters::read();
        let (context, mut findings) = NodeContext::gather(source)?;
        let clocks = ClockQuestions::ask(&context);
        findings.extend(kernel::look(&context));
        findings.extend(nic::look(&context));
        findings.extend(forwarding::look(&context));
        findings.extend(reverse_path::look(&context)?);
        let (unreached, narrow) = reach::look(&context);
        findings.extend(unreached);
        findings.extend(mtu::look(&context, &narrow));
        findings.extend(ranges::look(&context)?);
        findings.extend(firewall::look(&context));
        findings.extend(bridge::look(&context));
        let on_the_way = way::look(&context, &before, &findings);
        findings.extend(on_the_way);
        findings.extend(connections::look());
        findings.extend(managers::look(&context));
        findings.extend(others::look(&context));
        findings.extend(cni::look(cni_conf_dir, cni_bin_dir, &context));
        findings.extend(duplicates::look(&context));
        findings.extend(offload::look(&context));
        findings.extend(clocks.look());
        let reported = daemon::look(&context, &findings);
        findings.extend(reported);
        Finding::sort(&mut findings);
        let broken = findings.first().is_some_and(|first| first.severity == Severity::Broken);
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Report { node, verdict: if broken { "broken" } else { "whole" }, findings })
    }
}

const MAX_NAMED: usize = 5;

pub(crate) fn few<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    let mut all = all.into_iter();
    let mut named: Vec<String> = all.by_ref().take(MAX_NAMED).map(|one| one.to_string()).collect();
    named.extend(all.next().map(|_| "…".to_owned()));
    named.join(", ")
}

fn screen(report: &Report, wide: bool, paint: Paint) -> String {
    let mut text = String::new();
    let count = |severity| report.findings.iter().filter(|one| one.severity == severity).count();
    let (broken, warnings) = (count(Severity::Broken), count(Severity::Warning));
    let node = plain(&report.node);
    let (colour, conclusion) = match (broken, warnings) {
        (0, 0) => (Colour::Good, "nothing is wrong".to_owned()),
        (0, warnings) => (Colour::Good, format!("nothing is broken, warnings: {warnings}")),
        (broken, warnings) => (Colour::Bad, format!("BROKEN: {broken}, warnings: {warnings}")),
    };
    let _ = writeln!(text, "{node}: {}", paint.text(colour, &conclusion));
    for finding in &report.findings {
        let (colour, word) = match finding.severity {
            Severity::Broken => (Colour::Bad, "BROKEN"),
            Severity::Warning => (Colour::Bold, "warning"),
            Severity::Note if wide => (Colour::Faint, "note"),
            Severity::Note => continue,
        };
        let (layer, about) = (finding.layer.to_string(), plain(&finding.about));
        let cells = [(colour, word, 7), (Colour::Plain, &layer, 11), (Colour::Plain, &about, 0)];
        let _ = writeln!(text, "{}", painted_line(paint, 0, &cells));
        for (name, value) in [("why", &finding.cause), ("fix", &finding.fix)] {
            if !value.is_empty() {
                let label = format!("{name}:");
                let cells = [(Colour::Plain, label.as_str(), 0), (Colour::Plain, &plain(value), 0)];
                let _ = writeln!(text, "{}", painted_line(paint, 16, &cells));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use flannel_state::Layer;

    use super::*;

    #[test]
    fn a_finding_says_what_why_and_what_to_type() {
        let findings = vec![
            Finding::broken(Layer::Forwarding, "x is 0", "pods are cut off", "sysctl -w x=1"),
            Finding::note(Layer::Nic, "eth0", "by the default route"),
        ];
        let report = Report { node: "n1".to_owned(), verdict: "broken", findings };
        let text = screen(&report, false, Paint::never());
        let expected = "n1: BROKEN: 1, warnings: 0\n\
                        BROKEN  forwarding  x is 0\n\
                        \x20               why: pods are cut off\n\
                        \x20               fix: sysctl -w x=1\n";
        assert_eq!(text, expected);
        assert!(screen(&report, true, Paint::never()).contains("note    nic         eth0\n"));
    }
}
