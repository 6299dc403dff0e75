//! `flannelctl check` on lab nodes: faults that are planted are named with what mends them, and a sound node has none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::time::Duration;

use flannel_lab::{Lab, Node};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Finding {
    subject: String,
    severity: String,
    what: String,
    why: String,
    fix: String,
}

/// The status, and what is wrong.
fn check(node: &Node, more: &[&str]) -> (i32, Vec<Finding>) {
    check_by(node, &[], more)
}

/// As the one above, by way of another program.
fn check_by(node: &Node, program: &[&str], more: &[&str]) -> (i32, Vec<Finding>) {
    let words = [program, &[FLANNELCTL, "check", "-o", "json"], more].concat();
    let output = node.output(&words).unwrap();
    let report: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter().map(|finding| Finding {
        subject: text(&finding["subject"]),
        severity: text(&finding["severity"]),
        what: text(&finding["what"]),
        why: text(&finding["why"]),
        fix: text(&finding["fix"]),
    });
    let wrong: Vec<Finding> = findings.filter(|finding| finding.severity != "note").collect();
    assert!(wrong.iter().all(|one| !one.fix.is_empty()), "nothing mends it: {wrong:#?}");
    (output.status.code().unwrap(), wrong)
}

/// At once, or as soon as the daemon has seen that something is over.
fn is_sound(node: &Node, more: &[&str]) {
    flannel_lab::wait_until("nothing to be wrong", LIMIT, || {
        let (status, wrong) = check(node, more);
        if status == 0 && wrong.is_empty() { Ok(()) } else { Err(format!("{status}: {wrong:#?}")) }
    })
    .unwrap();
}

/// The finding of a subject with these words; all others must be of the same subject.
fn finds(node: &Node, more: &[&str], subject: &str, words: &str) -> Finding {
    let (status, wrong) = check(node, more);
    let shown = format!("{subject}: {words:?} is not in {status}: {wrong:#?}");
    let broken = wrong.iter().any(|finding| finding.severity == "broken");
    assert_eq!(status, i32::from(broken), "{shown}");
    let is_it = |one: &Finding| one.what.contains(words) || one.why.contains(words);
    wrong.into_iter().find(|one| one.subject == subject && is_it(one)).expect(&shown)
}

fn shell(node: &Node, command: &str) {
    node.exec(&["sh", "-ec", command]).unwrap();
}

/// Plants a fault, sees it named, does what is said to mend it, and sees it gone.
fn is_found_and_mended(node: &Node, plant: &str, subject: &str, words: &str) {
    shell(node, plant);
    let found = finds(node, &[], subject, words);
    shell(node, &found.fix);
    is_sound(node, &[]);
}

/// As the one above, for what no single command mends.
fn is_found(node: &Node, plant: &str, subject: &str, words: &str, mend: &str) -> Finding {
    shell(node, plant);
    let found = finds(node, &[], subject, words);
    shell(node, mend);
    is_sound(node, &[]);
    found
}

fn lab(nodes: u16) -> Lab {
    let lab = Lab::builder().nodes(nodes).backend("vxlan").start().unwrap();
    lab.pod_on_every_node().unwrap();
    let node = lab.node(1);
    lab.wait_until("routes to the others", LIMIT, || {
        let routes = node.ip("route show proto 244");
        routes.is_ok_and(|routes| routes.lines().count() == usize::from(nodes) - 1)
    })
    .unwrap();
    lab
}

#[test]
fn rules_that_drop_the_tunnel_or_the_pods_are_named_and_the_command_that_is_said_mends_it() {
    let lab = lab(2);
    let node = lab.node(1);
    is_sound(node, &[]);
    let own = node.subnet_env().unwrap().subnet.unwrap().trunc();
    let table = "nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; }'; \
                 nft 'add chain inet fw through { type filter hook forward priority 0 ; }'; \
                 nft 'add chain inet fw out { type filter hook output priority 0 ; }'";
    shell(node, table);
    is_sound(node, &[]);
    for (rule, words) in [
        ("in udp dport 8472 drop", "UDP port 8472"),
        (
            "in iifname eth0 ip saddr 192.168.100.2 meta l4proto udp counter reject",
            "what comes from 192.168.100.2",
        ),
        ("out udp dport { 8000-9000 } drop", "what is sent to 192.168.100.2"),
        (&format!("through ip daddr {own} drop") as &str, "for those of this node"),
        (
            &format!("through ip saddr {own} oifname flannel.1 reject") as &str,
            "what pods of this node send",
        ),
    ] {
        is_found_and_mended(node, &format!("nft add rule inet fw {rule}"), "firewall", words);
    }
    // What is for others is nobody's business.
    shell(
        node,
        "nft add rule inet fw in udp dport 8473 drop; nft add rule inet fw in ct state invalid drop",
    );
    is_sound(node, &[]);
    shell(node, "nft delete table inet fw");
    // Rules of iptables, and a policy that flannel's own rules make up for.
    is_found_and_mended(
        node,
        "iptables -A INPUT -p udp --dport 8472 -j DROP",
        "firewall",
        "UDP port 8472",
    );
    is_found_and_mended(
        node,
        "iptables -I FORWARD -i flannel.1 -j DROP",
        "firewall",
        "for those of this node",
    );
    shell(node, "iptables -P FORWARD DROP");
    is_sound(node, &[]);
}

