//! Removes what a flannel in another mode, with other families or for another purpose has left.
//!
//! Needs none of the other mode's programs, except for the rules of iptables-legacy.

use flannel_common::Family;
use flannel_entries::rules::{Mode, Purpose, TrafficRules};
use flannel_nft::{Batch, Nft, NftError};

use crate::TrafficError;
use crate::firewall::Kind;
use crate::iptables::text::{Place, Saved};
use crate::iptables::tool::{Tool, Variant};
use crate::legacy_tables::LegacyTable;
use crate::nftables::{self, table_family};
use crate::process::{Machine, Runner};
use crate::programs::SearchPath;

/// Removes every rule of flannel from the network namespace of the calling thread: those of one mode, or
/// of both. Returns what there was, in words. A running daemon would put its rules back: stop it first.
pub fn cleanup(mode: Option<Mode>) -> Result<Vec<String>, TrafficError> {
    if !crate::served_networks::all().is_empty() {
        tracing::warn!("a flannel daemon is running here and will put its rules back");
    }
    let everything = Leftovers::of(mode);
    let (removed, errors) =
        Sweeper::new(SearchPath::of_environment(), Box::new(Machine)).sweep(&everything);
    TrafficError::all(errors).map(|()| removed)
}

/// What [`cleanup`] would remove, in the same words. Changes nothing.
pub fn leftovers(mode: Option<Mode>) -> Result<Vec<String>, TrafficError> {
    found(&Leftovers::of(mode))
}

/// What of it is there, in words.
pub(crate) fn found(leftovers: &Leftovers) -> Result<Vec<String>, TrafficError> {
    let (found, errors) = find(leftovers);
    TrafficError::all(errors).map(|()| found)
}

/// What is not, or no longer, wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// The tables of nftables.
    pub(crate) tables: Vec<Family>,
    /// The chains of the nft variant of iptables.
    pub(crate) chains: Vec<(Family, Purpose)>,
    /// The chains of iptables-legacy.
    pub(crate) legacy: Vec<(Family, Purpose)>,
}

impl Leftovers {
    fn of(mode: Option<Mode>) -> Self {
        let mut all = Self::default();
        for family in Family::BOTH {
            if mode != Some(Mode::Iptables) {
                all.tables.push(family);
            }
            if mode != Some(Mode::Nftables) {
                all.chains.extend(Purpose::ALL.map(|purpose| (family, purpose)));
                all.legacy.extend(Purpose::ALL.map(|purpose| (family, purpose)));
            }
        }
        all
    }

    pub(crate) fn all() -> Self {
        Self::of(None)
    }

    /// All but what these rules are kept in.
    pub(crate) fn beside(kind: Kind, wanted: &[TrafficRules]) -> Self {
        let is_unwanted = |(family, purpose): &(Family, Purpose)| {
            !wanted.iter().any(|it| (it.family(), it.purpose()) == (*family, *purpose))
        };
        let mut rest = Self::all();
        match kind {
            Kind::Nftables => {
                rest.tables.retain(|family| wanted.iter().all(|it| it.family() != *family));
            }
            Kind::IptablesNft => rest.chains.retain(is_unwanted),
            Kind::IptablesLegacy => rest.legacy.retain(is_unwanted),
        }
        rest
    }
}

pub(crate) struct Sweeper {
    path: SearchPath,
    runner: Box<dyn Runner>,
}

impl Sweeper {
    pub(crate) fn new(path: SearchPath, runner: Box<dyn Runner>) -> Self {
        Self { path, runner }
    }

    /// Removes all it can. Returns what that was, and what went wrong.
    pub(crate) fn sweep(&mut self, leftovers: &Leftovers) -> (Vec<String>, Vec<TrafficError>) {
        let (mut removed, mut errors) = (Vec::new(), Vec::new());
        let mut note = |what: String, result: Result<bool, TrafficError>| match result {
            Ok(true) => removed.push(what),
            Ok(false) => {}
            Err(error) => errors.push(error),
        };
        // A kernel without nftables has nothing of it to remove.
        if let Ok(mut nft) = Nft::open() {
            for family in &leftovers.tables {
                let what = table(*family);
                let result = remove_table(&mut nft, *family);
                note(format!("{family} {what}"), failed(*family, what, result));
            }
            for (family, purpose) in &leftovers.chains {
                let place = Place::of(*purpose);
                let what = chain(place);
                let result = remove_chain(&mut nft, *family, place);
                note(format!("{family} {what}"), failed(*family, what, result));
            }
        }
        for (family, purpose) in &leftovers.legacy {
            let place = Place::of(*purpose);
            note(format!("{family} {}", legacy_chain(place)), self.remove_legacy(*family, place));
        }
        (removed, errors)
    }

    fn remove_legacy(&mut self, family: Family, place: &Place) -> Result<bool, TrafficError> {
        if !in_legacy(family, place)? {
            return Ok(false);
        }
        let tool = Tool::find(&self.path, &mut *self.runner, family, Some(Variant::Legacy))
            .ok()
            .filter(|tool| tool.variant == Variant::Legacy)
            .ok_or(TrafficError::NoLegacy { family, table: place.table, chain: place.chain })?;
        let saved = Saved::parse(place, &tool.save(&mut *self.runner, family, place)?);
        let Some(change) = saved.removal(place) else { return Ok(false) };
        tool.restore(&mut *self.runner, &change)?;
        Ok(true)
    }
}

