//! A node's own lease: lost, expired, written by others, fought over; and the subnets it comes from.

use std::time::{Duration, Instant};

use flannel_lab::{LabError, Result};

use crate::support::{
    Kernel, LIMIT, both_ways, busy, connected_pods, lab, lease_path, measured, own_key, peer,
    probe, put_peers, reach_each_other,
};

#[test]
fn flannel_904_a_revoked_lease_is_taken_back_at_once() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let leases = lab.leases()?;
    let (key, pid) = (lease_path(&lab, &own_key(&lab, 1)?), lab.node(1).flanneld().pid());
    for _ in 0..2 {
        let traffic = both_ways(&lab, &one, &two)?;
        let begin = Instant::now();
        assert!(lab.etcd()?.delete(&key)?);
        lab.wait_until("the lease to be back", LIMIT, || match lab.leases()? {
            now if now == leases => Ok(()),
            now => Err(LabError::Spec(format!("{now:?}"))),
        })?;
        let took = begin.elapsed();
        traffic.flow(&lab)?;
        measured(format_args!("taken back after {took:.1?}: {}", traffic.stop()));
    }
    assert_eq!(lab.node(1).flanneld().pid(), pid, "the daemon goes on");
    assert!(lab.node(1).flanneld().log().contains("has been revoked"));
    Ok(())
}

#[test]
fn a_lease_that_expired_while_cut_off_is_taken_back() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let leases = lab.leases()?;
    lab.partition_from_store(&[1])?;
    assert!(lab.etcd()?.delete(&lease_path(&lab, &own_key(&lab, 1)?))?);
    lab.wait_until("node 1 to notice", LIMIT, || {
        lab.node(1).flanneld().log().contains("The store is unreachable")
    })?;
    lab.heal()?;
    let begin = Instant::now();
    lab.wait_until("the lease to be back", LIMIT, || match lab.leases()? {
        now if now == leases => Ok(()),
        now => Err(LabError::Spec(format!("{now:?}"))),
    })?;
    measured(format_args!("taken back {:.1?} after the store came back", begin.elapsed()));
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_lease_written_by_another_node_is_left_to_it() -> Result<()> {
    let lab = lab(2).start()?;
    let (_, two) = connected_pods(&lab)?;
    let (lost, before) = (own_key(&lab, 1)?, lab.node(1).subnet_env()?);
    let (_, theirs) = peer(177);
    lab.etcd()?.put(&lease_path(&lab, &lost), &theirs)?;
    lab.wait_until("another subnet", LIMIT, || own_key(&lab, 1).is_ok_and(|key| key != lost))?;
    // As long as the bridge has addresses of the former one, it is neither cut off nor passed over.
    lab.wait_until("the bridge to be named", LIMIT, || {
        let (status, why) = probe(&lab, 1, "/readyz")?.unwrap_or_default();
        let named = status == 503 && why.contains(&lost) && why.contains("dev cni0");
        if named { Ok(()) } else { Err(LabError::Spec(why)) }
    })?;
    // Both have one, and the loser says what that means.
    assert_eq!(lab.etcd()?.get(&lease_path(&lab, &lost))?.as_ref(), Some(&theirs));
    assert!(lab.etcd()?.get(&lease_path(&lab, &own_key(&lab, 1)?))?.is_some());
    let log = lab.node(1).flanneld().log();
    assert!(
        log.contains("was written by another node") && log.contains("192.168.100.177"),
        "{log}"
    );
    assert!(log.contains("restart them"), "{log}");
    let one = lab.pod(1)?;
    lab.node(1).flanneld().wait_ready()?;
    reach_each_other(&lab, &one, &two)?;
    let route = format!("route {} ", before.subnet.unwrap().trunc());
    let mut kernel = Kernel::of(lab.node(1))?;
    lab.wait_until("a route to the new owner", LIMIT, || {
        kernel.held().iter().any(|line| line.starts_with(&route))
    })
}

