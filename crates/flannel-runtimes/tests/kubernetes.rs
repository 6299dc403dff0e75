//! flannel in a real Kubernetes cluster: three kubelets with containerd and kube-proxy, and flannel
//! installed from manifests as the README tells people.

use std::time::Duration;

use flannel_lab::{Node, Place as _, ProxyMode};
use flannel_runtimes::{Cluster, IMAGE, measured, our_manifest, upstream_manifest};

const NAMESPACE: &str = "kube-flannel";
const DAEMONSET: &str = "kube-flannel-ds";

fn with_our_manifest(proxy: ProxyMode) -> Cluster {
    let cluster = Cluster::start(proxy, |_| ());
    cluster.apply(&our_manifest("kube-flannel.yml"));
    cluster.rolled_out(NAMESPACE, DAEMONSET);
    cluster.nodes_are_ready();
    cluster
}

#[test]
fn pods_services_and_host_ports_work_beside_kube_proxy_in_iptables_and_after_a_reboot() {
    let cluster = with_our_manifest(ProxyMode::Iptables);
    cluster.serve();
    cluster.everything_reaches_everything();
    reboot(&cluster, 2);
    cluster.everything_reaches_everything();
}

#[test]
fn pods_services_and_host_ports_work_beside_kube_proxy_in_nftables() {
    let cluster = with_our_manifest(ProxyMode::Nftables);
    cluster.serve();
    cluster.everything_reaches_everything();
    the_service_account_may_what_the_manifest_says_and_no_more(&cluster);
    a_new_image_is_rolled_out_without_a_lost_packet(&cluster);
    after_the_uninstall_nodes_are_as_before(&cluster);
}

#[test]
fn the_go_flannels_manifest_works_with_nothing_changed_but_the_image() {
    let cluster = with_plugins_of_the_distribution();
    cluster.apply(&upstream_manifest());
    cluster.rolled_out(NAMESPACE, DAEMONSET);
    cluster.nodes_are_ready();
    cluster.serve();
    cluster.everything_reaches_everything();
}

/// Upstream's manifest has an installer for one plugin; the others come with the kubelet's package.
fn with_plugins_of_the_distribution() -> Cluster {
    let plugins = std::env::var_os("FLANNEL_TEST_CNI_DIR").expect("FLANNEL_TEST_CNI_DIR is set");
    Cluster::start(ProxyMode::Iptables, |spec| spec.cni_plugins = Some(plugins.into()))
}

/// The node has no process, no device and an empty `/run`; what is on its disks is there.
fn reboot(cluster: &Cluster, number: u16) {
    let node = cluster.lab().node(number);
    let label = node.label();
    cluster.lab().reboot(number).unwrap_or_else(|error| panic!("{error}"));
    let conflist = "/etc/cni/net.d/10-flannel.conflist";
    cluster
        .kubernetes()
        .wait_until("the node to have its network again", Duration::from_secs(60), || {
            // The runtime must not take pods before that: what it would read is not there.
            let visible = node.exec(&["test", "-e", conflist]).is_ok();
            let attached = node.exec(&["test", "-e", "/run/flannel/subnet.env"]).is_ok();
            assert!(!visible || attached, "a CNI configuration, and no network");
            Ok(if visible { Ok(()) } else { Err("no CNI configuration") })
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", cluster.state(NAMESPACE)));
    let restarted = || {
        let pods = cluster.kubectl(&[
            "get",
            "pods",
            "-l",
            "app=web",
            "--field-selector",
            &format!("spec.nodeName={label}"),
            "-o",
            "jsonpath={.items[0].status.containerStatuses[0].restartCount} {.items[0].status.conditions[?(@.type=='Ready')].status}",
        ]);
        Ok(if pods.trim() == "1 True" { Ok(()) } else { Err(pods) })
    };
    cluster
        .kubernetes()
        .wait_until("the node's pod to be back", Duration::from_secs(120), restarted)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn the_service_account_may_what_the_manifest_says_and_no_more(cluster: &Cluster) {
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:flannel");
    let list = |who: &str| {
        let text = cluster.kubectl(&["auth", "can-i", "--list", "--no-headers", who]);
        let mut lines: Vec<String> = text.lines().map(words).collect();
        lines.sort();
        lines
    };
    let everybody = list("--as=system:serviceaccount:default:nobody");
    let more: Vec<String> =
        list(&account).into_iter().filter(|line| !everybody.contains(line)).collect();
    assert_eq!(
        more,
        [
            "events [] [] [create patch]",
            "nodes [] [] [get list watch]",
            "nodes/status [] [] [patch]"
        ]
    );
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn a_new_image_is_rolled_out_without_a_lost_packet(cluster: &Cluster) {
    let new = "flannel-rs/flannel:new";
    cluster.kubernetes().tag(IMAGE, new).unwrap_or_else(|error| panic!("{error}"));
    let pods = cluster.web_pods();
    let (sent, back) = cluster.ping_during(&pods[0], &pods[1], || {
        let (init, main) = (format!("install-cni-plugin={new}"), format!("kube-flannel={new}"));
        let daemonset = format!("ds/{DAEMONSET}");
        cluster.kubectl(&["-n", NAMESPACE, "set", "image", &daemonset, &init, &main]);
        cluster.rolled_out(NAMESPACE, DAEMONSET);
    });
    measured(format_args!("{sent} pings while a new image was rolled out, {back} came back"));
    assert_eq!(sent, back, "packets were lost");
    assert!(sent > 100, "only {sent} pings were sent");
    cluster.everything_reaches_everything();
}

fn after_the_uninstall_nodes_are_as_before(cluster: &Cluster) {
    cluster.stop_serving();
    let installed = our_manifest("kube-flannel.yml");
    cluster.kubernetes().delete(&installed).unwrap_or_else(|error| panic!("{error}"));
    let uninstall = our_manifest("uninstall.yml");
    cluster.apply(&uninstall);
    cluster.rolled_out("kube-flannel-uninstall", "flannel-uninstall");
    cluster.kubernetes().delete(&uninstall).unwrap_or_else(|error| panic!("{error}"));
    for node in cluster.lab().nodes() {
        assert_eq!(what_is_left(node), "", "{}", node.label());
    }
}

/// Of flannel, wherever it puts anything.
fn what_is_left(node: &Node) -> String {
    let look = "ip -o link | grep -E 'flannel|cni0' ; ip route | grep -E '10.244|proto 244'; \
                nft list ruleset | grep -i flannel; iptables-legacy-save 2>/dev/null | grep -i flannel; \
                find /etc/cni /opt/cni /run/flannel /var/lib/flannel /var/lib/cni ! -type d; true";
    node.exec(&["sh", "-c", look]).unwrap_or_else(|error| panic!("{error}"))
}
