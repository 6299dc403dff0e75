//! Credentials for a cloud.

use std::time::SystemTime;

use flannel_entries::cloud::Keys;

#[derive(Clone, Debug)]
pub(crate) struct ExpiringKeys {
    pub(crate) keys: Keys,
    pub(crate) until: Option<SystemTime>,
}

impl ExpiringKeys {
    /// Keys that expire `seconds` after `since`. A time beyond what a clock can show counts as none, so that the
    /// credentials are requested again at the next use.
    pub(crate) fn for_seconds(keys: Keys, seconds: u64, since: SystemTime) -> Self {
        let end = since.checked_add(std::time::Duration::from_secs(seconds));
        Self { keys, until: Some(end.unwrap_or(since)) }
    }

    /// Whether they are valid long enough that a request made now is answered by then.
    pub(crate) fn is_valid(&self, now: SystemTime) -> bool {
        const MARGIN: std::time::Duration = std::time::Duration::from_secs(300);
        self.until.is_none_or(|until| now + MARGIN < until)
    }
}

pub(crate) fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use flannel_common::Secret;

    use super::*;

    #[test]
    fn keys_that_never_expire_do_not_overflow_the_clock() {
        let now = SystemTime::now();
        let keys = || Keys { id: String::new(), secret: Secret::new(""), token: None };
        for since in [now, SystemTime::UNIX_EPOCH] {
            let endless = ExpiringKeys::for_seconds(keys(), u64::MAX, since);
            assert!(!endless.is_valid(now), "{since:?}");
        }
        assert!(ExpiringKeys::for_seconds(keys(), 3600, now).is_valid(now));
        assert!(!ExpiringKeys::for_seconds(keys(), 200, now).is_valid(now));
    }
}
