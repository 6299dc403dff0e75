//! A daemon that ends and comes back, in whatever way, costs no packet and changes nothing.

use std::time::Duration;

use flannel_lab::{LabBuilder, Result, SUBNET_ENV};

use crate::support::{Kernel, both_ways, connected_pods, flanneld, lab, measured, seed};

/// Ends and starts the daemon of node 1 in every way there is, under traffic.
pub(crate) fn nothing_is_lost(builder: LabBuilder, devices: &[&str]) -> Result<()> {
    let lab = builder.start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let identity = |kernel: &mut Kernel| {
        let devices: Vec<_> = devices.iter().map(|name| kernel.device(name).unwrap()).collect();
        (devices, kernel.held(), node.read_file(SUBNET_ENV).unwrap())
    };
    let (before, leases) = (identity(&mut kernel), lab.leases()?);

    let upgraded = tempfile::tempdir().unwrap();
    let upgraded = upgraded.path().join("flanneld-of-tomorrow");
    std::fs::copy(flanneld(), &upgraded).unwrap();
    let ways: [(&str, &dyn Fn() -> Result<()>); 3] = [
        ("SIGTERM and start", &|| node.flanneld().restart()),
        ("kill -9 and start", &|| {
            node.flanneld().kill9();
            node.flanneld().restart()
        }),
        ("upgrade", &|| node.flanneld().restart_with(&upgraded)),
    ];
    for (name, restart) in ways {
        let traffic = both_ways(&lab, &one, &two)?;
        restart()?;
        traffic.flow(&lab)?;
        let reports = traffic.stop();
        measured(format_args!("{name}: {reports}"));
        reports.nothing_is_lost();
        assert_eq!(identity(&mut kernel), before, "{name}");
        assert_eq!(lab.leases()?, leases, "{name}");
    }
    Ok(())
}

#[test]
fn flannel_1308_restarts_lose_nothing_with_vxlan() -> Result<()> {
    nothing_is_lost(lab(2), &["flannel.1"])
}

#[test]
fn restarts_lose_nothing_with_host_gw() -> Result<()> {
    nothing_is_lost(lab(2).backend("host-gw"), &[])
}

#[test]
fn restarts_lose_nothing_with_a_dual_stack_of_vxlan() -> Result<()> {
    nothing_is_lost(lab(2).ipv6(true), &["flannel.1", "flannel-v6.1"])
}

#[test]
fn restarts_lose_nothing_with_a_dual_stack_of_host_gw() -> Result<()> {
    nothing_is_lost(lab(2).backend("host-gw").ipv6(true), &[])
}

#[test]
fn a_daemon_that_dies_at_any_instant_loses_nothing() -> Result<()> {
    let lab = lab(2).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    let daemon = lab.node(1).flanneld();
    let mut kernel = Kernel::of(lab.node(1))?;
    let (before, leases) = (kernel.held(), lab.leases()?);
    let mut rng = fastrand::Rng::with_seed(seed());
    let traffic = both_ways(&lab, &one, &two)?;
    for _ in 0..15 {
        daemon.kill9();
        daemon.start()?;
        std::thread::sleep(Duration::from_micros(rng.u64(0..120_000)));
    }
    daemon.kill9();
    daemon.restart()?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    assert_eq!(kernel.held(), before);
    assert_eq!(lab.leases()?, leases);
    Ok(())
}

#[test]
fn all_nodes_restarted_at_once_lose_nothing() -> Result<()> {
    let lab = lab(4).start()?;
    lab.pod_on_every_node()?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    let pods = lab.pods();
    let traffic = both_ways(&lab, &pods[0], &pods[3])?;
    for node in lab.nodes() {
        node.flanneld().kill9();
    }
    lab.start_daemons()?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    lab.matrix(Duration::from_secs(10))?.check()
}

/// After a reboot the devices are gone, and so is the subnet file, which is in memory.
#[test]
fn k3s_9957_a_rebooted_node_keeps_its_subnet_and_its_macs() -> Result<()> {
    let lab = lab(2).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let (before, leases) = (kernel.held(), lab.leases()?);
    node.flanneld().kill9();
    for device in ["flannel.1", "flannel-v6.1"] {
        node.ip(&format!("link del {device}"))?;
    }
    node.exec(&["rm", SUBNET_ENV])?;
    assert!(kernel.held().is_empty());
    node.flanneld().restart()?;
    assert_eq!(kernel.held(), before);
    assert_eq!(lab.leases()?, leases);
    crate::support::reach_each_other(&lab, &one, &two)
}
