//! wireguard: leases as the Go flannel writes them, and what becomes of them, as `wg` and `ip` show it on
//! node 192.168.100.1.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

use flannel_backend::{
    Answers, Backend, Need, Node, NodeMemory, PeerProblem, WireguardBy, judge_config, peer_wishes,
};
use flannel_common::PrivateKey;
use flannel_entries::facts::Facts;
use flannel_entries::tunnel::TunnelEntry;
use flannel_lease::{Lease, NetworkConfig, RawJson, SubnetOrigin};
use flannel_wanted::KeyedEntry;

use self::support::lease;

/// RFC 7748, section 6.1: Alice's is ours, Bob's is the peer's.
const PRIVATE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
const OURS: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
const THEIRS: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
const PSK: &str = "3Kx1+1vLQf4tq1mMdcqkLMgMeZAtzuWB3Pb5CFL0wXs=";

fn config(families: &str, backend: &str) -> String {
    let network = match families {
        "4" => r#""Network":"10.244.0.0/16""#,
        "6" => r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/56""#,
        _ => r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56""#,
    };
    format!(r#"{{{network},"Backend":{{"Type":"wireguard"{backend}}}}}"#)
}

fn node(families: &str, backend: &str) -> (Box<dyn Backend>, Node) {
    let network = NetworkConfig::parse(&config(families, backend)).unwrap();
    let private_key = Some(PRIVATE.parse().unwrap());
    support::node_of(network, Answers { private_key, ..Answers::default() })
}

fn own(families: &str) -> Lease {
    lease(
        &subnet(families, 1),
        r#"{"PublicIP":"192.168.100.1","PublicIPv6":"fd00:100::1","BackendType":"wireguard"}"#,
    )
}

fn subnet(families: &str, number: u8) -> String {
    match families {
        "4" => format!("10.244.{number}.0-24"),
        "6" => format!("fd00:244:0:{number}::-64"),
        _ => format!("10.244.{number}.0-24&fd00:244:0:{number}::-64"),
    }
}

/// As the Go flannel announces it.
fn of_go(families: &str, v4: &str, v6: &str) -> Lease {
    let data = |port| format!(r#"{{"PublicKey":"{THEIRS}","Port":{port}}}"#);
    let (data4, data6) = match families {
        "4" => (data(51820), "null".to_owned()),
        "6" => ("null".to_owned(), data(51821)),
        _ => (data(51820), data(51821)),
    };
    let address = |ip: &str| if ip.is_empty() { "null".to_owned() } else { format!("\"{ip}\"") };
    let (v4, v6) =
        (if v4.is_empty() { "\"0.0.0.0\"".to_owned() } else { address(v4) }, address(v6));
    lease(
        &subnet(families, 2),
        &format!(
            r#"{{"PublicIP":{v4},"PublicIPv6":{v6},"BackendType":"wireguard","BackendData":{data4},"BackendV6Data":{data6}}}"#
        ),
    )
}

fn peer_of(families: &str, backend: &str, peer: &Lease) -> Result<Vec<String>, PeerProblem> {
    let (backend, node) = node(families, backend);
    let wishes = peer_wishes(&*backend, &node, &own(families), peer)?;
    Ok(wishes.kernel.iter().map(ToString::to_string).collect())
}

fn base_of(families: &str, backend: &str) -> Vec<String> {
    let (backend, node) = node(families, backend);
    backend.base(&node, &own(families)).kernel.iter().map(ToString::to_string).collect()
}

#[test]
fn a_device_for_each_family() {
    let guard = "4294967294";
    assert_eq!(
        base_of("46", ""),
        [
            "device flannel-wg (wireguard mtu 1440)".to_owned(),
            format!("wireguard key of {OURS} listen-port 51820 dev flannel-wg"),
            "address 10.244.1.0/32 dev flannel-wg".to_owned(),
            format!("route blackhole 10.244.0.0/16 metric {guard}"),
            "device flannel-wg-v6 (wireguard mtu 1420)".to_owned(),
            format!("wireguard key of {OURS} listen-port 51821 dev flannel-wg-v6"),
            "address fd00:244:0:1::/128 dev flannel-wg-v6".to_owned(),
            "sysctl net.ipv6.conf.flannel-wg-v6.disable_ipv6=0".to_owned(),
            format!("route blackhole fd00:244::/56 metric {guard}"),
        ]
    );
    let peer = of_go("46", "192.168.100.2", "fd00:100::2");
    assert_eq!(
        peer_of("46", "", &peer).unwrap(),
        [
            "route 10.244.2.0/24 dev flannel-wg".to_owned(),
            format!(
                "wireguard peer {THEIRS} endpoint 192.168.100.2:51820 allowed-ips 10.244.2.0/24 dev flannel-wg"
            ),
            "route fd00:244:0:2::/64 dev flannel-wg-v6 metric 1024".to_owned(),
            format!(
                "wireguard peer {THEIRS} endpoint [fd00:100::2]:51821 allowed-ips fd00:244:0:2::/64 dev flannel-wg-v6"
            ),
        ]
    );
}

#[test]
fn options_shape_device_and_peers_and_the_secret_is_not_shown() {
    let options = format!(
        r#","ListenPort":7,"ListenPortV6":8,"MTU":1400,"PSK":"{PSK}","PersistentKeepaliveInterval":25"#
    );
    let base = base_of("4", &options);
    assert_eq!(base[0], "device flannel-wg (wireguard mtu 1340)");
    assert_eq!(base[1], format!("wireguard key of {OURS} listen-port 7 dev flannel-wg"));
    let peer = of_go("4", "192.168.100.2", "");
    assert_eq!(
        peer_of("4", &options, &peer).unwrap()[1..],
        [format!(
            "wireguard peer {THEIRS} endpoint 192.168.100.2:51820 preshared-key <hidden> persistent-keepalive 25 allowed-ips 10.244.2.0/24 dev flannel-wg"
        )]
    );
    let (backend, node) = node("4", &options);
    let wishes = peer_wishes(&*backend, &node, &own("4"), &peer).unwrap();
    let shown = format!("{wishes:?} {:?} {node:?}", backend.base(&node, &own("4")));
    assert!(!shown.contains(PSK) && !shown.contains(PRIVATE), "{shown}");
    // Nor any bytes of it.
    let bytes = format!("{:?}", [0xdc, 0xac, 0x75, 0xfb]);
    assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
}

#[test]
fn nodes_behind_one_address_are_told_apart_by_their_ports() {
    let data = format!(r#"{{"PublicKey":"{THEIRS}","Port":40001}}"#);
    let attrs =
        format!(r#"{{"PublicIP":"203.0.113.7","BackendType":"wireguard","BackendData":{data}}}"#);
    let peer = lease("10.244.2.0-24", &attrs);
    assert!(peer_of("4", "", &peer).unwrap()[1].contains("endpoint 203.0.113.7:40001"));
    // Also when it is our own: what they are known by is their key.
    let near = lease("10.244.2.0-24", &attrs.replace("203.0.113.7", "192.168.100.1"));
    assert!(peer_of("4", "", &near).unwrap()[1].contains("endpoint 192.168.100.1:40001"));
    let ourselves = lease(
        "10.244.2.0-24",
        &attrs.replace("203.0.113.7", "192.168.100.1").replace(THEIRS, OURS),
    );
    assert_eq!(peer_of("4", "", &ourselves), Err(PeerProblem::OurAddress));
    // One that names none has ours.
    let peer = lease("10.244.2.0-24", &attrs.replace(r#","Port":40001"#, ""));
    assert!(peer_of("4", "", &peer).unwrap()[1].contains("endpoint 203.0.113.7:51820"));
}

#[test]
fn defect_42_a_single_device_leads_only_what_the_network_has_into_it() {
    for (families, route) in
        [("4", "route 10.244.2.0/24 dev"), ("6", "route fd00:244:0:2::/64 dev")]
    {
        for mode in ["auto", if families == "4" { "ipv4" } else { "ipv6" }] {
            let options = format!(r#","Mode":"{mode}""#);
            let base = base_of(families, &options);
            let addresses = base.iter().filter(|line| line.starts_with("address"));
            assert_eq!(addresses.count(), 1, "{families} {mode}: {base:?}");
            let (v4, v6) =
                if families == "4" { ("192.168.100.2", "") } else { ("", "fd00:100::2") };
            let entries = peer_of(families, &options, &of_go(families, v4, v6)).unwrap();
            let into: Vec<&String> = entries.iter().filter(|e| e.starts_with("route")).collect();
            assert_eq!(into.len(), 1, "{families} {mode}: {entries:?}");
            assert!(into[0].starts_with(route), "{families} {mode}: {entries:?}");
        }
    }
}

#[test]
fn defect_43_a_single_device_is_announced_and_spoken_to_on_the_port_that_it_has() {
    let (backend, node) = node("46", r#","Mode":"auto""#);
    let past = NodeMemory { announced: None, facts: &Facts::default(), taken: &[] };
    let announced = backend.announce(&node, &past);
    let expected = format!(r#"{{"PublicKey":"{OURS}","Port":51820}}"#);
    assert_eq!(announced.backend_data.unwrap().as_str(), expected);
    assert_eq!(announced.backend_v6_data.unwrap().as_str(), expected);
    // Go's say ListenPortV6 for IPv6, and listen on ListenPort.
    for (families, v4) in [("46", "192.168.100.2"), ("6", "")] {
        let peer = of_go(families, v4, "fd00:100::2");
        let entries = peer_of(families, r#","Mode":"ipv6""#, &peer).unwrap();
        let peer = entries.last().unwrap();
        assert!(peer.contains("endpoint [fd00:100::2]:51820"), "{entries:?}");
    }
}

#[test]
fn a_single_device_has_one_peer_for_all_its_subnets_over_the_family_that_fits() {
    let endpoint = |mode: &str, v4: &str, v6: &str| {
        let entries = peer_of("46", &format!(r#","Mode":"{mode}""#), &of_go("46", v4, v6)).unwrap();
        assert_eq!(entries.len(), 3, "{entries:?}");
        let peer = &entries[2];
        assert!(peer.contains("allowed-ips 10.244.2.0/24,fd00:244:0:2::/64 dev flannel-wg"));
        let words: Vec<&str> = peer.split(' ').collect();
        words[words.iter().position(|word| *word == "endpoint").unwrap() + 1].to_owned()
    };
    let (private, public) = ("192.168.100.2", "203.0.113.2");
    let (local, global) = ("fd00:100::2", "2001:db8::2");
    assert_eq!(endpoint("ipv4", private, global), "192.168.100.2:51820");
    assert_eq!(endpoint("ipv6", public, local), "[fd00:100::2]:51820");
    assert_eq!(endpoint("auto", public, global), "203.0.113.2:51820");
    assert_eq!(endpoint("auto", private, local), "192.168.100.2:51820");
    // Ours is local, so theirs is not reached from it.
    assert_eq!(endpoint("auto", private, global), "192.168.100.2:51820");
    assert_eq!(endpoint("auto", private, ""), "192.168.100.2:51820");
}

#[test]
fn the_mtu_for_pods_fits_into_the_packets_that_carry_them() {
    for (families, options, mtu) in [
        ("4", "", 1440),
        ("6", "", 1420),
        ("46", "", 1420),
        ("46", r#","Mode":"ipv4""#, 1440),
        ("46", r#","Mode":"ipv6""#, 1420),
        ("46", r#","Mode":"auto""#, 1420),
        ("4", r#","Mode":"auto""#, 1440),
        ("4", r#","MTU":1400"#, 1340),
        // No more than the card carries.
        ("4", r#","MTU":9000"#, 1440),
    ] {
        let (backend, node) = node(families, options);
        assert_eq!(backend.mtu(&node), mtu, "{families} {options}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_fix() {
    for (families, options, words) in [
        ("4", r#","Mode":"both""#, "write separate, auto, ipv4 or ipv6"),
        ("4", r#","PSK":"short""#, "wg genpsk"),
        ("46", r#","ListenPort":5,"ListenPortV6":5"#, "both 5"),
        ("4", r#","ListenPort":0"#, "from 1 to 65535"),
        ("6", r#","MTU":1300"#, "raise it to 1360"),
    ] {
        let error =
            judge_config(&config(families, options), SubnetOrigin::Pool).unwrap_err().to_string();
        assert!(error.contains(words), "{options}: {error}");
        assert!(!error.contains("short"), "{error}");
    }
    assert!(
        judge_config(
            &config("46", r#","Mode":"auto","ListenPort":5,"ListenPortV6":5"#),
            SubnetOrigin::Pool
        )
        .is_ok()
    );
}

#[test]
fn peers_that_cannot_be_used_are_refused_by_name() {
    let attrs = |data: &str| {
        let ip = r#""PublicIP":"192.168.100.2","BackendType":"wireguard""#;
        lease("10.244.2.0-24", &format!(r#"{{{ip},"BackendData":{data}}}"#))
    };
    for (data, words) in [
        ("null", "still starting"),
        (r#"{"Port":1}"#, "PublicKey"),
        (r#"{"PublicKey":"abc"}"#, "not a WireGuard key"),
        (&format!(r#"{{"PublicKey":"{OURS}"}}"#), "the key of this node"),
    ] {
        let problem = peer_of("4", "", &attrs(data)).unwrap_err().to_string();
        assert!(problem.contains(words), "{data}: {problem}");
    }
    // One family that works is better than none.
    let mut half = of_go("46", "192.168.100.2", "fd00:100::2");
    half.attrs.backend_v6_data = None;
    assert_eq!(peer_of("46", "", &half).unwrap().len(), 2);
}

#[test]
fn a_key_is_asked_for_before_anything_else() {
    let (backend, _) = node("4", "");
    assert_eq!(backend.needs(), [Need::WireguardKey, Need::WireguardBy]);
    let mut answers = Answers::default();
    assert!(!answers.are_of(&backend.needs()));
    answers.private_key = Some(PrivateKey::from_random([5; 32]));
    assert!(!answers.are_of(&backend.needs()));
    answers.wireguard_by = Some(WireguardBy::Kernel);
    assert!(answers.are_of(&backend.needs()));
}

#[test]
fn where_the_kernel_has_no_wireguard_a_process_gets_the_same_peers() {
    let options = format!(r#","PSK":"{PSK}","PersistentKeepaliveInterval":20"#);
    let (backend, mut node) = node("46", &options);
    node.answers.wireguard_by = Some(WireguardBy::Process);
    let base = backend.base(&node, &own("46"));
    let devices: Vec<String> = base.tunnel.iter().map(KeyedEntry::describe).collect();
    assert_eq!(
        devices,
        [
            "wireguard tunnel flannel-wg on UDP 0.0.0.0:51820 and [::]:51820",
            "wireguard tunnel flannel-wg-v6 on UDP 0.0.0.0:51821 and [::]:51821"
        ]
    );
    let kernel: Vec<String> = base.kernel.iter().map(ToString::to_string).collect();
    assert_eq!(kernel[0], "device flannel-wg (tun mtu 1440)");
    assert!(!kernel.iter().any(|entry| entry.contains("wireguard")), "{kernel:?}");
    let peer = of_go("46", "192.168.100.2", "fd00:100::2");
    let wishes = peer_wishes(&*backend, &node, &own("46"), &peer).unwrap();
    assert_eq!(wishes.kernel.len(), 2, "routes, and nothing else: {:?}", wishes.kernel);
    let [TunnelEntry::WireguardPeer(device, v4), TunnelEntry::WireguardPeer(_, v6)] =
        wishes.tunnel.as_slice()
    else {
        panic!("{:?}", wishes.tunnel)
    };
    assert_eq!(
        (&**device, v4.keepalive, v4.public_key.to_string()),
        ("flannel-wg", 20, THEIRS.into())
    );
    assert_eq!(v4.endpoint.to_string(), "192.168.100.2:51820");
    assert_eq!(v6.endpoint.to_string(), "[fd00:100::2]:51821");
    assert_eq!(v4.preshared_key, PSK.parse().ok());
    let shown = format!("{base:?} {wishes:?}");
    assert!(!shown.contains(PSK) && !shown.contains(PRIVATE), "{shown}");
}

#[test]
fn one_device_of_a_process_listens_in_the_families_that_lead_to_it() {
    for (mode, listens) in [
        ("auto", "0.0.0.0:51820 and [::]:51820"),
        ("ipv4", "0.0.0.0:51820"),
        ("ipv6", "[::]:51820"),
    ] {
        let (backend, mut node) = node("46", &format!(r#","Mode":"{mode}""#));
        node.answers.wireguard_by = Some(WireguardBy::Process);
        let base = backend.base(&node, &own("46"));
        let devices: Vec<String> = base.tunnel.iter().map(KeyedEntry::describe).collect();
        assert_eq!(devices, [format!("wireguard tunnel flannel-wg on UDP {listens}")]);
    }
}

#[test]
fn a_node_that_shares_its_address_announces_its_port_of_it() {
    let (backend, mut node) = node("46", "");
    node.answers.public_port = Some(52002);
    let facts = Facts::default();
    let memory = NodeMemory { announced: None, facts: &facts, taken: &[] };
    let attrs = backend.announce(&node, &memory);
    let data = attrs.backend_data.as_ref().unwrap().as_str();
    assert_eq!(data, format!(r#"{{"PublicKey":"{OURS}","Port":52002,"PublicPort":52002}}"#));
    assert!(attrs.backend_v6_data.unwrap().as_str().ends_with(r#""Port":51821}"#));
    // Peers send to what is announced, those with the Go flannel too.
    let mut peer = of_go("4", "192.168.100.2", "");
    let data = format!(r#"{{"PublicKey":"{THEIRS}","Port":52002,"PublicPort":52002}}"#);
    peer.attrs.backend_data = RawJson::read(&data).unwrap();
    let entries = peer_of("4", "", &peer).unwrap().join("\n");
    assert!(entries.contains("endpoint 192.168.100.2:52002"), "{entries}");
}
