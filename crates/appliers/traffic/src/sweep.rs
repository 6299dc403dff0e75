//! Removes what a flannel in another mode, with other families or for another purpose has left.
//!
//! Needs none of the other mode's programs, except for the rules of iptables-legacy.

use flannel_common::{Family, SearchPath};
use flannel_entries::rules::{Mode, Purpose, TrafficRules};
use flannel_nft::{Batch, Nft, NftError, TableFamily};

use crate::TrafficError;
use crate::firewall::Kind;
use crate::iptables::text::{Place, Saved};
use crate::iptables::tool::{Tool, Variant};
use crate::legacy_tables::LegacyTable;
use crate::nftables::{self, table_family};
use crate::process::Machine;

/// Removes every rule of flannel from the network namespace of the calling thread: those of one mode, or
/// of both. Returns what there was, in words. A running daemon would put its rules back: stop it first.
pub fn cleanup(mode: Option<Mode>) -> Result<Vec<String>, TrafficError> {
    if !crate::served_networks::all().is_empty() {
        tracing::warn!("a flannel daemon is running here and will put its rules back");
    }
    let (removed, errors) = sweep(&SearchPath::of_environment(), &Leftover::all_of(mode));
    TrafficError::all(errors).map(|()| removed)
}

/// What [`cleanup`] would remove, in the same words. Changes nothing.
pub fn leftovers(mode: Option<Mode>) -> Result<Vec<String>, TrafficError> {
    found(&Leftover::all_of(mode))
}

/// What of it is there, in words.
pub(crate) fn found(leftovers: &[Leftover]) -> Result<Vec<String>, TrafficError> {
    let (found, errors) = each(leftovers, |leftover, nft| leftover.is_there(nft));
    TrafficError::all(errors).map(|()| found)
}

/// Removes all it can. Returns what that was, in words, and what went wrong.
pub(crate) fn sweep(path: &SearchPath, leftovers: &[Leftover]) -> (Vec<String>, Vec<TrafficError>) {
    each(leftovers, |leftover, nft| {
        let is_there = leftover.is_there(nft)?;
        Ok(is_there && leftover.remove(nft, path)?)
    })
}

