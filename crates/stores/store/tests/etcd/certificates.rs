//! A certificate authority for tests.

use std::fs;
use std::path::{Path, PathBuf};

use flannel_store::testing::ServerTls;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    /// Its files go to `directory`, named after `name`.
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = directory.join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Certificate and key for a server on loopback.
    pub(crate) fn server(&self) -> ServerTls {
        let (cert, key) = self.issue("server");
        ServerTls { cert, key, client_ca: None }
    }

    /// Certificate and key for a client.
    pub(crate) fn client(&self) -> (PathBuf, PathBuf) {
        self.issue("client")
    }

    fn issue(&self, name: &str) -> (PathBuf, PathBuf) {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.directory.join(format!("{name}{end}"));
        fs::write(path(".pem"), cert.pem()).unwrap();
        fs::write(path("-key.pem"), key.serialize_pem()).unwrap();
        (path(".pem"), path("-key.pem"))
    }
}
