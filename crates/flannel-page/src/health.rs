//! How a node is, from the worst to the best: in this order what is wrong is shown first.

use flannel_state::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Health {
    NotReady,
    CutOff,
    /// It is ready, and packets to some of its peers do not arrive.
    Unreached,
    /// Its probe port does not answer.
    Silent,
    ReadyBut,
    /// Somebody answers there who does not tell how it is: the Go flannel.
    Mute,
    Unasked,
    Whole,
}

impl Health {
    pub(crate) const ALL: [Self; 8] = [
        Self::NotReady,
        Self::CutOff,
        Self::Unreached,
        Self::Silent,
        Self::ReadyBut,
        Self::Mute,
        Self::Unasked,
        Self::Whole,
    ];

    /// `impaired`: peers that are reached, with a remark.
    pub(crate) fn of(verdict: Verdict, unreached: usize, impaired: usize) -> Self {
        match verdict {
            Verdict::NotReady => Self::NotReady,
            Verdict::CutOff => Self::CutOff,
            _ if unreached > 0 => Self::Unreached,
            _ if impaired > 0 => Self::ReadyBut,
            Verdict::ReadyBut => Self::ReadyBut,
            Verdict::Ready => Self::Whole,
        }
    }

    /// For people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::NotReady => "not ready",
            Self::CutOff => "cut off",
            Self::Unreached => "does not reach all",
            Self::Silent => "does not answer",
            Self::ReadyBut => "whole, but",
            Self::Mute => "says nothing of itself",
            Self::Unasked => "not asked yet",
            Self::Whole => "whole",
        }
    }

    /// Of several nodes.
    pub(crate) fn words_of(self, count: usize) -> &'static str {
        match self {
            _ if count == 1 => self.words(),
            Self::Unreached => "do not reach all",
            Self::Silent => "do not answer",
            Self::Mute => "say nothing of themselves",
            _ => self.words(),
        }
    }

    /// For style sheets and addresses.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::NotReady => "not-ready",
            Self::CutOff => "cut-off",
            Self::Unreached => "unreached",
            Self::Silent => "silent",
            Self::ReadyBut => "but",
            Self::Mute => "mute",
            Self::Unasked => "unasked",
            Self::Whole => "whole",
        }
    }

    pub(crate) fn by_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|health| health.key() == key)
    }

    /// So that it can be told without colour, too.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::NotReady | Self::CutOff => "✕",
            Self::Unreached | Self::Silent => "!",
            Self::ReadyBut => "~",
            Self::Mute | Self::Unasked => "?",
            Self::Whole => "✓",
        }
    }

    /// Whether somebody should look at it.
    pub(crate) fn is_wrong(self) -> bool {
        self <= Self::Silent
    }
}