#[test]
fn what_the_host_does_to_packets_is_named() {
    let lab = lab(3);
    let node = lab.node(1);
    is_sound(node, &[]);
    is_found_and_mended(
        node,
        "sysctl -qw net.ipv4.ip_forward=0",
        "host",
        "net.ipv4.ip_forward is 0",
    );
    is_found_and_mended(
        node,
        "sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        "kernel",
        "net.bridge.bridge-nf-call-iptables is 0",
    );
    // What comes from node 2 would be answered by another device.
    let strict = "sysctl -qw net.ipv4.conf.all.rp_filter=1";
    shell(node, strict);
    is_sound(node, &[]);
    let asymmetric = "ip link add other type bridge; ip link set other up; ip route add 192.168.100.2/32 dev other";
    let found = is_found(
        node,
        asymmetric,
        "rp_filter",
        "from 192.168.100.2 to 192.168.100.1 that come in by eth0",
        "ip link del other",
    );
    assert!(found.fix.contains("net.ipv4.conf.eth0.rp_filter=2"), "{found:?}");
    shell(node, "sysctl -qw net.ipv4.conf.all.rp_filter=0");

    let smaller = "ip link set cni0 mtu 1450";
    let found =
        is_found(node, "ip link set cni0 mtu 1500", "mtu", "cni0 has an MTU of 1500", smaller);
    assert!(found.fix.starts_with(smaller), "{found:?}");
    // What the kernel has learned of a path.
    is_found(
        node,
        "ip route add 192.168.100.3/32 dev eth0 mtu lock 1400",
        "mtu",
        "the path to 192.168.100.3 carries 1400 bytes",
        "ip route del 192.168.100.3/32",
    );
    // Somebody else's networks in the pods'.
    let docker = "ip link add docker0 type bridge; ip addr add 10.244.250.1/24 dev docker0; ip link set docker0 up";
    let found = is_found(
        node,
        docker,
        "ranges",
        "Docker's bridge docker0 has 10.244.250.1/24",
        "ip link del docker0",
    );
    assert!(found.fix.contains("/etc/docker/daemon.json"), "{found:?}");
    is_found_and_mended(
        node,
        "ip route add 10.244.251.0/24 via 192.168.100.3",
        "ranges",
        "10.244.251.0/24 via 192.168.100.3 dev eth0",
    );
    // What another network has left.
    let found = is_found(
        node,
        "ip link add cilium_host type bridge",
        "others",
        "cilium_host is of Cilium",
        "ip link del cilium_host",
    );
    assert_eq!(found.severity, "warning");
    is_found_and_mended(
        node,
        "iptables -N cali-FORWARD; iptables -A FORWARD -j cali-FORWARD",
        "others",
        "the chain cali-FORWARD of iptables is of Calico",
    );
}

