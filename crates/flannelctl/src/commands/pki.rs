//! `flannelctl pki`: a certificate authority, certificates and tokens for people who have none.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use flannel_server::hash_token;
use flannel_store::remote::tls::{certificates, fingerprint};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const TOKENS: &str = "tokens";

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
    },
    /// Make a certificate
    Issue {
        /// The node's name; `flannel-admin` makes it an operator's
        name: String,
        /// Public addresses it may announce, and names it is reached at if it is a server
        addresses: Vec<String>,
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
    },
}

impl PkiArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let pki = Pki { dir: self.dir };
        match self.action {
            Action::Init { names } => pki.init(&names)?,
            Action::Issue { name, addresses } => {
                let names: Vec<String> = std::iter::once(name.clone()).chain(addresses).collect();
                pki.issue(&name, &names)?;
            }
            Action::Token { name, addresses, any, admin } => {
                let rights = match (any, admin) {
                    (true, _) => vec!["any".to_owned()],
                    (_, true) => vec!["admin".to_owned()],
                    _ => addresses,
                };
                pki.token(&name, &rights)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Pki {
    dir: PathBuf,
}

impl Pki {
    fn init(&self, names: &[String]) -> anyhow::Result<()> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot create {}", self.dir.display()))?;
        if self.file(CA).exists() {
            bail!(
                "{} exists: what it has signed would no longer be trusted; use another --dir, or `pki issue`",
                self.file(CA).display()
            );
        }
        let issuer = CertifiedIssuer::self_signed(authority()?, KeyPair::generate()?)?;
        self.write(CA_KEY, &issuer.key().serialize_pem(), true)?;
        self.write(CA, &issuer.pem(), false)?;
        self.write(TOKENS, "", true)?;
        self.issue("server", names)?;
        let (dir, out) = (self.dir.display(), &mut std::io::stdout());
        writeln!(
            out,
            "\nStart the server:\n  flanneld --listen=:10253 --remote=self --net-config-path=net-conf.json \\\n    \
             --remote-certfile={dir}/server.pem --remote-keyfile={dir}/server.key \\\n    \
             --listen-token-file={dir}/{TOKENS}\nThen, for every node: flannelctl pki --dir {dir} token NAME"
        )?;
        Ok(())
    }

    fn issue(&self, name: &str, names: &[String]) -> anyhow::Result<()> {
        if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
            bail!("{name:?} is no name");
        }
        let ca = self.read(CA)?;
        let key = KeyPair::from_pem(&self.read(CA_KEY)?)
            .with_context(|| format!("{} holds no key", self.file(CA_KEY).display()))?;
        let issuer = Issuer::new(authority()?, key);
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        self.write(&format!("{name}.key"), &key.serialize_pem(), true)?;
        // With the authority's after it, for nodes that know the authority by their token.
        self.write(&format!("{name}.pem"), &format!("{}{ca}", certificate.pem()), false)
    }

    fn token(&self, name: &str, rights: &[String]) -> anyhow::Result<()> {
        let file = self.file(TOKENS);
        let secret = random()?;
        let token = match self.file(CA).exists() {
            true => {
                let ca = certificates(&self.file(CA)).map_err(anyhow::Error::msg)?;
                let print = ca.first().map(fingerprint).unwrap_or_default();
                let print: String = print.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("fl1.{print}.{secret}")
            }
            false => secret,
        };
        let line = format!("{} {name} {}", hash_token(&token), rights.join(" "));
        let all = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).context(format!("cannot read {}", file.display())),
        };
        // One token per name: a new one replaces the old one.
        let others = all.lines().filter(|line| line.split_whitespace().nth(1) != Some(name));
        let text: String = others.chain([line.trim_end()]).map(|l| format!("{l}\n")).collect();
        flannel_server::Tokens::parse(&text)?;
        self.write(TOKENS, &text, true)?;
        let out = &mut std::io::stdout();
        writeln!(out, "{token}")?;
        let mut hint = std::io::stderr();
        if rights.iter().any(|right| right == "admin") {
            writeln!(
                hint,
                "\nfor {name}:\n  FLANNELD_REMOTE_TOKEN=… flannelctl leases --remote=SERVER"
            )?;
        } else {
            writeln!(hint, "\non {name}:\n  FLANNELD_REMOTE_TOKEN=… flanneld --remote=SERVER")?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn read(&self, name: &str) -> anyhow::Result<String> {
        let file = self.file(name);
        fs::read_to_string(&file).with_context(|| {
            format!("cannot read {}; `flannelctl pki init` makes it", file.display())
        })
    }

    /// Written whole or not at all: a server may read it at any moment.
    fn write(&self, name: &str, text: &str, secret: bool) -> anyhow::Result<()> {
        let (file, new) = (self.file(name), self.file(&format!(".{name}.new")));
        let mode = if secret { 0o600 } else { 0o644 };
        let write = || {
            let _ = fs::remove_file(&new);
            let mut out = OpenOptions::new().create_new(true).write(true).mode(mode).open(&new)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &file)
        };
        write().with_context(|| format!("cannot write {}", file.display()))?;
        note(&file)
    }
}

/// What the authority's certificate says, always the same: signing needs its name and its key, not
/// the certificate.
fn authority() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, "flannel");
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn note(file: &Path) -> anyhow::Result<()> {
    writeln!(std::io::stderr(), "wrote {}", file.display())?;
    Ok(())
}

/// 32 random bytes nobody can guess, in hexadecimal.
fn random() -> anyhow::Result<String> {
    use ring::rand::SecureRandom as _;
    let mut bytes = [0; 32];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
