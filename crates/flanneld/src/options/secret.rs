//! A value that must reach its one user and nobody's log.

use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Nothing when `text` is empty.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The value itself; call it where it is handed over, not before.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_tells_that_there_is_a_secret_but_not_which() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {secret:#?}").matches("redacted").count(), 2);
        assert!(!format!("{secret:?} {secret:#?}").contains("hunter2"));
        assert_eq!(secret.as_ref().map(Secret::reveal), Some("hunter2"));
        assert_eq!(Secret::new(""), None);
    }
}
