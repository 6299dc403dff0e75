//! Subnets as Kubernetes assigns them, and takes them back.

use flannel_kube::testing::NodeSpec;
use flannel_lab::{Place as _, Result};
use serde_json::json;

use crate::support::{LIMIT, cidr, cidr6, key, kube, name, spec};

#[test]
fn a_node_and_its_pod_cidr_that_come_later_are_waited_for() -> Result<()> {
    let kube = kube(2).empty()?;
    kube.server.create_node(&spec(2, false));
    kube.lab.node(1).flanneld().start()?;
    kube.lab.node(2).flanneld().start()?;
    kube.logged(1, &["there is no Node \"node-1\"", "NODE_NAME"])?;
    kube.server.create_node(&NodeSpec::new(&name(1)));
    kube.wait("the Node to be found", || kube.lab.node(1).flanneld().is_running())?;
    kube.server.assign(&name(1), &[&cidr(1)]);
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    Ok(())
}

#[test]
fn a_pod_cidr_outside_of_the_network_is_said_and_mended_live() -> Result<()> {
    let kube = kube(2).empty()?;
    kube.server.create_node(&NodeSpec::new(&name(1)).cidr("10.99.1.0/24"));
    kube.server.create_node(&NodeSpec::new(&name(2)).cidr("10.99.2.0/24"));
    (1..=2).for_each(|number| kube.lab.node(number).flanneld().start().unwrap());
    kube.logged(1, &["doesn't contain \"10.99.1.0/24\" PodCIDR of the \"node-1\" node"])?;
    kube.put_config(&json!({"Network": "10.99.0.0/16", "Backend": {"Type": "vxlan"}}));
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    Ok(())
}

#[test]
fn a_deleted_node_is_forgotten_and_one_that_is_made_again_is_back_with_its_new_subnet() -> Result<()>
{
    let kube = kube(3).start()?;
    let (one, three) = kube.connected_pods(1, 3)?;
    let leads = |subnet: &str| kube.routes(1).is_ok_and(|routes| routes.contains(subnet));
    kube.wait("a route to node 2", || leads("10.244.2.0/24"))?;

    // A node that is gone for good.
    kube.lab.node(2).flanneld().stop()?;
    kube.server.delete_node(&name(2));
    kube.wait("the route to node 2 to go", || !leads("10.244.2.0/24"))?;
    kube.reach(&one, &three)?;

    // It comes back with another subnet.
    kube.server.create_node(&NodeSpec::new(&name(2)).cidr("10.244.22.0/24"));
    kube.lab.node(2).flanneld().restart()?;
    kube.wait("a route to node 2 again", || leads("10.244.22.0/24"))?;
    kube.connected_pods(1, 2)?;

    // The same under a daemon that runs, with the same subnet, and with another.
    for subnet in ["10.244.3.0/24", "10.244.33.0/24"] {
        kube.server.delete_node(&name(3));
        kube.server.create_node(&NodeSpec::new(&name(3)).cidr(subnet));
        kube.wait("node 3 to announce itself again", || {
            kube.annotation(3, "kube-subnet-manager").is_some() && leads(subnet)
        })?;
    }
    kube.wait("the former route to go", || !leads("10.244.3.0/24"))?;
    kube.wait_for_subnet_file(3, "10.244.33.0/24")?;
    // As long as the pods' bridge has the former one, no pod of this node works.
    kube.wait("the bridge to be named", || {
        let answer = kube.lab.node(3).namespace().http(8081, "GET", "/readyz", "", LIMIT);
        answer.is_ok_and(|it| {
            it.is_ok_and(|it| it.status == 503 && it.body.contains("bridge cni0: it has"))
        })
    })?;
    kube.lab.node(3).ip("link del cni0")?;
    kube.wait("the node to be ready", || kube.lab.node(3).flanneld().is_ready())?;
    Ok(())
}

/// The Go flannel does not notice.
#[test]
fn a_change_of_one_family_reaches_the_others() -> Result<()> {
    let kube = kube(2).dual().start()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    for (device, suffix) in [("flannel.1", "backend-data"), ("flannel-v6.1", "backend-v6-data")] {
        let daemon = kube.lab.node(2).flanneld();
        let before = kube.annotation(2, suffix).unwrap();
        daemon.stop()?;
        kube.lab.node(2).ip(&format!("link del {device}"))?;
        // As if nobody had ever known it.
        kube.server.annotate(
            &name(2),
            &key(suffix),
            Some(r#"{"VNI":1,"VtepMAC":"02:11:22:33:44:55"}"#),
        );
        kube.wait("node 1 to know the changed address", || {
            let neighbours = kube.lab.node(1).ip(&format!("neigh show dev {device}"));
            neighbours.is_ok_and(|text| text.contains("02:11:22:33:44:55"))
        })?;
        daemon.restart()?;
        assert_ne!(kube.annotation(2, suffix).unwrap(), before, "it keeps what Kubernetes knew");
        kube.reach(&one, &two)?;
    }
    assert!(kube.lab.node(1).ip("-6 route")?.contains(&cidr6(2)));
    Ok(())
}

#[test]
fn a_node_with_networks_of_two_families_serves_the_one_that_is_asked_for() -> Result<()> {
    let kube = kube(2).empty()?;
    for number in 1..=2 {
        // In the other order.
        kube.server
            .create_node(&NodeSpec::new(&name(number)).cidr(cidr6(number)).cidr(cidr(number)));
    }
    kube.lab.start_daemons()?;
    let (one, _) = kube.connected_pods(1, 2)?;
    assert_eq!(one.v6(), None);
    assert_eq!(kube.annotation(1, "public-ipv6"), None);
    Ok(())
}

#[test]
fn annotations_that_somebody_removes_are_written_again() -> Result<()> {
    let kube = kube(2).start()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    for suffix in ["kube-subnet-manager", "public-ip", "backend-data"] {
        kube.server.annotate(&name(2), &key(suffix), None);
        kube.wait("it to be written again", || kube.annotation(2, suffix).is_some())?;
        kube.reach(&one, &two)?;
    }
    Ok(())
}
