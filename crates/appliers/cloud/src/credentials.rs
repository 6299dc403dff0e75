//! Credentials for a cloud.

use std::time::SystemTime;

use flannel_common::Secret;
use flannel_entries::cloud::Keys;
use serde::Deserialize;

use crate::CloudError;
use crate::metadata::Metadata;

/// Keys, and the time when they expire.
#[derive(Clone, Debug)]
pub(crate) struct ExpiringKeys {
    pub(crate) keys: Keys,
    pub(crate) until: Option<SystemTime>,
}

impl ExpiringKeys {
    pub(crate) fn permanent(keys: Keys) -> Self {
        Self { keys, until: None }
    }

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

/// Value of the first of these variables that has one.
pub(crate) fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

/// Keys of a role, as the metadata services of several providers give them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RoleKeys {
    code: Option<String>,
    #[serde(alias = "TmpSecretId")]
    access_key_id: Option<String>,
    #[serde(alias = "AccessKeySecret", alias = "TmpSecretKey")]
    secret_access_key: Option<String>,
    #[serde(alias = "SecurityToken")]
    token: Option<String>,
    expiration: Option<String>,
    /// Seconds since 1970.
    expired_time: Option<u64>,
}

/// Keys of the machine's role, which its metadata service names at the path `roles`.
pub(crate) async fn keys_of_role(
    service: &Metadata,
    roles: &str,
    kind: &str,
    wrong: impl Fn(&str) -> CloudError,
) -> Result<ExpiringKeys, CloudError> {
    let names = service.find(roles).await?.unwrap_or_default();
    let role = names.lines().map(str::trim).find(|role| !role.is_empty());
    let role = role.ok_or_else(|| {
        wrong(&format!("the instance has no {kind}, and the environment has no keys"))
    })?;
    let text = service.get(&format!("{roles}{role}")).await?;
    // An answer that holds a key is never shown.
    let unreadable = || wrong(&format!("the metadata service gives no keys for the role {role}"));
    let found: RoleKeys = serde_json::from_str(&text).map_err(|_| unreadable())?;
    if let Some(code) = found.code.filter(|code| code != "Success") {
        return Err(wrong(&format!("the metadata service answers {code:?} for the role {role}")));
    }
    let (Some(id), Some(secret)) = (found.access_key_id, found.secret_access_key) else {
        return Err(unreadable());
    };
    let keys = Keys { id, secret: Secret::new(secret), token: found.token.map(Secret::new) };
    if let Some(at) = found.expired_time {
        return Ok(ExpiringKeys::for_seconds(keys, at, SystemTime::UNIX_EPOCH));
    }
    let until = found.expiration.and_then(|at| at.parse::<jiff::Timestamp>().ok());
    Ok(ExpiringKeys { keys, until: until.map(Into::into) })
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
