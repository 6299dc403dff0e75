//! Ten thousand nodes.

use std::time::Instant;

use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;

use crate::common::*;

#[tokio::test]
async fn ten_thousand_leases_are_listed_by_one_request() {
    let etcd = EtcdServer::start();
    let entry = |n: u32| {
        let (high, low) = (n / 256, n % 256);
        let value = format!(
            r#"{{"PublicIP":"192.168.{high}.{low}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"c6:d2:32:6f:{high:02x}:{low:02x}"}}}}"#
        );
        (key(&format!("10.{high}.{low}.0-24")), value)
    };
    etcd.raw().put_all(&(0..10_000).map(entry).collect::<Vec<_>>()).await;
    let store = etcd.store(1);
    store.config().await.unwrap();
    let before = etcd.requests()["Txn"];

    let began = Instant::now();
    let snapshot = store.snapshot().await.unwrap();
    let took = began.elapsed();

    assert_eq!(snapshot.leases.len(), 10_000);
    assert_eq!(etcd.requests()["Txn"] - before, 1);
    println!("10,000 leases listed in {took:?}");

    let network = network(r#"{"Network":"10.0.0.0/8","SubnetLen":24}"#);
    let began = Instant::now();
    let acquired = store.acquire(&network, &claim("1.2.3.4")).await.unwrap();
    println!("and a subnet acquired among them in {:?}", began.elapsed());
    assert_eq!(acquired.snapshot.leases.len(), 10_001);
}
