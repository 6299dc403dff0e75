//! What a daemon would do that is started now and wants certain rules. Changes nothing.

use flannel_common::{Family, SearchPath};
use flannel_entries::rules::{RulesKey, TrafficRules};
use flannel_wanted::KeyedEntry as _;

use crate::TrafficError;
use crate::firewall::Wish;
use crate::rule::Keep;
use crate::served_networks::{self, ServedNetworks};
use crate::sweep::{self, Leftover};
use crate::system::{Node, System as _};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Where the rules are kept; `None` if no rules are wanted.
    pub kept_in: Option<String>,
    /// Rules that are not as wanted, and are written.
    pub written: Vec<RulesKey>,
    /// What nobody wants any more and is removed, in words.
    pub removed: Vec<String>,
}

/// Compares the wanted rules with those in the network namespace of the calling thread.
pub fn dry_run(wanted: &[TrafficRules]) -> Result<DryRun, TrafficError> {
    let networks: Vec<_> = wanted.iter().map(|it| it.network).collect();
    let others = served_networks::besides(&networks);
    let (mut kept_in, mut written, mut leftovers) = (None, Vec::new(), Leftover::all_of(None));
    if let Some(first) = wanted.first() {
        let mut node = Node::new(SearchPath::of_environment(), ServedNetworks::default());
        let mut firewall = node.open(first.mode, first.family())?;
        for family in Family::BOTH {
            let of_family = |it: &&TrafficRules| it.family() == family;
            let entries: Vec<_> = wanted.iter().filter(of_family).cloned().collect();
            if entries.is_empty() {
                continue;
            }
            let wish = Wish { entries, keep: Keep::Only(others.clone()) };
            let look = firewall.look(family, &wish)?;
            if let Some((_, error)) = look.unseen.into_iter().find(|(of, _)| !of.is_guard()) {
                return Err(error);
            }
            let differs = |it: &&TrafficRules| look.differing.contains(&it.purpose());
            written.extend(wish.entries.iter().filter(differs).map(TrafficRules::key));
        }
        leftovers = Leftover::beside(firewall.kind(), wanted);
        kept_in = Some(firewall.kind().to_string());
    }
    // Where another daemon runs they may be its own.
    let removed = if others.is_empty() { sweep::found(&leftovers)? } else { Vec::new() };
    Ok(DryRun { kept_in, written, removed })
}
