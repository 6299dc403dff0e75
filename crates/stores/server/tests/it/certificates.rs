//! Certificates that are not what they should be, on either side: whoever meets one says what is wrong
//! with it.

use flannel_server::Options;
use flannel_store::StoreError;
use flannel_store::prelude::*;
use flannel_store::remote::TlsFiles;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, date_time_ymd};

use crate::support::*;

type Change = fn(&mut CertificateParams);

const AS_IT_SHOULD_BE: Change = |_| {};
const OF_THE_PAST: Change = |params| {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
};
const OF_THE_FUTURE: Change = |params| {
    params.not_before = date_time_ymd(3001, 1, 1);
    params.not_after = date_time_ymd(3002, 1, 1);
};
const FOR_CLIENTS: Change =
    |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
const FOR_SERVERS: Change =
    |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];

/// What a node says that wants to talk to this server.
async fn reason(
    server: &Running,
    change: impl FnOnce(&mut flannel_store::RemoteOptions),
) -> String {
    match remote(&[server.address], change).snapshot().await {
        Err(StoreError::Unavailable { reason, .. }) => reason,
        other => panic!("it was trusted: {other:?}"),
    }
}

#[tokio::test]
async fn a_node_says_what_is_wrong_with_the_servers_certificate() {
    let (pki, other) = (Pki::new(), Pki::new());
    let here: &[&str] = &["127.0.0.1", "localhost"];
    for (signed_by, names, change, wanted) in [
        (&other, here, AS_IT_SHOULD_BE, "authority"),
        (&pki, here, OF_THE_PAST, "expired"),
        (&pki, here, OF_THE_FUTURE, "not valid yet"),
        (&pki, here, FOR_CLIENTS, "not one for servers"),
        (&pki, &["192.0.2.1"], AS_IT_SHOULD_BE, "not for 127.0.0.1"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = signed_by.issue_with("server", names, change);
        let tls = Some(TlsFiles { cert, key, ca: None });
        let server = serve(dir.path(), Options { tls, ..plain_options(0) }).await;
        let reason = reason(&server, |o| o.ca = Some(pki.file("ca.pem"))).await;
        assert!(reason.contains(wanted), "{wanted}: {reason}");
        assert!(reason.contains("the server"), "whose it is: {reason}");
    }
}

#[tokio::test]
async fn a_node_says_that_the_other_side_speaks_or_does_not_speak_tls() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let options = Options { tls: Some(pki.server_files(false)), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    let text = reason(&server, |_| {}).await;
    assert!(text.contains("does not speak plain HTTP"), "{text}");

    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), plain_options(0)).await;
    let text = reason(&server, |o| o.ca = Some(pki.file("ca.pem"))).await;
    assert!(text.contains("does not speak TLS"), "{text}");
}

#[tokio::test]
async fn a_node_says_what_is_wrong_with_its_own_certificate() {
    let (dir, pki, other) = (tempfile::tempdir().unwrap(), Pki::new(), Pki::new());
    let options = Options { tls: Some(pki.server_files(true)), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let here: &[&str] = &["node-1", "192.0.2.1"];
    for (signed_by, change, wanted) in [
        (&other, AS_IT_SHOULD_BE, "authority"),
        (&pki, OF_THE_PAST, "expired"),
        (&pki, OF_THE_FUTURE, "expired, or is not valid yet"),
        (&pki, FOR_SERVERS, "not one for clients"),
    ] {
        let (cert, key) = signed_by.issue_with("node-1", here, change);
        let reason = reason(&server, |o| {
            o.ca = Some(pki.file("ca.pem"));
            (o.cert, o.key) = (Some(cert), Some(key));
        });
        let reason = reason.await;
        assert!(reason.contains(wanted), "{wanted}: {reason}");
        assert!(reason.contains("our certificate"), "whose it is: {reason}");
    }
    let none = reason(&server, |o| o.ca = Some(pki.file("ca.pem"))).await;
    assert!(none.contains("asks for a certificate"), "{none}");
    let (cert, key) = pki.issue_with("node-1", here, FOR_CLIENTS);
    let good = remote(&[server.address], |o| {
        o.ca = Some(pki.file("ca.pem"));
        (o.cert, o.key) = (Some(cert), Some(key));
    });
    good.snapshot().await.unwrap();
}
