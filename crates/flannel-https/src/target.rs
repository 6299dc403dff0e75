//! What must be known to speak with a server.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use flannel_common::Secret;

use crate::proxy::Proxy;
use crate::server::Server;

#[derive(Clone, Debug)]
pub struct Target {
    pub server: Server,
    /// The name in the server's certificate, where it is not the one in its address.
    pub server_name: Option<String>,
    pub trust: Trust,
    /// Who we are, said by a certificate.
    pub certificate: Option<ClientCertificate>,
    /// Who we are, said with each request.
    pub credentials: Credentials,
    /// Credentials may go to another machine without encryption.
    pub clear_text_allowed: bool,
    pub proxy: Option<Proxy>,
    pub advice: &'static Advice,
}

impl Target {
    /// A server known by the system's authorities, asked directly and without saying who we are.
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

/// Whose certificates a server may show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those signed by an authority that this machine trusts.
    System,
    /// Those signed by an authority in this file, read for each connection.
    File(PathBuf),
    /// Those signed by an authority in this PEM text, which errors call by this name.
    Pem { name: &'static str, pem: Vec<u8> },
    /// Those signed by the authority of this SHA-256 fingerprint, whose certificate the server sends along.
    Pinned([u8; 32]),
    /// Any: an operator has asked for it.
    Anybody,
}

/// Read for each connection, so that it can be replaced under a running daemon.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    pub certificate: FileOrPem,
    pub key: FileOrPem,
}

#[derive(Clone)]
pub enum FileOrPem {
    File(PathBuf),
    /// The text itself, and what errors call it.
    Pem {
        name: &'static str,
        pem: Vec<u8>,
    },
}

/// There may be a private key in it.
impl fmt::Debug for FileOrPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// What the header `Authorization` says.
#[derive(Clone, Debug)]
pub enum Credentials {
    None,
    Bearer(Secret),
    /// Read again for each request: tokens are replaced now and then. `read` takes the token from the file and
    /// says what is wrong with it; [`Credentials::whole_file`] is the plainest.
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
    /// The token is all that stands in the file.
    pub fn whole_file(file: PathBuf) -> Self {
        Self::BearerFile { file, read: read_token }
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
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
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the token in {}: {error}", file.display()))?;
    match text.trim() {
        "" => Err(format!("there is no token in {}", file.display())),
        token => Ok(token.to_owned()),
    }
}

/// How errors call the server, and what they tell the operator to do: each goes on a sentence that says what is
/// wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice {
    /// `the API server`
    pub server: &'static str,
    /// Its certificate is not signed by an authority that we trust.
    pub untrusted: &'static str,
    /// Its certificate has other names than the one we asked for.
    pub wrong_name: &'static str,
    /// It speaks TLS where we do not.
    pub use_tls: &'static str,
    /// It does not speak TLS where we do.
    pub no_tls: &'static str,
    /// It wants a certificate of us, and we have none.
    pub certificate_missing: &'static str,
    /// Credentials would be sent without encryption.
    pub clear_text: &'static str,
}

impl Advice {
    /// For servers that are known to everybody.
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
