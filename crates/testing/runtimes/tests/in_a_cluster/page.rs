//! The page of a cluster that was installed by the manifest, in a real Chromium: nodes are asked through the API
//! server, by an operator with no more rights than `operator.yml` gives.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use flannel_runtimes::{Cluster, flannelctl, our_manifest};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::{NAMESPACE, without_flannel_on};

/// `flannelctl page` on the host, which the nodes' underlay does not reach.
struct Served {
    child: Child,
    url: String,
    _kubeconfig: tempfile::NamedTempFile,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(kubeconfig: &str) -> Served {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), kubeconfig).expect("write the kubeconfig");
    let mut child = Command::new(flannelctl())
        .arg("page")
        .arg("--kubeconfig")
        .arg(file.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flannelctl runs");
    let mut url = String::new();
    let said = child.stdout.take().expect("it is piped");
    BufReader::new(said).read_line(&mut url).expect("it says an address");
    Served { child, url: url.trim().to_owned(), _kubeconfig: file }
}

/// The administrator's kubeconfig with the token of a service account in the place of the certificate.
fn kubeconfig_of(cluster: &Cluster, account: &str) -> String {
    let admin = cluster.kubernetes().kubeconfig_of_host().unwrap_or_else(|error| panic!("{error}"));
    let mut config: Value = serde_json::from_str(&admin).expect("it is JSON");
    let token = cluster.kubectl(&["-n", NAMESPACE, "create", "token", account]);
    config["users"][0]["user"] = json!({"token": token.trim()});
    config.to_string()
}

pub(crate) fn the_page_shows_how_each_node_is(cluster: &Cluster) {
    cluster.apply(&our_manifest("operator.yml"));
    an_operator_may_look_and_change_nothing(cluster);
    let served = serve(&kubeconfig_of(cluster, "flannel-operator"));
    let mut browser = Browser::start();
    browser.open(&served.url);
    browser.until("document.querySelector('h1').textContent === 'The network is healthy'");
    browser.until("document.querySelectorAll('#list tbody tr').length === 3");
    browser.until("document.querySelector('#verdict').textContent.includes('All 3 nodes say so')");
    assert!(browser.text("#about").contains("Kubernetes"), "{}", browser.text("#about"));
    browser.until("!document.getElementById('mesh').hidden");
    browser.picture("kubernetes");

    without_flannel_on(cluster, "node3", || {
        // How many nodes need attention depends on when the others miss it: what is said of node3 lasts.
        browser.until("document.querySelector('h1').textContent.includes('attention')");
        browser.until("document.querySelector('#problems').textContent.includes('node3')");
        let words = "no pod of flannel";
        browser
            .until(&format!("document.querySelector('#problems').textContent.includes('{words}')"));
        browser.picture("kubernetes-silent");
    });
    browser.until("document.querySelector('h1').textContent === 'The network is healthy'");

    browser.eval("[...document.querySelectorAll('#list tbody a')].find((link) => link.textContent === 'node2').click()");
    browser.until("document.querySelector('#node h1')?.textContent === 'node2'");
    browser.until("document.querySelector('#node').textContent.includes('How it sees its peers')");
    let text = browser.text("#node");
    for part in ["Kubernetes", "up for", "vxlan", "running for", "all in place"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    browser.fetched_only_from(&served.url);
    drop(served);
    a_bundle_has_what_the_nodes_say(cluster);
    without_the_right_it_says_what_is_missing(cluster, &mut browser);
}

/// From the host, which the nodes' underlay does not reach.
fn a_bundle_has_what_the_nodes_say(cluster: &Cluster) {
    let directory = tempfile::tempdir().expect("a directory");
    let [kubeconfig, bundle] =
        ["kubeconfig", "bundle.tar.gz"].map(|name| directory.path().join(name));
    std::fs::write(&kubeconfig, kubeconfig_of(cluster, "flannel-operator")).expect("write it");
    let made = Command::new(flannelctl())
        .args(["bundle", "--peers=5", "--socket=/nonexistent", "--log=/dev/null", "-f"])
        .arg(&bundle)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .output()
        .expect("flannelctl runs");
    assert!(made.status.success(), "{made:?}");
    let mut tar = Command::new("tar");
    tar.arg("xzOf").arg(&bundle).args(["--wildcards", "*/peers/*"]);
    let said = tar.output().expect("tar runs");
    let said = String::from_utf8_lossy(&said.stdout);
    for node in ["node1", "node2", "node3"] {
        assert!(said.contains(&format!("\"hostname\":\"{node}\"")), "{node}: {said}");
    }
}

fn an_operator_may_look_and_change_nothing(cluster: &Cluster) {
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:flannel-operator");
    let may = |words: &[&str]| {
        let asked = [&["auth", "can-i", "-n", NAMESPACE, &account][..], words].concat();
        // It ends with 1 where the answer is no.
        cluster.kubernetes().kubectl(&asked).is_ok_and(|answer| answer.trim() == "yes")
    };
    assert!(may(&["list", "pods"]) && may(&["create", "pods", "--subresource=portforward"]));
    for words in [
        &["create", "pods", "--subresource=exec"][..],
        &["get", "pods", "--subresource=log"],
        &["get", "secrets"],
        &["delete", "pods"],
        &["patch", "nodes", "--subresource=status"],
        &["patch", "configmaps"],
    ] {
        assert!(!may(words), "{words:?}");
    }
}

/// The daemon's own account may read Nodes, and that is all of this.
fn without_the_right_it_says_what_is_missing(cluster: &Cluster, browser: &mut Browser) {
    let granted =
        "{\"rules\":[{\"apiGroups\":[\"\"],\"resources\":[\"configmaps\"],\"verbs\":[\"get\"]}]}";
    let role = ["-n", NAMESPACE, "patch", "role", "flannel-operator", "-p", granted];
    cluster.kubectl(&role);
    let served = serve(&kubeconfig_of(cluster, "flannel-operator"));
    browser.open(&served.url);
    browser.until("document.querySelector('h1').textContent === 'No node answers'");
    browser.until("document.querySelector('#problems').textContent.includes('operator.yml')");
    let problems = browser.text("#problems");
    assert!(problems.contains("pods/portforward"), "{problems}");
    cluster
        .kubernetes()
        .delete(&our_manifest("operator.yml"))
        .unwrap_or_else(|error| panic!("{error}"));
}
