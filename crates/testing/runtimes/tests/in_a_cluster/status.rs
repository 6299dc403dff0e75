//! What a runtime that asks for STATUS hears of a node. The containerd of these tests is too old to ask.

use flannel_lab::Node;
use flannel_runtimes::Cluster;
use serde_json::Value;

use crate::without_flannel_on;

const CONFLIST: &str = "/etc/cni/net.d/10-flannel.conflist";

pub(crate) fn the_plugin_knows_whether_flanneld_is_at_work(cluster: &Cluster) {
    let node = cluster.lab().node(3);
    let conflist = node.read_file(CONFLIST).unwrap_or_else(|error| panic!("{error}"));
    let conflist: Value = serde_json::from_str(&conflist).expect("it is JSON");
    assert_eq!(conflist["cniVersions"], serde_json::json!(["1.0.0", "1.1.0"]), "{conflist}");
    assert_eq!(status(node), "");

    without_flannel_on(cluster, "node3", || {
        assert_eq!(status(node), "", "an upgrade takes no node out of service");
        let long_ago = ["touch", "-d", "2 minutes ago", "/run/flannel/flanneld.absent"];
        node.exec(&long_ago).unwrap_or_else(|error| panic!("{error}"));
        let said = status(node);
        assert!(said.contains("\"code\":50") && said.contains("flannelddoesnotrun"), "{said}");
    });
    assert_eq!(status(node), "");
}

/// As libcni asks: the plugin's part of the list, with the version and the name of the whole. What is said, without
/// blanks; nothing if all is well.
fn status(node: &Node) -> String {
    let script = "printf '{\"cniVersion\":\"1.1.0\",\"name\":\"cbr0\",\"type\":\"flannel\"}' | \
         CNI_COMMAND=STATUS CNI_PATH=/opt/cni/bin /opt/cni/bin/flannel || true";
    let said = node.exec(&["sh", "-c", script]).unwrap_or_else(|error| panic!("{error}"));
    said.split_whitespace().collect()
}
