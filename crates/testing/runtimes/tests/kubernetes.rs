//! flannel in a real Kubernetes cluster: three kubelets with containerd and kube-proxy, and flannel
//! installed from manifests as the README tells people.

#[path = "../../../tools/page/tests/browser/devtools.rs"]
mod browser;
#[path = "in_a_cluster/host_state.rs"]
mod host_state;
#[path = "in_a_cluster/k3s.rs"]
mod k3s;
#[path = "in_a_cluster/lease_server.rs"]
mod lease_server;
#[path = "in_a_cluster/page.rs"]
mod page;
#[path = "in_a_cluster/status.rs"]
mod status;
#[path = "in_a_cluster/up.rs"]
mod up;

use std::process::{Command, Stdio};
use std::time::Duration;

use flannel_lab::{Place as _, ProxyMode};
use flannel_runtimes::{
    Cluster, IMAGE, chart, go_flanneld, measured, our_image_as_values, our_manifest, rendered,
    upstream_chart, upstream_manifest,
};
use host_state::HostState;

const NAMESPACE: &str = "kube-flannel";
const DAEMONSET: &str = "kube-flannel-ds";

/// Installs flannel and waits until the nodes are ready.
fn install(cluster: &Cluster, manifest: &str) {
    cluster.apply(manifest);
    cluster.rolled_out(NAMESPACE, DAEMONSET);
    cluster.nodes_are_ready();
}

/// Does something while flannel runs everywhere but on one node, and installs it there again. The DaemonSet goes and its
/// pods stay, all but that node's: whatever else keeps its pod away, such as another label `kubernetes.io/os`, is undone
/// by the kubelet within ten seconds.
fn without_flannel_on(cluster: &Cluster, node: &str, work: impl FnOnce()) {
    let orphan = ["-n", NAMESPACE, "delete", "daemonset", DAEMONSET, "--cascade=orphan"];
    cluster.kubectl(&orphan);
    let on_node = format!("--field-selector=spec.nodeName={node}");
    cluster.kubectl(&["-n", NAMESPACE, "delete", "pod", "-l", "app=flannel", &on_node]);
    work();
    install(cluster, &our_manifest("kube-flannel.yml"));
}

