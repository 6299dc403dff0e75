//! `lab status`: what runs, and who reaches whom.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;

use crate::client::ask;
use crate::protocol::{Answer, Request, Status};
use crate::state::LabName;
use flannel_cli::table::{Colour, Paint, Table, write_matrix};

pub(crate) fn run(name: &LabName) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Answer::Status(status) = ask(name, &Request::Status)? else {
        bail!("an answer to another question");
    };
    let paint = Paint::for_stdout();
    let title = format!("lab {name}: {} nodes, {}", status.nodes.len(), status.backend);
    writeln!(
        out,
        "{}, up for {} s (supervisor pid {})",
        paint.text(Colour::Bold, &title),
        status.up_seconds,
        status.supervisor
    )?;
    show(&mut out, &status, paint)?;
    show_matrix(&mut out, name, paint)
}

/// The nodes, the store, and the faults that stand.
pub(crate) fn show(mut out: impl Write, status: &Status, paint: Paint) -> anyhow::Result<()> {
    let mut table = Table::new(&["node", "underlay", "subnet", "pod", "flanneld"]);
    for node in &status.nodes {
        let cell = |texts: &[String]| {
            (Colour::Plain, if texts.is_empty() { "-".into() } else { texts.join(" ") })
        };
        let runs = node.flanneld.starts_with("pid");
        let daemon = (if runs { Colour::Plain } else { Colour::Bad }, node.flanneld.clone());
        table.row(vec![
            (Colour::Bold, node.number.to_string()),
            cell(&node.underlay),
            cell(&node.subnets),
            cell(&node.pods),
            daemon,
        ]);
    }
    table.write(&mut out, paint)?;
    if let Some(etcd) = &status.etcd {
        writeln!(out, "  etcd  {etcd}")?;
    }
    for fault in &status.faults {
        writeln!(out, "  {}  {fault}", paint.text(Colour::Bad, "fault"))?;
    }
    Ok(())
}

/// Who reaches whom; failure if anybody does not.
pub(crate) fn show_matrix(
    mut out: impl Write,
    name: &LabName,
    paint: Paint,
) -> anyhow::Result<ExitCode> {
    let Answer::Matrix(matrix) = ask(name, &Request::Matrix)? else {
        bail!("an answer to another question");
    };
    writeln!(out)?;
    write_matrix(&mut out, matrix.shown(), paint)?;
    Ok(if matrix.complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
