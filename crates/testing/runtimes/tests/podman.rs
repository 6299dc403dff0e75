//! Pods of a real runtime: podman calls flannel's CNI plugin, as kubelet's runtime does.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use flannel_lab::{Lab, Place as _};
use flannel_runtimes::{
    Outside, Podman, Runtime as _, flannelctl, flanneld, measured, say_hello_to,
};

const WORLD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const PARTNER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

const CONFIG: &str = r#"{
  "Network": "10.244.0.0/16",
  "EnableIPv6": true,
  "IPv6Network": "fd00:244::/48",
  "MasqueradeExclude": ["198.51.100.0/24"],
  "Backend": {"Type": "vxlan"}
}"#;

fn lab(config: &str) -> Lab {
    let builder = Lab::builder().nodes(2).flanneld(flanneld()).config_json(config);
    builder.flag("--ip-masq").start().expect("start a lab")
}

fn node_address(lab: &Lab, number: u16) -> IpAddr {
    let addresses = lab.node(number).addresses();
    addresses.into_iter().find(IpAddr::is_ipv4).expect("a node has an IPv4 address")
}

#[test]
fn pods_on_two_nodes_reach_each_other_and_see_each_others_own_address() {
    let lab = lab(CONFIG);
    let (one, two) = (Podman::on(lab.node(1)), Podman::on(lab.node(2)));
    let begun = Instant::now();
    one.start("client", &[], &["sleep", "1000"]);
    measured(format_args!("podman run: {:?}", begun.elapsed()));
    // Shows whoever calls the connection as the server sees it.
    two.serve("server", &[], 80, &["/bin/netstat", "-tn"]);

    let (client, server) = (one.address("client"), two.address("server"));
    let subnet = |number| lab.node(number).subnet_env().expect("subnet.env").subnet.expect("IPv4");
    assert!(subnet(1).contains(&client), "{client} is not of node 1's subnet");
    assert!(subnet(2).contains(&server), "{server} is not of node 2's subnet");

    one.exec("client", &["ping", "-c", "1", "-W", "5", &server.to_string()]).expect("1 to 2");
    two.exec("server", &["ping", "-c", "1", "-W", "5", &client.to_string()]).expect("2 to 1");
    let (client6, server6) = (one.address6("client"), two.address6("server"));
    one.exec("client", &["ping", "-c", "1", "-W", "5", &server6.to_string()])
        .expect("1 to 2, IPv6");
    two.exec("server", &["ping", "-c", "1", "-W", "5", &client6.to_string()])
        .expect("2 to 1, IPv6");
    let answer = one.exec("client", &["nc", &server.to_string(), "80"]).expect("TCP from 1 to 2");
    assert!(answer.contains(&format!("{client}:")), "the server does not see {client}: {answer}");
}

#[test]
fn a_published_port_is_reached_from_outside_until_its_pod_goes() {
    let lab = lab(CONFIG);
    let (one, two) = (Podman::on(lab.node(1)), Podman::on(lab.node(2)));
    one.serve("web", &["--publish", "8080:80"], 80, &["/bin/echo", "hello"]);
    two.start("client", &[], &["sleep", "1000"]);
    let node = node_address(&lab, 1);

    assert_eq!(say_hello_to(lab.switch(), node, 8080).expect("from outside"), "hello");
    let from_node = say_hello_to(lab.node(2).namespace(), node, 8080).expect("from another node");
    assert_eq!(from_node, "hello");
    let from_itself = say_hello_to(lab.node(1).namespace(), node, 8080).expect("from its node");
    assert_eq!(from_itself, "hello");
    let from_pod = two.exec("client", &["nc", &node.to_string(), "8080"]).expect("from a pod");
    assert_eq!(from_pod.trim(), "hello");
    let own = one.exec("web", &["nc", &node.to_string(), "8080"]).expect("from the pod itself");
    assert_eq!(own.trim(), "hello");

    one.remove("web");
    let gone = say_hello_to(lab.switch(), node, 8080);
    assert!(gone.is_err(), "the port still answers: {gone:?}");
    assert_eq!(one.reserved(), Vec::<Ipv4Addr>::new(), "the pod's address stays reserved");
}