fn delete(cluster: &Cluster, manifest: &str) {
    cluster.kubernetes().delete(manifest).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn pods_services_and_host_ports_work_beside_kube_proxy_in_iptables_and_after_a_reboot() {
    let cluster = Cluster::start(ProxyMode::Iptables, |_| ());
    install(&cluster, &our_manifest("kube-flannel.yml"));
    cluster.serve();
    cluster.everything_reaches_everything();
    reboot(&cluster, 2);
    cluster.everything_reaches_everything();
}

#[test]
fn pods_services_and_host_ports_work_beside_kube_proxy_in_nftables() {
    let cluster = Cluster::start(ProxyMode::Nftables, |_| ());
    let before = HostState::of_all(&cluster);
    install(&cluster, &our_manifest("kube-flannel.yml"));
    cluster.serve();
    cluster.everything_reaches_everything();
    the_service_account_may_what_the_manifest_says_and_no_more(&cluster);
    the_tool_answers_in_a_pod_of_flannel(&cluster);
    page::the_page_shows_how_each_node_is(&cluster);
    status::the_plugin_knows_whether_flanneld_is_at_work(&cluster);
    a_new_image_is_rolled_out_without_a_lost_packet(&cluster);
    let installed = our_manifest("kube-flannel.yml");
    uninstall(&cluster, &installed, &our_manifest("uninstall.yml"));
    HostState::assert_unchanged(&before, &cluster);
}

#[test]
fn the_go_flannels_manifest_and_chart_work_with_nothing_changed_but_the_image_and_so_does_our_chart()
 {
    let cluster = with_plugins_of_the_distribution();
    let (repository, tag) = IMAGE.split_once(':').expect("a name with a tag");
    let plugin = format!(
        "--set=flannel.flannel_cni.image.repository={repository},flannel.flannel_cni.image.tag={tag}"
    );
    let their_chart =
        rendered(&upstream_chart(), NAMESPACE, &[&our_image_as_values(), plugin.as_str()]);
    // With their values, the image of the plugin is another one than flanneld's, as far as the chart knows.
    let theirs = format!("--values={}/values.yaml", upstream_chart());
    let our_chart =
        rendered(&chart(), NAMESPACE, &[&theirs, &our_image_as_values(), plugin.as_str()]);
    for manifest in [upstream_manifest(), with_namespace(&their_chart), with_namespace(&our_chart)]
    {
        install(&cluster, &manifest);
        cluster.serve();
        cluster.everything_reaches_everything();
        cluster.stop_serving();
        delete(&cluster, &manifest);
    }
}

/// Who installs a chart makes its namespace.
fn with_namespace(rendered: &str) -> String {
    format!("{}---\n{rendered}", our_manifest("base/namespace.yaml"))
}

#[test]
fn in_both_families_the_go_flannel_takes_part_and_its_node_moves_over_without_a_lost_packet() {
    let plugins = std::env::var_os("FLANNEL_TEST_CNI_DIR").expect("FLANNEL_TEST_CNI_DIR is set");
    let cluster = Cluster::start(ProxyMode::Nftables, |spec| {
        spec.pods = "10.244.0.0/16,fd00:244::/56".into();
        spec.cni_plugins = Some(plugins.into());
    });
    let both = our_manifest("kube-flannel.yml").replace(
        "\"EnableNFTables\": false,",
        "\"EnableNFTables\": false, \"EnableIPv6\": true, \"IPv6Network\": \"fd00:244::/56\",",
    );
    cluster.apply(&both.replace(
        "values: [\"linux\"]",
        "values: [\"linux\"]\n              - key: kubernetes.io/hostname\n                \
         operator: NotIn\n                values: [\"node3\"]",
    ));
    let theirs = start_go_flannel(&cluster, 3);
    cluster.rolled_out(NAMESPACE, DAEMONSET);
    cluster.nodes_are_ready();
    cluster.serve();
    cluster.everything_reaches_everything();

    let pods = cluster.web_pods();
    let on = |node: &str| pods.iter().find(|pod| pod.node == node).expect("a pod on every node");
    let (sent, back) = cluster.ping_during(on("node1"), on("node3"), || {
        theirs.kill();
        cluster.apply(&both);
        cluster.rolled_out(NAMESPACE, DAEMONSET);
    });
    measured(format_args!("{sent} pings while a node moved over, {back} came back"));
    assert_eq!(sent, back, "packets were lost");
    cluster.everything_reaches_everything();
}

/// As a program of the node, with the plugins that the node has from the beginning.
fn start_go_flannel(cluster: &Cluster, number: u16) -> flannel_lab::Process {
    let node = cluster.lab().node(number);
    let ask = |key: &str| {
        let manifest = our_manifest("kube-flannel.yml");
        let (_, text) = manifest.split_once(&format!("{key}: |\n")).expect("it is in the manifest");
        let is_part = |line: &&str| line.starts_with("    ");
        text.lines().take_while(is_part).collect::<Vec<_>>().join("\n")
    };
    let network = ask("net-conf.json").replace(
        "\"EnableNFTables\": false,",
        "\"EnableIPv6\": true, \"IPv6Network\": \"fd00:244::/56\",",
    );
    let place = cluster.kubernetes().control_plane();
    let admin = place.run(|| std::fs::read_to_string(cluster.kubernetes().admin_kubeconfig()));
    let admin = admin.expect("enter the control plane").expect("read the kubeconfig");
    node.exec(&["mkdir", "-p", "/etc/cni/net.d"]).unwrap_or_else(|error| panic!("{error}"));
    for (path, text) in [
        ("/run/net-conf.json", network),
        ("/run/admin.kubeconfig", admin),
        ("/etc/cni/net.d/10-flannel.conflist", ask("cni-conf.json")),
    ] {
        node.write_file(path, &text).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut command = Command::new(go_flanneld());
    command
        .args(["--kube-subnet-mgr", "--kubeconfig-file=/run/admin.kubeconfig", "--ip-masq"])
        .arg("--net-config-path=/run/net-conf.json")
        .env("NODE_NAME", node.label())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    node.spawn(command).unwrap_or_else(|error| panic!("{error}"))
}

/// Not the distributions themselves: DaemonSets of their shape.
#[test]
fn the_daemonsets_of_talos_and_rke2_work_with_our_image() {
    let cluster = with_plugins_of_the_distribution();
    for (manifest, daemonset) in [
        (include_str!("manifests/talos.yml"), "kube-flannel"),
        (include_str!("manifests/rke2.yml"), "kube-flannel-ds"),
    ] {
        cluster.apply(manifest);
        cluster.rolled_out("kube-system", daemonset);
        cluster.nodes_are_ready();
        cluster.serve();
        cluster.everything_reaches_everything();
        cluster.stop_serving();
        delete(&cluster, manifest);
    }
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
    let list_in = |namespace: &str, who: &str| {
        let text =
            cluster.kubectl(&["-n", namespace, "auth", "can-i", "--list", "--no-headers", who]);
        let mut lines: Vec<String> = text.lines().map(words).collect();
        lines.sort();
        lines
    };
    let more_in = |namespace: &str| -> Vec<String> {
        let everybody = list_in(namespace, "--as=system:serviceaccount:default:nobody");
        list_in(namespace, &account).into_iter().filter(|line| !everybody.contains(line)).collect()
    };
    let nodes = ["nodes [] [] [get list watch]", "nodes/status [] [] [patch]"];
    assert_eq!(more_in(NAMESPACE), nodes);
    let events = "events [] [] [create patch]";
    assert_eq!(more_in("default"), [events, nodes[0], nodes[1]]);
}

/// With no more rights than the daemon has.
fn the_tool_answers_in_a_pod_of_flannel(cluster: &Cluster) {
    let daemonset = format!("ds/{DAEMONSET}");
    let tool = |command: &[&str]| {
        let words = ["-n", NAMESPACE, "exec", &daemonset, "-c", "kube-flannel", "--", "flannelctl"];
        cluster.kubectl(&[&words, command].concat())
    };
    let status = tool(&["status"]);
    assert!(status.contains("the network is healthy"), "{status}");
    let peers = tool(&["peers"]);
    assert_eq!(peers.matches("programmed").count(), 2, "{peers}");
    let leases = tool(&["leases", "--kube-subnet-mgr"]);
    assert_eq!(leases.matches("assigned").count(), 3, "{leases}");
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
    cluster.everything_reaches_everything();
}

fn uninstall(cluster: &Cluster, installed: &str, uninstall: &str) {
    cluster.stop_serving();
    delete(cluster, installed);
    cluster.apply(uninstall);
    cluster.rolled_out("kube-flannel-uninstall", "flannel-uninstall");
    delete(cluster, uninstall);
}
