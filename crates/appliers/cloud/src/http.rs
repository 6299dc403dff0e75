//! One request and its answer. A cloud is asked once a minute, and a signature is valid for one request alone, so no
//! connection is kept that a request might be sent on twice.

use std::time::Duration;

use bytes::Bytes;
use flannel_https::{Limits, Proxies, Server, UrlClient};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Method, Request};
use jiff::Timestamp;
use serde_json::Value;

use crate::{CloudError, Result};

const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Headers of a request, which are never shown: some are secret.
pub(crate) type Headers = Vec<(&'static str, String)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The machine's metadata service: without TLS or a proxy, for its address never leaves the machine.
    Metadata,
    /// The provider's API: nothing is sent to it without encryption.
    Api,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) retry_after: Option<Duration>,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn json(&self, attempt: &str) -> Result<Value> {
        serde_json::from_str(&self.body).map_err(|error| {
            let why = format!("HTTP {}, an unreadable answer: {error}", self.status);
            CloudError::temporary(attempt, &why).with_retry_after(self.retry_after)
        })
    }
}

/// Sends a request to a provider's API. Errors call it by what it attempts.
pub(crate) async fn call_api(
    attempt: &str,
    method: Method,
    url: String,
    headers: Headers,
    body: String,
) -> Result<Answer> {
    let answer = send(method, url, headers, body, Destination::Api).await;
    answer.map_err(|why| CloudError::temporary(attempt, &why))
}

pub(crate) async fn send(
    method: Method,
    url: String,
    headers: Headers,
    body: String,
    to: Destination,
) -> Result<Answer, String> {
    let server =
        Server::parse(&url).ok_or_else(|| format!("{url:?} is not the URL of a server"))?;
    if to == Destination::Api && !server.tls && !server.is_loopback() {
        return Err(format!(
            "{server}: nothing is sent to another machine without TLS: use https://"
        ));
    }
    // A metadata service is on the machine's own host.
    let limit = Duration::from_secs(if to == Destination::Metadata { 5 } else { 30 });
    let limits = Limits { connect: limit, answer: limit, body: limit, largest: MAX_ANSWER_BYTES };
    let mut web = UrlClient::new(limits)?;
    if to == Destination::Metadata {
        web = web.with_proxies(Proxies::default());
    }
    let mut request = Request::builder().method(method).uri(&url);
    for (name, value) in headers {
        let wrong = |_| format!("the header {name} would hold what cannot be sent");
        let mut value = HeaderValue::try_from(value).map_err(wrong)?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    let request = request.body(Bytes::from(body)).map_err(|error| error.to_string())?;
    let response = web.request(request).await?;
    let status = response.status().as_u16();
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = header.and_then(|text| wait(text, Timestamp::now()));
    let body = String::from_utf8(response.into_body().into());
    Ok(Answer { status, body: body.map_err(|_| "the answer is not text".to_owned())?, retry_after })
}

/// Reads `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3).
fn wait(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_in_seconds_or_by_a_date_when_to_ask_again() {
        let now: Timestamp = "2015-10-21T07:27:00Z".parse().expect("a time");
        let seconds = |text| wait(text, now).map(|wait| wait.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:28:00 GMT"), Some(60));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:00:00 GMT"), Some(0), "that is over");
        assert_eq!(seconds("soon"), None);
    }
}
