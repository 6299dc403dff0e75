//! Address of a server.

use std::fmt;
use std::net::IpAddr;

use http::Uri;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    pub port: u16,
    pub tls: bool,
    /// Prefix of every path; empty, unless the server is behind another.
    pub base: String,
}

impl Server {
    /// Reads `http[s]://host:port/base`. The caller reports what is wrong: the text may hold a secret.
    pub fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        Self::of(&uri).map(|server| {
            let base = uri.path().trim_end_matches('/').to_owned();
            Self { base, ..server }
        })
    }

    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Some(Self { host, port, tls, base: String::new() })
    }

    /// `host:port`, as in the header `Host`.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    /// Whether the host as written is loopback; what a name resolves to is seen when connecting.
    pub fn is_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>().map(|ip| ip.to_canonical().is_loopback());
        address.unwrap_or(self.host.eq_ignore_ascii_case("localhost"))
    }
}

pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Leaves out the base: it names the machine.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_read_from_its_url() {
        let server = |host: &str, port, tls, base: &str| Server {
            host: host.to_owned(),
            port,
            tls,
            base: base.to_owned(),
        };
        for (url, expected) in [
            ("https://192.0.2.1:6443", server("192.0.2.1", 6443, true, "")),
            ("https://example.com", server("example.com", 443, true, "")),
            ("https://[fd00::1]:6443/", server("fd00::1", 6443, true, "")),
            ("http://127.0.0.1:8080", server("127.0.0.1", 8080, false, "")),
            ("http://example.com", server("example.com", 80, false, "")),
            ("https://r.example/clusters/c-1/", server("r.example", 443, true, "/clusters/c-1")),
        ] {
            assert_eq!(Server::parse(url), Some(expected), "{url}");
        }
        for url in ["", "example.com", "https://", "ftp://example.com", "https://exa mple.com"] {
            assert_eq!(Server::parse(url), None, "{url}");
        }
    }

    #[test]
    fn it_names_itself_as_it_is_written_in_a_url() {
        for name in ["https://[fd00::1]:6443", "http://example.com:80"] {
            assert_eq!(Server::parse(name).map(|server| server.to_string()), Some(name.to_owned()));
        }
    }
}
