//! `flannelctl pki`: a certificate authority, certificates and tokens for people who have none.

mod files;
mod revocation;
mod tokens;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use flannel_https::certificate;
use flannel_https::pem::certificates;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};

use files::Files;

const AUTHORITY: &str = "ca";
const SERVER: &str = "server";
const TOKENS: &str = "tokens";

const AUTHORITY_DAYS: u32 = 3_650;
const DAYS: u32 = 365;

/// Certificates and tokens for the lease server and its nodes
#[derive(Debug, Args)]
pub(crate) struct PkiArgs {
    /// Where they are kept
    #[arg(long, default_value = "/etc/flannel/pki", value_name = "DIR", global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a certificate authority and the server's certificate
    Init {
        /// Names and addresses nodes reach the server at
        #[arg(required = true)]
        names: Vec<String>,
        /// How long the server's certificate is good for
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=AUTHORITY_DAYS as i64))]
        days: u32,
    },
    /// Make a certificate
    Issue {
        /// The node's name; `flannel-admin` makes it an operator's
        name: String,
        /// Public addresses it may announce, and names it is reached at if it is a server
        addresses: Vec<String>,
        /// How long it is good for
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=AUTHORITY_DAYS as i64))]
        days: u32,
        /// For another lease server, and not for a node
        #[arg(long)]
        server: bool,
        /// Even if there is one of this name: its key is overwritten
        #[arg(long)]
        replace: bool,
    },
    /// Renew a certificate before it ends, with the same key and names
    Renew {
        /// Its name: `server` is the one that `init` made
        name: String,
        /// For another lease server, if it was made by a version that made all certificates good for both
        #[arg(long)]
        server: bool,
        /// How long it is good for
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=AUTHORITY_DAYS as i64))]
        days: u32,
    },
    /// Make a token and show the command that joins a node with it
    Token {
        /// The node's name
        name: String,
        /// Public addresses it may announce; without any, the one it comes from
        addresses: Vec<String>,
        /// May announce any address
        #[arg(long, conflicts_with = "addresses")]
        any: bool,
        /// May change config and reservations
        #[arg(long, conflicts_with_all = ["addresses", "any"])]
        admin: bool,
        /// Reads and changes nothing: for Prometheus
        #[arg(long, conflicts_with_all = ["addresses", "any", "admin"])]
        read: bool,
        /// Even if the name has a token: that one is revoked
        #[arg(long)]
        replace: bool,
    },
    /// Take back the token and the certificates of a name
    Revoke {
        /// The node's name
        name: String,
    },
}

impl PkiArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let pki = Pki { files: Files { dir: self.dir } };
        match self.action {
            Action::Init { names, days } => pki.init(&names, days)?,
            Action::Issue { name, addresses, days, server, replace } => {
                let names: Vec<String> = std::iter::once(name.clone()).chain(addresses).collect();
                let purpose = if server { Purpose::Server } else { Purpose::Node };
                pki.issue(&name, &names, days, purpose, replace)?;
            }
            Action::Renew { name, server, days } => pki.renew(&name, days, server)?,
            Action::Token { name, addresses, any, admin, read, replace } => {
                let rights = match (any, admin, read) {
                    (true, ..) => vec!["any".to_owned()],
                    (_, true, _) => vec!["admin".to_owned()],
                    (.., true) => vec!["read".to_owned()],
                    _ => addresses,
                };
                pki.token(&name, &rights, replace)?;
            }
            Action::Revoke { name } => pki.revoke(&name)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Pki {
    files: Files,
}

/// What a certificate is good for. A node with one that is good for both could pose as the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Server,
    Node,
}

