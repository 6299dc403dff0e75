//! Who we are to a cloud.

use std::time::SystemTime;

use flannel_common::Secret;

/// A pair of keys, for good or for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub id: String,
    pub secret: Secret,
    /// Goes with keys that were lent.
    pub token: Option<Secret>,
}

/// Keys or a bearer's token, and until when.
#[derive(Clone, Debug)]
pub(crate) struct Lent<T> {
    pub(crate) what: T,
    pub(crate) until: Option<SystemTime>,
}

impl<T> Lent<T> {
    pub(crate) fn for_good(what: T) -> Self {
        Self { what, until: None }
    }

    /// For a time that a server has said in seconds, counted from `since`. A time beyond what a clock can show
    /// counts as none, so that the credentials are asked for again at the next use.
    pub(crate) fn for_seconds(what: T, seconds: u64, since: SystemTime) -> Self {
        let end = since.checked_add(std::time::Duration::from_secs(seconds));
        Self { what, until: Some(end.unwrap_or(since)) }
    }

    /// Whether it can be used for so much longer that a request made now is answered by then.
    pub(crate) fn lasts(&self, now: SystemTime) -> bool {
        const SPARE: std::time::Duration = std::time::Duration::from_secs(300);
        self.until.is_none_or(|until| now + SPARE < until)
    }
}

/// The value of the first of these variables that has one.
pub(crate) fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

/// Keys from the environment: both, or none.
pub(crate) fn keys_of_environment(id: &[&str], secret: &[&str], token: &[&str]) -> Option<Keys> {
    Some(Keys {
        id: variable(id)?.trim().to_owned(),
        secret: Secret::new(variable(secret)?.trim()),
        token: variable(token).map(|token| Secret::new(token.trim())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_lends_for_ever_does_not_overflow_the_clock() {
        let now = SystemTime::now();
        for since in [now, SystemTime::UNIX_EPOCH] {
            let lent = Lent::for_seconds((), u64::MAX, since);
            assert!(!lent.lasts(now), "{since:?}");
        }
        assert!(Lent::for_seconds((), 3600, now).lasts(now));
        assert!(!Lent::for_seconds((), 200, now).lasts(now));
    }
}
