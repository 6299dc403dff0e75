//! A packet filter that rules are kept in: what `rule_reconciler` needs of `nft` and `iptables` alike.

use std::fmt;

use crate::rule::{Block, Keep, Purpose, Rule};
use crate::{Family, FamilyRules, Rules, TrafficError};

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

/// What one family's rules shall be.
#[derive(Clone, Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) rules: &'a FamilyRules,
    pub(crate) masquerade: bool,
    pub(crate) forward: bool,
    pub(crate) random: bool,
    pub(crate) keep: Keep,
}

impl<'a> Wish<'a> {
    /// What a family's rules shall be, if there are any to keep.
    pub(crate) fn of(rules: &'a Rules, family: Family, keep: Keep) -> Option<Self> {
        Some(Self {
            rules: rules.of(family)?,
            masquerade: rules.masquerade,
            forward: rules.forward,
            random: rules.random_fully,
            keep,
        })
    }

    pub(crate) fn wants(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Masquerade => self.masquerade,
            Purpose::Forward => self.forward,
            Purpose::GuardInput => !self.rules.guard.packets.is_empty(),
            Purpose::GuardForward => {
                self.rules.guard.forgeable && !self.rules.guard.packets.is_empty()
            }
        }
    }

    /// What the chain of this purpose shall hold, given what it holds now.
    pub(crate) fn chain(&self, purpose: Purpose, now: &[Option<Rule>], random: bool) -> Vec<Rule> {
        Block::new(purpose, self.rules, self.random && random).chain(purpose, now, &self.keep)
    }
}

pub(crate) trait Firewall: Send {
    fn kind(&self) -> Kind;

    /// Compares. Returns the one transaction that makes the rules as wished; `None`: they are.
    fn look(&mut self, family: Family, wish: &Wish<'_>) -> Result<Option<String>, TrafficError>;

    fn write(&mut self, family: Family, change: &str) -> Result<(), TrafficError>;

    /// After a failure: whether to look and write again with less of what not every system can.
    fn settle_for_less(&mut self) -> bool {
        false
    }

    /// Whether nothing has changed since the last look, as far as can be said without one.
    fn is_unchanged(&mut self, _family: Family) -> bool {
        false
    }
}
