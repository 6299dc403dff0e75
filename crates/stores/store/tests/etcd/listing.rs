//! What is in etcd, byte for byte, and what reading it costs.

use std::time::{Duration, SystemTime};

use flannel_lease::{Expiry, LeaseTable};
use flannel_store::Cursor;
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;
use flannel_store::{EtcdStore, StoreError};

use crate::common::*;

#[tokio::test]
async fn a_missing_config_is_none_and_a_written_one_is_read_back() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    assert_eq!(store.config().await.unwrap(), None);
    etcd.raw().put(&config_key(), r#"{"Network":"10.3.0.0/16"}"#).await;
    assert_eq!(store.config().await.unwrap().as_deref(), Some(r#"{"Network":"10.3.0.0/16"}"#));
}

#[tokio::test]
async fn a_config_that_is_not_text_is_an_error_that_names_the_key() {
    let etcd = EtcdServer::start();
    etcd.raw().put(&config_key(), vec![0xff, 0xfe]).await;
    let error = etcd.store(1).config().await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { key, .. } if *key == config_key()), "{error}");
}

#[test]
fn the_manager_is_named_as_operators_know_it() {
    let options = flannel_store::EtcdOptions {
        endpoints: vec!["http://127.0.0.1:2379".to_owned()],
        ..Default::default()
    };
    let name =
        |previous: Option<&str>| EtcdStore::new(&options, previous.map(subnet), 1).unwrap().name();
    assert_eq!(name(None), "Etcd Local Manager with Previous Subnet: None");
    assert_eq!(name(Some("10.3.4.0-24")), "Etcd Local Manager with Previous Subnet: 10.3.4.0/24");
}

#[tokio::test]
async fn a_lease_is_written_exactly_as_the_go_flannel_writes_it() {
    let etcd = EtcdServer::start();
    let acquired = etcd.store(1).acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();

    let subnet = acquired.held.lease.subnet.v4().unwrap();
    let stored = etcd.raw().list(&subnets()).await;
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].key, key(&format!("{}-24", subnet.network())));
    assert_eq!(stored[0].value, r#"{"PublicIP":"1.2.3.4","PublicIPv6":null}"#);
    assert_eq!(acquired.held.version, stored[0].version());

    let left = etcd.raw().time_to_live(stored[0].lease).await;
    assert!((86_300..=86_400).contains(&left), "{left} s");
    let Expiry::At(expiry) = acquired.held.expiry else { panic!("a lease ends") };
    let ends_in = expiry.duration_since(SystemTime::now()).unwrap();
    assert!(ends_in <= Duration::from_secs(86_400) && ends_in > Duration::from_secs(86_300));
}

#[tokio::test]
async fn a_snapshot_holds_every_lease_and_where_to_go_on_from() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    raw.put(&key("10.3.2.0-24&fd00:2::-64"), value("2.2.2.2")).await;
    raw.put(&(v6_subnets() + "fd00:3::-64"), r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::3"}"#)
        .await;

    let snapshot = etcd.store(1).snapshot().await.unwrap();
    assert_eq!(snapshot.cursor, Cursor::new(raw.revision().await.to_string()));
    let found: Vec<String> = snapshot.leases.iter().map(|l| l.lease.subnet.to_string()).collect();
    assert_eq!(found, ["10.3.1.0-24", "10.3.2.0-24&fd00:2::-64", "fd00:3::-64"]);
    assert_eq!(snapshot.leases[0].lease.attrs, attrs("1.1.1.1"));
    assert_eq!(snapshot.leases[2].lease.attrs.public_ip, None);
    assert_eq!(snapshot.leases[2].lease.attrs.public_ipv6, Some("fc00::3".parse().unwrap()));
}

#[tokio::test]
async fn other_prefixes_and_other_directories_are_not_ours() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    raw.put("/coreos.com/network2/subnets/10.3.1.0-24", value("1.1.1.1")).await;
    raw.put("/coreos.com/network/subnets-old/10.3.2.0-24", value("1.1.1.1")).await;
    raw.put("/coreos.com/network/blue/subnets/10.3.3.0-24", value("1.1.1.1")).await;
    assert!(etcd.store(1).snapshot().await.unwrap().leases.is_empty());
}

#[tokio::test]
async fn defect_13_a_thousand_leases_are_listed_with_one_request() {
    let etcd = EtcdServer::start();
    let entry = |n: u32| {
        let (high, low) = (n / 256, n % 256);
        (key(&format!("10.{high}.{low}.0-24")), value(&format!("192.168.{high}.{low}")))
    };
    etcd.raw().put_all(&(0..1_000).map(entry).collect::<Vec<_>>()).await;
    let before = etcd.requests();

    let snapshot = etcd.store(1).snapshot().await.unwrap();

    assert_eq!(snapshot.leases.len(), 1_000);
    // A member that was not spoken to before is asked which cluster it is of.
    let counted = |name: &str| (name.to_owned(), 1);
    assert_eq!(requests_since(&etcd, &before), [counted("Status"), counted("Txn")]);
}

