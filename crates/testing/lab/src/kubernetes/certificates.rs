//! The certificates of a cluster: one authority, a server's certificate for the API server, and one for
//! everybody who talks to it.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::error::{LabError, Result};

/// Whoever shows a certificate of it is who the certificate says.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key, as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = named("kubernetes", None)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, key).map_err(failed)? })
    }

    pub(crate) fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// Of a server that is called by these names and addresses.
    pub(crate) fn server(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Identity> {
        let mut params = named("kube-apiserver", None)?;
        for name in names {
            let name = (*name).try_into().map_err(failed)?;
            params.subject_alt_names.push(rcgen::SanType::DnsName(name));
        }
        let addresses = addresses.iter().map(|&address| rcgen::SanType::IpAddress(address));
        params.subject_alt_names.extend(addresses);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Of a user, and the group that gives it its rights.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = named(user, group)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// All that a user needs to reach the API server, in one file.
    pub(crate) fn kubeconfig(&self, server: &str, identity: &Identity) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {
                "server": server,
                "certificate-authority-data": BASE64.encode(self.certificate()),
            }}],
            "users": [{"name": "user", "user": {
                "client-certificate-data": BASE64.encode(&identity.certificate),
                "client-key-data": BASE64.encode(&identity.key),
            }}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
        })
        .to_string()
    }

    fn sign(&self, params: CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// By which the cluster signs the tokens of service accounts, and by which it knows them again.
pub(crate) fn signing_keys() -> Result<(String, String)> {
    let key = KeyPair::generate().map_err(failed)?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn named(user: &str, group: Option<&str>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    Ok(params)
}

fn failed(error: rcgen::Error) -> LabError {
    LabError::Spec(format!("make a certificate: {error}"))
}
