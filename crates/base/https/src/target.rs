//! Everything that is needed to connect to a server.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use flannel_common::Secret;

use crate::proxy::Proxy;
use crate::server::Server;

#[derive(Clone, Debug)]
pub struct Target {
    pub server: Server,
    /// Name in the server's certificate, where it differs from the host.
    pub server_name: Option<String>,
    pub trust: Trust,
    pub certificate: Option<ClientCertificate>,
    pub credentials: Credentials,
    /// Whether credentials may be sent to another machine without encryption.
    pub clear_text_allowed: bool,
    pub proxy: Option<Proxy>,
    pub advice: &'static Advice,
}

impl Target {
    /// A server that the system's authorities vouch for, asked directly and without credentials.
    pub fn new(server: Server) -> Self {
        Self {
            server,
            server_name: None,
            trust: Trust::System,
            certificate: None,
            credentials: Credentials::None,
            clear_text_allowed: false,
            proxy: None,
            advice: &Advice::GENERAL,
        }
    }
}

/// Certificates that are accepted from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those signed by an authority that this machine trusts.
    System,
    Authorities(FileOrPem),
    /// Those signed by the authority of this SHA-256 fingerprint, whose certificate the server sends along.
    Pinned([u8; 32]),
    /// Any certificate: an operator has asked for it.
    Anyone,
}

/// Certificate and key of a client, read for each connection, so that they can be replaced under a running daemon.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    pub certificate: FileOrPem,
    pub key: FileOrPem,
}

#[derive(Clone, PartialEq, Eq)]
pub enum FileOrPem {
    /// A file, read for each connection.
    File(PathBuf),
    /// PEM text, which errors call `name`.
    Pem { name: &'static str, pem: Vec<u8> },
}

/// Shows no text, which may hold a private key.
impl fmt::Debug for FileOrPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for FileOrPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.display().fmt(f),
            Self::Pem { name, .. } => f.write_str(name),
        }
    }
}

/// Content of the header `Authorization`.
#[derive(Clone, Debug)]
pub enum Credentials {
    None,
    Bearer(Secret),
    /// Token read from the file for each request by `read`, which reports what is wrong with it.
    BearerFile {
        file: PathBuf,
        read: fn(&Path) -> Result<String, String>,
    },
    Basic {
        name: String,
        password: Secret,
    },
}

impl Credentials {
    pub fn whole_file(file: PathBuf) -> Self {
        Self::BearerFile { file, read: read_token }
    }

    pub(crate) fn authorization(&self) -> Result<Option<String>, String> {
        match self {
            Self::None => Ok(None),
            Self::Bearer(token) => Ok(Some(format!("Bearer {}", token.reveal().trim()))),
            Self::BearerFile { file, read } => Ok(Some(format!("Bearer {}", read(file)?))),
            Self::Basic { name, password } => Ok(Some(basic(name, password))),
        }
    }
}

pub(crate) fn basic(name: &str, password: &Secret) -> String {
    let pair = format!("{name}:{}", password.reveal());
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

fn read_token(file: &Path) -> Result<String, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot read the token in {name}: {error}"))?;
    match text.trim() {
        "" => Err(format!("there is no token in {name}")),
        token => Ok(token.to_owned()),
    }
}

/// Wording of errors: name of the server, and advice that follows a sentence that says what is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice {
    /// Name of the server, such as `the API server`.
    pub server: &'static str,
    /// Advice if its certificate is not signed by a trusted authority.
    pub untrusted: &'static str,
    /// Advice if its certificate is for other names.
    pub wrong_name: &'static str,
    /// Advice if the server speaks TLS and we do not.
    pub use_tls: &'static str,
    /// Advice if we speak TLS and the server does not.
    pub no_tls: &'static str,
    /// Advice if the server wants a certificate and we have none.
    pub certificate_missing: &'static str,
    /// Advice if credentials would be sent without encryption.
    pub clear_text: &'static str,
}

impl Advice {
    pub const GENERAL: Self = Self {
        server: "the server",
        untrusted: "add its authority to those that this machine trusts, or find out whether something on the way \
                    answers in its place",
        wrong_name: "use one of its names",
        use_tls: "use https://",
        no_tls: "use http:// if that is meant",
        certificate_missing: "give one",
        clear_text: "credentials are not sent to another machine without encryption: use https://",
    };
}
