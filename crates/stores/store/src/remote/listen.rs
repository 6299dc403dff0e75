//! Listening address of a lease server: `host:port`, `:port`, `tcp://host:port`, or a socket inherited from the parent
//! process: `fd://` (the first one) or `fd://5`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::options::split_port;

/// The first descriptor of a socket-activated process.
const FIRST_FD: i32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An empty host means every address.
    Address {
        host: String,
        port: u16,
    },
    Inherited(i32),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use host:port, such as 0.0.0.0:10253 or [::]:10253, or fd:// for an inherited socket")]
pub struct ListenError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by that of its authority for clients that know the authority by a token.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Clients must show a certificate of this authority, unless they send a token.
    pub ca: Option<PathBuf>,
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if let Some(number) = text.strip_prefix("fd://") {
            let number = if number.is_empty() {
                FIRST_FD
            } else {
                number.parse().map_err(|_| ListenError)?
            };
            return if number >= FIRST_FD { Ok(Self::Inherited(number)) } else { Err(ListenError) };
        }
        let text = text.strip_prefix("tcp://").unwrap_or(text);
        let (host, port) = split_port(text).ok_or(ListenError)?;
        if host.contains(['/', ' ', '@']) || text.is_empty() {
            return Err(ListenError);
        }
        Ok(Self::Address { host: host.to_owned(), port })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Address { host, port } => write!(f, "{host}:{port}"),
            Self::Inherited(number) => write!(f, "fd://{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_old_and_those_people_type() {
        for (text, shown) in [
            ("127.0.0.1:8888", "127.0.0.1:8888"),
            (":8888", ":8888"),
            ("0.0.0.0", "0.0.0.0:10253"),
            ("tcp://node:1", "node:1"),
            ("[::]:1", "[::]:1"),
            ("fd://", "fd://3"),
            ("fd://5", "fd://5"),
        ] {
            assert_eq!(
                text.parse::<Listen>().map(|l| l.to_string()),
                Ok(shown.to_owned()),
                "{text}"
            );
        }
        for text in
            ["", "fd://x", "fd://0", "fd://1", "fd://2", "fd://-1", "a b:1", "http://x:1", "x:port"]
        {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
