//! kubeconfig files as tools and people write them.

use std::path::{Path, PathBuf};

use flannel_https::{Credentials, FileOrPem, Trust};
use flannel_kube::kubeconfig::Kubeconfig;

fn parse(text: &str) -> Result<Kubeconfig, String> {
    Kubeconfig::parse(text, Path::new("/etc/kubernetes"))
}

/// As kubeadm and k3s write it.
const BY_TOOL: &str = "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tCg==
    server: https://127.0.0.1:6443
  name: default
- cluster: {server: \"https://other:6443\"}
  name: other
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
preferences: {}
users:
- name: default
  user:
    client-certificate-data: Y2VydA==
    client-key-data: a2V5
";

#[test]
fn a_file_as_kubeadm_writes_it_is_read() {
    let config = parse(BY_TOOL).unwrap();
    assert_eq!(config.server, "https://127.0.0.1:6443");
    assert!(
        matches!(config.trust, Trust::Authorities(FileOrPem::Pem { pem, .. }) if pem == b"---\n")
    );
    let client = config.certificate.unwrap();
    assert!(matches!(client.certificate, FileOrPem::Pem { pem, .. } if pem == b"cert"));
    assert!(matches!(client.key, FileOrPem::Pem { pem, .. } if pem == b"key"));
}

#[test]
fn files_are_named_from_where_the_kubeconfig_is() {
    let config = parse(
        "{clusters: [{name: c, cluster: {server: \"https://a\", certificate-authority: pki/ca.crt}}], \
         users: [{name: u, user: {tokenFile: /var/token}}], \
         contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}",
    )
    .unwrap();
    assert_eq!(
        config.trust,
        Trust::Authorities(FileOrPem::File(PathBuf::from("/etc/kubernetes/pki/ca.crt")))
    );
    assert!(
        matches!(config.credentials, Credentials::BearerFile { file, .. } if file == Path::new("/var/token"))
    );
}

#[test]
fn a_token_that_looks_like_a_number_is_one_all_the_same_and_none_is_shown() {
    let config = parse(
        "{clusters: [{name: c, cluster: {server: \"https://a\"}}], \
         users: [{name: u, user: {token: 123456}}], \
         contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}",
    )
    .unwrap();
    assert!(
        matches!(&config.credentials, Credentials::Bearer(token) if token.reveal() == "123456")
    );
    assert!(!format!("{config:?}").contains("123456"));
    let shown = format!("{:?}", parse(BY_TOOL).unwrap());
    assert!(!shown.contains("a2V5") && !shown.contains("107"), "{shown}");
}

#[test]
fn a_proxy_is_taken_from_the_kubeconfig() {
    let config = parse(
        "{clusters: [{name: c, cluster: {server: \"https://a\", proxy-url: \"http://p.example:3128\"}}], \
         contexts: [{name: x, context: {cluster: c}}], current-context: x}",
    )
    .unwrap();
    assert_eq!(config.proxy.map(|proxy| proxy.to_string()).as_deref(), Some("p.example:3128"));
}

#[test]
fn what_is_wrong_with_a_kubeconfig_is_named_without_its_secrets() {
    let with = |cluster: &str, user: &str| {
        format!(
            "{{clusters: [{{name: c, cluster: {cluster}}}], users: [{{name: u, user: {user}}}], \
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}"
        )
    };
    for (text, expected) in [
        ("[".to_owned(), "not YAML"),
        (String::new(), "empty"),
        ("{current-context: y}".to_owned(), "use-context"),
        (with("{}", "{}"), "server"),
        (with("{server: a, certificate-authority-data: '?'}", "{}"), "not base64"),
        (with("{server: a, proxy-url: 'socks5://me:secret@p'}", "{}"), "proxy-url"),
        (with("{server: a}", "{exec: {command: aws}}"), "exec"),
        (with("{server: a}", "{client-key: secret.key}"), "client-certificate"),
        (with("{server: a}", "{token: [secret]}"), "does not look like one"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