impl Pki {
    fn init(&self, names: &[String], days: u32) -> anyhow::Result<()> {
        let dir = &self.files.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        for (name, ending) in
            [(AUTHORITY, "pem"), (AUTHORITY, "key"), (SERVER, "pem"), (SERVER, "key")]
        {
            let file = self.files.path(&format!("{name}.{ending}"));
            if file.exists() {
                bail!(
                    "{} exists, and is not overwritten: what an authority has signed is no longer trusted without \
                     it; use another --dir, or `pki issue` and `pki renew`",
                    file.display()
                );
            }
        }
        let mut params = authority()?;
        params.not_after = date(AUTHORITY_DAYS);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        self.files.write(&format!("{AUTHORITY}.key"), &issuer.key().serialize_pem(), true)?;
        self.files.write(&format!("{AUTHORITY}.pem"), &issuer.pem(), false)?;
        if !self.files.path(TOKENS).exists() {
            self.files.write(TOKENS, "", true)?;
        }
        self.issue(SERVER, names, days, Purpose::Server, false)?;
        let (dir, out) = (self.files.dir.display(), &mut std::io::stdout());
        writeln!(
            out,
            "\nStart the server:\n  flanneld --listen=:10253 --remote=self --net-config-path=net-conf.json \\\n    \
             --remote-certfile={dir}/server.pem --remote-keyfile={dir}/server.key \\\n    \
             --listen-token-file={dir}/{TOKENS}\nThen, for every node: flannelctl pki --dir {dir} token NAME\n\
             The server's certificate is good for {days} days: `flannelctl pki --dir {dir} renew {SERVER}` renews it"
        )?;
        Ok(())
    }

    fn issue(
        &self,
        name: &str,
        names: &[String],
        days: u32,
        purpose: Purpose,
        replace: bool,
    ) -> anyhow::Result<()> {
        check_name(name)?;
        let (pem, key_file) = (format!("{name}.pem"), format!("{name}.key"));
        for file in [&pem, &key_file] {
            let file = self.files.path(file);
            if !replace && file.exists() {
                bail!(
                    "{} exists: `pki renew {name}` renews the certificate with the same key; --replace overwrites \
                     both, and whoever uses them needs the new ones",
                    file.display()
                );
            }
        }
        let key = KeyPair::generate()?;
        let certificate = self.sign(name, names, &key, days, purpose)?;
        self.files.write(&key_file, &key.serialize_pem(), true)?;
        self.files.write(&pem, &certificate, false)
    }

    fn renew(&self, name: &str, days: u32, server: bool) -> anyhow::Result<()> {
        check_name(name)?;
        let pem = format!("{name}.pem");
        let key = self.key(&format!("{name}.key"), "`flannelctl pki issue` makes it")?;
        let before = certificates(&self.files.path(&pem)).map_err(anyhow::Error::msg)?;
        let known = before.first().map(|first| certificate::names(first)).unwrap_or_default();
        let addresses = known.addresses.iter().map(ToString::to_string);
        let names: Vec<String> = known.dns.into_iter().chain(addresses).collect();
        // A certificate that was made for both is a node's, unless it is the one that `init` made.
        let was_server =
            before.first().is_some_and(|first| certificate::is_for_servers_alone(first));
        let purpose = match server || was_server || name == SERVER {
            true => Purpose::Server,
            false => Purpose::Node,
        };
        let certificate = self.sign(name, &names, &key, days, purpose)?;
        self.files.write(&pem, &certificate, false)
    }

    /// With the authority's certificate after it, for nodes that know the authority by their token.
    fn sign(
        &self,
        name: &str,
        names: &[String],
        key: &KeyPair,
        days: u32,
        purpose: Purpose,
    ) -> anyhow::Result<String> {
        let issuer = self.issuer()?;
        let serial = self.new_serial(name)?;
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![match purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Node => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_after = date(days);
        let certificate = params.signed_by(key, &issuer)?;
        Ok(format!("{}{}", certificate.pem(), self.authority_pem()?))
    }

    fn issuer(&self) -> anyhow::Result<Issuer<'static, KeyPair>> {
        Ok(Issuer::new(authority()?, self.key(&format!("{AUTHORITY}.key"), INIT)?))
    }

    /// `fix` says where the file comes from.
    fn key(&self, file: &str, fix: &str) -> anyhow::Result<KeyPair> {
        let key = KeyPair::from_pem(&self.files.read(file, fix)?);
        key.with_context(|| format!("{} holds no key", self.files.path(file).display()))
    }
}

const INIT: &str = "`flannelctl pki init` makes it";

fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
        bail!("{name:?} is not a name");
    }
    if name.eq_ignore_ascii_case(AUTHORITY) {
        bail!(
            "{name} is the authority's own name, and its key is not overwritten: use another name"
        );
    }
    Ok(())
}

/// Contents of the authority's certificate, always the same: signing needs its name and key, not the certificate.
fn authority() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, "flannel");
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// So many days from now. Certificates have begun long ago: a machine whose clock is behind can use them.
fn date<T: From<SystemTime>>(days: u32) -> T {
    T::from(SystemTime::now() + Duration::from_secs(u64::from(days) * 86_400))
}
