//! `flannelctl repair`: asks the daemon to compare all it wants with what there is, now, and says what it did.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use flannel_cli::table::line;
use flannel_state::{EntryCondition, RepairState};
use hyper::Method;

use super::client::Daemon;
use super::{Asking, plain};
use crate::commands::store_args::block_on;

/// Have the daemon compare everything now and put right what differs
///
/// It does so by itself when the kernel tells of a change, and every two minutes. Ends with 0 if all is as wanted
/// afterwards, 1 if something is not.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    asking: Asking,
}

impl RepairArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let format = self.asking.output.output;
        let mut whole = true;
        let mut out = std::io::stdout().lock();
        let each = |repair: RepairState| -> anyhow::Result<()> {
            whole &= is_whole(&repair);
            let text = format.one_of_many(&repair)?.unwrap_or_else(|| told(&repair));
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        };
        block_on(Daemon::Here(&self.asking.socket).lines(Method::POST, "/v1/repair", each))?;
        Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn is_whole(repair: &RepairState) -> bool {
    let good = |state: EntryCondition| {
        matches!(state, EntryCondition::Programmed | EntryCondition::Contested)
    };
    repair.failure.is_none() && repair.entries.iter().all(|entry| good(entry.state))
}

fn told(repair: &RepairState) -> String {
    let RepairState { network, wanted, .. } = repair;
    let of = if network == "_" { String::new() } else { format!("{}: ", plain(network)) };
    let applier = if repair.applier.is_empty() { "nobody" } else { repair.applier.as_str() };
    let what = match (&repair.failure, repair.found, repair.removed.len()) {
        (Some(failure), ..) => format!("could NOT be compared: {}", plain(failure)),
        // Rules are compared as a whole.
        (None, 0, 0) if *wanted == 0 => "as wanted".to_owned(),
        (None, 0, 0) => format!("{wanted} compared, all as wanted"),
        (None, found, stale) => {
            format!("{wanted} compared, {found} were not as wanted, {stale} stale")
        }
    };
    let mut text = format!("{of}{applier}: {what}\n");
    for entry in &repair.entries {
        let state = match entry.state {
            EntryCondition::Programmed => "restored",
            EntryCondition::Missing => "STILL MISSING",
            EntryCondition::Refused => "REFUSED",
            EntryCondition::Contested => "contested",
        };
        let why = entry.why.as_ref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
        let entry = format!("{}{why}", plain(&entry.entry));
        text += &format!("{}\n", line(&[("", 1), (state, 13), (&entry, 0)]));
    }
    if repair.found > repair.entries.len() {
        text += &format!("  … and {} more\n", repair.found - repair.entries.len());
    }
    for removed in &repair.removed {
        text += &format!("{}\n", line(&[("", 1), ("removed", 13), (&plain(removed), 0)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use flannel_state::RepairedEntry;

    use super::*;

    #[test]
    fn what_was_done_is_told_and_what_could_not_be_is_broken() {
        let sound = RepairState {
            network: "_".to_owned(),
            applier: "kernel".to_owned(),
            wanted: 11,
            found: 0,
            entries: Vec::new(),
            removed: Vec::new(),
            failure: None,
        };
        assert_eq!(told(&sound), "kernel: 11 compared, all as wanted\n");
        let entry =
            |state| RepairedEntry { entry: "route 10.244.2.0/24".to_owned(), state, why: None };
        let restored = RepairState {
            found: 1,
            entries: vec![entry(EntryCondition::Programmed)],
            ..sound.clone()
        };
        assert!(
            told(&restored).contains("restored      route 10.244.2.0/24") && is_whole(&restored)
        );
        let refused = RepairState {
            found: 1,
            entries: vec![entry(EntryCondition::Refused)],
            ..sound.clone()
        };
        assert!(!is_whole(&refused));
        assert!(!is_whole(&RepairState { failure: Some("no".to_owned()), ..sound }));
    }
}
