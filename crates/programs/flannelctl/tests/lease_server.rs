//! `flannelctl` beside a lease server, as an operator uses it: certificates and tokens made by it,
//! config, leases and reservations over TLS.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Command, Output};

use flannel_store::remote::TlsFiles;
use flannel_store::testing::AcquireAs as _;
use flannel_store::{Claim, RemoteOptions, RemoteStore, Secret};

fn flannelctl(words: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
    command.args(words).env_remove("FLANNELD_REMOTE").envs(env.iter().copied());
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// With what `flannelctl pki` has made.
fn serve(pki: &Path, data: &Path) -> String {
    let tls = TlsFiles { cert: pki.join("server.pem"), key: pki.join("server.key"), ca: None };
    support::serve(data, Some(tls), Some(pki.join("tokens")))
}

#[test]
fn from_nothing_to_a_network_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let at = pki.to_str().unwrap();
    said(&flannelctl(&["pki", "--dir", at, "init", "127.0.0.1"], &[]));
    let token = |words: &[&str]| {
        let all = [&["pki", "--dir", at, "token"], words].concat();
        said(&flannelctl(&all, &[])).trim().to_owned()
    };
    let (boss, node) = (token(&["boss", "--admin"]), token(&["node-1", "192.0.2.1"]));
    let kept = std::fs::read_to_string(pki.join("tokens")).unwrap();
    assert!(!kept.contains(&boss) && !kept.contains(&node), "only hashes are kept");

    let address = serve(&pki, &dir.path().join("data"));
    let as_boss = [("FLANNELD_REMOTE", &*address), ("FLANNELD_REMOTE_TOKEN", &*boss)];
    let none = refused(&flannelctl(&["config", "get"], &as_boss));
    assert!(none.contains("no network config yet"), "{none}");
    let config = dir.path().join("net-conf.json");
    std::fs::write(&config, r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap();
    said(&flannelctl(&["config", "set", config.to_str().unwrap()], &as_boss));
    assert!(said(&flannelctl(&["config", "get"], &as_boss)).contains("\"SubnetLen\": 24"));

    // One token is all that a node needs.
    let options = RemoteOptions {
        addresses: vec![address.clone()],
        token: Some(Secret::new(node.clone())),
        ..RemoteOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = runtime.block_on(async {
        let store = RemoteStore::new(options, 1).unwrap();
        let attrs = flannel_lease::LeaseAttrs {
            public_ip: Some([192, 0, 2, 1].into()),
            ..Default::default()
        };
        let config = flannel_lease::NetworkConfig::parse(
            r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#,
        )
        .unwrap();
        store.acquire(&config, &Claim::new(attrs, None)).await.unwrap().held
    });
    let subnet = held.lease.subnet.v4().unwrap().to_string();
    let table = said(&flannelctl(&["leases"], &as_boss));
    assert!(table.contains(&subnet) && table.contains("192.0.2.1"), "{table}");
    let json = said(&flannelctl(&["leases", "-o", "json"], &as_boss));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["subnet"], *subnet);

    let as_node = [("FLANNELD_REMOTE", &*address), ("FLANNELD_REMOTE_TOKEN", &*node)];
    let reserve = ["reserve", "10.5.9.0/24", "--public-ip", "192.0.2.9"];
    let no = refused(&flannelctl(&reserve, &as_node));
    assert!(no.contains("operator") && !no.contains(&node), "{no}");
    said(&flannelctl(&reserve, &as_boss));
    assert!(said(&flannelctl(&["leases"], &as_boss)).contains("reserved"));
    said(&flannelctl(&["unreserve", "10.5.9.0/24"], &as_boss));
    said(&flannelctl(&["release", "10.5.9.0/24"], &as_boss));
    let other = dir.path().join("other.json");
    std::fs::write(&other, r#"{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap();
    let set = ["config", "set", other.to_str().unwrap()];
    let stranded = refused(&flannelctl(&set, &as_boss));
    assert!(stranded.contains("do not fit"), "{stranded}");
    said(&flannelctl(&[&set[..], &["--force"]].concat(), &as_boss));
}

#[test]
fn a_config_is_checked_without_any_store() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net-conf.json");
    let path = file.to_str().unwrap();
    std::fs::write(&file, r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap();
    assert!(said(&flannelctl(&["config", "validate", path], &[])).contains("10.5.255.0"));
    std::fs::write(&file, r#"{"Network":"10.5.0.0/29"}"#).unwrap();
    let wrong = refused(&flannelctl(&["config", "validate", path], &[]));
    assert!(wrong.contains("too small"), "{wrong}");
}
