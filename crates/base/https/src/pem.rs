//! Certificates and keys in PEM files. Errors name the file.

use std::fmt::Display;
use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::target::FileOrPem;

pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    certificates_in(&read(path)?, &path.display())
}

pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    private_key_in(&read(path)?, &path.display())
}

pub fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    crate::sha256(certificate.as_ref())
}

impl FileOrPem {
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        match self {
            Self::File(file) => certificates(file),
            Self::Pem { name, pem } => certificates_in(pem, name),
        }
    }

    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        match self {
            Self::File(file) => private_key(file),
            Self::Pem { name, pem } => private_key_in(pem, name),
        }
    }
}

fn certificates_in(pem: &[u8], of: &dyn Display) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("{of} is not PEM: {error}"))?;
    if found.is_empty() { Err(format!("{of} holds no certificate")) } else { Ok(found) }
}

fn private_key_in(pem: &[u8], of: &dyn Display) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| format!("{of} holds no private key: {error}"))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
