//! Rules in iptables: the only place that runs `iptables-save`, `iptables-restore` and their kin.

pub(crate) mod text;
pub(crate) mod tool;

use text::{OURS, Place, Saved};
use tool::{Tool, Variant};

use flannel_common::{Family, SearchPath};
use flannel_entries::rules::Purpose;

use crate::TrafficError;
use crate::firewall::{Firewall, Kind, Look, Wish};
use crate::legacy_tables::LegacyTable;
use crate::process::Runner;
use crate::programs::Version;

/// The first to know `--random-fully`, and `--wait` of `iptables-restore`.
const RANDOM_AND_WAIT: Version = Version([1, 6, 2]);
/// What iptables says of a table in which it does not understand everything.
const INCOMPREHENSIBLE: &str = "is incompatible";
/// Seconds to wait for the xtables lock.
const LOCK_WAIT: &str = "5";

pub(crate) struct Iptables {
    runner: Box<dyn Runner>,
    path: SearchPath,
    variant: Variant,
    /// In the order of [`Family::BOTH`], once they were needed.
    tools: [Option<Tool>; 2],
    /// Of the legacy tables at the last look, by family and purpose.
    fingerprints: Vec<(Family, Purpose, u64)>,
    /// What the last look has found to be written, in the words of `iptables-restore`.
    changes: Vec<(Purpose, String)>,
}

impl Iptables {
    /// `preferred`: the variant that the node's other rules are in.
    pub(crate) fn open(
        path: &SearchPath,
        mut runner: Box<dyn Runner>,
        family: Family,
        preferred: Option<Variant>,
    ) -> Result<Self, TrafficError> {
        let tool = Tool::find(path, &mut *runner, family, preferred)?;
        if preferred.is_some_and(|preferred| preferred != tool.variant) {
            tracing::warn!(
                "the node's other rules are in the {} variant of iptables, which is not installed",
                if tool.variant == Variant::Nft { "legacy" } else { "nft" }
            );
        }
        let (variant, path, fingerprints) = (tool.variant, path.clone(), Vec::new());
        let mut tools = [None, None];
        tools[family as usize] = Some(tool);
        Ok(Self { runner, path, variant, tools, fingerprints, changes: Vec::new() })
    }

    fn tool(&mut self, family: Family) -> Result<Tool, TrafficError> {
        if let Some(tool) = &self.tools[family as usize] {
            return Ok(tool.clone());
        }
        let tool = Tool::find(&self.path, &mut *self.runner, family, Some(self.variant))?;
        self.tools[family as usize] = Some(tool.clone());
        Ok(tool)
    }

    fn remember(&mut self, family: Family, purpose: Purpose, fingerprint: Option<u64>) {
        self.fingerprints.retain(|(f, p, _)| (*f, *p) != (family, purpose));
        self.fingerprints.extend(fingerprint.map(|print| (family, purpose, print)));
    }
}

impl Firewall for Iptables {
    fn kind(&self) -> Kind {
        match self.variant {
            Variant::Nft => Kind::IptablesNft,
            Variant::Legacy => Kind::IptablesLegacy,
        }
    }

    fn look(&mut self, family: Family, wish: &Wish) -> Result<Look, TrafficError> {
        let tool = self.tool(family)?;
        let mut look = Look::default();
        self.changes.clear();
        // A table is read once, however many chains in it are ours.
        let mut table: Option<(&str, String)> = None;
        for purpose in Purpose::ALL {
            self.remember(family, purpose, None);
            if wish.entry(purpose).is_none() {
                continue;
            }
            let place = Place::of(purpose);
            let print = (self.variant == Variant::Legacy).then(|| fingerprint(family, place));
            let text = match table.take().filter(|(name, _)| *name == place.table) {
                Some((_, text)) => text,
                None => match tool.save(&mut *self.runner, family, place) {
                    Ok(text) => text,
                    Err(error) => {
                        look.unseen.push((purpose, error));
                        continue;
                    }
                },
            };
            let saved = Saved::parse(place, &text);
            table = Some((place.table, text));
            self.remember(family, purpose, print.flatten());
            let wanted = wish.chain(purpose, &saved.rules, tool.version >= RANDOM_AND_WAIT);
            if let Some(change) = saved.change(place, &wanted.unwrap_or_default()) {
                look.differing.push(purpose);
                self.changes.push((purpose, change));
            }
        }
        Ok(look)
    }

    fn write(&mut self, family: Family, purposes: &[Purpose]) -> Result<(), TrafficError> {
        let tool = self.tool(family)?;
        let mut changes = std::mem::take(&mut self.changes);
        changes.retain(|(purpose, _)| purposes.contains(purpose));
        let text: String = changes.into_iter().map(|(_, change)| change).collect();
        tool.restore(&mut *self.runner, &text)
    }

    fn is_unchanged(&mut self, family: Family) -> bool {
        let mut prints = self.fingerprints.iter().filter(|(f, ..)| *f == family).peekable();
        prints.peek().is_some()
            && prints
                .all(|(_, purpose, print)| fingerprint(family, Place::of(*purpose)) == Some(*print))
    }
}

fn fingerprint(family: Family, place: &Place) -> Option<u64> {
    LegacyTable::read(family, place.table).ok().flatten().map(|table| table.fingerprint())
}

impl Tool {
    pub(crate) fn save(
        &self,
        runner: &mut dyn Runner,
        family: Family,
        place: &Place,
    ) -> Result<String, TrafficError> {
        let only = [OURS, INCOMPREHENSIBLE];
        let text = runner.run(&self.save, &["-t", place.table], "", &only)?;
        if text.lines().any(|line| line.starts_with('#') && line.contains(INCOMPREHENSIBLE)) {
            return Err(TrafficError::Incomprehensible { family, table: place.table });
        }
        Ok(text)
    }

    pub(crate) fn restore(
        &self,
        runner: &mut dyn Runner,
        change: &str,
    ) -> Result<(), TrafficError> {
        let arguments: &[&str] = if self.version >= RANDOM_AND_WAIT {
            &["--noflush", "--wait", LOCK_WAIT]
        } else {
            &["--noflush"]
        };
        runner.run(&self.restore, arguments, change, &[]).map(drop)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
