//! Health of a node, from the worst to the best: in this order problems are shown.

use flannel_state::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Health {
    NotReady,
    CutOff,
    /// The node is ready, and packets to some of its peers do not arrive.
    Unreached,
    /// Its probe port does not answer.
    Silent,
    Warnings,
    /// Its probe port answers, but not with its state: the Go flannel.
    NoState,
    Unasked,
    Healthy,
}

impl Health {
    pub(crate) const ALL: [Self; 8] = [
        Self::NotReady,
        Self::CutOff,
        Self::Unreached,
        Self::Silent,
        Self::Warnings,
        Self::NoState,
        Self::Unasked,
        Self::Healthy,
    ];

    /// Health of a node. `impaired` counts peers that are reached, with a remark.
    pub(crate) fn of(verdict: Verdict, unreached: usize, impaired: usize) -> Self {
        match verdict {
            Verdict::NotReady => Self::NotReady,
            Verdict::CutOff => Self::CutOff,
            _ if unreached > 0 => Self::Unreached,
            _ if impaired > 0 => Self::Warnings,
            Verdict::ReadyBut => Self::Warnings,
            Verdict::Ready => Self::Healthy,
        }
    }

    /// Words for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::NotReady => "not ready",
            Self::CutOff => "cut off",
            Self::Unreached => "does not reach all",
            Self::Silent => "does not answer",
            Self::Warnings => "healthy, with warnings",
            Self::NoState => "reports no state",
            Self::Unasked => "not asked yet",
            Self::Healthy => "healthy",
        }
    }

    /// Words for several nodes.
    pub(crate) fn words_of(self, count: usize) -> &'static str {
        match self {
            _ if count == 1 => self.words(),
            Self::Unreached => "do not reach all",
            Self::Silent => "do not answer",
            Self::NoState => "report no state",
            _ => self.words(),
        }
    }

    /// Key in style sheets and addresses.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::NotReady => "not-ready",
            Self::CutOff => "cut-off",
            Self::Unreached => "unreached",
            Self::Silent => "silent",
            Self::Warnings => "but",
            Self::NoState => "mute",
            Self::Unasked => "unasked",
            Self::Healthy => "whole",
        }
    }

    pub(crate) fn by_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|health| health.key() == key)
    }

    /// Sign that tells states apart without colour.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::NotReady | Self::CutOff => "✕",
            Self::Unreached | Self::Silent => "!",
            Self::Warnings => "~",
            Self::NoState | Self::Unasked => "?",
            Self::Healthy => "✓",
        }
    }

    /// Whether somebody should look at it.
    pub(crate) fn is_wrong(self) -> bool {
        self <= Self::Silent
    }
}
