//! Texts that must not be printed.

use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

const HIDDEN: &str = "<secret>";

/// A text that is not shown in logs, errors or `{:?}`, compared in constant time, and overwritten when dropped.
#[derive(Clone)]
pub struct Secret(String);

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Removes the secret from a text that may contain it.
    pub fn hide_in(&self, text: &str) -> String {
        let secret = self.0.trim();
        // Anything that short occurs in many texts, and hides nothing.
        if secret.len() < 4 { text.to_owned() } else { text.replace(secret, HIDDEN) }
    }

    /// The text itself, for the place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shows_itself_to_nobody_but_who_asks_for_it() {
        let secret = Secret::new("hunter2");
        assert_eq!(secret.hide_in("a hunter2, or two"), "a <secret>, or two");
        assert_eq!(Secret::new("a").hide_in("as it is"), "as it is");
        assert!(secret == Secret::new("hunter2") && secret != Secret::new("hunter3"));
        assert_eq!((format!("{secret:?}").as_str(), secret.reveal()), ("<secret>", "hunter2"));
    }
}
