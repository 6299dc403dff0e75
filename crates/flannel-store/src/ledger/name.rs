//! Names of networks, as they stand in paths, keys and file names.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const LONGEST: usize = 64;
/// What the network without a name keeps beside the others in etcd.
const TAKEN: [&str; 3] = ["config", "subnets", "v6-subnets"];

/// Letters, digits, `-`, `_` and `.`, beginning with a letter, a digit or `_`. The network that has
/// no name is `_`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkName(Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of a network: use up to 64 letters, digits, '-', '_' and '.', the first one a letter, \
     a digit or '_'; config, subnets and v6-subnets are taken"
)]
pub struct BadName(String);

impl NetworkName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is added to a `flannelctl` command so that it is about this network.
    pub fn flag(&self) -> String {
        if self.is_default() { String::new() } else { format!(" --networks={self}") }
    }

    pub fn is_default(&self) -> bool {
        &*self.0 == "_"
    }
}

impl Default for NetworkName {
    fn default() -> Self {
        Self("_".into())
    }
}

impl FromStr for NetworkName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if begins && text.len() <= LONGEST && text.chars().all(plain) && !TAKEN.contains(&text) {
            Ok(Self(text.into()))
        } else {
            Err(BadName(text.chars().take(LONGEST).collect()))
        }
    }
}

impl Borrow<str> for NetworkName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
