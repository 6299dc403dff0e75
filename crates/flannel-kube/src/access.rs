//! How the API server is reached: as a pod, or by a kubeconfig. What can change under a running daemon -
//! the kubeconfig, certificates, the token - is read again for every connection, the token for every
//! request.

use std::path::{Path, PathBuf};

use http::Uri;

use crate::kubeconfig::{Authority, ClientCertificate, Kubeconfig, Token};

/// Where Kubernetes puts what a pod needs to speak with the API server.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where to look for the way.
#[derive(Clone, Debug)]
pub enum Access {
    Pod { host: String, port: u16, account: PathBuf },
    Kubeconfig { file: PathBuf, url: Option<String> },
    Url(String),
}

/// The way, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
    pub(crate) server_name: Option<String>,
    pub(crate) client: Option<ClientCertificate>,
    pub(crate) token: Token,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    /// What every path begins with; empty, unless the server is behind another.
    pub(crate) base: String,
}

impl Access {
    /// As the flags say, else as in a pod. `variable` reads the environment.
    pub fn find(
        kubeconfig: Option<&Path>,
        url: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        match (kubeconfig, url) {
            (Some(file), url) => {
                Ok(Self::Kubeconfig { file: file.to_owned(), url: url.map(str::to_owned) })
            }
            (None, Some(url)) => Server::parse(url).map(|_| Self::Url(url.to_owned())),
            (None, None) => {
                let given = |name| variable(name).filter(|text| !text.is_empty());
                let host = given("KUBERNETES_SERVICE_HOST");
                let port = given("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok());
                let (Some(host), Some(port)) = (host, port) else {
                    return Err("there is neither a kubeconfig (--kubeconfig-file) nor the environment of a pod \
                                (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT): give the one, or run \
                                in the other"
                        .to_owned());
                };
                Ok(Self::Pod { host, port, account: PathBuf::from(SERVICE_ACCOUNT) })
            }
        }
    }

    pub(crate) fn way(&self) -> Result<Way, String> {
        match self {
            Self::Pod { host, port, account } => Ok(Way {
                server: Server { host: host.clone(), port: *port, tls: true, base: String::new() },
                authority: Authority::File(account.join("ca.crt")),
                server_name: None,
                client: None,
                token: Token::File(account.join("token")),
            }),
            Self::Kubeconfig { file, url } => {
                let found = Kubeconfig::read(file)?;
                let server = url.as_ref().unwrap_or(&found.server);
                Ok(Way {
                    server: Server::parse(server)?,
                    authority: found.authority,
                    server_name: found.server_name,
                    client: found.client,
                    token: found.token,
                })
            }
            Self::Url(url) => Ok(Way {
                server: Server::parse(url)?,
                authority: Authority::System,
                server_name: None,
                client: None,
                token: Token::None,
            }),
        }
    }

    /// For messages, whether it can be read or not.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Pod { host, port, .. } => Server::name(host, *port),
            Self::Url(url) => url.clone(),
            Self::Kubeconfig { url: Some(url), .. } => url.clone(),
            Self::Kubeconfig { file, .. } => match Kubeconfig::read(file) {
                Ok(found) => found.server,
                Err(_) => format!("the server of {}", file.display()),
            },
        }
    }

    /// Where the token comes from, for those who are told that it is not accepted.
    pub(crate) fn credentials(&self) -> String {
        match self {
            Self::Pod { account, .. } => {
                format!("the token in {}", account.join("token").display())
            }
            Self::Kubeconfig { file, .. } => format!("what the kubeconfig {} says", file.display()),
            Self::Url(_) => "that we say nothing of who we are (--kube-api-url alone)".to_owned(),
        }
    }
}

impl Server {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let shown = url.rsplit('@').next().unwrap_or_default();
        let wrong = || {
            format!(
                "{shown:?} is not the URL of an API server: use one such as https://192.0.2.1:6443"
            )
        };
        // As kubectl has it, what has no scheme is plain.
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { host, port, tls, base })
    }

    /// As in the header `Host`.
    pub(crate) fn authority(&self) -> String {
        Self::name(&self.host, self.port)
    }

    fn name(host: &str, port: u16) -> String {
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl Way {
    pub(crate) fn authorization(&self) -> Result<Option<String>, String> {
        use base64::Engine as _;
        match &self.token {
            Token::None => Ok(None),
            Token::Given(token) => Ok(Some(format!("Bearer {}", token.reveal().trim()))),
            Token::File(file) => {
                let text = std::fs::read_to_string(file).map_err(|error| {
                    format!("cannot read the token in {}: {error}", file.display())
                })?;
                let token = text.trim();
                if token.is_empty() {
                    return Err(format!("there is no token in {}", file.display()));
                }
                Ok(Some(format!("Bearer {token}")))
            }
            Token::Password { name, password } => {
                let pair = format!("{name}:{}", password.reveal());
                let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
                Ok(Some(format!("Basic {encoded}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_read_from_its_url() {
        let server = |host: &str, port, tls, base: &str| Server {
            host: host.to_owned(),
            port,
            tls,
            base: base.to_owned(),
        };
        for (url, expected) in [
            ("https://192.0.2.1:6443", server("192.0.2.1", 6443, true, "")),
            ("https://example.com", server("example.com", 443, true, "")),
            ("https://[fd00::1]:6443/", server("fd00::1", 6443, true, "")),
            ("http://127.0.0.1:8080", server("127.0.0.1", 8080, false, "")),
            ("127.0.0.1:8080", server("127.0.0.1", 8080, false, "")),
            (
                "https://r.example/k8s/clusters/c-1",
                server("r.example", 443, true, "/k8s/clusters/c-1"),
            ),
        ] {
            assert_eq!(Server::parse(url), Ok(expected), "{url}");
        }
        for url in ["", "https://", "ftp://example.com", "https://exa mple.com"] {
            assert!(Server::parse(url).is_err(), "{url}");
        }
        let told = Server::parse("https://user:secret@exa mple").expect_err("no URL");
        assert!(!told.contains("secret"), "{told}");
    }

    #[test]
    fn outside_of_a_pod_and_without_a_kubeconfig_it_is_said_what_is_missing() {
        let error = Access::find(None, None, |_| None).expect_err("nothing is given");
        assert!(error.contains("--kubeconfig-file") && error.contains("KUBERNETES_SERVICE_HOST"));
        let pod = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let access = Access::find(None, None, pod).expect("a pod");
        assert_eq!(access.name(), "[fd00::1]:443");
    }
}
