//! kubeconfig files: where the API server is, how it is known, and how it knows us.

use std::path::Path;

use base64::Engine as _;
use flannel_common::Secret;
use flannel_https::{ClientCertificate, Credentials, FileOrPem, Proxy, Trust};
use serde::Deserialize;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

/// The server and the user of a kubeconfig's current context.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    pub server: String,
    pub trust: Trust,
    /// The name in the server's certificate, where it is not the one in its address.
    pub server_name: Option<String>,
    pub certificate: Option<ClientCertificate>,
    pub credentials: Credentials,
    pub proxy: Option<Proxy>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Document {
    #[serde(rename = "current-context")]
    current_context: String,
    clusters: Vec<NamedItem<Cluster>>,
    users: Vec<NamedItem<User>>,
    contexts: Vec<NamedItem<Context>>,
}

/// An item of one of the lists, each of which calls the content by another name.
#[derive(Deserialize)]
struct NamedItem<T> {
    name: String,
    #[serde(alias = "cluster", alias = "user", alias = "context")]
    content: Option<T>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    insecure_skip_tls_verify: bool,
    tls_server_name: String,
    proxy_url: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: Value,
    auth_provider: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

impl Kubeconfig {
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read the kubeconfig {}: {error}", file.display()))?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, directory)
            .map_err(|why| format!("the kubeconfig {} {why}", file.display()))
    }

    /// Files are named relative to the directory of the kubeconfig.
    pub fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        let mut documents =
            YamlLoader::load_from_str(text).map_err(|error| format!("is not YAML: {error}"))?;
        if documents.is_empty() {
            return Err("is empty".to_owned());
        }
        let yaml = documents.swap_remove(0);
        let document: Document = serde_json::from_value(to_json(yaml))
            // It may quote what it could not use, which may be a secret.
            .map_err(|_| "does not look like one: see `kubectl config view`".to_owned())?;
        let context = document.context()?;
        let cluster = find(&document.clusters, &context.cluster).ok_or_else(|| {
            format!("names the cluster {:?}, which is not among its clusters", context.cluster)
        })?;
        let nobody = User::default();
        let user = match find(&document.users, &context.user) {
            Some(user) => user,
            None if context.user.is_empty() => &nobody,
            None => {
                let name = &context.user;
                return Err(format!("names the user {name:?}, who is not among its users"));
            }
        };
        if cluster.server.is_empty() {
            return Err("names no server of its cluster: add clusters[].cluster.server".to_owned());
        }
        let proxy = text_of(&cluster.proxy_url).map(Proxy::parse).transpose();
        let proxy = proxy.map_err(|why| format!("has a proxy-url that cannot be used: {why}"))?;
        if !user.exec.is_null() || !user.auth_provider.is_null() {
            return Err("asks for a helper program (exec or auth-provider), which flannel does not run: use a \
                        client certificate, token or tokenFile"
                .to_owned());
        }
        let (data, file) = (&cluster.certificate_authority_data, &cluster.certificate_authority);
        let trust = match cluster.insecure_skip_tls_verify {
            true => Trust::Anyone,
            false => file_or_pem(directory, "certificate-authority-data", data, file)?
                .map_or(Trust::System, Trust::Authorities),
        };
        Ok(Self {
            server: cluster.server.clone(),
            trust,
            server_name: text_of(&cluster.tls_server_name).map(str::to_owned),
            certificate: user.certificate(directory)?,
            credentials: user.credentials(directory),
            proxy,
        })
    }
}

impl Document {
    fn context(&self) -> Result<&Context, String> {
        let only = match self.contexts.as_slice() {
            [only] if self.current_context.is_empty() => only.content.as_ref(),
            _ => None,
        };
        find(&self.contexts, &self.current_context).or(only).ok_or_else(|| {
            let name = &self.current_context;
            format!("has no context {name:?}: choose one with `kubectl config use-context`")
        })
    }
}

fn find<'a, T>(list: &'a [NamedItem<T>], name: &str) -> Option<&'a T> {
    list.iter().find(|it| it.name == name)?.content.as_ref()
}

impl User {
    fn certificate(&self, directory: &Path) -> Result<Option<ClientCertificate>, String> {
        let (data, file) = (&self.client_certificate_data, &self.client_certificate);
        let certificate = file_or_pem(directory, "client-certificate-data", data, file)?;
        let (data, file) = (&self.client_key_data, &self.client_key);
        let key = file_or_pem(directory, "client-key-data", data, file)?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(ClientCertificate { certificate, key })),
            (None, None) => Ok(None),
            _ => {
                Err("has only one of client-certificate and client-key: both are needed".to_owned())
            }
        }
    }

    /// A file counts more than inline data, as for kubectl.
    fn credentials(&self, directory: &Path) -> Credentials {
        if !self.token_file.is_empty() {
            Credentials::whole_file(directory.join(&self.token_file))
        } else if !self.token.is_empty() {
            Credentials::Bearer(Secret::new(self.token.as_str()))
        } else if !self.username.is_empty() {
            let password = Secret::new(self.password.as_str());
            Credentials::Basic { name: self.username.clone(), password }
        } else {
            Credentials::None
        }
    }
}

fn text_of(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Inline data counts more than a file.
fn file_or_pem(
    directory: &Path,
    name: &'static str,
    data: &str,
    file: &str,
) -> Result<Option<FileOrPem>, String> {
    Ok(match (text_of(data), text_of(file)) {
        (Some(data), _) => Some(FileOrPem::Pem { name, pem: decode(name, data)? }),
        (None, Some(file)) => Some(FileOrPem::File(directory.join(file))),
        (None, None) => None,
    })
}

fn decode(name: &str, base64: &str) -> Result<Vec<u8>, String> {
    let base64: String = base64.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let decoded = base64::engine::general_purpose::STANDARD.decode(base64);
    decoded.map_err(|_| format!("has {name} that is not base64"))
}

pub(crate) fn to_json(yaml: Yaml) -> Value {
    match yaml {
        Yaml::Real(text) | Yaml::String(text) => Value::String(text),
        // Nothing in a kubeconfig is a number, but a token may look like one.
        Yaml::Integer(number) => Value::String(number.to_string()),
        Yaml::Boolean(yes) => yes.into(),
        Yaml::Array(items) => items.into_iter().map(to_json).collect(),
        Yaml::Hash(members) => members
            .into_iter()
            .map(|(name, value)| (name.into_string().unwrap_or_default(), to_json(value)))
            .collect(),
        Yaml::Alias(_) | Yaml::Null | Yaml::BadValue => Value::Null,
    }
}
