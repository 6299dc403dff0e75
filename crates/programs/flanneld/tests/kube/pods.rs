//! Pods reach each other.

use flannel_lab::{Result, SUBNET_ENV};
use serde_json::{Value, json};

use crate::support::{LIMIT, cidr, kube, name};

#[test]
fn pods_of_two_nodes_reach_each_other_and_kubernetes_knows() -> Result<()> {
    let kube = kube(2).start()?;
    kube.connected_pods(1, 2)?;
    for number in [1, 2] {
        let env = kube.lab.node(number).read_file(SUBNET_ENV)?;
        assert!(env.contains(&format!("FLANNEL_SUBNET=10.244.{number}.1/24")), "{env}");
        let is = |suffix: &str, value: &str| {
            assert_eq!(kube.annotation(number, suffix).as_deref(), Some(value), "{suffix}");
        };
        is("kube-subnet-manager", "true");
        is("backend-type", "vxlan");
        is("public-ip", &format!("192.168.100.{number}"));
        let data = kube.annotation(number, "backend-data").unwrap();
        assert!(data.starts_with(r#"{"VNI":1,"VtepMAC":""#), "{data}");
        assert_eq!(kube.annotation(number, "public-ipv6"), None);
        kube.wait("the condition to be set", || {
            kube.server.network_unavailable(&name(number)).as_deref() == Some("False")
        })?;
    }
    let log = kube.lab.node(1).flanneld().log();
    assert!(log.contains("Kubernetes Subnet Manager - node-1"), "{log}");
    Ok(())
}

#[test]
fn pods_reach_each_other_over_both_families() -> Result<()> {
    let kube = kube(2).dual().start()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    assert!(one.v6().is_some() && two.v6().is_some());
    assert!(kube.annotation(1, "public-ipv6").unwrap().starts_with("fd00:100::"));
    assert!(kube.annotation(1, "backend-v6-data").unwrap().contains("VtepMAC"));
    Ok(())
}

#[test]
fn fifty_nodes_reach_each_other() -> Result<()> {
    let kube = kube(50).start()?;
    let routes = || {
        let count = |number| kube.routes(number).map(|text| text.matches("via 10.244.").count());
        (1..=50).all(|number| count(number).is_ok_and(|count| count == 49))
    };
    kube.wait("every node to know the others", routes)?;
    for (one, two) in [(1, 2), (1, 50), (25, 26), (49, 50)] {
        kube.connected_pods(one, two)?;
    }
    Ok(())
}

/// A device that is gone after a reboot gets the address that all peers know it by.
#[test]
fn a_reboot_keeps_the_mac_address_under_a_prefix_with_a_slash() -> Result<()> {
    let kube = kube(2).flag("--kube-annotation-prefix=example.com/net").start()?;
    let data = "example.com/net-backend-data";
    let mac = || {
        let text = kube.server.annotation(&name(1), data).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["VtepMAC"].clone()
    };
    let before = mac();
    let daemon = kube.lab.node(1).flanneld();
    daemon.stop()?;
    // Whoever wrote it, in whichever order.
    let reordered = format!("{{\"VtepMAC\": {before}, \"VNI\": 1}}");
    kube.server.annotate(&name(1), data, Some(&reordered));
    kube.lab.node(1).exec(&["ip", "link", "del", "flannel.1"])?;
    kube.lab.node(1).exec(&["rm", "-rf", "/run/flannel"])?;
    daemon.restart()?;
    assert_eq!(mac(), before);
    kube.connected_pods(1, 2)?;
    Ok(())
}

#[test]
fn a_network_config_that_is_edited_is_applied_live() -> Result<()> {
    let kube = kube(2).start()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    let backend = json!({"Type": "vxlan", "Port": 9999});
    kube.put_config(&json!({"Network": "10.244.0.0/16", "Backend": backend}));
    for number in [1, 2] {
        kube.wait("the device to have another port", || {
            let link = kube.lab.node(number).ip("-d link show flannel.1").unwrap_or_default();
            link.contains("dstport 9999")
        })?;
    }
    kube.reach(&one, &two)?;
    let host_gw = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}});
    kube.put_config(&host_gw);
    kube.wait("Kubernetes to know the other backend", || {
        (1..=2).all(|number| kube.annotation(number, "backend-type").as_deref() == Some("host-gw"))
    })?;
    kube.reach(&one, &two)?;
    Ok(())
}

#[test]
fn the_condition_is_set_again_when_somebody_takes_it_back_and_left_alone_if_told_so() -> Result<()>
{
    let kube = kube(2).with_nodes()?;
    kube.replace_flag(2, "--set-node-network-unavailable", "false");
    (1..=2).for_each(|number| kube.server.set_network_unavailable(&name(number)));
    kube.lab.start_daemons()?;
    let condition = |number| kube.server.network_unavailable(&name(number)).unwrap();
    for _ in 0..2 {
        kube.wait("the condition to be set", || condition(1) == "False")?;
        kube.server.set_network_unavailable(&name(1));
    }
    kube.wait("the condition to be set", || condition(1) == "False")?;
    assert_eq!(condition(2), "True");
    Ok(())
}

#[test]
fn a_restart_loses_no_packet_and_writes_nothing() -> Result<()> {
    let kube = kube(2).start()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    kube.wait("the condition to be set", || {
        kube.server.network_unavailable(&name(1)).as_deref() == Some("False")
    })?;
    let version = || kube.server.node(&name(1)).unwrap()["metadata"]["resourceVersion"].clone();
    let before = version();
    let stream = kube.lab.stream(&one, &two, 200)?;
    kube.lab.node(1).flanneld().restart()?;
    kube.lab.wait_until("traffic to flow", LIMIT, || stream.received() > 100)?;
    let report = stream.stop();
    assert_eq!(report.lost, 0, "{report:?}");
    assert_eq!(version(), before, "nothing was other than it should be");
    assert!(kube.routes(1)?.contains(&cidr(2).replace("/24", "")));
    Ok(())
}
