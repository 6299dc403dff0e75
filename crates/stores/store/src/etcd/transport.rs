//! The members of the etcd cluster and the connection to one of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use flannel_https::{Server, connect_to};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::EtcdOptions;
use super::login::Credentials;
use super::timing::{CONNECT_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};
use super::tls::TlsFiles;
use crate::StoreError;

#[derive(Debug)]
pub(super) struct Transport {
    members: Vec<Server>,
    tls: TlsFiles,
}

impl Transport {
    /// Reads the certificate files once, so that a wrong path fails at start and not after hours.
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, StoreError> {
        let endpoints: Vec<&str> =
            options.endpoints.iter().map(|e| e.trim()).filter(|e| !e.is_empty()).collect();
        if endpoints.is_empty() {
            return Err(misconfigured("no endpoint is given"));
        }
        let tls = TlsFiles::new(options);
        let members = endpoints.iter().map(|endpoint| member(endpoint, uses_tls(endpoint, &tls)));
        let members: Vec<Server> = members.collect::<Result<_, _>>()?;
        if members.iter().any(|member| member.tls) {
            tls.load().map_err(|reason| misconfigured(&reason))?;
        }
        if Credentials::new(options).is_some() {
            for (endpoint, member) in endpoints.iter().zip(&members) {
                check_password(endpoint, member)?;
            }
        }
        Ok(Self { members, tls })
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Name of a member in messages.
    pub(super) fn name(&self, member: usize) -> String {
        self.members[member].to_string()
    }

    /// A connection that is made when first used. The error names the file at fault.
    pub(super) fn channel(&self, member: usize) -> Result<Channel, String> {
        let mut endpoint = Endpoint::from_shared(self.name(member))
            .map_err(|error| error.to_string())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(false);
        if self.members[member].tls {
            endpoint = endpoint.tls_config(self.tls.load()?).map_err(|error| {
                format!("the certificate files cannot be used: {}", super::fault::causes(&error))
            })?;
        }
        Ok(endpoint.connect_with_connector_lazy(Connector))
    }
}

/// Makes connections whose packets pass every path.
#[derive(Clone, Copy)]
struct Connector;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let port = uri.port_u16().unwrap_or(usual);
            connect_to(host, port, CONNECT_TIMEOUT).await.map(TokioIo::new)
        })
    }
}

/// An endpoint's own scheme decides; without one, TLS is used when there are files for it.
fn uses_tls(endpoint: &str, files: &TlsFiles) -> bool {
    match endpoint.split_once("://") {
        Some(("https", _)) => true,
        None => !files.is_empty(),
        Some(_) => {
            if !files.is_empty() {
                tracing::warn!(
                    endpoint,
                    "etcd is reached in plain text: the certificate files given are not used with \
                     http://, write https:// to use them"
                );
            }
            false
        }
    }
}

/// A password goes to another machine in clear text only if the endpoint says so, as it always did.
fn check_password(endpoint: &str, member: &Server) -> Result<(), StoreError> {
    if member.tls || member.is_loopback() {
        return Ok(());
    }
    if endpoint.contains("://") {
        tracing::warn!(
            endpoint = %member,
            "the etcd password is sent without encryption, and so are all leases: use https://"
        );
        return Ok(());
    }
    Err(misconfigured(&format!(
        "{endpoint}: the password would go to another machine without encryption: write https://, or http:// if you \
         trust that network"
    )))
}

fn member(endpoint: &str, with_tls: bool) -> Result<Server, StoreError> {
    let scheme = if with_tls { "https" } else { "http" };
    let (given, rest) = endpoint.split_once("://").unwrap_or((scheme, endpoint));
    let authority = rest.trim_end_matches('/');
    if authority.contains('@') {
        // Not quoted: what stands before the @ is likely a password.
        return Err(misconfigured(
            "an endpoint has a user name in it: use etcd-username and etcd-password",
        ));
    }
    if !matches!(given, "http" | "https") {
        return Err(misconfigured(&format!("{endpoint:?} is neither http:// nor https://")));
    }
    let server = Server::parse(&format!("{scheme}://{authority}"));
    let wrong = || misconfigured(&format!("{endpoint:?} is not of the form http://host:port"));
    server.filter(|server| server.base.is_empty()).ok_or_else(wrong)
}

fn misconfigured(reason: &str) -> StoreError {
    StoreError::Misconfigured { option: "etcd-endpoints".to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport(endpoints: &[&str]) -> Result<Transport, StoreError> {
        Transport::new(&EtcdOptions {
            endpoints: endpoints.iter().map(|&e| e.to_owned()).collect(),
            ..EtcdOptions::default()
        })
    }

    fn names(endpoints: &[&str]) -> Vec<String> {
        let transport = transport(endpoints).unwrap();
        (0..transport.count()).map(|member| transport.name(member)).collect()
    }

    #[test]
    fn every_endpoint_has_its_own_scheme() {
        assert_eq!(
            names(&["http://a:1", "https://b:2", "c:3"]),
            ["http://a:1", "https://b:2", "http://c:3"]
        );
        assert_eq!(names(&["a:1", " ", "https://b:2/"]), ["http://a:1", "https://b:2"]);
    }

    #[test]
    fn without_a_scheme_a_ca_file_means_tls() {
        let files =
            TlsFiles::new(&EtcdOptions { ca: Some("/ca".into()), ..EtcdOptions::default() });
        assert!(uses_tls("a:1", &files) && uses_tls("https://a:1", &files));
        assert!(!uses_tls("http://a:1", &files) && !uses_tls("a:1", &TlsFiles::default()));
    }

    #[test]
    fn a_password_goes_out_in_clear_text_only_where_the_endpoint_says_so() {
        let with_password = |endpoint: &str| {
            Transport::new(&EtcdOptions {
                endpoints: vec![endpoint.to_owned()],
                username: Some("flannel".to_owned()),
                password: Some(super::super::Secret::new("hunter2")),
                ..EtcdOptions::default()
            })
        };
        for fine in ["https://a:1", "http://a:1", "127.0.0.1:1", "[::1]:1", "localhost:1"] {
            assert!(with_password(fine).is_ok(), "{fine}");
        }
        let said = with_password("a:1").unwrap_err().to_string();
        assert!(said.contains("without encryption") && !said.contains("hunter2"), "{said}");
        assert!(transport(&["a:1"]).is_ok(), "there is nothing to tell");
    }

    #[test]
    fn bad_endpoints_are_named_but_not_their_passwords() {
        for bad in [&["unix:///run/etcd"][..], &["http://a b:1"], &[], &[""]] {
            assert!(matches!(transport(bad), Err(StoreError::Misconfigured { .. })), "{bad:?}");
        }
        let error = transport(&["http://root:hunter2@a:1"]).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_missing_certificate_file_is_told_at_once() {
        let error = Transport::new(&EtcdOptions {
            endpoints: vec!["https://a:1".to_owned()],
            ca: Some("/nowhere/ca.pem".into()),
            ..EtcdOptions::default()
        });
        assert!(error.unwrap_err().to_string().contains("/nowhere/ca.pem"));
    }
}
