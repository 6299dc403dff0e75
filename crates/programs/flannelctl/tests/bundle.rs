//! `flannelctl bundle`: all that can be known of a node, and none of its secrets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::process::Command;

use flannel_lab::{Lab, Node};

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");

/// Planted where secrets are kept, and in a log that should not have them.
const TOKEN: &str =
    "fl1.abababababababababababababababababababababababababababababababab.t0kent0kent0ken";
const PASSWORD: &str = "open-sesame-4711";
const PSK: &str = "ipsec-psk-of-96-characters-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123";
const WIREGUARD: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const CLOUD: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const WEB: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJlb2Z0aGV0b2tlbg";

/// The archive, unpacked by tar: names and texts.
fn unpacked(node: &Node, file: &str) -> Vec<(String, String)> {
    let bytes = node.in_netns(|| std::fs::read(file)).unwrap().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("bundle.tar.gz");
    std::fs::write(&archive, bytes).unwrap();
    let done =
        Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(dir.path()).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    std::fs::remove_file(&archive).unwrap();
    let (mut files, mut directories) = (Vec::new(), vec![dir.path().to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => {
                    let name = entry.file_name().into_string().unwrap();
                    files.push((name, std::fs::read_to_string(entry.path()).unwrap()));
                }
            }
        }
    }
    files
}

