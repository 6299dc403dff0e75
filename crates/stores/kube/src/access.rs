//! Access to the API server: as a pod, or by a kubeconfig. What can change under a running daemon (the kubeconfig,
//! certificates) is read again for every connection, and the token for every request.

use std::path::{Path, PathBuf};

use flannel_https::{Advice, Credentials, FileOrPem, Proxies, Server, Target, Trust};

use crate::kubeconfig::Kubeconfig;

pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[derive(Clone, Debug)]
pub enum Access {
    Pod { host: String, port: u16, account: PathBuf },
    Kubeconfig { file: PathBuf, url: Option<String> },
    Url(String),
}

const ADVICE: Advice = Advice {
    server: "the API server",
    untrusted: "was the authority that we were given replaced (ca.crt of the service account, or \
                certificate-authority of the kubeconfig)?",
    wrong_name: "use one of its names, or set tls-server-name in the kubeconfig",
    use_tls: "use https://",
    no_tls: "use http:// if that is meant",
    certificate_missing: "give client-certificate and client-key in the kubeconfig",
    clear_text: "a token is not sent to another machine without TLS: use https://",
};

impl Access {
    /// Access by the flags, else as in a pod. `variable` reads the environment.
    pub fn find(
        kubeconfig: Option<&Path>,
        url: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        match (kubeconfig, url) {
            (Some(file), url) => {
                Ok(Self::Kubeconfig { file: file.to_owned(), url: url.map(str::to_owned) })
            }
            (None, Some(url)) => parse(url).map(|_| Self::Url(url.to_owned())),
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

    pub(crate) fn target(&self) -> Result<Target, String> {
        let target = match self {
            Self::Pod { host, port, account } => Target {
                trust: Trust::Authorities(FileOrPem::File(account.join("ca.crt"))),
                credentials: Credentials::whole_file(account.join("token")),
                ..Target::new(pod_server(host, *port))
            },
            Self::Kubeconfig { file, url } => {
                let found = Kubeconfig::read(file)?;
                Target {
                    trust: found.trust,
                    server_name: found.server_name,
                    certificate: found.certificate,
                    credentials: found.credentials,
                    proxy: found.proxy,
                    ..Target::new(parse(url.as_ref().unwrap_or(&found.server))?)
                }
            }
            Self::Url(url) => Target::new(parse(url)?),
        };
        let proxy = match target.proxy {
            Some(proxy) => Some(proxy),
            None => Proxies::from_environment(|name| std::env::var(name).ok())?
                .way_to(&target.server)
                .cloned(),
        };
        Ok(Target { proxy, advice: &ADVICE, ..target })
    }

    /// Address for messages, whether it can be read or not.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Pod { host, port, .. } => pod_server(host, *port).authority(),
            Self::Url(url) => url.clone(),
            Self::Kubeconfig { url: Some(url), .. } => url.clone(),
            Self::Kubeconfig { file, .. } => match Kubeconfig::read(file) {
                Ok(found) => found.server,
                Err(_) => format!("the server of {}", file.display()),
            },
        }
    }

    /// Origin of the token, for errors.
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

fn pod_server(host: &str, port: u16) -> Server {
    Server { host: host.to_owned(), port, tls: true, base: String::new() }
}

fn parse(url: &str) -> Result<Server, String> {
    // As kubectl has it, what has no scheme is plain.
    let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    Server::parse(&full).ok_or_else(|| {
        let shown = url.rsplit('@').next().unwrap_or_default();
        format!("{shown:?} is not the URL of an API server: use one such as https://192.0.2.1:6443")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_scheme_is_plain_and_one_that_makes_no_sense_is_refused() {
        let server = parse("127.0.0.1:8080").expect("a server");
        assert_eq!(server.to_string(), "http://127.0.0.1:8080");
        for url in ["", "https://", "ftp://example.com", "https://exa mple.com"] {
            assert!(parse(url).is_err(), "{url}");
        }
        let told = parse("https://user:secret@exa mple").expect_err("no URL");
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
