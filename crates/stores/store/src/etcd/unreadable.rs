//! Keys and values that cannot be read, each logged once. A lease keeps the attributes it had before.

use std::collections::BTreeMap;
use std::fmt::Display;

use flannel_lease::LeaseAttrs;

/// Most keys that are remembered, so that a faulty writer cannot fill our memory.
const MAX_KEYS: usize = 1_000;
/// Most bytes of a key that are kept; no lease has a longer one.
const MAX_KEY_BYTES: usize = 256;
/// Most bytes of a key that are logged.
const MAX_SHOWN_BYTES: usize = 120;

#[derive(Debug, Default)]
pub(super) struct Unreadable {
    keys: BTreeMap<Box<[u8]>, Option<LeaseAttrs>>,
    logged_overflow: bool,
}

impl Unreadable {
    /// Logs the first time. `last_good` is what the key's value was when it could be read.
    pub(super) fn note(&mut self, key: &[u8], why: impl Display, last_good: Option<LeaseAttrs>) {
        let key = beginning(key);
        if let Some(known) = self.keys.get_mut(key) {
            *known = known.take().or(last_good);
        } else if self.keys.len() < MAX_KEYS {
            let shown = String::from_utf8_lossy(key);
            let shown = flannel_common::shorten(&shown, MAX_SHOWN_BYTES);
            let kept = last_good.is_some();
            tracing::warn!(
                key = %shown,
                %why,
                kept,
                "skipping a key of etcd that cannot be read: delete it, or restart flanneld on its node"
            );
            self.keys.insert(key.into(), last_good);
        } else if !self.logged_overflow {
            self.logged_overflow = true;
            tracing::warn!(
                "more than {MAX_KEYS} keys of etcd cannot be read: further ones are skipped without a message"
            );
        }
    }

    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.keys.contains_key(beginning(key))
    }

    pub(super) fn last_good(&self, key: &[u8]) -> Option<&LeaseAttrs> {
        self.keys.get(beginning(key))?.as_ref()
    }

    /// The key is readable again, or gone.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.keys.remove(beginning(key));
    }
}

fn beginning(key: &[u8]) -> &[u8] {
    key.get(..MAX_KEY_BYTES).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs(ip: &str) -> LeaseAttrs {
        LeaseAttrs { public_ip: Some(ip.parse().unwrap()), ..LeaseAttrs::default() }
    }

    #[test]
    fn the_last_good_attributes_stay_while_the_value_is_bad() {
        let mut unreadable = Unreadable::default();
        unreadable.note(b"k", "bad", Some(attrs("1.2.3.4")));
        unreadable.note(b"k", "worse", None);
        assert_eq!(unreadable.last_good(b"k"), Some(&attrs("1.2.3.4")));
        unreadable.forget(b"k");
        assert!(!unreadable.knows(b"k"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut unreadable = Unreadable::default();
        for n in 0..3 * MAX_KEYS {
            unreadable.note(n.to_string().as_bytes(), "bad", None);
        }
        assert_eq!(unreadable.keys.len(), MAX_KEYS);
        let mut unreadable = Unreadable::default();
        unreadable.note(&[b'x'; 1 << 20], "bad", None);
        assert!(unreadable.knows(&[b'x'; 1 << 20]), "it is told once");
        assert_eq!(unreadable.keys.keys().map(|key| key.len()).max(), Some(MAX_KEY_BYTES));
    }
}