/// Those for which `act` is true, in words, and what went wrong.
fn each(
    leftovers: &[Leftover],
    act: impl Fn(Leftover, &mut Option<Nft>) -> Result<bool, TrafficError>,
) -> (Vec<String>, Vec<TrafficError>) {
    // A kernel without nftables has nothing of it.
    let mut nft = Nft::open().ok();
    let (mut words, mut errors) = (Vec::new(), Vec::new());
    for leftover in leftovers {
        match act(*leftover, &mut nft) {
            Ok(true) => words.push(format!("{} {}", leftover.family(), leftover.what())),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    (words, errors)
}

/// What is not, or no longer, wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    Table(Family),
    /// A chain of the nft variant of iptables.
    Chain(Family, Purpose),
    /// A chain of iptables-legacy.
    Legacy(Family, Purpose),
}

impl Leftover {
    /// All that a mode can leave; of every mode, if none is given.
    pub(crate) fn all_of(mode: Option<Mode>) -> Vec<Self> {
        let mut all = Vec::new();
        if mode != Some(Mode::Iptables) {
            all.extend(Family::BOTH.map(Self::Table));
        }
        if mode != Some(Mode::Nftables) {
            for kind in [Self::Chain, Self::Legacy] {
                for family in Family::BOTH {
                    all.extend(Purpose::ALL.map(|purpose| kind(family, purpose)));
                }
            }
        }
        all
    }

    /// All but what these rules are kept in.
    pub(crate) fn beside(kind: Kind, wanted: &[TrafficRules]) -> Vec<Self> {
        let is_unwanted = |leftover: &Self| match (kind, *leftover) {
            (Kind::Nftables, Self::Table(family)) => wanted.iter().all(|it| it.family() != family),
            (Kind::IptablesNft, Self::Chain(family, purpose))
            | (Kind::IptablesLegacy, Self::Legacy(family, purpose)) => {
                wanted.iter().all(|it| (it.family(), it.purpose()) != (family, purpose))
            }
            _ => true,
        };
        let mut rest = Self::all_of(None);
        rest.retain(is_unwanted);
        rest
    }

    fn family(self) -> Family {
        match self {
            Self::Table(family) | Self::Chain(family, _) | Self::Legacy(family, _) => family,
        }
    }

    fn what(self) -> String {
        let chain = |purpose, of| {
            let Place { chain, table, .. } = Place::of(purpose);
            format!("chain {chain} of {of}{table}")
        };
        match self {
            Self::Table(family) => format!("table {}", nftables::table(family)),
            Self::Chain(_, purpose) => chain(purpose, ""),
            Self::Legacy(_, purpose) => chain(purpose, "legacy "),
        }
    }

    fn failed(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TrafficError {
        TrafficError::Remove { family: self.family(), what: self.what(), source: source.into() }
    }

    fn is_there(self, nft: &mut Option<Nft>) -> Result<bool, TrafficError> {
        let of = table_family(self.family());
        let found = match (self, nft) {
            (Self::Table(family), Some(nft)) => {
                nft.table(of, nftables::table(family)).map(|table| table.is_some())
            }
            (Self::Chain(_, purpose), Some(nft)) => {
                let place = Place::of(purpose);
                nft.has_chain(of, place.table, place.chain)
            }
            (Self::Legacy(family, purpose), _) => {
                let place = Place::of(purpose);
                let table = LegacyTable::read(family, place.table);
                let table = table.map_err(|error| self.failed(error))?;
                Ok(table.is_some_and(|table| table.mentions(place.chain)))
            }
            (_, None) => Ok(false),
        };
        found.map_err(|error| self.failed(error))
    }

    /// Returns whether there was something to remove.
    fn remove(self, nft: &mut Option<Nft>, path: &SearchPath) -> Result<bool, TrafficError> {
        let of = table_family(self.family());
        let removed = match (self, nft) {
            (Self::Table(family), Some(nft)) => {
                let mut batch = Batch::new(of, nftables::table(family));
                batch.delete_table();
                nft.commit(&batch)
            }
            (Self::Chain(_, purpose), Some(nft)) => remove_chain(nft, of, Place::of(purpose)),
            (Self::Legacy(family, purpose), _) => {
                return remove_legacy(path, family, Place::of(purpose));
            }
            (_, None) => return Ok(false),
        };
        removed.map(|()| true).map_err(|error| self.failed(error))
    }
}

fn remove_legacy(path: &SearchPath, family: Family, place: &Place) -> Result<bool, TrafficError> {
    let runner = &mut Machine;
    let tool = Tool::find(path, runner, family, Some(Variant::Legacy))
        .ok()
        .filter(|tool| tool.variant == Variant::Legacy)
        .ok_or(TrafficError::NoLegacy { family, table: place.table, chain: place.chain })?;
    let saved = Saved::parse(place, &tool.save(runner, family, place)?);
    let Some(change) = saved.removal(place) else { return Ok(false) };
    tool.restore(runner, &change)?;
    Ok(true)
}

/// Removes a chain of the nft variant of iptables with all that is in it and the jumps to it from its base chain. If
/// somebody else's rules jump to it, too, it stays, empty.
fn remove_chain(nft: &mut Nft, family: TableFamily, place: &Place) -> Result<(), NftError> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{family, guard, node};

    /// The tables, the chains of the nft variant, and those of iptables-legacy.
    fn split(all: Vec<Leftover>) -> (Vec<Family>, Vec<Leftover>, Vec<Leftover>) {
        let table = |leftover: &Leftover| match leftover {
            Leftover::Table(family) => Some(*family),
            _ => None,
        };
        let is_chain = |leftover: &&Leftover| matches!(leftover, Leftover::Chain(..));
        let is_legacy = |leftover: &&Leftover| matches!(leftover, Leftover::Legacy(..));
        (
            all.iter().filter_map(table).collect(),
            all.iter().filter(is_chain).copied().collect(),
            all.iter().filter(is_legacy).copied().collect(),
        )
    }

    #[test]
    fn the_other_mode_the_other_family_and_the_other_purpose_are_swept() {
        let mut rules = node(Mode::Iptables);
        rules.forward = false;
        let (tables, chains, legacy) = split(Leftover::beside(Kind::IptablesNft, &rules.entries()));
        assert_eq!(tables, Family::BOTH);
        assert_eq!(chains.len(), 7);
        assert!(!chains.contains(&Leftover::Chain(Family::V4, Purpose::Masquerade)));
        assert_eq!(legacy.len(), 8);

        let (tables, chains, legacy) = split(Leftover::beside(Kind::Nftables, &rules.entries()));
        assert_eq!((tables, chains.len(), legacy.len()), (vec![Family::V6], 8, 8));

        rules.v6 = Some(family("fd00:244::/56", "fd00:244:0:1::/64"));
        rules.forward = true;
        [&mut rules.v4, &mut rules.v6].into_iter().flatten().for_each(guard);
        let (tables, chains, legacy) =
            split(Leftover::beside(Kind::IptablesLegacy, &rules.entries()));
        assert_eq!((tables.len(), chains.len(), legacy), (2, 8, vec![]));
    }

    #[test]
    fn cleaning_one_mode_leaves_the_other() {
        let (tables, chains, legacy) = split(Leftover::all_of(Some(Mode::Nftables)));
        assert_eq!((tables.len(), chains.len(), legacy.len()), (2, 0, 0));
        let (tables, chains, legacy) = split(Leftover::all_of(Some(Mode::Iptables)));
        assert_eq!((tables.len(), chains.len(), legacy.len()), (0, 8, 8));
    }
}