#[tokio::test]
async fn defect_13_a_start_costs_six_requests_and_a_stream() {
    let etcd = EtcdServer::start();
    etcd.raw().put(&config_key(), r#"{"Network":"10.3.0.0/16"}"#).await;
    let before = etcd.requests();

    let store = etcd.store(1);
    let config = network(&store.config().await.unwrap().unwrap());
    let acquired = store.acquire(&config, &claim("1.2.3.4")).await.unwrap();
    let mut table = LeaseTable::new();
    table.set_own(Some(acquired.held.lease.subnet));
    table.snapshot(acquired.snapshot.leases.iter().map(|stored| stored.lease.clone()));
    let mut events = store.watch(acquired.snapshot.cursor);
    next(&mut events).await;

    let counted = |name: &str, count| (name.to_owned(), count);
    assert_eq!(
        requests_since(&etcd, &before),
        // Of the two ranges one reads the config, and one asks whether etcd was restored meanwhile.
        [
            counted("LeaseGrant", 1),
            counted("Range", 2),
            counted("Status", 1),
            counted("Txn", 2),
            counted("Watch", 1)
        ]
    );
}

fn requests_since(
    etcd: &EtcdServer,
    before: &std::collections::BTreeMap<String, u64>,
) -> Vec<(String, u64)> {
    let since = |(name, count): (String, u64)| {
        let more = count - before.get(&name).copied().unwrap_or(0);
        (more > 0).then_some((name, more))
    };
    etcd.requests().into_iter().filter_map(since).collect()
}

fn vxlan_value(public_ip: &str, v4: &str, v6: &str) -> String {
    format!(
        r#"{{"PublicIP":"{public_ip}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:00:00:00:00:{v4}"}},"BackendV6Data":{{"VNI":1,"VtepMAC":"02:00:00:00:06:{v6}"}}}}"#
    )
}

/// In the order of their keys: number and whether that is the announcement itself.
async fn announced_since(etcd: &EtcdServer) -> Vec<(u64, bool)> {
    let snapshot = etcd.store(1).snapshot().await.unwrap();
    let since = snapshot.leases.iter().map(|stored| stored.since.unwrap());
    since.map(|since| (since.number(), since.is_exact())).collect()
}

#[tokio::test]
async fn a_lease_announces_a_disputed_mac_since_it_was_first_written_with_it() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    let put = async |number: u64, mac: &str| {
        let address = format!("192.0.2.{number}");
        let value = vxlan_value(&address, mac, &format!("{number:02}"));
        raw.put(&key(&format!("10.3.{number}.0-24")), value).await;
        u64::try_from(raw.revision().await).unwrap()
    };
    let older = put(1, "01").await;
    let victim = put(2, "02").await;
    let other = put(3, "03").await;
    assert_eq!(announced_since(&etcd).await, [(older, true), (victim, true), (other, true)]);
    for _ in 0..5 {
        put(1, "01").await;
        put(2, "02").await;
    }
    let reads = || etcd.requests().get("Range").copied().unwrap_or_default();
    let before = reads();
    let quiet = announced_since(&etcd).await;
    assert_eq!(
        (quiet[1], reads()),
        ((victim, true), before),
        "nothing is looked up without a dispute"
    );
    let theft = put(1, "02").await;
    for _ in 0..5 {
        put(2, "02").await;
        put(1, "02").await;
    }
    let expected = [(theft, true), (victim, true), (other, true)];
    assert_eq!(announced_since(&etcd).await, expected);
    // A third one that is new.
    let copy = put(4, "02").await;
    assert_eq!(announced_since(&etcd).await, [expected.as_slice(), &[(copy, true)]].concat());
}

#[tokio::test]
async fn what_etcd_has_forgotten_of_a_disputed_mac_is_no_exact_evidence() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    let put = async |number: u64, mac: &str| {
        let address = format!("192.0.2.{number}");
        let value = vxlan_value(&address, mac, &format!("{number:02}"));
        raw.put(&key(&format!("10.3.{number}.0-24")), value).await;
        u64::try_from(raw.revision().await).unwrap()
    };
    put(1, "01").await;
    put(2, "02").await;
    put(2, "02").await;
    raw.compact().await;
    let theft = put(1, "02").await;
    put(2, "02").await;
    let since = announced_since(&etcd).await;
    assert_eq!(since[0], (theft, true), "that it had another one is still known");
    assert!(since[1].0 < theft && !since[1].1, "{since:?}");
    raw.compact().await;
    put(1, "02").await;
    put(2, "02").await;
    let since = announced_since(&etcd).await;
    assert!(since.iter().all(|(_, is_exact)| !is_exact), "{since:?}");
}

/// One lease has one number: where it would have to stand for two announcements of different age, it is none.
#[tokio::test]
async fn a_lease_in_two_disputes_of_different_age_has_no_exact_evidence() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    for (number, v4, v6) in
        [(1, "01", "01"), (2, "02", "02"), (1, "02", "01"), (3, "03", "01"), (2, "02", "02")]
    {
        let value = vxlan_value(&format!("192.0.2.{number}"), v4, v6);
        raw.put(&key(&format!("10.3.{number}.0-24")), value).await;
    }
    let since = announced_since(&etcd).await;
    assert_eq!(since.iter().map(|(_, exact)| *exact).collect::<Vec<_>>(), [false, true, true]);
}
