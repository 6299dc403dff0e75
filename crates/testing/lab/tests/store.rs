//! The lab's etcd: keys, and everything that can happen to a store.

use std::time::Duration;

use flannel_lab::{Lab, Result};

fn lab(members: u8) -> Result<Lab> {
    Lab::builder().nodes(1).no_daemons().etcd_members(members).start()
}

#[test]
fn keys_are_written_read_listed_and_deleted() -> Result<()> {
    let lab = lab(1)?;
    let etcd = lab.etcd()?;
    etcd.put("/a/1", "one")?;
    etcd.put("/a/2", "")?;
    etcd.put("/b", [0xff, 0xfe])?;
    assert_eq!(etcd.get("/a/1")?.as_deref(), Some("one"));
    assert_eq!(etcd.get("/a/2")?.as_deref(), Some(""));
    assert_eq!(etcd.get("/a/3")?, None);
    let pairs = [("/a/1", "one"), ("/a/2", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(etcd.list("/a/")?, pairs);
    assert!(etcd.delete("/a/1")?);
    assert!(!etcd.delete("/a/1")?);
    let many: Vec<_> = (0..250).map(|i| (format!("/m/{i}"), format!("{i}"))).collect();
    etcd.put_many(&many)?;
    assert_eq!(etcd.delete_prefix("/m/")?, 250);
    Ok(())
}

#[test]
fn the_config_is_in_the_store_from_the_beginning() -> Result<()> {
    let lab = lab(1)?;
    let config = lab.etcd()?.get("/coreos.com/network/config")?;
    assert_eq!(config, Some(lab.spec().network_config().to_string()));
    Ok(())
}

#[test]
fn nodes_reach_the_store_under_its_endpoint() -> Result<()> {
    let lab = lab(1)?;
    assert_eq!(lab.etcd()?.endpoints(), "http://192.168.100.253:2379");
    let connected = lab.node(1).in_netns(|| {
        let to = "192.168.100.253:2379".parse().unwrap();
        std::net::TcpStream::connect_timeout(&to, Duration::from_secs(2)).map(drop)
    })?;
    assert!(connected.is_ok(), "{connected:?}");
    Ok(())
}

#[test]
fn a_killed_or_stopped_store_comes_back_with_its_data() -> Result<()> {
    let lab = lab(1)?;
    let etcd = lab.etcd()?;
    etcd.put("/k", "v")?;
    etcd.kill();
    assert!(etcd.get("/k").is_err());
    etcd.restart()?;
    assert_eq!(etcd.get("/k")?.as_deref(), Some("v"));
    etcd.stop()?;
    assert_eq!(etcd.pid(0), None);
    etcd.restart()?;
    assert_eq!(etcd.get("/k")?.as_deref(), Some("v"));
    Ok(())
}

#[test]
fn a_paused_store_does_not_answer_until_it_goes_on() -> Result<()> {
    let lab = lab(1)?;
    let etcd = lab.etcd()?;
    etcd.pause()?;
    assert!(etcd.wait_healthy(Duration::from_millis(100)).is_err());
    etcd.resume()?;
    etcd.wait_healthy(Duration::from_secs(10))?;
    etcd.put("/k", "v")
}

#[test]
fn a_restored_store_has_forgotten_what_came_after_the_snapshot() -> Result<()> {
    for members in [1, 3] {
        let lab = lab(members)?;
        let etcd = lab.etcd()?;
        etcd.put("/k", "old")?;
        let snapshot = etcd.snapshot()?;
        etcd.put("/k", "new")?;
        etcd.put("/later", "x")?;
        etcd.restore(&snapshot)?;
        assert_eq!(etcd.get("/k")?.as_deref(), Some("old"));
        assert_eq!(etcd.get("/later")?, None);
    }
    Ok(())
}

#[test]
fn three_members_survive_the_loss_of_one() -> Result<()> {
    let lab = lab(3)?;
    let etcd = lab.etcd()?;
    assert_eq!(etcd.endpoints().split(',').count(), 3);
    etcd.put("/k", "v")?;
    etcd.kill_member(1)?;
    lab.wait_until("a write", Duration::from_secs(10), || etcd.put("/k", "w"))?;
    etcd.restart_member(1)?;
    etcd.kill_member(0)?;
    lab.wait_until("a read", Duration::from_secs(10), || {
        etcd.get("/k").map(|value| value.as_deref() == Some("w"))
    })?;
    Ok(())
}
