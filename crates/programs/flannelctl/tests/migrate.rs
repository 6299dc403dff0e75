//! `flannelctl store migrate`, and what operators do to leases, in the words that they read.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Command, Output};

use flannel_lease::LeaseAttrs;
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;
use flannel_store::{Claim, RemoteOptions, RemoteStore};

/// As people write it, with a key that nobody knows.
const CONFIG: &str = "{\n  \"network\": \"10.5.0.0/16\",\t\"_comment\": \"ours\",\n  \"Backend\": \
                      {\"Type\": \"VXLAN\", \"vni\": 7}\n}\n\n";

fn flannelctl(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
    command.args(words).env_remove("FLANNELD_REMOTE").output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn serve(dir: &std::path::Path, name: &str) -> String {
    support::serve(&dir.join(name), None, None)
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}

fn remote(address: &str) -> RemoteStore {
    let addresses = vec![address.to_owned()];
    RemoteStore::new(RemoteOptions { addresses, ..RemoteOptions::default() }, 1).unwrap()
}

fn node(number: u8) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: Some([192, 0, 2, number].into()),
        backend_type: "vxlan".into(),
        ..LeaseAttrs::default()
    }
}

#[test]
fn a_network_moves_there_and_back_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (serve(dir.path(), "first"), serve(dir.path(), "second"));
    block_on(there_and_back(&first, &second));
}

async fn there_and_back(first: &str, second: &str) {
    let etcd = EtcdServer::start();
    let endpoint = etcd.endpoint();
    let migrate = |to: &str, server: &str| {
        let (server, etcd) = (format!("--remote={server}"), format!("--etcd-endpoints={endpoint}"));
        flannelctl(&["store", "migrate", "--to", to, &server, &etcd])
    };

    let nothing = refused(&migrate("etcd", first));
    assert!(nothing.contains("has no network config: nothing to move"), "{nothing}");
    let (here, there) = (remote(first), remote(second));
    here.set_config(CONFIG, false).await.unwrap();
    let config = flannel_lease::NetworkConfig::parse(CONFIG).unwrap();
    let held = here.acquire(&config, &Claim::new(node(1), None)).await.unwrap().held;
    let reserved = "10.5.9.0-24".parse().unwrap();
    here.reserve(&reserved, &node(9)).await.unwrap();

    said(&migrate("etcd", first));
    said(&migrate("server", second));
    assert_eq!(etcd.store(1).config().await.unwrap().as_deref(), Some(CONFIG));
    assert_eq!(there.config_as_written().await.unwrap().as_deref(), Some(CONFIG));
    let raw = format!("--remote={second}");
    assert_eq!(said(&flannelctl(&["config", "get", "--raw", &raw])), CONFIG);
    let mut moved = there.list().await.unwrap();
    moved.sort_by_key(|held| held.lease.subnet);
    let mut before = vec![(reserved, true), (held.lease.subnet, false)];
    before.sort_unstable();
    let never = flannel_lease::Expiry::Never;
    let moved: Vec<_> = moved.iter().map(|h| (h.lease.subnet, h.expiry == never)).collect();
    assert_eq!(moved, before);
    // Again, and nothing is different.
    said(&migrate("server", second));
    assert_eq!(there.list().await.unwrap().len(), 2);
}

#[test]
fn what_goes_wrong_with_a_move_is_said_with_the_store_that_it_is_about() {
    let dir = tempfile::tempdir().unwrap();
    block_on(go_wrong(&serve(dir.path(), "data")));
}

async fn go_wrong(server: &str) {
    let here = remote(server);
    let config = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
    here.set_config(config, false).await.unwrap();
    let parsed = flannel_lease::NetworkConfig::parse(config).unwrap();
    let subnet = here.acquire(&parsed, &Claim::new(node(1), None)).await.unwrap().held.lease.subnet;
    let migrate = |to: &str, server: &str, endpoint: &str| {
        let (server, etcd) = (format!("--remote={server}"), format!("--etcd-endpoints={endpoint}"));
        refused(&flannelctl(&["store", "migrate", "--to", to, &server, &etcd]))
    };
    let nobody = "http://127.0.0.1:9";
    let text = migrate("etcd", server, nobody);
    assert!(text.contains("nothing was moved to etcd: ") && text.contains(nobody), "{text}");
    assert!(!text.contains("another network"), "{text}");
    let text = migrate("server", server, nobody);
    assert!(text.contains("nothing was moved from etcd: "), "{text}");

    // The other store is in use, by another network and by another node.
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let elsewhere = r#"{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}"#;
    store.set_config(elsewhere, false).await.unwrap();
    store.reserve(&"10.6.1.0-24".parse().unwrap(), &node(2)).await.unwrap();
    let text = migrate("etcd", server, &etcd.endpoint());
    assert!(text.contains("nothing was moved") && text.contains("10.6.1.0-24 for one"), "{text}");
    assert_eq!(store.config().await.unwrap().as_deref(), Some(elsewhere), "it stays");
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    store.set_config(config, false).await.unwrap();
    store.reserve(&subnet, &node(2)).await.unwrap();
    let text = migrate("etcd", server, &etcd.endpoint());
    assert!(
        text.contains("0 of 1 leases are in etcd") && text.contains("another node, at 192.0.2.2"),
        "{text}"
    );
}

#[test]
fn what_is_not_there_can_be_neither_released_nor_unreserved() {
    let dir = tempfile::tempdir().unwrap();
    let server = format!("--remote={}", serve(dir.path(), "data"));
    let file = dir.path().join("net-conf.json");
    std::fs::write(&file, r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap();
    let none = refused(&flannelctl(&["release", "10.5.7.0/24", &server]));
    assert!(none.contains("`flannelctl config set FILE`"), "{none}");
    said(&flannelctl(&["config", "set", file.to_str().unwrap(), &server]));
    for (command, attempted) in
        [("release", "release 10.5.7.0/24"), ("unreserve", "remove the reservation of 10.5.7.0/24")]
    {
        assert_eq!(
            refused(&flannelctl(&[command, "10.5.7.0/24", &server])),
            format!(
                "flannelctl: cannot {attempted}: there is no lease 10.5.7.0/24; `flannelctl leases` shows \
                 those that there are\n"
            )
        );
    }
    said(&flannelctl(&["reserve", "10.5.7.0/24", "--public-ip", "192.0.2.7", &server]));
    let reserved = refused(&flannelctl(&["release", "10.5.7.0/24", &server]));
    assert!(reserved.contains("is reserved") && !reserved.contains("see its log"), "{reserved}");
    let second =
        refused(&flannelctl(&["reserve", "10.5.8.0/24", "--public-ip", "192.0.2.7", &server]));
    assert!(second.contains("10.5.7.0-24 is reserved for 192.0.2.7 already"), "{second}");
}
