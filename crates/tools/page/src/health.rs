//! Health of a node, from the worst to the best: in this order problems are shown.

use flannel_state::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Health {
    NotReady,
    CutOff,
    /// The node is ready, and packets to some of its peers do not arrive.
    Unreached,
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

    /// Key in style sheets and addresses, a sign that needs no colour, words for one node and for several.
    fn looks(self) -> [&'static str; 4] {
        match self {
            Self::NotReady => ["not-ready", "✕", "not ready", "not ready"],
            Self::CutOff => ["cut-off", "✕", "cut off", "cut off"],
            Self::Unreached => ["unreached", "!", "does not reach all", "do not reach all"],
            Self::Silent => ["silent", "!", "does not answer", "do not answer"],
            Self::Warnings => ["but", "~", "healthy, with warnings", "healthy, with warnings"],
            Self::NoState => ["mute", "?", "reports no state", "report no state"],
            Self::Unasked => ["unasked", "?", "not asked yet", "not asked yet"],
            Self::Healthy => ["whole", "✓", "healthy", "healthy"],
        }
    }

    pub(crate) fn key(self) -> &'static str {
        self.looks()[0]
    }

    pub(crate) fn sign(self) -> &'static str {
        self.looks()[1]
    }

    pub(crate) fn words_of(self, count: usize) -> &'static str {
        self.looks()[if count == 1 { 2 } else { 3 }]
    }

    pub(crate) fn by_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|health| health.key() == key)
    }

    pub(crate) fn is_wrong(self) -> bool {
        self <= Self::Silent
    }
}
