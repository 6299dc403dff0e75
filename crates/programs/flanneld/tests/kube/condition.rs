//! The condition `NetworkUnavailable`, which lets pods be placed on a node.

use std::time::Duration;

use flannel_lab::Result;

use crate::support::{kube, name};

#[test]
fn the_condition_stays_until_the_network_really_works() -> Result<()> {
    let kube = kube(2).with_nodes()?;
    // As controllers of clouds do it for new Nodes.
    (1..=2).for_each(|number| kube.server.set_network_unavailable(&name(number)));
    // On node 1 somebody else has the VNI, and node 2 does not forward.
    kube.lab.node(1).ip("link add stranger type vxlan id 1 dstport 8472 dev eth0")?;
    let forward = |value: u8| {
        kube.lab.node(2).exec(&["sysctl", "-w", &format!("net.ipv4.ip_forward={value}")])
    };
    forward(0)?;
    for number in 1..=2 {
        kube.lab.node(number).flanneld().start()?;
        kube.wait("the node to announce itself", || {
            kube.annotation(number, "public-ip").is_some()
        })?;
    }
    kube.logged(2, &["ip_forward"])?;
    std::thread::sleep(Duration::from_secs(5));
    let works = |number| kube.server.network_unavailable(&name(number)).as_deref() == Some("False");
    assert!(!works(1) && !works(2), "pods would be placed where nobody reaches them");

    kube.lab.node(1).ip("link del stranger")?;
    kube.wait("the condition of node 1", || works(1))?;
    assert!(!works(2));
    forward(1)?;
    kube.wait("the condition of node 2", || works(2))?;
    kube.connected_pods(1, 2)?;
    Ok(())
}
