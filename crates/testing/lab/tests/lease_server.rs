//! Three nodes and nothing else installed: one of them serves the leases.

use std::time::Duration;

use flannel_lab::{Lab, Result};

const WAIT_LIMIT: Duration = Duration::from_secs(20);

fn env_files(lab: &Lab) -> Result<Vec<String>> {
    lab.nodes().iter().map(|node| node.read_file("/run/flannel/subnet.env")).collect()
}

fn keys(lab: &Lab) -> Result<Vec<String>> {
    Ok(lab.leases()?.into_iter().map(|(key, _)| key).collect())
}

#[test]
fn pods_reach_each_other_with_nothing_else_installed() -> Result<()> {
    let lab = Lab::builder().lease_server().start()?;
    lab.pod_on_every_node()?;
    lab.matrix(WAIT_LIMIT)?.check()?;
    assert_eq!(lab.leases()?.len(), 3);

    let (before, leases) = (env_files(&lab)?, keys(&lab)?);
    let server = lab.node(1).flanneld();
    for _ in 0..3 {
        server.kill9();
        lab.matrix(WAIT_LIMIT)?.check()?;
        server.start()?;
        server.wait_ready()?;
    }
    lab.node(3).flanneld().restart()?;
    assert_eq!(env_files(&lab)?, before, "every node keeps its subnet");
    assert_eq!(keys(&lab)?, leases);
    lab.matrix(WAIT_LIMIT)?.check()
}

#[test]
fn nodes_bring_their_leases_back_to_a_server_that_has_lost_them() -> Result<()> {
    let lab = Lab::builder().lease_server().start()?;
    lab.pod_on_every_node()?;
    let (before, leases) = (env_files(&lab)?, keys(&lab)?);
    let server = lab.node(1).flanneld();
    server.kill9();
    lab.node(1).exec(&["rm", "-r", "/run/flannel-leases"])?;
    server.start()?;
    server.wait_ready()?;
    lab.wait_until("all leases to be back", WAIT_LIMIT, || {
        keys(&lab).is_ok_and(|now| now == leases)
    })?;
    assert_eq!(env_files(&lab)?, before);
    lab.matrix(WAIT_LIMIT)?.check()
}

#[test]
fn a_changed_config_reaches_the_nodes() -> Result<()> {
    let lab = Lab::builder().lease_server().start()?;
    lab.pod_on_every_node()?;
    lab.put_config(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#)?;
    let routed = |number: u16| {
        let routes = lab.node(number).ip("route");
        routes.is_ok_and(|routes| routes.matches("via 192.168.100.").count() >= 2)
    };
    lab.wait_until("host-gw on every node", WAIT_LIMIT, || (1..=3).all(routed))?;
    lab.matrix(WAIT_LIMIT)?.check()
}
