//! What the ipsec backend makes of leases, as the Go flannel does: the same policies, connections and secrets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

use flannel_backend::{Answers, Backend, Need, Node, NodeMemory, judge_config, peer_wishes};
use flannel_common::Secret;
use flannel_entries::facts::Facts;
use flannel_entries::ipsec::IpsecEntry;
use flannel_lease::{Lease, NetworkConfig, SubnetOrigin};
use flannel_wanted::KeyedEntry as _;

const PSK: &str = "96-bytes-that-nobody-guesses-7f3a9c51d0e84b26-and-some-more-of-them-2b8e6d4f10a7c953-that-is-it.";
const OWN: (&str, &str) =
    ("10.244.1.0-24", r#"{"PublicIP":"192.168.100.1","PublicIPv6":null,"BackendType":"ipsec"}"#);
const PEER: (&str, &str) =
    ("10.244.2.0-24", r#"{"PublicIP":"192.168.100.2","PublicIPv6":null,"BackendType":"ipsec"}"#);

fn config(more: &str) -> String {
    format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"ipsec","PSK":"{PSK}"{more}}}}}"#)
}

fn node(config: &str) -> (Box<dyn Backend>, Node) {
    support::node_of(NetworkConfig::parse(config).unwrap(), Answers::default())
}

fn lease((subnet, attrs): (&str, &str)) -> Lease {
    support::lease(subnet, attrs)
}

#[test]
fn a_node_announces_what_the_go_flannel_would() {
    let (backend, node) = node(&config(""));
    let facts = Facts::default();
    let attrs = backend.announce(&node, &NodeMemory { announced: None, facts: &facts, taken: &[] });
    assert_eq!(attrs.to_json(), OWN.1);
}

#[test]
fn the_whole_network_leads_to_where_packets_are_dropped_unless_a_policy_takes_them() {
    let (backend, node) = node(&config(""));
    let wishes = backend.base(&node, &lease(OWN));
    let kernel: Vec<String> = wishes.kernel.iter().map(ToString::to_string).collect();
    assert_eq!(
        kernel,
        [
            "device flannel.ipsec (dummy mtu 1423)",
            "address 10.244.1.0/32 dev flannel.ipsec",
            "route 10.244.0.0/16 dev flannel.ipsec",
        ]
    );
    let ipsec: Vec<String> = wishes.ipsec.iter().map(|entry| entry.describe()).collect();
    assert_eq!(ipsec, ["charon", "secret of 192.168.100.1"]);
}

#[test]
fn a_peer_is_three_policies_a_secret_and_a_connection() {
    let (backend, node) = node(&config(""));
    let wishes = peer_wishes(&*backend, &node, &lease(OWN), &lease(PEER)).unwrap();
    let kernel: Vec<String> = wishes.kernel.iter().map(ToString::to_string).collect();
    assert_eq!(
        kernel,
        [
            "xfrm policy out 10.244.1.0/24 -> 10.244.2.0/24 in 192.168.100.1 -> 192.168.100.2",
            "xfrm policy in 10.244.2.0/24 -> 10.244.1.0/24 in 192.168.100.2 -> 192.168.100.1",
            "xfrm policy fwd 10.244.2.0/24 -> 10.244.1.0/24 in 192.168.100.2 -> 192.168.100.1",
        ]
    );
    let [IpsecEntry::Secret(secret), IpsecEntry::Connection(connection)] = &wishes.ipsec[..] else {
        panic!("{:?}", wishes.ipsec)
    };
    assert_eq!(secret.secret.reveal(), PSK);
    let name = "192.168.100.1-10.244.1.0/24-10.244.2.0/24-192.168.100.2";
    assert_eq!(connection.name.to_string(), name);
    assert_eq!(connection.esp_proposal, "aes128gcm16-sha256-prfsha256-ecp256");
    assert!(!connection.udp_encap);
    assert!(!format!("{wishes:?}").contains(&PSK[..20]), "a secret shows itself");
}

#[test]
fn behind_a_nat_packets_leave_from_the_address_that_the_node_has() {
    let (backend, mut node) = node(&config(r#","UDPEncap":true"#));
    node.underlay.public_v4 = Some([203, 0, 113, 9].into());
    let wishes = peer_wishes(&*backend, &node, &lease(OWN), &lease(PEER)).unwrap();
    assert!(wishes.kernel[0].to_string().ends_with("in 192.168.100.1 -> 192.168.100.2"));
    let IpsecEntry::Connection(connection) = &wishes.ipsec[1] else { panic!("no connection") };
    assert_eq!(connection.source.to_string(), "192.168.100.1");
    assert_eq!(connection.name.local.to_string(), "203.0.113.9");
}

#[test]
fn what_cannot_work_is_refused_with_the_fix_and_without_the_secret() {
    let refused =
        |text: &str| judge_config(text, SubnetOrigin::Pool).map(drop).unwrap_err().to_string();
    let short = config("").replace(PSK, "hunter2hunter2");
    let none = config("").replace(PSK, "");
    let odd = config(r#","ESPProposal":"aes; rm -rf /""#);
    let dual =
        config("").replace(r#"16","#, r#"16","EnableIPv6":true,"IPv6Network":"fd00:244::/56","#);
    for (text, told) in [
        (&short, "is too short (14 bytes): write 96 or more characters"),
        (&none, "Backend.PSK"),
        (&odd, "is not a proposal"),
        (&dual, "carries IPv4 alone"),
    ] {
        let error = refused(text);
        assert!(error.contains(told), "{error}");
        assert!(!error.contains("hunter2") && !error.contains(&PSK[..20]), "{error}");
    }
    assert!(judge_config(&config(""), SubnetOrigin::Pool).unwrap().remarks.is_empty());
}

#[test]
fn the_secret_may_be_in_a_file_of_each_node_and_not_in_the_config() {
    let in_file = config("").replace(&format!(r#""PSK":"{PSK}""#), r#""PSKFile":"/etc/psk""#);
    let (backend, mut node) = node(&in_file);
    assert_eq!(backend.needs(), [Need::SecretFile("/etc/psk".into())]);
    node.answers.secret = Some(("/etc/psk".into(), Secret::new(PSK)));
    assert!(node.answers.are_of(&backend.needs()));
    assert_eq!(backend.check(&node), Ok(()));
    let wishes = peer_wishes(&*backend, &node, &lease(OWN), &lease(PEER)).unwrap();
    let IpsecEntry::Secret(secret) = &wishes.ipsec[0] else { panic!("{:?}", wishes.ipsec) };
    assert_eq!(secret.secret.reveal(), PSK);

    node.answers.secret = Some(("/etc/psk".into(), Secret::new("hunter2")));
    let error = backend.check(&node).unwrap_err().to_string();
    assert!(error.contains("/etc/psk (Backend.PSKFile) is too short (7 bytes)"), "{error}");
    let refused =
        |text: &str| judge_config(text, SubnetOrigin::Pool).map(drop).unwrap_err().to_string();
    let both = config(r#","PSKFile":"/etc/psk""#);
    assert!(refused(&both).contains("is given beside PSK"), "{}", refused(&both));
    let relative = in_file.replace("/etc/psk", "psk");
    assert!(refused(&relative).contains("is not a whole path"), "{}", refused(&relative));
}
