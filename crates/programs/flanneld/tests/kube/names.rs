//! Peers are known by the names of their Nodes.

use flannel_lab::Result;
use serde_json::Value;

use crate::support::{flanneld, kube, name};

#[test]
fn a_peer_is_asked_for_by_the_name_of_its_node() -> Result<()> {
    let kube = kube(2).start()?;
    kube.connected_pods(1, 2)?;
    let flannelctl = flanneld().with_file_name("flannelctl");
    let peers = |node: &str| {
        let words = [flannelctl.to_str().unwrap(), "peers", node, "-o", "json"];
        kube.lab.node(1).output(&words).unwrap()
    };
    let told = peers(&name(2));
    assert!(told.status.success(), "{}{}", told.stdout, told.stderr);
    let peer: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((&peer["name"], &peer["publicIp"]), (&name(2).into(), &"192.168.100.2".into()));
    let unknown = peers("no-such-node");
    assert_eq!(unknown.status.code(), Some(2), "{}", unknown.stderr);
    // Its own lease is not another's because it has a name elsewhere.
    assert!(!kube.lab.node(1).flanneld().log().contains("was written by another node"));
    Ok(())
}
