//! The subnet file, written for others and read back at the next start.

use std::path::Path;

use flannel_lease::{Subnet, SubnetFile};
use proptest::prelude::*;

use crate::support::{any_v4, any_v6, cases, subnet};

fn parse(text: &str) -> (SubnetFile, Vec<String>) {
    let (file, problems) = SubnetFile::parse(text);
    (file, problems.iter().map(ToString::to_string).collect())
}

fn parse_complete(text: &str) -> Result<SubnetFile, String> {
    SubnetFile::parse_complete(text, Path::new("s.env"))
}

fn previous(text: &str) -> SubnetFile {
    let (file, problems) = parse(text);
    assert_eq!(problems, [] as [String; 0], "{text}");
    file
}

fn previous_subnet(text: &str) -> Option<Subnet> {
    previous(text).lease_subnet()
}

#[test]
fn the_file_has_exactly_these_lines() {
    let file = SubnetFile {
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        subnet: Some("10.244.1.0/24".parse().unwrap()),
        ipv6_networks: vec!["fd00:244::/56".parse().unwrap()],
        ipv6_subnet: Some("fd00:244:0:24::/64".parse().unwrap()),
        mtu: Some(1450),
        ip_masq: Some(true),
    };
    assert_eq!(
        file.render(),
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/56\n\
         FLANNEL_IPV6_SUBNET=fd00:244:0:24::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
    );
    let v4_only =
        SubnetFile { ipv6_networks: vec![], ipv6_subnet: None, ip_masq: Some(false), ..file };
    assert_eq!(
        v4_only.render(),
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
    );
}

#[test]
fn a_single_address_is_no_former_subnet() {
    let (file, problems) = parse("FLANNEL_SUBNET=10.2.0.1/32\nFLANNEL_IPV6_SUBNET=fd00::1/128\n");
    assert_eq!((file.lease_subnet(), problems.len()), (None, 2), "{problems:?}");
    assert!(problems[0].contains("single address"), "{problems:?}");
}

#[test]
fn a_file_written_by_hand_is_read_as_a_shell_would() {
    assert_eq!(
        previous(
            "# kept by hand\n\n  export FLANNEL_NETWORK = \"10.5.0.0/16\"  # all pods\nBASE='10.5.34'\r\n\
             FLANNEL_SUBNET=${BASE}.1/24\nFLANNEL_IPV6_SUBNET=\"fd00:${NOTHING}1::1/64\"\nFLANNEL_MTU=1450\n"
        ),
        SubnetFile {
            networks: vec!["10.5.0.0/16".parse().unwrap()],
            subnet: Some("10.5.34.0/24".parse().unwrap()),
            ipv6_subnet: Some("fd00:1::/64".parse().unwrap()),
            mtu: Some(1450),
            ..SubnetFile::default()
        }
    );
    assert_eq!(previous_subnet("FLANNEL_SUBNET=10.5.34.1/24 # mine"), Some(subnet("10.5.34.0-24")));
    assert_eq!(previous_subnet("A=10.5\nFLANNEL_SUBNET=$A.34.1/24"), Some(subnet("10.5.34.0-24")));
    assert_eq!(previous_subnet("FLANNEL_IPV6_SUBNET=fd00::1/64"), Some(subnet("fd00::-64")));
}

#[test]
fn the_last_line_for_a_key_counts() {
    let text = "FLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_SUBNET=10.5.2.1/24\n";
    assert_eq!(previous_subnet(text), Some(subnet("10.5.2.0-24")));
}

#[test]
fn nothing_usable_is_nothing() {
    for text in [
        "",
        "# empty\n",
        "FLANNEL_SUBNET=\n",
        "FLANNEL_SUBNET=0.0.0.0/0\nFLANNEL_IPV6_SUBNET=::/0\n",
    ] {
        assert_eq!(previous(text), SubnetFile::default(), "{text:?}");
    }
}

#[test]
fn the_valid_one_of_a_list_is_kept_and_the_rest_told() {
    let text = "FLANNEL_SUBNET=nonsense,10.5.1.1/24,fd00::1/64";
    let (file, problems) = parse(text);
    assert_eq!(file.lease_subnet(), Some(subnet("10.5.1.0-24")));
    let told = |part| format!("line 1 ({text:?}): invalid CIDR address: {part}");
    assert_eq!(problems, [told("nonsense"), told("fd00::1/64")]);
}

#[test]
fn of_two_subnets_neither_is_trusted() {
    let (file, problems) = parse("FLANNEL_SUBNET=10.5.1.1/24,10.5.2.1/24");
    assert_eq!(file.subnet, None);
    assert!(problems[0].ends_with("more than one subnet"), "{problems:?}");
}

#[test]
fn a_hash_begins_a_comment_only_after_a_blank() {
    let (file, problems) = parse("FLANNEL_SUBNET=10.5.1.1/24#x\n");
    assert_eq!(file.subnet, None);
    assert!(problems[0].ends_with("invalid CIDR address: 10.5.1.1/24#x"), "{problems:?}");
}

