//! The server's side of TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flannel_https::certificate;
use flannel_https::pem::{certificates, private_key};
use flannel_store::remote::TlsFiles;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Time before the end of the server's certificate at which warnings begin.
const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 86_400);

pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    cert: PathBuf,
    end: Option<SystemTime>,
    /// Verifies clients, where they are known by certificates.
    pub(crate) clients: Option<Arc<dyn ClientCertVerifier>>,
    pub(crate) names: Vec<String>,
}

impl Tls {
    /// `certificate_optional`: there is another way for clients to say who they are.
    pub(crate) fn read(files: &TlsFiles, certificate_optional: bool) -> Result<Self, String> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let clients =
            files.ca.as_deref().map(|ca| clients(ca, certificate_optional)).transpose()?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        };
        let (cert, key) = (certificates(&files.cert)?, private_key(&files.key)?);
        let end = cert.first().and_then(|first| certificate::not_after(first));
        let names = cert.first().map(|first| certificate::names(first).dns).unwrap_or_default();
        let config = builder.with_single_cert(cert, key);
        let config = config.map_err(|error| {
            format!("{} and {}: {error}", files.cert.display(), files.key.display())
        })?;
        let this = Self { config: Arc::new(config), cert: files.cert.clone(), end, clients, names };
        this.warn_of_expiry();
        Ok(this)
    }

    /// Logs if the server's own certificate expires soon or has expired, since nobody can connect then.
    pub(crate) fn warn_of_expiry(&self) {
        let Some(end) = self.end else { return };
        let (file, name) = (self.cert.display(), self.cert.file_stem().unwrap_or_default());
        let fix =
            format!("`flannelctl pki renew {}` makes a new one, used at once", name.display());
        match end.duration_since(SystemTime::now()) {
            Err(_) => {
                tracing::error!(
                    "The certificate in {file} has expired, and no node can connect; {fix}"
                );
            }
            Ok(left) if left < EXPIRY_WARNING => {
                let days = left.as_secs() / 86_400;
                tracing::warn!(
                    "The certificate in {file} expires in {days} days, and then no node can connect; {fix}"
                );
            }
            Ok(_) => {}
        }
    }

    /// Whether a certificate that was accepted once would be so again.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'static>]) -> bool {
        self.clients.as_ref().zip(chain.split_first()).is_some_and(|(clients, (first, rest))| {
            clients.verify_client_cert(first, rest, UnixTime::now()).is_ok()
        })
    }
}

/// The file has the certificates of authorities, and may have lists of what they have revoked.
fn clients(ca: &Path, optional: bool) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", ca.display());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    let text = std::fs::read(ca).map_err(|error| wrong(&error))?;
    let revoked: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .with_crls(revoked.map_err(|error| wrong(&error))?)
        .only_check_end_entity_revocation()
        // Not every authority in the file has a list.
        .allow_unknown_revocation_status();
    let verifier = if optional { verifier.allow_unauthenticated() } else { verifier };
    verifier.build().map_err(|error| wrong(&error))
}
