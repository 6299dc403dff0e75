//! Options of the connection to a lease server.

use std::path::PathBuf;

use flannel_https::Server;
use flannel_lease::NetworkName;

use super::token;
use crate::StoreError;
use crate::etcd::Secret;

pub const DEFAULT_PORT: u16 = 10_253;

#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// `host:port`, `http://host:port` or `https://host:port`; the port may be left out.
    pub addresses: Vec<String>,
    pub network: NetworkName,
    /// CA bundle of the server's certificate; without it the system's roots, or the token's authority.
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub token: Option<Secret>,
    /// Read at every connection, so that a token can be replaced under a running daemon.
    pub token_file: Option<PathBuf>,
    /// Secret of this machine, which distinguishes it from others with the same token.
    pub node_secret: Option<Secret>,
    /// The token may be sent to other machines without encryption.
    pub insecure: bool,
}

impl RemoteOptions {
    /// Refuses to send a token unencrypted to another machine, unless an option allows it by name.
    pub(super) fn servers(&self) -> Result<Vec<Server>, StoreError> {
        let wrong = |option: &str, reason: String| StoreError::Misconfigured {
            option: option.to_owned(),
            reason,
        };
        if let Some(given) = &self.token {
            token::check(given.reveal().trim())
                .map_err(|why| wrong("remote-token", format!("the token is incomplete: {why}")))?;
        }
        let mut servers = Vec::new();
        for text in &self.addresses {
            let server = self.server(text).map_err(|reason| wrong("remote", reason))?;
            if self.has_token() && !self.insecure && !server.tls && !server.is_loopback() {
                return Err(wrong("remote", format!("{text}: {CLEAR_TEXT}")));
            }
            servers.push(server);
        }
        if servers.is_empty() {
            let reason = "name at least one server, such as 192.0.2.1:10253".to_owned();
            return Err(wrong("remote", reason));
        }
        Ok(servers)
    }

    fn has_token(&self) -> bool {
        self.token.is_some() || self.token_file.is_some()
    }

    fn server(&self, text: &str) -> Result<Server, String> {
        let (scheme, host, port) = read_address(text)?;
        let server = Server { host: host.to_owned(), port, tls: true, base: String::new() };
        let tls = match scheme {
            Some("https") => true,
            Some("http") => false,
            _ => self.wants_tls() || self.has_token() && !self.insecure && !server.is_loopback(),
        };
        Ok(Server { tls, ..server })
    }

    /// Anything is given that is of no use without TLS.
    fn wants_tls(&self) -> bool {
        let pinned = self.pin().map_or(true, |pin| pin.is_some());
        self.ca.is_some() || self.cert.is_some() || self.key.is_some() || pinned
    }

    /// The fingerprint of the certificate authority that the token carries, if it does.
    pub(super) fn pin(&self) -> Result<Option<[u8; 32]>, String> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(token::pin(token.reveal().trim())),
            (None, Some(file)) => token::read(file).map(|token| token::pin(&token)),
            (None, None) => Ok(None),
        }
    }
}

/// Error for a token that would be sent in clear text.
pub(super) const CLEAR_TEXT: &str = "the token would go to another machine without encryption: use https://, or leave \
                                     the scheme away; if you trust that network, say remote-insecure";

fn read_address(text: &str) -> Result<(Option<&str>, &str, u16), String> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme @ ("https" | "http" | "tcp"), rest)) => (Some(scheme), rest),
        Some((other, _)) => return Err(format!("{other:?} is not a scheme: use http or https")),
        None => (None, text),
    };
    let rest = rest.trim_end_matches('/');
    let wrong = || format!("{rest:?} is not an address: use host:port, such as 192.0.2.1:10253");
    let (host, port) = split_port(rest).ok_or_else(wrong)?;
    if host.is_empty() || host.contains(['/', '@', ' ']) {
        return Err(wrong());
    }
    Ok((scheme, host, port))
}