#[test]
fn two_nodes_with_one_address_do_not_wear_out_the_store() -> Result<()> {
    let lab = lab(2).flag("--public-ip=192.168.100.1").no_daemons().start()?;
    lab.node(1).flanneld().start()?;
    lab.node(1).flanneld().wait_ready()?;
    lab.node(2).flanneld().start()?;
    std::thread::sleep(Duration::from_secs(6));
    for node in [1, 2] {
        let log = lab.node(node).flanneld().log();
        let lines = log.lines().count();
        assert!(lines < 80, "{lines} lines:\n{log}");
        assert!(busy(&lab, node) < Duration::from_secs(1), "{:?}", busy(&lab, node));
    }
    Ok(())
}

#[test]
fn an_address_that_changes_while_etcd_is_away_is_told_when_it_is_back() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let keys =
        || -> Result<Vec<String>> { Ok(lab.leases()?.into_iter().map(|(key, _)| key).collect()) };
    let before = keys()?;
    lab.partition_from_store(&[1])?;
    lab.change_address(1, "192.168.100.77".parse().unwrap())?;
    lab.wait_until("the daemon to notice", LIMIT, || {
        lab.node(1).flanneld().log().contains("The store is unreachable")
    })?;
    lab.heal()?;
    let begin = Instant::now();
    lab.wait_until("the new address to be told", LIMIT, || {
        let leases = lab.leases()?;
        let told = leases.iter().any(|(_, value)| value.contains("192.168.100.77"));
        if told { Ok(()) } else { Err(LabError::Spec(format!("{leases:?}"))) }
    })?;
    measured(format_args!("told {:.1?} after etcd was back", begin.elapsed()));
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(keys()?, before, "the subnets stay:\n{}", lab.node(1).flanneld().log());
    Ok(())
}

#[test]
fn defect_9_nodes_that_race_for_the_last_subnets_all_get_one() -> Result<()> {
    // Eight nodes, and exactly as many subnets.
    let config = r#"{"Network": "10.244.0.0/16", "SubnetLen": 24, "SubnetMin": "10.244.8.0",
                     "SubnetMax": "10.244.15.0", "Backend": {"Type": "vxlan"}}"#;
    let lab = lab(8).config_json(config).start()?;
    let keys: Vec<String> = lab.leases()?.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), 8, "{keys:?}");
    Ok(())
}

#[test]
fn a_node_without_a_free_subnet_waits_for_one() -> Result<()> {
    let config = r#"{"Network": "10.244.0.0/16", "SubnetMin": "10.244.50.0",
                     "SubnetMax": "10.244.53.0", "Backend": {"Type": "vxlan"}}"#;
    let lab = lab(1).config_json(config).no_daemons().start()?;
    put_peers(&lab, 50..54)?;
    let daemon = lab.node(1).flanneld();
    daemon.start()?;
    lab.wait_until("the reason", LIMIT, || {
        let (status, why) = probe(&lab, 1, "/readyz")?.unwrap_or_default();
        let said = status == 503 && why.contains("out of subnets");
        if said { Ok(()) } else { Err(LabError::Spec(why)) }
    })?;
    assert!(daemon.log().contains("out of subnets"), "{}", daemon.log());
    lab.etcd()?.delete(&lease_path(&lab, &peer(52).0))?;
    daemon.wait_ready()?;
    assert_eq!(own_key(&lab, 1)?, "10.244.52.0-24");
    Ok(())
}

#[test]
fn a_node_whose_bridge_has_a_former_subnet_is_not_ready() -> Result<()> {
    let lab = lab(1).start()?;
    lab.pod(1)?;
    let lost = own_key(&lab, 1)?;
    lab.etcd()?.put(&lease_path(&lab, &lost), peer(177).1)?;
    lab.wait_until("another subnet", LIMIT, || own_key(&lab, 1).is_ok_and(|key| key != lost))?;
    // The former one is nobody's any more: nothing displaces anything, and no pod of this node works.
    lab.etcd()?.delete(&lease_path(&lab, &lost))?;
    lab.wait_until("the bridge to be named", LIMIT, || {
        let (status, why) = probe(&lab, 1, "/readyz")?.unwrap_or_default();
        let named = status == 503
            && why.contains("bridge cni0: it has")
            && why.contains("ip link del cni0");
        if named { Ok(()) } else { Err(LabError::Spec(why)) }
    })?;
    lab.node(1).ip("link del cni0")?;
    lab.node(1).flanneld().wait_ready()
}
