//! Refusal of requests that another site makes a browser send, with an operator's certificate or from inside a network
//! that the site cannot reach itself. Browsers say which site a request comes from. A request with a token needs no check:
//! no site can make a browser send a token that it does not know.

use std::net::IpAddr;

use http::header::{ACCEPT_LANGUAGE, CONTENT_TYPE, HOST, HeaderName, ORIGIN, REFERER, USER_AGENT};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode};

use crate::answer::Fault;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Names that a browser may use, beside addresses and `localhost`: a page that rebinds DNS to this machine has another.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerNames(Vec<String>);

impl ServerNames {
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    fn contains(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        if host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let host = host.to_ascii_lowercase();
        self.0.iter().any(|name| match name.strip_prefix("*.") {
            Some(domain) => host.split_once('.').is_some_and(|(_, rest)| rest == domain),
            None => *name == host,
        })
    }
}

/// Refuses a request unless this server's own page, or no page at all, has made it.
pub(crate) fn check_site(head: &Parts, names: &ServerNames, is_tls: bool) -> Result<(), Fault> {
    let host = requested_host(head);
    if let Some(host) = &host
        && is_browsers(&head.headers)
        && !names.contains(host.host())
    {
        let text = format!(
            "this server does not answer to the name {:?}: use its address, or a name in its certificate",
            host.host()
        );
        return Err(Fault::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", text));
    }
    let cross_site = || {
        let text = "the request was made by a page of another site";
        Err(Fault::new(StatusCode::FORBIDDEN, "cross-site", text))
    };
    match text(&head.headers, &FETCH_SITE) {
        // No page can write this header. Beside it a browser may leave out where a form of this server comes from.
        Some("same-origin") => return Ok(()),
        Some("none") | None => {}
        Some(_) if changes(&head.method) => return cross_site(),
        Some(_) => {}
    }
    if let Some(origin) = text(&head.headers, &ORIGIN) {
        let scheme = if is_tls { "https" } else { "http" };
        let own = host.map(|host| format!("{scheme}://{host}"));
        if own.is_none_or(|own| !own.eq_ignore_ascii_case(origin)) {
            return cross_site();
        }
    }
    Ok(())
}

/// Refuses a body that is not JSON. A form of another site can send text, but not JSON.
pub(crate) fn check_content(head: &Parts, has_body: bool) -> Result<(), Fault> {
    if !changes(&head.method) || !has_body {
        return Ok(());
    }
    let kind = text(&head.headers, &CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let text = "the body must be JSON, and say so: content-type: application/json";
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", text))
}

/// Whether a browser has sent it, which no page can hide: browsers send a language. Nodes may use any name.
fn is_browsers(headers: &HeaderMap) -> bool {
    let says_browser = [ORIGIN, FETCH_SITE, REFERER, ACCEPT_LANGUAGE];
    says_browser.iter().any(|name| headers.contains_key(name))
        || text(headers, &USER_AGENT).is_some_and(|agent| agent.starts_with("Mozilla"))
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD)
}

/// Server that the request names; `None` where it names none, which no browser does.
fn requested_host(head: &Parts) -> Option<Authority> {
    let of_header = || text(&head.headers, &HOST)?.parse().ok();
    head.uri.authority().cloned().or_else(of_header)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // A value that is not text matches no name.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/v1/_/config");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn site(method: &str, headers: &[(&str, &str)]) -> bool {
        let names = ServerNames::new(["Leases.example".to_owned(), "*.inside.example".to_owned()]);
        check_site(&head(method, headers), &names, true).is_ok()
    }

    #[test]
    fn a_request_of_another_sites_page_is_refused() {
        let host = ("host", "leases.example:10253");
        for fine in [
            &[host][..],
            &[],
            &[host, ("origin", "https://leases.example:10253")],
            &[host, ("sec-fetch-site", "same-origin")],
            &[host, ("sec-fetch-site", "none")],
            &[host, ("sec-fetch-site", "same-origin"), ("origin", "null")],
        ] {
            assert!(site("PUT", fine), "{fine:?}");
        }
        for bad in [
            &[host, ("origin", "https://evil.example")][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://leases.example:10253")],
            &[host, ("origin", "https://leases.example")],
            &[("origin", "https://leases.example:10253")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
        ] {
            assert!(!site("POST", bad), "{bad:?}");
        }
        assert!(site("GET", &[host, ("sec-fetch-site", "cross-site")]), "a link to the page");
    }

    #[test]
    fn a_page_whose_name_leads_here_is_refused() {
        for host in [
            "192.0.2.1:10253",
            "[2001:db8::1]:10253",
            "127.0.0.1",
            "localhost:1",
            "a.inside.example",
        ] {
            assert!(site("GET", &[("host", host), ("accept-language", "en")]), "{host}");
        }
        for host in [
            "evil.example:10253",
            "leases.example.evil.example",
            "a.b.inside.example",
            "inside.example",
        ] {
            for said in [("accept-language", "en"), ("user-agent", "Mozilla/5.0")] {
                assert!(!site("GET", &[("host", host), said]), "{host}");
            }
            assert!(site("GET", &[("host", host)]), "{host}: a node that uses a name of its own");
        }
    }

    #[test]
    fn a_body_that_a_form_can_send_is_refused() {
        let content = |kind: Option<&str>| {
            let headers: Vec<_> = kind.iter().map(|kind| ("content-type", *kind)).collect();
            check_content(&head("POST", &headers), true).is_ok()
        };
        for fine in ["application/json", "application/json; charset=utf-8", "Application/JSON"] {
            assert!(content(Some(fine)), "{fine}");
        }
        for bad in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "",
        ] {
            assert!(!content(Some(bad)), "{bad}");
        }
        assert!(!content(None));
        assert!(check_content(&head("DELETE", &[]), false).is_ok());
    }
}
