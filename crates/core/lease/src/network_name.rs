//! Names of networks, as they stand in paths, keys and file names.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

const MAX_NAME_BYTES: usize = 64;
/// Keys of the network without a name, beside which the others are in etcd.
const RESERVED_NAMES: [&str; 5] = ["config", "subnets", "v6-subnets", "requests", "answers"];

/// Letters, digits, `-`, `_` and `.`, not `-` or `.` first. The network that has no name is `_`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkName(Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name for a network: use up to 64 letters, digits, '-', '_' and '.', the first one a letter, \
     a digit or '_'; config, subnets, v6-subnets, requests and answers are taken"
)]
pub struct NetworkNameError(String);

impl NetworkName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Flag that makes a `flannelctl` command about this network.
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
    type Err = NetworkNameError;

    fn from_str(text: &str) -> Result<Self, NetworkNameError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if begins
            && text.len() <= MAX_NAME_BYTES
            && text.chars().all(plain)
            && !RESERVED_NAMES.contains(&text)
        {
            Ok(Self(text.into()))
        } else {
            Err(NetworkNameError(text.chars().take(MAX_NAME_BYTES).collect()))
        }
    }
}

impl From<NetworkName> for String {
    fn from(name: NetworkName) -> Self {
        name.as_str().to_owned()
    }
}

impl TryFrom<String> for NetworkName {
    type Error = NetworkNameError;

    fn try_from(name: String) -> Result<Self, NetworkNameError> {
        name.parse()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_stand_in_a_path_a_key_and_a_file_name() {
        for good in ["blue", "_", "9", "a.b-c_D", &"x".repeat(64)] {
            assert_eq!(good.parse::<NetworkName>().map(|name| name.to_string()), Ok(good.into()));
        }
        for bad in ["", ".", "..", "-x", "a/b", "a b", "ü", "a\n", &"x".repeat(65)]
            .into_iter()
            .chain(RESERVED_NAMES)
        {
            let error = bad.parse::<NetworkName>().map_err(|error| error.to_string());
            assert!(error.is_err_and(|said| said.contains("is not a name")), "{bad:?}");
        }
        assert_eq!(NetworkName::default().flag(), "");
    }
}
