//! What a daemon would do that is started now and wants certain rules. Changes nothing.

use crate::firewall::Wish;
use crate::programs::SearchPath;
use crate::rule::Keep;
use crate::served_networks::{self, ServedNetworks};
use crate::sweep::{self, Leftovers};
use crate::system::{Node, System as _};
use crate::{Family, Rules, TrafficError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Where the rules are kept; `None` if no rules are wanted.
    pub kept_in: Option<String>,
    /// Families whose rules are not as wanted, and are written.
    pub written: Vec<Family>,
    /// What nobody wants any more and is removed, in words.
    pub removed: Vec<String>,
}

/// Compares the wanted rules with those in the network namespace of the calling thread.
pub fn outlook(rules: Rules) -> Result<Outlook, TrafficError> {
    let rules = rules.checked()?;
    let others = served_networks::besides(&rules.networks());
    let (mut kept_in, mut written, mut leftovers) = (None, Vec::new(), Leftovers::all());
    if !rules.networks().is_empty() {
        let mut node = Node::new(SearchPath::of_environment(), ServedNetworks::default());
        let mut firewall = node.open(&rules)?;
        for family in Family::BOTH {
            let Some(wish) = Wish::of(&rules, family, Keep::Only(others.clone())) else { continue };
            if firewall.look(family, &wish)?.is_some() {
                written.push(family);
            }
        }
        leftovers = Leftovers::beside(firewall.kind(), &rules);
        kept_in = Some(firewall.kind().to_string());
    }
    // Where another daemon runs they may be its own.
    let removed = if others.is_empty() { sweep::found(&leftovers)? } else { Vec::new() };
    Ok(Outlook { kept_in, written, removed })
}