/// What a machine is and has, planted by mounts that this node alone sees.
#[test]
fn what_the_machine_is_and_lacks_is_named() {
    let lab = lab(2);
    let node = lab.node(1);
    is_sound(node, &[]);
    let found = is_found(
        node,
        "mount -t tmpfs none /proc/sys/net/bridge",
        "kernel",
        "br_netfilter is not loaded",
        "umount /proc/sys/net/bridge",
    );
    assert!(found.fix.starts_with("modprobe br_netfilter"), "{found:?}");
    is_found_and_mended(
        node,
        "cd /run; for it in count max; do echo 9 > $it; mount --bind $it /proc/sys/net/netfilter/nf_conntrack_$it; done",
        "connections",
        "the kernel tracks 9 connections, and has room for 9",
    );
    shell(
        node,
        "umount /proc/sys/net/netfilter/nf_conntrack_count /proc/sys/net/netfilter/nf_conntrack_max",
    );
    let found = is_found(
        node,
        "cd /sys/class/net; mount -t tmpfs none .; cd /sys/class/net; mkdir -p eth0/device; \
         ln -s /sys/bus/pci/drivers/vmxnet3 eth0/device/driver",
        "offload",
        "eth0 is a card of VMware (vmxnet3)",
        "umount /sys/class/net",
    );
    assert!(found.fix.contains("ethtool -K eth0 tx-udp_tnl-segmentation off"), "{found:?}");
    let id = node.read_file("/etc/machine-id").unwrap();
    let found = is_found(
        node,
        ": > /etc/machine-id",
        "lease",
        "/etc/machine-id is \"\", which is not a machine id",
        &format!("echo {} > /etc/machine-id", id.trim()),
    );
    assert_eq!(found.fix, "systemd-machine-id-setup");
    // The kernel says to who asks so that it is of another age.
    let (_, wrong) = check_by(node, &["setarch", "--uname-2.6"], &[]);
    let is_old = |one: &Finding| one.subject == "kernel" && one.what.contains("older than 4.19");
    assert!(wrong.iter().any(is_old), "{wrong:#?}");
    node.flanneld().kill9();
    let (_, wrong) = check_by(node, &["setarch", "--uname-2.6"], &[]);
    let offload = wrong.iter().find(|one| one.subject == "offload").unwrap();
    assert!(offload.what.contains("before 5.7 send wrong checksums"), "{offload:?}");
    assert!(offload.fix.starts_with("ethtool -K flannel.1"), "{offload:?}");
}

#[test]
fn what_firewalld_and_ufw_drop_is_mended_by_their_own_commands() {
    let lab = lab(2);
    let node = lab.node(1);
    let table = "nft add table inet firewalld; \
                 nft 'add chain inet firewalld filter_INPUT { type filter hook input priority 10 ; }'; \
                 nft 'add chain inet firewalld filter_FORWARD { type filter hook forward priority 10 ; }'";
    shell(node, table);
    is_sound(node, &[]);
    let range = "10.244.0.0/16";
    for (rule, words, fix) in [
        (
            "filter_INPUT udp dport 8472",
            "UDP port 8472",
            "firewall-cmd --permanent --add-port=8472/udp && firewall-cmd --reload".to_owned(),
        ),
        (
            "filter_FORWARD iifname flannel.1",
            "for those of this node",
            format!(
                "firewall-cmd --permanent --zone=trusted --add-source={range} && firewall-cmd --reload"
            ),
        ),
    ] {
        let plant =
            format!("nft add rule inet firewalld {rule} reject with icmpx type admin-prohibited");
        let found = is_found(node, &plant, "firewall", words, "nft flush table inet firewalld");
        assert_eq!(found.fix, fix);
    }
    shell(node, "nft delete table inet firewalld");
    for (hook, rule, words, fix) in [
        ("INPUT", "-p udp --dport 8472", "UDP port 8472", "ufw allow 8472/udp".to_owned()),
        (
            "FORWARD",
            "-i flannel.1",
            "for those of this node",
            format!("ufw route allow from {range} to {range}"),
        ),
    ] {
        let chain = format!("ufw-user-{}", hook.to_lowercase());
        let plant = format!(
            "iptables -N {chain}; iptables -I {hook} -j {chain}; iptables -A {chain} {rule} -j DROP"
        );
        let mend =
            format!("iptables -D {hook} -j {chain}; iptables -F {chain}; iptables -X {chain}");
        let found = is_found(node, &plant, "firewall", words, &mend);
        assert_eq!(found.fix, fix);
    }
}

#[test]
fn a_path_that_carries_less_and_a_node_that_is_cut_off_are_named() {
    let lab = lab(3);
    let node = lab.node(1);
    is_sound(node, &[]);
    let port = lab.node(2).nic().port;
    let narrow = |mtu: &str| lab.switch().ip(&format!("link set dev {port} mtu {mtu}")).unwrap();
    narrow("1400");
    let found = finds(node, &[], "mtu", "the path to 192.168.100.2 carries 1400 bytes");
    assert!(found.what.contains("an MTU of 1350 fits for pods"), "{found:?}");
    assert!(found.fix.contains("`ip link set dev eth0 mtu 1400`"), "{found:?}");
    narrow("1500");
    is_sound(node, &[]);
    // From one other only.
    lab.partition(&[1], &[3]).unwrap();
    let found = finds(node, &[], "reach", "1 of 2 nodes do not answer a ping: 192.168.100.3");
    assert_eq!(found.severity, "broken");
    is_sound(lab.node(2), &[]);
    lab.heal().unwrap();
    is_sound(node, &[]);
}

