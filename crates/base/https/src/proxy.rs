//! Proxies of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` in the environment, read as Go programs read them.

use std::fmt;
use std::net::IpAddr;

use bytes::Bytes;
use flannel_common::{Secret, TcpStream};
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{Method, Request, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

use crate::server::{Server, authority};
use crate::target::basic;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    user: Option<(String, Secret)>,
}

impl Proxy {
    /// Reads `http://user:password@host:port`, scheme and user optional. The error shows no password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shown = text.rsplit('@').next().unwrap_or_default();
        let wrong = || format!("{shown:?} is not a proxy: use http://host:port");
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let (scheme, rest) = full.split_once("://").ok_or_else(wrong)?;
        if scheme != "http" {
            return Err(format!(
                "the proxy {shown:?} uses {scheme}, which flannel does not support: use one with http://"
            ));
        }
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| wrong())?;
        let Server { host, port, .. } = Server::of(&uri).ok_or_else(wrong)?;
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (unescape(name), Secret::new(unescape(password)))
        });
        Ok(Self { host, port, user })
    }

    pub(crate) fn authorization(&self) -> Option<String> {
        self.user.as_ref().map(|(name, password)| basic(name, password))
    }

    pub(crate) async fn tunnel(&self, tcp: TcpStream, server: &str) -> Result<TcpStream, String> {
        let told = |error: hyper::Error| error.to_string();
        let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(told)?;
        let request = Request::builder().method(Method::CONNECT).uri(server).header(HOST, server);
        let authorization = self.authorization().into_iter();
        let request = authorization.fold(request, |it, text| it.header(PROXY_AUTHORIZATION, text));
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
        // The connection ends by itself after a refusal, once nobody can send on it any more.
        let answer = async move { sender.send_request(request).await.map(|it| it.status()) };
        let (status, parts) = tokio::join!(answer, connection.without_shutdown());
        let status = status.map_err(told)?;
        if !status.is_success() {
            return Err(format!("it does not let us through to {server}: {status}"));
        }
        Ok(parts.map_err(told)?.io.into_inner())
    }
}

/// Leaves out user and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&authority(&self.host, self.port))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Proxies {
    https: Option<Proxy>,
    http: Option<Proxy>,
    not_for: Vec<String>,
}

impl Proxies {
    /// Reads the environment through `variable`. The error names the variable.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let given = |name: &str| {
            let text = variable(name).or_else(|| variable(&name.to_ascii_lowercase()));
            text.filter(|text| !text.is_empty())
        };
        let proxy = |name: &str| {
            let parsed = given(name).map(|text| Proxy::parse(&text)).transpose();
            parsed.map_err(|why| format!("{name}: {why}"))
        };
        let not_for = given("NO_PROXY").unwrap_or_default();
        let not_for = not_for.split(',').map(|part| part.trim().to_ascii_lowercase());
        Ok(Self {
            https: proxy("HTTPS_PROXY")?,
            http: proxy("HTTP_PROXY")?,
            not_for: not_for.filter(|part| !part.is_empty()).collect(),
        })
    }

    /// Proxy for a server; `None` if it is asked directly.
    pub fn way_to(&self, server: &Server) -> Option<&Proxy> {
        let proxy = if server.tls { self.https.as_ref() } else { self.http.as_ref() };
        proxy.filter(|_| !server.is_loopback())?;
        let host = server.host.to_ascii_lowercase();
        let is_direct = |part: &String| is_meant(part, &host, server.port);
        if self.not_for.iter().any(is_direct) { None } else { proxy }
    }
}

/// Whether an entry of `NO_PROXY` applies to a host: `*`, an address, a network, or a name with everything below it;
/// a name that begins with a dot does not apply to itself. A port at its end limits it to that port.
fn is_meant(part: &str, host: &str, port: u16) -> bool {
    if part == "*" {
        return true;
    }
    let address: Option<IpAddr> = host.parse().ok();
    if let Ok(net) = part.parse::<IpNet>() {
        return address.is_some_and(|address| net.contains(&address));
    }
    let (name, of_port) = match part.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') || name.ends_with(']') => {
            (name, digits.parse::<u16>().ok())
        }
        _ => (part, None),
    };
    if of_port.is_some_and(|of_port| of_port != port) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(meant) = name.parse::<IpAddr>() {
        return address == Some(meant);
    }
    let name = name.strip_prefix('*').unwrap_or(name);
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

/// Decodes percent-encoding, such as `%40` for `@`.
fn unescape(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(no_proxy: &'static str) -> Proxies {
        Proxies::from_environment(move |name| match name {
            "HTTPS_PROXY" => Some("http://us%65r:p%40ss@proxy.example:3128".to_owned()),
            "http_proxy" => Some("192.0.2.9:8080".to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        })
        .unwrap()
    }

    fn way_to(no_proxy: &'static str, url: &str) -> Option<String> {
        let server = Server::parse(url).unwrap();
        proxies(no_proxy).way_to(&server).map(ToString::to_string)
    }

    #[test]
    fn the_environment_says_which_proxy_is_for_which_scheme() {
        assert_eq!(way_to("", "https://a.example").as_deref(), Some("proxy.example:3128"));
        assert_eq!(way_to("", "http://a.example").as_deref(), Some("192.0.2.9:8080"));
        let proxy = proxies("").https.unwrap();
        assert_eq!(proxy.authorization().as_deref(), Some("Basic dXNlcjpwQHNz"), "user:p@ss");
        assert!(!format!("{proxy} {proxy:?}").contains("p@ss"));
    }

    #[test]
    fn no_proxy_says_who_is_asked_directly() {
        for (no_proxy, url) in [
            ("", "https://localhost:1"),
            ("", "https://127.0.0.1:1"),
            ("", "https://[::1]:1"),
            ("*", "https://a.example"),
            ("b.example, a.example", "https://A.example"),
            ("example", "https://a.example"),
            (".example", "https://a.example"),
            ("*.example", "https://a.example"),
            ("a.example:443", "https://a.example"),
            ("10.96.0.0/12", "https://10.96.0.1"),
            ("10.96.0.1", "https://10.96.0.1"),
            ("fd00::/8", "https://[fd00::1]"),
            ("fd00::1", "https://[fd00::1]"),
            ("[fd00::1]:443", "https://[fd00::1]"),
        ] {
            assert_eq!(way_to(no_proxy, url), None, "{no_proxy} {url}");
        }
        for (no_proxy, url) in [
            (".a.example", "https://a.example"),
            ("a.example:444", "https://a.example"),
            ("xample", "https://a.example"),
            ("10.96.0.0/12", "https://10.1.0.1"),
            ("10.96.0.1", "https://10.96.0.10"),
            ("fd00::1", "https://[fd00::2]"),
        ] {
            assert!(way_to(no_proxy, url).is_some(), "{no_proxy} {url}");
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
        for url in ["socks5://me:secret@proxy:1", "https://me:secret@proxy", "http://me:secret@:x"]
        {
            let variable = |name: &str| (name == "HTTPS_PROXY").then(|| url.to_owned());
            let error = Proxies::from_environment(variable).unwrap_err();
            assert!(error.contains("HTTPS_PROXY") && error.contains("http://"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
