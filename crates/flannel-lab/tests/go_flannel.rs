//! The Go flannel in the lab: what a lab is for.

use std::path::PathBuf;
use std::time::Duration;

use flannel_lab::Lab;

fn go_flanneld() -> PathBuf {
    let path =
        std::env::var_os("FLANNEL_TEST_GO_FLANNELD").map(PathBuf::from).unwrap_or_else(|| {
            let home = std::env::var_os("HOME").expect("HOME is set");
            PathBuf::from(home).join(".cache/flannel-rs/bin/go-flanneld")
        });
    assert!(
        path.exists(),
        "no Go flannel at {}: run `scripts/deps go-flannel` or set FLANNEL_TEST_GO_FLANNELD",
        path.display()
    );
    path
}

fn pods_reach_each_other(backend: &str) {
    let lab = Lab::builder().nodes(2).backend(backend).flanneld(go_flanneld()).start().unwrap();
    lab.pod_on_every_node().unwrap();
    lab.matrix(Duration::from_secs(10)).unwrap().check().unwrap();
    let leases = lab.leases().unwrap();
    assert_eq!(leases.len(), 2, "{leases:?}");
    assert!(leases[0].1.contains(backend), "{leases:?}");
}

#[test]
fn pods_reach_each_other_over_vxlan() {
    pods_reach_each_other("vxlan");
}

#[test]
fn pods_reach_each_other_over_host_gw() {
    pods_reach_each_other("host-gw");
}
