//! TLS towards etcd. Files are read for every connection, so that they can be replaced under a running daemon.

use std::path::{Path, PathBuf};

use flannel_https::pem::certificates;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::EtcdOptions;
use super::timing::CONNECT_TIMEOUT;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TlsFiles {
    ca: Option<PathBuf>,
    /// Certificate and key.
    identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    pub(super) fn new(options: &EtcdOptions) -> Self {
        let given = |path: &Option<PathBuf>| path.clone().filter(|p| !p.as_os_str().is_empty());
        let (cert, key) = (given(&options.cert), given(&options.key));
        match (&cert, &key) {
            (Some(cert), None) => {
                tracing::warn!(cert = %cert.display(), "etcd-certfile without etcd-keyfile is not used");
            }
            (None, Some(key)) => {
                tracing::warn!(key = %key.display(), "etcd-keyfile without etcd-certfile is not used");
            }
            _ => {}
        }
        Self { ca: given(&options.ca), identity: cert.zip(key) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ca.is_none() && self.identity.is_none()
    }

    /// The error names the file.
    pub(super) fn load(&self) -> Result<ClientTlsConfig, String> {
        // A proxy that ends TLS may not negotiate a protocol; etcd speaks nothing but HTTP/2 here.
        let mut config = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT).assume_http2(true);
        config = match &self.ca {
            Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca, true)?)),
            None => config.with_native_roots(),
        };
        if let Some((cert, key)) = &self.identity {
            config = config.identity(Identity::from_pem(read(cert, true)?, read(key, false)?));
        }
        Ok(config)
    }
}

fn read(path: &Path, has_certificates: bool) -> Result<Vec<u8>, String> {
    if has_certificates {
        certificates(path)?;
    }
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