/// `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address → host and port.
pub(super) fn split_port(text: &str) -> Option<(&str, u16)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options(address: &str) -> RemoteOptions {
        RemoteOptions { addresses: vec![address.to_owned()], ..Default::default() }
    }

    fn name(options: &RemoteOptions) -> Result<String, String> {
        options.servers().map(|list| list[0].to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_may_leave_out_what_goes_without_saying() {
        for (text, wanted) in [
            ("192.0.2.1", "http://192.0.2.1:10253"),
            ("node:1", "http://node:1"),
            ("https://node", "https://node:10253"),
            ("tcp://node:7/", "http://node:7"),
            ("[2001:db8::1]:8", "http://[2001:db8::1]:8"),
            ("2001:db8::1", "http://[2001:db8::1]:10253"),
        ] {
            assert_eq!(name(&options(text)), Ok(wanted.to_owned()));
        }
        for text in ["", ":1", "node:port", "ftp://node", "me@node:1", "a/b", "[::1"] {
            assert!(name(&options(text)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_token_of_any_kind_turns_tls_on_and_nothing_but_a_word_turns_it_off() {
        let dir = tempfile::tempdir().unwrap();
        let pinned = format!("fl1.{}.x", "ab".repeat(32));
        let file = |name: &str, text: &str| {
            let file = dir.path().join(name);
            std::fs::write(&file, text).unwrap();
            Some(file)
        };
        let own = "a-token-of-ones-own";
        let given: [(&str, RemoteOptions); 6] = [
            ("pinned", RemoteOptions { token: Some(Secret::new(&*pinned)), ..options("") }),
            ("plain", RemoteOptions { token: Some(Secret::new(own)), ..options("") }),
            ("pinned in a file", RemoteOptions { token_file: file("1", &pinned), ..options("") }),
            ("plain in a file", RemoteOptions { token_file: file("2", own), ..options("") }),
            ("broken in a file", RemoteOptions { token_file: file("3", "\"x\""), ..options("") }),
            ("no file", RemoteOptions { token_file: Some("/nowhere".into()), ..options("") }),
        ];
        for (what, with) in given {
            let at = |address: &str, insecure: bool| {
                let addresses = vec![address.to_owned()];
                name(&RemoteOptions { addresses, insecure, ..with.clone() })
            };
            for address in
                ["node", "192.0.2.1:9", "tcp://node", "[2001:db8::1]", "localhost.example"]
            {
                assert!(at(address, false).unwrap().starts_with("https://"), "{what}, {address}");
                let refused =
                    at(&format!("http://{}", address.trim_start_matches("tcp://")), false);
                assert!(refused.unwrap_err().contains("remote-insecure"), "{what}, {address}");
            }
            assert!(at("http://node", true).unwrap().starts_with("http://"), "{what}");
            for here in ["http://127.0.0.1", "http://[::1]", "http://localhost"] {
                assert!(at(here, false).unwrap().starts_with("http://"), "{what}, {here}");
            }
        }
    }

    #[test]
    fn what_needs_tls_turns_it_on_and_the_rest_does_not() {
        let tls = |change: fn(&mut RemoteOptions)| {
            let mut options = options("127.0.0.1");
            change(&mut options);
            options.servers().unwrap()[0].tls
        };
        assert!(!tls(|_| {}));
        assert!(!tls(|o| o.token = Some(Secret::new("just-a-token"))));
        assert!(tls(|o| o.ca = Some("ca.pem".into())));
        assert!(tls(|o| o.token = Some(Secret::new(format!("fl1.{}.x", "ab".repeat(32))))));
    }

    #[test]
    fn a_token_that_is_not_whole_is_refused_at_the_start_and_not_shown() {
        let token = format!("\"fl1.{}.secret\"", "ab".repeat(32));
        let with = RemoteOptions { token: Some(Secret::new(token)), ..options("127.0.0.1") };
        let said = name(&with).unwrap_err();
        assert!(said.contains("remote-token") && said.contains("quotation"), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}