/// Without a daemon here that would find it out.
#[test]
fn ports_that_are_closed_on_the_way_are_named_by_the_check_itself() {
    let lab = lab(3);
    let (node, other) = (lab.node(1), lab.node(2));
    node.flanneld().kill9();
    let endpoints = lab.etcd().unwrap().endpoints();
    let store = ["--etcd-endpoints", &endpoints, "--etcd-prefix", &lab.spec().etcd_prefix];
    let reach = |words: &str, severity: &str| {
        let found = finds(node, &store, "reach", words);
        assert_eq!(found.severity, severity, "{found:?}");
        assert!(!found.what.contains("192.168.100.3"), "{found:?}");
        found
    };
    let is_open = || {
        let (_, wrong) = check(node, &store);
        assert!(!wrong.iter().any(|one| one.subject == "reach"), "{wrong:#?}");
    };
    is_open();
    // Dropped, rejected, and where probes alone are meant.
    let rule = |it: &str| shell(other, &format!("iptables {it}"));
    rule("-I INPUT -p udp --dport 8472 -j DROP");
    let found = reach(
        "UDP port 8472, the vxlan tunnel, is blocked between this node and 192.168.100.2",
        "broken",
    );
    assert!(found.fix.contains("flannelctl check names what drops it"), "{found:?}");
    rule("-D INPUT -p udp --dport 8472 -j DROP");
    rule("-I INPUT -p udp --dport 8472 -j REJECT --reject-with icmp-admin-prohibited");
    reach("UDP port 8472, the vxlan tunnel, is refused by 192.168.100.2", "broken");
    rule("-D INPUT -p udp --dport 8472 -j REJECT --reject-with icmp-admin-prohibited");
    rule("-I INPUT -i eth0 -p udp --dport 8475 -j DROP");
    is_open();
    other.flanneld().kill9();
    reach("UDP port 8475 does not answer at 192.168.100.2", "warning");
    rule("-D INPUT -i eth0 -p udp --dport 8475 -j DROP");
    other.flanneld().start().unwrap();
    other.flanneld().wait_ready().unwrap();
    is_open();
}

#[test]
fn a_path_that_loses_packets_is_named_with_how_many_and_nothing_else_is_made_of_it() {
    let lab = lab(3);
    let node = lab.node(1);
    is_sound(node, &[]);
    let drop = "nft add table inet loss; nft 'add chain inet loss in { type filter hook input priority -300 ; }'; \
                nft add rule inet loss in iifname eth0 meta l4proto icmp numgen random mod 10 lt 5 drop";
    shell(lab.node(2), drop);
    let (status, wrong) = check(node, &[]);
    let [found] = &wrong[..] else { panic!("one thing is wrong: {wrong:#?}") };
    assert_eq!((status, found.subject.as_str()), (1, "reach"), "{found:?}");
    let lost = found.what.strip_prefix("of 100 packets to 192.168.100.2 and back, ");
    let lost: u32 = lost.unwrap().strip_suffix(" are lost").unwrap().parse().unwrap();
    assert!((25..75).contains(&lost), "{found:?}");
    assert!(found.fix.contains("here and on 192.168.100.2: flannelctl check"), "{found:?}");
    shell(lab.node(2), "nft delete table inet loss");
    is_sound(node, &[]);
}

