//! `flannelctl ipam check` on a node with real namespaces.

use std::process::Command;
use std::time::Duration;

use flannel_lab::{Lab, Node, Output};

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const CBR0: &str = "/var/lib/cni/networks/cbr0";

fn lab() -> Lab {
    Lab::builder().nodes(1).bare().start().expect("start a lab")
}

fn check(node: &Node, options: &[&str]) -> Output {
    node.output(&[&[FLANNELCTL, "ipam", "check"], options].concat()).expect("run flannelctl")
}

/// A reservation as host-local writes it, two hours ago.
fn reserve(node: &Node, directory: &str, address: &str, owner: &str) {
    let path = format!("{directory}/{address}");
    node.exec(&["mkdir", "-p", directory]).expect("make the network's directory");
    node.write_file(&path, owner).expect("write a reservation");
    node.exec(&["touch", "-d", "2 hours ago", &path]).expect("make it old");
}

/// The words of the line about an address.
fn line<'a>(output: &'a Output, address: &str) -> Vec<&'a str> {
    let found = output.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    found
        .into_iter()
        .find(|words| words.contains(&address))
        .unwrap_or_else(|| panic!("no {address} in:\n{}{}", output.stdout, output.stderr))
}

fn reserved(node: &Node, directory: &str) -> Vec<String> {
    let list = node.exec(&["ls", directory]).expect("list reservations");
    list.lines().map(str::to_owned).collect()
}

#[test]
fn addresses_of_pods_that_are_gone_are_found_and_set_free_and_no_others() {
    let lab = lab();
    let node = lab.node(1);
    // A pod whose namespace is mounted, and one whose namespace only its process keeps.
    node.ip("netns add sandbox").unwrap();
    node.ip("-n sandbox addr add 10.244.1.2/24 dev lo").unwrap();
    let mut process = Command::new("unshare");
    process.args(["--net", "sh", "-c", "ip addr add 10.244.1.3/24 dev lo && exec sleep 1000"]);
    let _process = node.spawn(process).unwrap();
    reserve(node, CBR0, "10.244.1.2", "mounted\r\neth0");
    reserve(node, CBR0, "10.244.1.3", "running\r\neth0");
    reserve(node, CBR0, "10.244.1.4", "gone\r\neth0");
    reserve(node, CBR0, "10.244.1.5", "of-an-old-plugin");
    reserve(node, CBR0, "10.244.1.6", "");
    reserve(node, CBR0, "fd00:244::7", "gone\r\neth0");
    reserve(node, CBR0, "last_reserved_ip.0", "10.244.1.6");
    // An ADD may be under way.
    node.write_file(format!("{CBR0}/10.244.1.8"), "new\r\neth0").unwrap();
    lab.wait_until("the process's address", Duration::from_secs(10), || {
        line(&check(node, &[]), "10.244.1.3").last().copied() == Some("use")
    })
    .unwrap();

    let found = check(node, &[]);
    assert_eq!(found.status.code(), Some(1), "{}{}", found.stdout, found.stderr);
    assert_eq!(line(&found, "10.244.1.2"), ["cbr0", "10.244.1.2", "mounted", "eth0", "in", "use"]);
    assert_eq!(line(&found, "10.244.1.3"), ["cbr0", "10.244.1.3", "running", "eth0", "in", "use"]);
    assert_eq!(line(&found, "10.244.1.4"), ["cbr0", "10.244.1.4", "gone", "eth0", "leaked"]);
    assert_eq!(
        line(&found, "10.244.1.5"),
        ["cbr0", "10.244.1.5", "of-an-old-plugin", "-", "leaked"]
    );
    assert_eq!(line(&found, "10.244.1.6"), ["cbr0", "10.244.1.6", "-", "-", "leaked"]);
    assert_eq!(line(&found, "fd00:244::7"), ["cbr0", "fd00:244::7", "gone", "eth0", "leaked"]);
    assert!(line(&found, "10.244.1.8").ends_with(&["too", "new", "to", "tell"]));
    assert!(found.stdout.contains("7 reserved, 4 leaked; "), "{}", found.stdout);
    assert!(reserved(node, CBR0).contains(&"10.244.1.4".to_owned()), "a look changes nothing");

    let fixed = check(node, &["--fix"]);
    assert_eq!(fixed.status.code(), Some(0), "{}{}", fixed.stdout, fixed.stderr);
    assert!(fixed.stdout.contains("7 reserved, 4 leaked, 4 set free"), "{}", fixed.stdout);
    let left = reserved(node, CBR0);
    let kept = ["10.244.1.2", "10.244.1.3", "10.244.1.8", "last_reserved_ip.0"];
    let left: Vec<&str> = left.iter().map(String::as_str).filter(|name| *name != "lock").collect();
    assert_eq!(left, kept);

    let again = check(node, &[]);
    assert_eq!(again.status.code(), Some(0), "{}{}", again.stdout, again.stderr);
    assert!(again.stdout.contains("3 reserved, none leaked"), "{}", again.stdout);
}

#[test]
fn one_network_can_be_looked_at_alone_and_a_wrong_name_is_said() {
    let lab = lab();
    let node = lab.node(1);
    let empty = check(node, &[]);
    assert_eq!(empty.status.code(), Some(0), "{}{}", empty.stdout, empty.stderr);
    assert!(empty.stdout.contains("no addresses are reserved"), "{}", empty.stdout);

    let other = "/var/lib/cni/networks/other";
    reserve(node, CBR0, "10.244.1.4", "gone\r\neth0");
    reserve(node, other, "10.9.9.4", "gone\r\neth0");
    let fixed = check(node, &["--fix", "--network", "other"]);
    assert_eq!(fixed.status.code(), Some(0), "{}{}", fixed.stdout, fixed.stderr);
    assert!(!fixed.stdout.contains("10.244.1.4"), "{}", fixed.stdout);
    assert!(!reserved(node, other).contains(&"10.9.9.4".to_owned()));
    assert!(reserved(node, CBR0).contains(&"10.244.1.4".to_owned()));

    let wrong = check(node, &["--network", "cbr1"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(wrong.stderr.contains("no network cbr1 in /var/lib/cni/networks"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("there are: cbr0, other"), "{}", wrong.stderr);
}