#[test]
fn the_world_sees_the_node_and_an_excluded_network_sees_the_pod() {
    for mode in ["iptables", "nftables"] {
        let nftables = mode == "nftables";
        let config = CONFIG.replacen('{', &format!("{{\"EnableNFTables\": {nftables},"), 1);
        let lab = lab(&config);
        let podman = Podman::on(lab.node(1));
        podman.start("client", &[], &["sleep", "1000"]);
        let (pod, node) = (podman.address("client"), node_address(&lab, 1));
        // Who wants to see pods must know the way back to them.
        let subnet = lab.node(1).subnet_env().expect("subnet.env").subnet.expect("IPv4").trunc();
        lab.switch().ip(&format!("route add {subnet} via {node}")).expect("the way back");

        let seen_by = |server: &Outside| {
            let [address, port] = server.for_nc();
            let answer = podman.exec("client", &["nc", &address, &port]).expect("reach a server");
            answer.trim().parse::<IpAddr>().unwrap_or_else(|_| panic!("no address: {answer}"))
        };
        let (world, partner) = (Outside::serve(&lab, WORLD), Outside::serve(&lab, PARTNER));
        assert_eq!(seen_by(&world), node, "{mode}: the world");
        assert_eq!(seen_by(&partner), IpAddr::V4(pod), "{mode}: an excluded network");
    }
}

#[test]
fn addresses_of_pods_that_a_power_cut_took_are_found_and_set_free() {
    let lab = lab(CONFIG);
    let (node, podman) = (lab.node(1), Podman::on(lab.node(1)));
    podman.start("lost", &[], &["sleep", "1000"]);
    let lost = podman.address("lost");
    let check = |options: &[&str]| {
        let program = flannelctl();
        node.output(&[&[&program, "ipam", "check"], options].concat()).expect("run flannelctl")
    };
    let running = check(&[]);
    assert!(running.status.success() && running.stdout.contains("in use"), "{running:?}");

    podman.lose_power();
    let leaked = check(&[]);
    assert_eq!(leaked.status.code(), Some(1), "{leaked:?}");
    assert!(leaked.stdout.contains(&lost.to_string()), "{leaked:?}");
    let fixed = check(&["--fix"]);
    assert!(fixed.status.success() && fixed.stdout.contains("2 set free"), "{fixed:?}");
    assert_eq!(podman.reserved(), Vec::<Ipv4Addr>::new());
}

/// As `scripts/image` makes it, with next to nothing in it.
const IMAGE_OF_ALL: &str = r#"
set -euo pipefail
source scripts/lib.sh
for architecture in s390x arm amd64 arm64; do
  mkdir -p "$1/$architecture" "$1/image/blobs/sha256"
  echo "$architecture" >"$1/$architecture/made-for"
  oci_image "$1/$architecture" "$1/image" "$architecture" '"Env":["PATH=/bin"]' gzip
done
oci_finish "$1/image" "$1/all.tar" flannel-rs/flannel:v1
"#;

#[test]
fn an_archive_for_several_architectures_is_one_image_of_which_a_runtime_takes_its_own() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let work = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("image-of-all");
    let _ = std::fs::remove_dir_all(&work);
    let mut script = std::process::Command::new("bash");
    let made = script.args(["-c", IMAGE_OF_ALL, "image"]).arg(&work).current_dir(root).output();
    let made = made.expect("run bash");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let lab = Lab::builder().nodes(1).bare().start().expect("start a lab");
    let podman = Podman::on(lab.node(1));
    let archive = format!("oci-archive:{}/all.tar", work.display());
    let id = podman.pull(&archive).unwrap_or_else(|error| panic!("{error}"));
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let found = podman.try_run(&["inspect", "--format", "{{.Architecture}}", id.trim()]);
    assert_eq!(found.expect("look at the image").trim(), own);
}