#[test]
fn a_line_that_makes_no_sense_costs_only_itself() {
    let (file, problems) = parse("what?\n=x\nA=\"open\nFLANNEL_SUBNET=10.5.1.1/24\nB C=1\n");
    assert_eq!(file.lease_subnet(), Some(subnet("10.5.1.0-24")));
    assert_eq!(
        problems,
        [
            "line 1 (\"what?\"): not KEY=VALUE",
            "line 2 (\"=x\"): not a usable key",
            "line 3 (\"A=\\\"open\"): a quote that is not closed",
            "line 5 (\"B C=1\"): not a usable key",
        ]
    );
}

#[test]
fn escapes_and_lone_dollars_are_text() {
    let text =
        "A=1\nFLANNEL_SUBNET='$A'\nFLANNEL_IPV6_SUBNET=\\$A$\"\nFLANNEL_NETWORK=\"\\\"$\\\\\"";
    let (_, problems) = SubnetFile::parse(text);
    let why: Vec<_> = problems.iter().map(|problem| (problem.line, &*problem.why)).collect();
    let invalid = ["$A", "$A$\"", "\"$\\"].map(|value| format!("invalid CIDR address: {value}"));
    assert_eq!(why, [(2, &*invalid[0]), (3, &invalid[1]), (4, &invalid[2])]);
}

#[test]
fn several_networks_are_each_listed_once() {
    let text = "FLANNEL_IPV6_NETWORK=fc00::/48,fc00:1::/48,fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n\
                FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n\
                FLANNEL_MTU=1472\nFLANNEL_IPMASQ=yes\nOTHER\n";
    let file = parse_complete(text).unwrap();
    let shown = |nets: Vec<ipnet::IpNet>| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
    let networks = ["10.1.0.0/16", "10.2.0.0/16", "fc00::/48", "fc00:1::/48"];
    assert_eq!(shown(file.all_networks()), networks);
    assert_eq!(shown(file.subnets()), ["10.1.17.0/24", "fc00::/64"]);
    assert_eq!(file.gateway().unwrap().to_string(), "10.1.17.1/24");
    assert_eq!(file.ipv6_gateway().unwrap().to_string(), "fc00::1/64");
    assert_eq!(file.ip_masq, Some(false), "only the word true is true");
}

#[test]
fn all_that_a_pod_needs_and_is_missing_is_listed() {
    assert_eq!(
        parse_complete("").unwrap_err(),
        "s.env is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"
    );
    assert_eq!(
        parse_complete("FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_MTU=1\n").unwrap_err(),
        "s.env is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_IPMASQ"
    );
}

#[test]
fn defect_76_a_key_of_flannel_without_a_value_is_an_error_that_names_the_line() {
    assert_eq!(
        parse_complete("FLANNEL_IPMASQ=true\nFLANNEL_MTU\n").unwrap_err(),
        "s.env: line 2 (\"FLANNEL_MTU\"): not KEY=VALUE"
    );
    assert_eq!(
        parse_complete("FLANNEL_SUBNET=10.1.17.1").unwrap_err(),
        "s.env: line 1 (\"FLANNEL_SUBNET=10.1.17.1\"): invalid CIDR address: 10.1.17.1"
    );
    let mixed = parse_complete("FLANNEL_NETWORK=10.1.0.0/16,fc00::/48\n").unwrap_err();
    assert!(mixed.ends_with("invalid CIDR address: fc00::/48"), "{mixed}");
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn what_is_written_is_what_is_read_at_the_next_start(
        v4 in prop::option::of((any_v4(1..=28), any_v4(1..=30))),
        v6 in prop::option::of((any_v6(1..=124), any_v6(1..=126))),
        mtu in any::<u32>(),
        ip_masq in any::<bool>(),
    ) {
        // A pod network never is IPv4 in disguise: the config refuses it.
        prop_assume!(v6.is_none_or(|(net, sub)| net.addr().to_ipv4_mapped().or(sub.addr().to_ipv4_mapped()).is_none()));
        let file = SubnetFile {
            networks: v4.iter().map(|v4| v4.0).collect(),
            subnet: v4.map(|v4| v4.1),
            ipv6_networks: v6.iter().map(|v6| v6.0).collect(),
            ipv6_subnet: v6.map(|v6| v6.1),
            mtu: Some(mtu),
            ip_masq: Some(ip_masq),
        };
        prop_assert_eq!(previous(&file.render()), file);
    }

    #[test]
    fn no_file_makes_the_reader_panic(text in "(FLANNEL_(NETWORK|SUBNET|MTU|IPMASQ|IPV6_NETWORK|IPV6_SUBNET)?=?[0-9a-f.:/,]{0,20}\r?\n?){0,8}") {
        let _ = parse_complete(&text);
    }
}
