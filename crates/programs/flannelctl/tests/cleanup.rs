//! `flannelctl cleanup` on a node that flanneld has run on.

use std::time::Duration;

use flannel_lab::{Lab, Node, Output};

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");

const LIMIT: Duration = Duration::from_secs(20);

/// Other people's things that look a little like flannel's.
const FOREIGN: [&str; 5] = [
    "ip route add 10.99.0.0/16 via 192.168.100.254 proto 17",
    "ip route add 10.244.250.0/24 via 192.168.100.254",
    "ip link add flannel.9 type bridge",
    "iptables -A FORWARD -s 10.99.0.0/16 -j ACCEPT",
    "nft add table ip flannel-of-mine",
];

fn cleanup(node: &Node, options: &[&str]) -> Output {
    node.output(&[&[FLANNELCTL, "cleanup"], options].concat()).expect("run flannelctl")
}

fn succeeds(output: &Output) -> &str {
    assert!(output.status.success(), "{}{}", output.stdout, output.stderr);
    &output.stdout
}

/// All that could be flannel's or somebody else's, as text.
fn state(node: &Node) -> String {
    let commands = [
        "ip -4 route",
        "ip -6 route",
        "ip -brief link",
        "iptables-save",
        "ip6tables-save",
        "nft list ruleset",
        "ls /run/flannel",
        "ls /var/lib/flannel /var/lib/flannel/nodes /var/lib/flannel/link-holders",
    ];
    let run = |command: &str| node.exec(&["sh", "-c", command]).expect("look at the node");
    // Counters and dates change by themselves.
    let stays = |line: &&str| !line.starts_with(['#', ':']) && !line.contains("counter packets");
    commands.map(run).concat().lines().filter(stays).map(|line| format!("{line}\n")).collect()
}

fn cleaned_up(mode: &str) {
    let config = format!(
        r#"{{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48",
            "EnableNFTables": {}, "Backend": {{"Type": "vxlan"}}}}"#,
        mode == "nftables"
    );
    let lab = Lab::builder()
        .nodes(2)
        .config_json(&config)
        .flag("--ip-masq")
        .start()
        .expect("start a lab");
    let node = lab.node(1);
    for command in FOREIGN {
        node.exec(&command.split(' ').collect::<Vec<_>>()).expect("make something foreign");
    }

    // A node is ready before it has heard of those that came after it.
    for family in ["-4", "-6"] {
        lab.wait_until("routes to the other node", LIMIT, || {
            let routes = node.ip(&format!("{family} route show proto 244"));
            routes.is_ok_and(|routes| !routes.is_empty())
        })
        .expect("flannel's routes");
    }

    let before = state(node);
    let running = cleanup(node, &["--yes"]);
    assert_eq!(running.status.code(), Some(1), "{}", running.stdout);
    assert!(running.stderr.contains("flanneld is running here (pid "), "{}", running.stderr);
    assert_eq!(state(node), before, "a refused cleanup has changed something");

    node.flanneld().stop().expect("stop flanneld");
    let named = "/run/flannel/networks/blue.env";
    node.exec(&["mkdir", "/run/flannel/networks"]).expect("a directory");
    node.write_file(named, "FLANNEL_MTU=1450\n").expect("what a named network leaves");
    let key = "/run/flannel/wgkey";
    node.write_file(key, "secret").expect("what wireguard leaves");
    let before = state(node);
    let shown = cleanup(node, &[]);
    let shown = succeeds(&shown);
    let rules: &[&str] = match mode {
        "nftables" => &["table flannel-ipv4", "table flannel-ipv6"],
        _ => &["chain FLANNEL-POSTRTG of nat", "chain FLANNEL-FWD of filter"],
    };
    let rest = ["route 10.244.", "route fd00:244:", "device flannel.1\n", "device flannel-v6.1\n"];
    for expected in rules.iter().chain(&rest).chain(&["/run/flannel/subnet.env", named, key]) {
        assert!(shown.contains(expected), "no {expected} in:\n{shown}");
    }
    assert!(shown.contains("nothing was changed"), "{shown}");
    assert_eq!(state(node), before, "a look has changed something");

    let removed = cleanup(node, &["--yes"]);
    let listed = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("  ")).map(str::to_owned).collect()
    };
    assert_eq!(listed(succeeds(&removed)), listed(shown), "not what was announced");
    let after = state(node);
    for gone in [
        "flannel.1",
        "flannel-v6.1",
        "proto 244",
        "FLANNEL",
        "flannel-ipv",
        "subnet.env",
        "wgkey",
        ".json",
    ] {
        assert!(!after.contains(gone), "{gone} is still there:\n{after}");
    }
    for foreign in [
        "10.99.0.0/16 via 192.168.100.254 dev eth0 proto 17",
        "10.244.250.0/24 via 192.168.100.254",
        "flannel.9",
        "-A FORWARD -s 10.99.0.0/16 -j ACCEPT",
        "table ip flannel-of-mine",
    ] {
        assert!(after.contains(foreign), "{foreign} is gone:\n{after}");
    }

    for options in [&["--yes"][..], &[]] {
        let again = cleanup(node, options);
        assert_eq!(succeeds(&again), "nothing of flannel is on this node\n");
    }
    // Flannel can come back.
    node.ip("route del 10.244.250.0/24").expect("remove a route");
    node.flanneld().restart().expect("start flanneld again");
    let [one, two] = [1, 2].map(|number| lab.pod(number).expect("make a pod"));
    lab.ping(&one, &two).expect("pods reach each other again");
}

#[test]
fn a_node_in_iptables_mode_is_as_it_was_before_flannel() {
    cleaned_up("iptables");
}

#[test]
fn a_node_in_nftables_mode_is_as_it_was_before_flannel() {
    cleaned_up("nftables");
}

#[test]
fn a_tunnel_process_ends_with_its_device() {
    let lab = Lab::builder().nodes(2).backend("udp").start().expect("start a lab");
    let node = lab.node(1);
    node.ip("link show dev flannel0").expect("the device is there");
    node.flanneld().stop().expect("stop flanneld");
    node.ip("link show dev flannel0").expect("the device outlives the daemon");
    let output = cleanup(node, &[]);
    assert!(succeeds(&output).contains("tunnel process of flannel0"), "{}", output.stdout);
    succeeds(&cleanup(node, &["--yes"]));
    assert!(node.ip("link show dev flannel0").is_err());
    let output = cleanup(node, &[]);
    assert!(succeeds(&output).contains("nothing of flannel"), "{}", output.stdout);
}
