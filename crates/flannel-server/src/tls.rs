//! The server's side of TLS.

use std::sync::Arc;

use flannel_store::remote::tls::{certificates, private_key};
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::serve::TlsFiles;

/// `certificate_optional`: there is another way for clients to say who they are.
pub(crate) fn config(files: &TlsFiles, certificate_optional: bool) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &files.ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", ca.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier =
                if certificate_optional { verifier.allow_unauthenticated() } else { verifier };
            let verifier =
                verifier.build().map_err(|error| format!("{}: {error}", ca.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (cert, key) = (certificates(&files.cert)?, private_key(&files.key)?);
    builder
        .with_single_cert(cert, key)
        .map_err(|error| format!("{} and {}: {error}", files.cert.display(), files.key.display()))
}
