//! TLS towards the API server, by what the way there says now.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::access::Way;
use crate::kubeconfig::{Authority, FileOrPem};

/// The error names the file.
pub(crate) fn config(way: &Way) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &way.authority {
        Authority::System => builder.with_root_certificates(system_roots()),
        Authority::File(file) => {
            builder.with_root_certificates(roots(&read(file)?, &file.display())?)
        }
        Authority::Pem(pem) => builder.with_root_certificates(roots(pem, &"the kubeconfig")?),
        Authority::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        }
    };
    let Some(client) = &way.client else { return Ok(builder.with_no_client_auth()) };
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        format!("the client's {what} of the kubeconfig cannot be used: {error}")
    };
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&content(&client.certificate)?).collect();
    let chain = chain.map_err(|error| wrong("certificate", &error))?;
    let key = PrivateKeyDer::from_pem_slice(&content(&client.key)?)
        .map_err(|error| wrong("key", &error))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| wrong("certificate", &error))
}

fn content(part: &FileOrPem) -> Result<Vec<u8>, String> {
    match part {
        FileOrPem::File(file) => read(file),
        FileOrPem::Pem(pem) => Ok(pem.clone()),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

fn roots(pem: &[u8], of: &dyn std::fmt::Display) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|error| format!("{of}: not a certificate: {error}"))?;
        roots.add(certificate).map_err(|error| format!("{of}: {error}"))?;
    }
    if roots.is_empty() {
        return Err(format!("{of} holds no certificate of an authority"));
    }
    Ok(roots)
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// For `insecure-skip-tls-verify`: whoever answers is taken for the API server.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
