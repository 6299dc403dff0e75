//! `flannelctl pki`: what is there is not overwritten or taken back unless that was asked for, and what is
//! taken back is.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime};

use flannel_https::certificate;
use flannel_https::pem::certificates;
use flannel_store::prelude::*;
use flannel_store::remote::TlsFiles;
use flannel_store::{RemoteOptions, RemoteStore};

fn pki(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
    command.args(["pki", "--dir", dir.to_str().unwrap()]).args(words).output().unwrap()
}

fn done(dir: &Path, words: &[&str]) -> (String, String) {
    let output = pki(dir, words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Says no, changes nothing, and says why.
fn refused(dir: &Path, words: &[&str]) -> String {
    let before = files(dir);
    let output = pki(dir, words);
    assert!(!output.status.success(), "{words:?}");
    assert_eq!(files(dir), before, "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    let Ok(entries) = std::fs::read_dir(dir) else { return BTreeMap::new() };
    entries.map(|entry| read(entry.unwrap())).collect()
}

fn days_left(dir: &Path, name: &str) -> u64 {
    let all = certificates(&dir.join(name)).unwrap();
    let end = certificate::not_after(&all[0]).unwrap();
    let left = end.duration_since(SystemTime::now()).unwrap() + Duration::from_secs(60);
    left.as_secs() / 86_400
}

#[test]
fn the_authority_is_overwritten_by_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["init", "127.0.0.1"]);
    for words in [
        &["init", "127.0.0.1"][..],
        &["issue", "ca"],
        &["issue", "CA"],
        &["issue", "ca", "--replace"],
        &["renew", "ca"],
        &["issue", "../ca"],
        &["issue", "server"],
        &["issue", "server", "127.0.0.1"],
    ] {
        refused(dir, words);
    }
    // Half of it is as good as all: the other half may come back.
    for lost in ["ca.pem", "ca.key"] {
        let aside = dir.join("aside");
        std::fs::rename(dir.join(lost), &aside).unwrap();
        let said = refused(dir, &["init", "127.0.0.1"]);
        assert!(said.contains("exists"), "{said}");
        std::fs::rename(&aside, dir.join(lost)).unwrap();
    }
    done(dir, &["issue", "node-1"]);
    let said = refused(dir, &["issue", "node-1"]);
    assert!(said.contains("pki renew node-1") && said.contains("--replace"), "{said}");
    done(dir, &["issue", "node-1", "--replace"]);
}

#[test]
fn a_token_is_replaced_only_when_that_is_asked_for_and_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (first, _) = done(dir, &["token", "node-2", "192.0.2.2"]);
    done(dir, &["token", "node-20"]);
    let said = refused(dir, &["token", "node-2", "192.0.2.2"]);
    assert!(said.contains("node-2 has a token") && said.contains("--replace"), "{said}");
    let (second, said) = done(dir, &["token", "node-2", "192.0.2.2", "--replace"]);
    assert!(said.contains("the former token of node-2 is revoked"), "{said}");
    assert_ne!(first, second);
    let kept = |token: &str| {
        let text = std::fs::read_to_string(dir.join("tokens")).unwrap();
        text.contains(&flannel_store::remote::hash_token(token.trim()))
    };
    assert!(!kept(&first) && kept(&second));
    for name in ["two words", "", "a#b"] {
        refused(dir, &["token", name]);
    }
    // Tokens that were made before there was an authority stay.
    done(dir, &["init", "127.0.0.1"]);
    assert!(kept(&second));
    let (_, said) = done(dir, &["revoke", "node-2"]);
    assert!(said.contains("the token of node-2 is revoked"), "{said}");
    assert!(!kept(&second));
    let text = std::fs::read_to_string(dir.join("tokens")).unwrap();
    assert!(text.contains("node-20"), "{text}");
    let said = refused(dir, &["revoke", "node-2"]);
    assert!(said.contains("nothing is revoked"), "{said}");
}

#[test]
fn certificates_end_and_are_renewed_with_the_key_and_the_names_they_have() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["init", "127.0.0.1", "leases.example", "--days", "20"]);
    assert_eq!((days_left(dir, "ca.pem"), days_left(dir, "server.pem")), (3_650, 20));
    let key = std::fs::read(dir.join("server.key")).unwrap();
    let names = |name: &str| certificate::names(&certificates(&dir.join(name)).unwrap()[0]);
    let before = names("server.pem");
    done(dir, &["renew", "server"]);
    assert_eq!(days_left(dir, "server.pem"), 365);
    assert_eq!(names("server.pem"), before);
    assert_eq!(before.dns, ["leases.example"]);
    assert_eq!(std::fs::read(dir.join("server.key")).unwrap(), key);
    assert_eq!(
        certificates(&dir.join("server.pem")).unwrap().len(),
        2,
        "the authority's behind it"
    );
    refused(dir, &["renew", "nobody"]);
    refused(dir, &["issue", "x", "--days", "0"]);
}

