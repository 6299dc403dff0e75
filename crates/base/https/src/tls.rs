//! TLS configuration for a target. Files are read for each connection: they may be replaced under a running daemon.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::pem::fingerprint;
use crate::target::{FileOrPem, Target, Trust};

/// Makes the configuration. The error names the file.
pub(crate) fn config(target: &Target) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let verifier = |pin| Arc::new(PinnedVerifier { pin, provider });
    let builder = match &target.trust {
        Trust::System => builder.with_root_certificates(system_roots()),
        Trust::Authorities(authorities) => builder.with_root_certificates(roots(authorities)?),
        Trust::Pinned(pin) => {
            builder.dangerous().with_custom_certificate_verifier(verifier(Some(*pin)))
        }
        Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(verifier(None)),
    };
    let Some(client) = &target.certificate else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = (client.certificate.certificates()?, client.key.private_key()?);
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("{} and {}: {error}", client.certificate, client.key))
}

fn roots(authorities: &FileOrPem) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities.certificates()? {
        roots.add(certificate).map_err(|error| format!("{authorities}: {error}"))?;
    }
    Ok(roots)
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Verifies that the authority of this fingerprint has signed; without a fingerprint, accepts any certificate.
#[derive(Debug)]
struct PinnedVerifier {
    pin: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(pin) = self.pin else { return Ok(ServerCertVerified::assertion()) };
        let authority = intermediates
            .iter()
            .find(|certificate| fingerprint(certificate) == pin)
            .ok_or_else(|| {
                Error::General(
                    "the server does not show the certificate authority that the token names: the token is \
                     for another server, or the server's certificate file lacks the authority's"
                        .to_owned(),
                )
            })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
