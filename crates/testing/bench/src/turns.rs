//! Our flanneld and another one, measured in turns, so that a busy minute of the machine hits both.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::table::{ratio, report};

/// Prints how long either takes; `None` measures ours.
pub(crate) fn compare(
    rounds: usize,
    against: Option<&PathBuf>,
    mut measure: impl FnMut(Option<&Path>) -> anyhow::Result<Vec<Duration>>,
) -> anyhow::Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.extend(measure(None)?);
        if let Some(other) = against {
            theirs.extend(measure(Some(other))?);
        }
    }
    let ours = report("flannel-rs", ours);
    if let Some(other) = against {
        let name = other.file_name().unwrap_or_default().to_string_lossy();
        let theirs = report(&name, theirs);
        println!("  {name} / flannel-rs at p50: {:.2}x", ratio(theirs, ours));
    }
    Ok(())
}
