//! Addresses that an operator writes into a Node.

use flannel_lab::Result;

use crate::support::{key, kube, name};

#[test]
fn an_overwritten_public_address_is_announced_and_sent_to() -> Result<()> {
    let kube = kube(2).with_nodes()?;
    kube.lab.node(2).ip("address add 192.168.100.102/24 dev eth0")?;
    kube.server.annotate(&name(2), &key("public-ip-overwrite"), Some("192.168.100.102"));
    kube.lab.start_daemons()?;
    assert_eq!(kube.annotation(2, "public-ip").as_deref(), Some("192.168.100.102"));
    let sent_to = |address: &str| {
        let fdb = kube.lab.node(1).exec(&["bridge", "fdb", "show", "dev", "flannel.1"]);
        fdb.is_ok_and(|fdb| fdb.contains(&format!("dst {address} ")))
    };
    kube.wait("node 1 to send there", || sent_to("192.168.100.102"))?;
    let (one, two) = kube.connected_pods(1, 2)?;

    // And taken back, and changed, while all is running.
    kube.server.annotate(&name(2), &key("public-ip-overwrite"), None);
    kube.wait("node 1 to send to the other", || sent_to("192.168.100.2"))?;
    assert_eq!(kube.annotation(2, "public-ip").as_deref(), Some("192.168.100.2"));
    kube.reach(&one, &two)?;

    // What is not an address is said and not announced.
    kube.server.annotate(&name(2), &key("public-ip-overwrite"), Some("nonsense"));
    kube.logged(2, &["public-ip-overwrite", "nonsense"])?;
    assert_eq!(kube.annotation(2, "public-ip").as_deref(), Some("192.168.100.2"));
    Ok(())
}

/// The Go flannel goes on without it when the API server does not answer at that moment.
#[test]
fn an_address_in_the_node_counts_more_than_the_flag_and_is_waited_for() -> Result<()> {
    let mut kube = kube(2).with_nodes()?;
    kube.lab.node(1).ip("address add 192.168.100.101/24 dev eth0")?;
    kube.server.annotate(&name(1), &key("node-public-ip"), Some("192.168.100.101"));
    kube.replace_flag(1, "--public-ip", "192.168.100.1");
    kube.server.kill();
    kube.lab.node(1).flanneld().start()?;
    kube.logged(1, &["Cannot ask for this node's public addresses", "no answer"])?;
    kube.server.restart();
    kube.lab.start_daemons()?;
    assert_eq!(kube.annotation(1, "public-ip").as_deref(), Some("192.168.100.101"));
    kube.connected_pods(1, 2)?;
    Ok(())
}
