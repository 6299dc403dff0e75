//! Sessions of browsers. An operator's token is sent once, in a form, and stays in this process, where each request has
//! it checked; the browser gets a cookie with a random number, since scripts could read a token that it kept.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flannel_common::{Secret, hex, random_bytes};
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// Validity of a session: a working day; then the form is shown again.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// Number of sessions; beyond it the oldest one is forgotten.
const MAX_SESSIONS: usize = 256;

/// Name of the token in the form, and in the address that `flannelctl page` prints.
pub(crate) const KEY: &str = "token";

pub(crate) struct Sessions {
    /// Name of the cookie. Cookies do not know ports, and two pages may be served by one machine.
    name: String,
    known: Mutex<HashMap<String, (Secret, Instant)>>,
}

impl Default for Sessions {
    fn default() -> Self {
        let name = format!("flannel-page-{}", random::<4>().unwrap_or_default());
        Self { name, known: Mutex::default() }
    }
}

impl Sessions {
    /// Cookie for a browser that has shown this token; `None` if the system has no randomness.
    pub(crate) fn begin(&self, token: &str, is_tls: bool, now: Instant) -> Option<HeaderValue> {
        let id = random::<32>()?;
        let mut sessions = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, (_, since)| now.saturating_duration_since(*since) < SESSION_LIFETIME);
        if sessions.len() >= MAX_SESSIONS
            && let Some(oldest) = sessions.iter().min_by_key(|(_, (_, since))| *since)
        {
            let oldest = oldest.0.clone();
            sessions.remove(&oldest);
        }
        let secure = if is_tls { "; Secure" } else { "" };
        let cookie = format!("{}={id}; Path=/; HttpOnly; SameSite=Strict{secure}", self.name);
        sessions.insert(id, (Secret::new(token.to_owned()), now));
        HeaderValue::try_from(cookie).ok()
    }

    pub(crate) fn token(&self, headers: &HeaderMap, now: Instant) -> Option<Secret> {
        let sessions = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, since) = sessions.get(self.id(headers)?)?;
        (now.saturating_duration_since(*since) < SESSION_LIFETIME).then(|| token.clone())
    }

    /// Ends a session: the cookie that replaces the session's.
    pub(crate) fn end(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(id) = self.id(headers) {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        }
        let cookie = format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", self.name);
        HeaderValue::try_from(cookie).unwrap_or(HeaderValue::from_static(""))
    }

    fn id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        cookies
            .flat_map(|text| text.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find_map(|(name, value)| (name == self.name).then_some(value))
    }
}

pub(crate) fn random<const BYTES: usize>() -> Option<String> {
    random_bytes::<BYTES>().ok().map(|bytes| hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(cookie: &HeaderValue) -> HeaderMap {
        let text = cookie.to_str().expect("text");
        let pair = text.split(';').next().expect("a pair").to_owned();
        HeaderMap::from_iter([(COOKIE, format!("other=1; {pair}").parse().expect("a header"))])
    }

    #[test]
    fn a_browser_is_known_by_its_cookie_until_its_day_is_over() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let cookie = sessions.begin("secret", true, now).expect("a cookie");
        let text = cookie.to_str().expect("text");
        assert!(!text.contains("secret"), "the token is not in it");
        for part in ["HttpOnly", "SameSite=Strict", "Secure", "Path=/"] {
            assert!(text.contains(part), "{text}");
        }
        let token =
            |headers: &HeaderMap, at| sessions.token(headers, at).map(|t| t.reveal().to_owned());
        assert_eq!(token(&sent(&cookie), now).as_deref(), Some("secret"));
        assert_eq!(token(&sent(&cookie), now + SESSION_LIFETIME), None);
        assert_eq!(token(&HeaderMap::new(), now), None);
        sessions.end(&sent(&cookie));
        assert_eq!(token(&sent(&cookie), now), None, "it has left");
    }

    #[test]
    fn browsers_that_are_remembered_are_bounded() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let first = sessions.begin("t", false, now).expect("a cookie");
        for number in 1..=MAX_SESSIONS as u64 {
            sessions.begin("t", false, now + Duration::from_millis(number)).expect("a cookie");
        }
        assert!(sessions.token(&sent(&first), now).is_none(), "the first is forgotten");
        assert!(sessions.known.lock().expect("no panic").len() <= MAX_SESSIONS);
    }
}