/// As [`Sweeper::sweep`], without removing anything.
fn find(leftovers: &Leftovers) -> (Vec<String>, Vec<TrafficError>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut note = |what: String, result: Result<bool, TrafficError>| match result {
        Ok(true) => found.push(what),
        Ok(false) => {}
        Err(error) => errors.push(error),
    };
    if let Ok(mut nft) = Nft::open() {
        for family in &leftovers.tables {
            let result = has_table(&mut nft, *family);
            let what = table(*family);
            note(format!("{family} {what}"), failed(*family, what, result));
        }
        for (family, purpose) in &leftovers.chains {
            let place = Place::of(*purpose);
            let result = nft.has_chain(table_family(*family), place.table, place.chain);
            let what = chain(place);
            note(format!("{family} {what}"), failed(*family, what, result));
        }
    }
    for (family, purpose) in &leftovers.legacy {
        let place = Place::of(*purpose);
        note(format!("{family} {}", legacy_chain(place)), in_legacy(*family, place));
    }
    (found, errors)
}

fn in_legacy(family: Family, place: &Place) -> Result<bool, TrafficError> {
    let legacy = LegacyTable::read(family, place.table).map_err(|source| TrafficError::Remove {
        family,
        what: legacy_chain(place),
        source: source.into(),
    })?;
    Ok(legacy.is_some_and(|legacy| legacy.mentions(place.chain)))
}

fn table(family: Family) -> String {
    format!("table {}", nftables::table(family))
}

fn chain(place: &Place) -> String {
    format!("chain {} of {}", place.chain, place.table)
}

fn legacy_chain(place: &Place) -> String {
    format!("chain {} of legacy {}", place.chain, place.table)
}

fn failed(
    family: Family,
    what: String,
    result: Result<bool, NftError>,
) -> Result<bool, TrafficError> {
    result.map_err(|source| TrafficError::Remove { family, what, source: source.into() })
}

fn has_table(nft: &mut Nft, family: Family) -> Result<bool, NftError> {
    Ok(nft.table(table_family(family), nftables::table(family))?.is_some())
}

/// Removes the table with all that is in it. Returns whether it was there.
fn remove_table(nft: &mut Nft, family: Family) -> Result<bool, NftError> {
    if !has_table(nft, family)? {
        return Ok(false);
    }
    let mut batch = Batch::new(table_family(family), nftables::table(family));
    batch.delete_table();
    nft.commit(&batch).map(|()| true)
}

/// Removes a chain of the nft variant of iptables with all that is in it and the jumps to it from its base chain. If
/// somebody else's rules jump to it, too, it stays, empty. Returns whether it was there.
fn remove_chain(nft: &mut Nft, family: Family, place: &Place) -> Result<bool, NftError> {
    let family = table_family(family);
    if !nft.has_chain(family, place.table, place.chain)? {
        return Ok(false);
    }
    let mut jumps = nft.rules(family, place.table, place.base)?;
    jumps.retain(|rule| rule.target() == Some(place.chain));
    let removal = |with_chain: bool| {
        let mut batch = Batch::new(family, place.table);
        jumps.iter().for_each(|jump| batch.delete_rule(place.base, jump.handle));
        batch.flush(place.chain);
        if with_chain {
            batch.delete_chain(place.chain);
        }
        batch
    };
    match nft.commit(&removal(true)) {
        Err(error) if error.is_in_use() => nft.commit(&removal(false)),
        other => other,
    }
    .map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{family, guard, node};

    #[test]
    fn the_other_mode_the_other_family_and_the_other_purpose_are_swept() {
        let mut rules = node(Mode::Iptables);
        rules.forward = false;
        let rest = Leftovers::beside(Kind::IptablesNft, &rules.entries());
        assert_eq!(rest.tables, Family::BOTH);
        assert_eq!(rest.chains.len(), 7);
        assert!(!rest.chains.contains(&(Family::V4, Purpose::Masquerade)));
        assert_eq!(rest.legacy.len(), 8);

        let rest = Leftovers::beside(Kind::Nftables, &rules.entries());
        assert_eq!((rest.tables, rest.chains.len(), rest.legacy.len()), (vec![Family::V6], 8, 8));

        rules.v6 = Some(family("fd00:244::/56", "fd00:244:0:1::/64"));
        rules.forward = true;
        [&mut rules.v4, &mut rules.v6].into_iter().flatten().for_each(guard);
        let rest = Leftovers::beside(Kind::IptablesLegacy, &rules.entries());
        assert_eq!((rest.tables.len(), rest.chains.len(), rest.legacy), (2, 8, vec![]));
    }

    #[test]
    fn cleaning_one_mode_leaves_the_other() {
        let nft = Leftovers::of(Some(Mode::Nftables));
        assert_eq!((nft.tables.len(), nft.chains.len(), nft.legacy.len()), (2, 0, 0));
        let iptables = Leftovers::of(Some(Mode::Iptables));
        assert_eq!(
            (iptables.tables.len(), iptables.chains.len(), iptables.legacy.len()),
            (0, 8, 8)
        );
    }
}
