//! A packet filter that rules are kept in: what `rule_reconciler` needs of nftables and iptables alike.

use std::fmt;

use flannel_common::Family;
use flannel_entries::rules::{Purpose, TrafficRules};

use crate::TrafficError;
use crate::rule::{Block, Keep, Rule};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nftables,
    /// iptables on top of nftables: the kernel announces its changes.
    IptablesNft,
    /// iptables of old: its changes must be looked for.
    IptablesLegacy,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::IptablesNft => "iptables",
            Self::IptablesLegacy => "iptables-legacy",
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) entries: Vec<TrafficRules>,
    pub(crate) keep: Keep,
}

impl Wish {
    pub(crate) fn entry(&self, purpose: Purpose) -> Option<&TrafficRules> {
        self.entries.iter().find(|entry| entry.purpose() == purpose)
    }

    /// What the chain shall hold, given what it holds. `can_randomise`: whether ports can be random.
    pub(crate) fn chain(
        &self,
        purpose: Purpose,
        now: &[Option<Rule>],
        can_randomise: bool,
    ) -> Option<Vec<Rule>> {
        let block = Block::new(self.entry(purpose)?, can_randomise);
        Some(block.chain(purpose, now, &self.keep))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) differing: Vec<Purpose>,
    /// Purposes whose rules cannot be seen, and why.
    pub(crate) unseen: Vec<(Purpose, TrafficError)>,
    /// Whether there are chains for purposes that are not wanted, which every write removes.
    pub(crate) has_strays: bool,
}

pub(crate) trait Firewall: Send {
    fn kind(&self) -> Kind;

    /// Compares, and keeps what [`Self::write`] needs.
    fn look(&mut self, family: Family, wish: &Wish) -> Result<Look, TrafficError>;

    /// Makes the rules for these purposes as wished at the last look, in one transaction.
    fn write(&mut self, family: Family, purposes: &[Purpose]) -> Result<(), TrafficError>;

    /// Whether nothing has changed since the last look, as far as can be said without one.
    fn is_unchanged(&mut self, _family: Family) -> bool {
        false
    }
}
