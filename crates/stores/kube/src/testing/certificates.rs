//! Certificates of a cluster: its authority, the API server's, and an administrator's.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "the cluster's authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, key()).expect("an authority signs itself"))
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes `<name>.crt` and `<name>.key` of a server with these names.
    pub(super) fn server(&self, directory: &Path, name: &str, names: Vec<String>) {
        let mut params = CertificateParams::new(names).expect("names of a server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(directory, name, params);
    }

    /// Writes `<name>.crt` and `<name>.key` of a user of this group.
    pub(super) fn user(&self, directory: &Path, name: &str, group: &str) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(directory, name, params);
    }

    fn sign(&self, directory: &Path, name: &str, mut params: CertificateParams) {
        params.use_authority_key_identifier_extension = true;
        let key = key();
        let certificate = params.signed_by(&key, &self.0).expect("the authority signs");
        let write = |suffix: &str, text: String| {
            fs::write(directory.join(format!("{name}.{suffix}")), text).expect("a file");
        };
        write("crt", certificate.pem());
        write("key", key.serialize_pem());
    }
}

/// Writes `<name>.key`, by which tokens of service accounts are signed, and `<name>.pub`, by which they
/// are known.
pub(super) fn signing_key(directory: &Path, name: &str) {
    let key = key();
    fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
    fs::write(directory.join(format!("{name}.pub")), key.public_key_pem()).expect("a file");
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}
