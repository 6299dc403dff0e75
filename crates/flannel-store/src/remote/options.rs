//! How to reach a lease server, as the operator says it.

use std::path::PathBuf;

use crate::StoreError;
use crate::etcd::Secret;
use crate::ledger::NetworkName;

/// Where flannel's lease server listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 10_253;

/// The `--remote…` options.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// `host:port`, `http://host:port` or `https://host:port`; the port may be left out.
    pub addresses: Vec<String>,
    pub network: NetworkName,
    /// What the server's certificate is checked against; without it the system's roots, or what the
    /// token says.
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub token: Option<Secret>,
    /// Read at every connection, so that a token can be replaced under a running daemon.
    pub token_file: Option<PathBuf>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
}

impl RemoteOptions {
    /// TLS is used when anything is given that is of no use without it.
    fn wants_tls(&self) -> bool {
        let pinned = self.token.as_ref().is_some_and(|token| pin(token.reveal()).is_some());
        self.ca.is_some() || self.cert.is_some() || self.key.is_some() || pinned
    }

    pub(super) fn endpoints(&self) -> Result<Vec<Endpoint>, StoreError> {
        let wrong =
            |reason: String| StoreError::Misconfigured { option: "remote".to_owned(), reason };
        let endpoints: Vec<Endpoint> = self
            .addresses
            .iter()
            .map(|text| Endpoint::read(text, self.wants_tls()).map_err(wrong))
            .collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(wrong("name at least one server, such as 192.0.2.1:10253".to_owned()));
        }
        Ok(endpoints)
    }
}

impl Endpoint {
    fn read(text: &str, tls: bool) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(("tcp", rest)) => (tls, rest),
            Some((other, _)) => return Err(format!("{other:?} is no scheme: use http or https")),
            None => (tls, text),
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = split_port(rest).ok_or_else(|| {
            format!("{rest:?} is no address: use host:port, such as 192.0.2.1:10253")
        })?;
        if host.is_empty() || host.contains(['/', '@', ' ']) {
            return Err(format!("{rest:?} is no address: use host:port, such as 192.0.2.1:10253"));
        }
        Ok(Self { host: host.to_owned(), port, tls })
    }

    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

/// `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address → host and port.
pub fn split_port(text: &str) -> Option<(&str, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest {
            "" => DEFAULT_PORT,
            rest => rest.strip_prefix(':')?.parse().ok()?,
        };
        return Some((host, port));
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Some((text, DEFAULT_PORT)),
        Some((host, port)) => Some((host, port.parse().ok()?)),
        None => Some((text, DEFAULT_PORT)),
    }
}

/// The fingerprint of the certificate authority that a token made by `flannelctl pki token` carries:
/// `fl1.<SHA-256 in hexadecimal>.<secret>`.
pub(super) fn pin(token: &str) -> Option<[u8; 32]> {
    let rest = token.strip_prefix("fl1.")?;
    let (hex, _) = rest.split_once('.')?;
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut pin = [0; 32];
    for (index, byte) in pin.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(pin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_what_goes_without_saying() {
        for (text, name) in [
            ("192.0.2.1", "http://192.0.2.1:10253"),
            ("node:1", "http://node:1"),
            ("https://node", "https://node:10253"),
            ("tcp://node:7/", "http://node:7"),
            ("[2001:db8::1]:8", "http://[2001:db8::1]:8"),
            ("2001:db8::1", "http://[2001:db8::1]:10253"),
        ] {
            assert_eq!(Endpoint::read(text, false).map(|e| e.name()), Ok(name.to_owned()));
        }
        for text in ["", ":1", "node:port", "ftp://node", "me@node:1", "a/b", "[::1"] {
            assert!(Endpoint::read(text, false).is_err(), "{text:?}");
        }
    }

    #[test]
    fn anything_that_needs_tls_turns_it_on() {
        let options = |change: fn(&mut RemoteOptions)| {
            let mut options =
                RemoteOptions { addresses: vec!["node".to_owned()], ..Default::default() };
            change(&mut options);
            options.endpoints().unwrap()[0].tls
        };
        assert!(!options(|_| {}));
        assert!(!options(|o| o.token = Some(Secret::new("just a token"))));
        assert!(options(|o| o.ca = Some("ca.pem".into())));
        assert!(options(|o| o.token = Some(Secret::new(format!("fl1.{}.x", "ab".repeat(32))))));
    }
}
