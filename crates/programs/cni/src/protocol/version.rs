//! The versions of the protocol that we speak.

use std::fmt;

/// They sort as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(&'static str);

impl Version {
    pub const V010: Self = Self("0.1.0");
    pub const V020: Self = Self("0.2.0");
    pub const V030: Self = Self("0.3.0");
    pub const V031: Self = Self("0.3.1");
    pub const V040: Self = Self("0.4.0");
    pub const V100: Self = Self("1.0.0");
    pub const V110: Self = Self("1.1.0");
    pub const ALL: [Self; 7] =
        [Self::V010, Self::V020, Self::V030, Self::V031, Self::V040, Self::V100, Self::V110];
    pub const LATEST: Self = Self::V110;

    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// A configuration that names no version is one of the first.
    pub fn of_text(text: &str) -> Option<Self> {
        let text = if text.is_empty() { Self::V010.0 } else { text };
        Self::ALL.into_iter().find(|version| version.0 == text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