#[test]
fn an_entry_that_somebody_keeps_undoing_is_named_with_its_peer() {
    let lab = lab(2);
    let node = lab.node(1);
    let peer = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
    {
        let mut vandal = std::process::Command::new("sh");
        let mac = lab.node(2).exec(&["cat", "/sys/class/net/flannel.1/address"]).unwrap();
        let other = format!("{} dev flannel.1 dst 192.168.100.9 self permanent", mac.trim());
        let again = format!("while true; do bridge fdb replace {other}; sleep 0.02; done");
        vandal.args(["-c", &again]);
        let _vandal = node.spawn(vandal).unwrap();
        flannel_lab::wait_until("it to be named", LIMIT, || {
            let (status, wrong) = check(node, &[]);
            let is_it = |one: &Finding| {
                one.what.starts_with(&format!("fdb {}", mac.trim()))
                    && one.what.ends_with(&format!("for the peer {peer}"))
            };
            let named = wrong.iter().any(|one| one.subject == "entries" && is_it(one));
            if named && status == 1 { Ok(()) } else { Err(format!("{wrong:#?}")) }
        })
        .unwrap();
    }
    let repaired = node.output(&[FLANNELCTL, "repair"]).unwrap();
    assert!(repaired.status.success(), "{}", repaired.stdout);
    is_sound(node, &[]);
}