#[test]
fn a_revoked_certificate_is_in_the_list_that_the_authority_signs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["init", "127.0.0.1"]);
    done(dir, &["issue", "node-1", "192.0.2.1"]);
    done(dir, &["renew", "node-1"]);
    done(dir, &["issue", "node-2", "192.0.2.2"]);
    let (_, said) = done(dir, &["revoke", "node-1"]);
    assert!(said.contains("2 certificates of node-1"), "{said}");
    let ca = std::fs::read_to_string(dir.join("ca.pem")).unwrap();
    assert!(ca.contains("BEGIN X509 CRL") && ca.contains("BEGIN CERTIFICATE"), "{ca}");
    let number = certificate::serial(&certificates(&dir.join("node-1.pem")).unwrap()[0]).unwrap();
    let number: String = number.iter().map(|byte| format!("{byte:02x}")).collect();
    let revoked = std::fs::read_to_string(dir.join("revoked")).unwrap();
    assert!(revoked.contains(&number), "{revoked}");
    // What comes later is not touched by it, and can be made as before.
    done(dir, &["revoke", "node-2"]);
    assert_eq!(std::fs::read_to_string(dir.join("revoked")).unwrap().lines().count(), 3);
    done(dir, &["issue", "node-3", "192.0.2.3"]);
    let chain = std::fs::read_to_string(dir.join("node-3.pem")).unwrap();
    assert!(!chain.contains("X509 CRL"), "{chain}");
    done(dir, &["token", "node-3"]);
    refused(dir, &["revoke", "ca"]);
}

#[test]
fn a_server_turns_a_revoked_certificate_away_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("pki");
    done(&made, &["init", "127.0.0.1"]);
    done(&made, &["issue", "node-1", "192.0.2.1"]);
    done(&made, &["issue", "node-2", "192.0.2.2"]);
    let file = |name: &str| made.join(name);
    let tls =
        TlsFiles { cert: file("server.pem"), key: file("server.key"), ca: Some(file("ca.pem")) };
    let address = support::serve(&dir.path().join("data"), Some(tls), None);
    let networks = |name: &str| {
        let options = RemoteOptions {
            addresses: vec![address.clone()],
            ca: Some(file("ca.pem")),
            cert: Some(file(&format!("{name}.pem"))),
            key: Some(file(&format!("{name}.key"))),
            ..RemoteOptions::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = async { RemoteStore::new(options, 1).unwrap().config().await };
        runtime.block_on(config).map_err(|error| error.to_string())
    };
    assert_eq!(networks("node-1").unwrap(), None);
    done(&made, &["revoke", "node-1"]);
    let begin = Instant::now();
    while networks("node-1").is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is still let in");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(networks("node-2").unwrap(), None);
}

#[test]
fn a_nodes_certificate_is_not_good_for_a_server_nor_a_servers_for_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["init", "127.0.0.1"]);
    done(dir, &["issue", "node-1", "127.0.0.1"]);
    done(dir, &["issue", "leases-2", "127.0.0.2", "--server"]);
    let serves = |name: &str| {
        let all = certificates(&dir.join(format!("{name}.pem"))).unwrap();
        certificate::is_for_servers_alone(&all[0])
    };
    for _ in 0..2 {
        assert_eq!(["server", "leases-2", "node-1"].map(serves), [true, true, false]);
        // And so it stays when they are made anew.
        for name in ["server", "leases-2", "node-1"] {
            done(dir, &["renew", name]);
        }
    }
    // A node that poses as the server is not believed.
    let ca = || Some(dir.join("ca.pem"));
    let tls = |name: &str| TlsFiles {
        cert: dir.join(format!("{name}.pem")),
        key: dir.join(format!("{name}.key")),
        ca: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, good) in [("server", true), ("node-1", false)] {
        let data = tempfile::tempdir().unwrap();
        let address = support::serve(data.path(), Some(tls(name)), None);
        let options =
            RemoteOptions { addresses: vec![address], ca: ca(), ..RemoteOptions::default() };
        let store = RemoteStore::new(options, 1).unwrap();
        let config = runtime.block_on(store.config());
        assert_eq!(config.is_ok(), good, "{name}: {config:?}");
    }
}