#[test]
fn a_bundle_has_all_that_is_known_and_none_of_the_secrets() {
    let config = format!(
        r#"{{"Network": "10.244.0.0/16", "Backend": {{"Type": "vxlan", "PSK": "{PSK}", "AccessKeySecret": "{CLOUD}"}}}}"#
    );
    let lab = Lab::builder()
        .nodes(2)
        .config_json(&config)
        .env("FLANNELD_REMOTE_TOKEN", TOKEN)
        .env("AWS_SECRET_ACCESS_KEY", CLOUD)
        .flag(format!("--etcd-password={PASSWORD}"))
        .start()
        .unwrap();
    let node = lab.node(1);
    node.write_file("/run/flannel/wgkey", WIREGUARD).unwrap();
    let log = format!(
        "I1116 10:00:00 restored route 10.244.2.0/24\nW key {WIREGUARD}\npsk={PSK}\nauthorization: Bearer {WEB}\n\
         plain {PASSWORD} in words\n{TOKEN}\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----\nlast line\n"
    );
    node.write_file("/run/flanneld.log", &log).unwrap();
    node.exec(&["mkdir", "-p", "/etc/cni/net.d"]).unwrap();
    // As a kubelet keeps the logs of pods; only those of flannel are wanted.
    node.exec(&["mount", "-t", "tmpfs", "tmpfs", "/var/log"]).unwrap();
    for (pod, words) in
        [("kube-flannel_kube-flannel-ds-x7_1", "of a pod"), ("default_web_2", "of others")]
    {
        let directory = format!("/var/log/pods/{pod}/kube-flannel");
        node.exec(&["mkdir", "-p", &directory]).unwrap();
        node.write_file(format!("{directory}/0.log"), &format!("{words}\n{log}")).unwrap();
    }
    let conf = format!(r#"{{"plugins":[{{"type":"flannel","password":"{PASSWORD}"}}]}}"#);
    node.write_file("/etc/cni/net.d/10-flannel.conflist", &conf).unwrap();
    let words =
        [FLANNELCTL, "bundle", "-f", "/run/bundle.tar.gz", "--log=/run/flanneld.log", "--peers=5"];
    let of_pods = [FLANNELCTL, "bundle", "-f", "/run/of-pods.tar.gz"];
    let output = node.output(&of_pods).unwrap();
    assert!(output.status.success(), "{}{}", output.stdout, output.stderr);
    let output = node.output(&words).unwrap();
    assert!(output.status.success(), "{}{}", output.stdout, output.stderr);
    assert_eq!(node.exec(&["stat", "-c", "%a", "/run/bundle.tar.gz"]).unwrap().trim(), "600");
    let files = unpacked(node, "/run/bundle.tar.gz");
    for (name, words) in [
        ("state.json", "\"hostname\":\"node1\""),
        ("peers.jsonl", "192.168.100.2"),
        ("events.jsonl", ""),
        ("entries.jsonl", "\"kind\":\"device\""),
        ("diff.json", "["),
        ("check.json", "names the plugin"),
        ("flags.txt", "--iface=eth0"),
        ("config-0.json", "10.244.0.0/16"),
        ("subnet.env", "FLANNEL_MTU=1450"),
        ("10-flannel.conflist", "flannel"),
        ("links.txt", "flannel.1"),
        ("routes.txt", "proto 244"),
        ("iptables.txt", "FLANNEL-FWD"),
        ("versions.txt", "flannelctl "),
        ("0.log", "restored route 10.244.2.0/24"),
        ("0.log", "last line"),
    ] {
        let of: Vec<&String> =
            files.iter().filter(|(found, _)| found == name).map(|(_, text)| text).collect();
        assert!(of.iter().any(|text| text.contains(words)), "{name} {words:?}: {of:?}");
    }
    // Of this node, and of the other.
    let hosts: Vec<&String> =
        files.iter().filter(|(name, _)| name == "state.json").map(|(_, text)| text).collect();
    assert!(hosts.len() == 2 && hosts.iter().any(|text| text.contains("\"node2\"")), "{hosts:?}");
    let of_pods = unpacked(node, "/run/of-pods.tar.gz");
    let log = of_pods.iter().find(|(name, _)| name.contains("kube-flannel-ds-x7"));
    let (name, log) = log.expect("the log of flannel's pod");
    assert_eq!(name, "kube-flannel_kube-flannel-ds-x7_1_kube-flannel_0.log");
    assert!(log.contains("of a pod") && log.contains("last line"), "{log}");
    assert!(!of_pods.iter().any(|(_, text)| text.contains("of others")));
    let files: Vec<(String, String)> = files.into_iter().chain(of_pods).collect();
    for secret in [
        TOKEN,
        "t0kent0ken",
        PASSWORD,
        PSK,
        &PSK[..20],
        &WIREGUARD[..43],
        CLOUD,
        WEB,
        "MIIEvQIBADANBg",
    ] {
        let with: Vec<&String> =
            files.iter().filter(|(_, text)| text.contains(secret)).map(|(name, _)| name).collect();
        assert!(with.is_empty(), "{secret} is in {with:?}");
    }
    // Nothing is written over.
    let again = node.output(&words).unwrap();
    assert_eq!(again.status.code(), Some(1), "{}", again.stdout);
}

/// Where nodes cannot be asked, the archive says why and what to do.
#[test]
fn probe_ports_that_are_open_to_their_own_node_alone_are_named_with_the_way_around() {
    let lab = Lab::builder().nodes(2).flag("--healthz-ip=127.0.0.1").start().unwrap();
    let node = lab.node(1);
    let words = [FLANNELCTL, "bundle", "-f", "/run/bundle.tar.gz", "--peers=5"];
    let output = node.output(&words).unwrap();
    assert!(output.status.success(), "{}{}", output.stdout, output.stderr);
    let files = unpacked(node, "/run/bundle.tar.gz");
    let (_, why) = files.iter().find(|(name, _)| name == "peers.txt").unwrap();
    assert!(why.contains("--healthz-ip=127.0.0.1") && why.contains("--kubeconfig FILE"), "{why}");
}

#[test]
fn a_bundle_is_bounded_whatever_logs_are_given() {
    let lab = Lab::builder().nodes(1).no_daemons().start().unwrap();
    let node = lab.node(1);
    // Lines that do not compress to nothing, of more than is taken.
    let fill = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 4000000 /dev/urandom | base64 > /run/log$i; echo the end >> /run/log$i; done";
    node.exec(&["sh", "-ec", fill]).unwrap();
    let logs: Vec<String> = (1..=12).map(|number| format!("--log=/run/log{number}")).collect();
    let mut words = vec![FLANNELCTL, "bundle", "-f", "/run/bundle.tar.gz"];
    words.extend(logs.iter().map(String::as_str));
    let output = node.output(&words).unwrap();
    assert!(output.status.success(), "{}{}", output.stdout, output.stderr);
    let size: u64 =
        node.exec(&["stat", "-c", "%s", "/run/bundle.tar.gz"]).unwrap().trim().parse().unwrap();
    assert!(size < 32 << 20, "{size}");
    let files = unpacked(node, "/run/bundle.tar.gz");
    assert!(files.iter().any(|(name, text)| name == "0.log" && text.ends_with("the end\n")));
    assert!(
        files.iter().any(|(name, text)| name == "links.txt" && text.contains("eth0")),
        "what is small comes first"
    );
}