#[test]
fn what_the_container_runtime_is_told_is_looked_at() {
    let lab = lab(2);
    let node = lab.node(1);
    shell(
        node,
        "mkdir -p /run/bin /etc/cni/net.d; for it in flannel bridge host-local; do touch /run/bin/$it; done",
    );
    let dirs = ["--cni-bin-dir", "/run/bin"];
    let conflist = r#"{"plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}},{"type":"portmap"}]}"#;
    node.write_file("/etc/cni/net.d/10-flannel.conflist", conflist).unwrap();
    let found = finds(
        node,
        &dirs,
        "cni",
        "10-flannel.conflist names the plugin portmap, which is not in /run/bin",
    );
    assert!(found.fix.starts_with("flannel --install /run/bin"), "{found:?}");
    shell(node, "touch /run/bin/portmap");
    is_sound(node, &dirs);
    node.write_file("/etc/cni/net.d/05-other.conf", r#"{"type":"bridge"}"#).unwrap();
    finds(node, &dirs, "cni", "runtimes take 05-other.conf");
    node.write_file("/etc/cni/net.d/05-other.conf", "{").unwrap();
    finds(node, &dirs, "cni", "05-other.conf cannot be read");
    shell(node, "rm /etc/cni/net.d/05-other.conf");
    is_sound(node, &dirs);
}

#[test]
fn two_nodes_that_are_one_to_the_others_are_named() {
    let lab = lab(2);
    let (node, etcd) = (lab.node(1), lab.etcd().unwrap());
    let leases = lab.leases().unwrap();
    let (_, second) = leases.iter().find(|(_, attrs)| attrs.contains("192.168.100.2")).unwrap();
    let key = |subnet: &str| format!("{}/subnets/{subnet}", lab.spec().etcd_prefix);
    // The address of node 2 under another subnet, with another MAC, and the other way round.
    let mac = |attrs: &str| {
        let attrs: Value = serde_json::from_str(attrs).unwrap();
        attrs["BackendData"]["VtepMAC"].as_str().unwrap().to_owned()
    };
    let one_address = second.replace(&mac(second), "02:00:00:00:00:07");
    etcd.put(&key("10.244.250.0-24"), &one_address).unwrap();
    finds(node, &[], "lease", "announce one public address, 192.168.100.2");
    let one_mac = second.replace("192.168.100.2", "192.168.100.77");
    etcd.put(&key("10.244.250.0-24"), &one_mac).unwrap();
    let found = finds(node, &[], "lease", "the VTEP MAC");
    assert!(found.why.contains("10.244.250.0/24 announce it"), "{found:?}");
    // Neither, and still a copy of the same machine.
    let one_machine = one_address.replace("192.168.100.2", "192.168.100.77");
    etcd.put(&key("10.244.250.0-24"), &one_machine).unwrap();
    let found = finds(node, &[], "lease", "have one machine id");
    assert_eq!(found.severity, "warning");
    assert!(found.what.contains("10.244.250.0/24"), "{found:?}");
    let id = lab.node(2).read_file("/etc/machine-id").unwrap();
    assert!(!second.contains(id.trim()), "the id itself is not published: {second}");
    etcd.delete(&key("10.244.250.0-24")).unwrap();
    is_sound(node, &[]);
}

#[test]
fn copies_of_one_machine_are_named_by_the_leases_of_a_lease_server() {
    let builder = Lab::builder().nodes(2).backend("vxlan").lease_server();
    let lab = builder.no_daemons().start().unwrap();
    let machine = |node: &Node, id: &str| node.write_file("/etc/machine-id", id).unwrap();
    lab.nodes().iter().for_each(|node| machine(node, "3d1219c7c4c5404aaa1f6d2a48adfda4\n"));
    lab.start_daemons().unwrap();
    // Node 1 serves the leases itself.
    for node in lab.nodes() {
        let found = finds(node, &[], "lease", "have one machine id");
        for node in lab.nodes() {
            let subnet = node.subnet_env().unwrap().subnet.unwrap().trunc().to_string();
            assert!(found.what.contains(&subnet), "{found:?}");
        }
        assert!(found.fix.contains("systemd-machine-id-setup"), "{found:?}");
    }
    machine(lab.node(2), "5a1219c7c4c5404aaa1f6d2a48adfda4\n");
    lab.node(2).flanneld().restart().unwrap();
    lab.nodes().iter().for_each(|node| is_sound(node, &[]));
}

#[test]
fn a_store_that_is_away_is_named_and_the_rest_is_known_from_the_daemon() {
    let lab = lab(2);
    let node = lab.node(1);
    is_sound(node, &[]);
    lab.etcd().unwrap().kill();
    finds(node, &[], "store", "cannot be asked");
    shell(node, "iptables -A INPUT -p udp --dport 8472 -j DROP");
    finds(node, &[], "firewall", "UDP port 8472");
}

#[test]
fn a_node_without_a_daemon_is_judged_by_what_is_said_of_the_network() {
    let lab = Lab::builder().nodes(1).no_daemons().start().unwrap();
    let node = lab.node(1);
    is_sound(node, &[]);
    let config = |text: &str| node.write_file("/run/net-conf.json", text).unwrap();
    let by_file = ["--config", "/run/net-conf.json"];
    config(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#);
    is_sound(node, &by_file);
    config(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlam"}}"#);
    finds(node, &by_file, "config", "did you mean vxlan");
    config(r#"{"Network": "192.168.0.0/16"}"#);
    finds(node, &by_file, "ranges", "eth0 has 192.168.100.1/24");
    config(r#"{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48"}"#);
    is_sound(node, &by_file);
    shell(node, "sysctl -qw net.ipv6.conf.all.forwarding=0");
    finds(node, &by_file, "forwarding", "net.ipv6.conf.all.forwarding is 0");
    shell(node, "sysctl -qw net.ipv6.conf.all.forwarding=1; ip link set eth0 mtu 1300");
    finds(node, &by_file, "mtu", "IPv6 needs 1280");
    shell(node, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    finds(node, &by_file, "kernel", "IPv6 is switched off");
    config(r#"{"Network": "10.244.0.0/16"}"#);
    shell(node, "ip link set eth0 mtu 1500; ip addr flush dev eth0");
    shell(node, "ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2");
    finds(node, &by_file, "nic", "VirtualBox's NAT");
    shell(node, "ip route del default; ip addr flush dev eth0");
    finds(node, &by_file, "nic", "");
    finds(
        node,
        &["--etcd-endpoints", "http://192.168.100.253:1"],
        "store",
        "the store cannot be asked",
    );
}

/// What the kernel at hand does not have, a node that wants it is told.
#[test]
fn a_backend_that_the_kernel_cannot_serve_is_named() {
    let lab = Lab::builder().nodes(1).no_daemons().start().unwrap();
    let node = lab.node(1);
    let made =
        node.exec(&["sh", "-c", "ip link add try type ipip && ip link del try; echo $?"]).unwrap();
    node.write_file(
        "/run/ipip.json",
        r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "ipip"}}"#,
    )
    .unwrap();
    let by_file = ["--config", "/run/ipip.json"];
    match made.trim() {
        "0" => is_sound(node, &by_file),
        _ => {
            let found = finds(node, &by_file, "kernel", "the kernel makes no ipip devices");
            assert!(found.fix.starts_with("modprobe ipip"), "{found:?}");
        }
    }
    let left = node.ip("-brief link").unwrap();
    assert!(!left.contains("try"), "{left}");
    // On whichever kernel: what this node is not given.
    let udp = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "udp"}}"#;
    node.write_file("/run/udp.json", udp).unwrap();
    let by_file = ["--config", "/run/udp.json"];
    is_sound(node, &by_file);
    shell(node, "mount -t tmpfs none /dev/net");
    let found = finds(node, &by_file, "kernel", "/dev/net/tun cannot be used");
    assert!(found.fix.starts_with("modprobe tun"), "{found:?}");
    shell(node, "umount /dev/net");
    is_sound(node, &by_file);
}

/// A program of this name that sleeps, on the node.
fn sleeper(node: &Node, name: &str) -> flannel_lab::Process {
    shell(
        node,
        &format!(
            "mkdir -p /run/programs; cp $(readlink -f $(command -v sleep)) /run/programs/{name}"
        ),
    );
    let mut command = std::process::Command::new(format!("/run/programs/{name}"));
    command.arg("600");
    node.spawn(command).unwrap()
}

#[test]
fn managers_of_devices_that_run_here_are_named_unless_they_leave_flannel_alone() {
    let lab = lab(2);
    let node = lab.node(1);
    {
        let _running = sleeper(node, "NetworkManager");
        let found = finds(node, &[], "managers", "NetworkManager runs here");
        assert_eq!(found.severity, "warning");
        shell(node, "mkdir -p /run/NetworkManager/conf.d");
        let text = "[keyfile]\nunmanaged-devices=interface-name:flannel*;interface-name:cni*\n";
        node.write_file("/run/NetworkManager/conf.d/flannel.conf", text).unwrap();
        is_sound(node, &[]);
    }
    let _running = sleeper(node, "systemd-networkd");
    shell(node, "mkdir -p /run/systemd/network");
    let all = "[Match]\nName=*\n[Network]\nDHCP=yes\n";
    node.write_file("/run/systemd/network/10-all.network", all).unwrap();
    finds(
        node,
        &[],
        "managers",
        "systemd-networkd manages flannel.1, by /run/systemd/network/10-all.network",
    );
    let ours = "[Match]\nName=flannel* cni0\n[Link]\nUnmanaged=yes\n";
    node.write_file("/run/systemd/network/00-flannel.network", ours).unwrap();
    is_sound(node, &[]);
}

/// A daemon that tells a time of long ago, in the place of a node's own.
#[test]
fn a_clock_that_is_not_as_another_nodes_is_named() {
    let lab = lab(3);
    let (node, other) = (lab.node(1), lab.node(2));
    is_sound(node, &[]);
    let state = node.output(&[FLANNELCTL, "status", "-o", "json"]).unwrap().stdout;
    let mut state: Value = serde_json::from_str(&state).unwrap();
    assert!(state["now"].is_string(), "{state}");
    state["now"] = "2020-01-01T00:00:00Z".into();
    other.flanneld().kill9();
    let listener = other.in_netns(|| std::net::TcpListener::bind("0.0.0.0:8081")).unwrap().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            use std::io::{Read as _, Write as _};
            let body = state.to_string();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    let found = finds(node, &[], "clock", "s ahead of that of 192.168.100.2");
    assert_eq!(found.severity, "warning");
    assert!(found.fix.contains("timedatectl set-ntp true"), "{found:?}");
}

#[test]
fn people_are_told_in_words_and_programs_in_json_or_yaml() {
    let lab = lab(2);
    let node = lab.node(1);
    let output = |words: &[&str]| node.output(&[&[FLANNELCTL], words].concat()).unwrap();
    let whole = output(&["check"]);
    assert_eq!(whole.stdout.trim(), "node1: nothing is wrong", "{}", whole.stderr);
    assert!(
        output(&["check", "-o", "wide"])
            .stdout
            .contains("note    nic         eth0 192.168.100.1, MTU 1500")
    );
    shell(node, "sysctl -qw net.ipv4.ip_forward=0");
    let broken = output(&["check"]);
    for line in [
        "node1: BROKEN: 1, warnings: 0",
        "BROKEN  host        net.ipv4.ip_forward is 0",
        "fix: sysctl -w net.ipv4.ip_forward=1",
    ] {
        assert!(broken.stdout.contains(line), "{line}: {}", broken.stdout);
    }
    assert!(!broken.stdout.contains('\u{1b}'), "no colours but on a terminal");
    assert_eq!(broken.status.code(), Some(1));
    let yaml = output(&["check", "-o", "yaml"]).stdout;
    assert!(yaml.starts_with("---\n") && yaml.contains("verdict: broken"), "{yaml}");
    assert_eq!(output(&["check", "-o", "xml"]).status.code(), Some(2));
    assert!(output(&["status", "-o", "yaml"]).stdout.contains("hostname: node1"));
    assert!(output(&["peers", "-o", "yaml"]).stdout.contains("condition: programmed"));
    assert_eq!(output(&["peers", "192.168.100.2"]).status.code(), Some(0));
    assert_eq!(output(&["peers", "192.168.100.9"]).status.code(), Some(2));
}
