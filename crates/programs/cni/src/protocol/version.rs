//! The versions of the protocol that we speak.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V010,
    V020,
    V030,
    V031,
    V040,
    V100,
    V110,
}

use Version::*;

impl Version {
    pub const ALL: [Self; 7] = [V010, V020, V030, V031, V040, V100, V110];
    pub const LATEST: Self = V110;

    pub fn as_str(self) -> &'static str {
        match self {
            V010 => "0.1.0",
            V020 => "0.2.0",
            V030 => "0.3.0",
            V031 => "0.3.1",
            V040 => "0.4.0",
            V100 => "1.0.0",
            V110 => "1.1.0",
        }
    }

    /// A configuration that names no version is one of the first.
    pub fn of_text(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(V010);
        }
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
