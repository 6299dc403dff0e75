//! The subnet file, written for others and read back at the next start.

use flannel_lease::{Previous, Subnet, SubnetFile, parse_previous};
use proptest::prelude::*;

use crate::support::{any_v4, any_v6, cases, subnet};

fn previous(text: &str) -> Previous {
    let (previous, warnings) = parse_previous(text);
    assert_eq!(warnings, [] as [String; 0], "{text}");
    previous
}

fn previous_subnet(text: &str) -> Option<Subnet> {
    previous(text).subnet
}

#[test]
fn the_file_has_exactly_these_lines() {
    let file = SubnetFile {
        network: Some("10.244.0.0/16".parse().unwrap()),
        subnet: Some("10.244.1.0/24".parse().unwrap()),
        ipv6_network: Some("fd00:244::/56".parse().unwrap()),
        ipv6_subnet: Some("fd00:244:0:24::/64".parse().unwrap()),
        mtu: 1450,
        ip_masq: true,
    };
    assert_eq!(
        file.render(),
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/56\n\
         FLANNEL_IPV6_SUBNET=fd00:244:0:24::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
    );
    let v4_only = SubnetFile { ipv6_network: None, ipv6_subnet: None, ip_masq: false, ..file };
    assert_eq!(
        v4_only.render(),
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
    );
}

#[test]
fn a_single_address_is_no_former_subnet() {
    let (previous, warnings) =
        parse_previous("FLANNEL_SUBNET=10.2.0.1/32\nFLANNEL_IPV6_SUBNET=fd00::1/128\n");
    assert_eq!((previous.subnet, warnings.len()), (None, 2), "{warnings:?}");
    assert!(warnings[0].contains("single address"), "{warnings:?}");
}

#[test]
fn a_file_written_by_hand_is_read_as_a_shell_would() {
    assert_eq!(
        previous(
            "# kept by hand\n\n  export FLANNEL_NETWORK = \"10.5.0.0/16\"  # all pods\nBASE='10.5.34'\r\n\
             FLANNEL_SUBNET=${BASE}.1/24\nFLANNEL_IPV6_SUBNET=\"fd00:${NOTHING}1::1/64\"\nFLANNEL_MTU=1450\n"
        ),
        Previous {
            network: Some("10.5.0.0/16".parse().unwrap()),
            ipv6_network: None,
            subnet: Some(subnet("10.5.34.0-24&fd00:1::-64")),
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
        assert_eq!(previous(text), Previous::default(), "{text:?}");
    }
}

#[test]
fn the_valid_one_of_a_list_is_kept_and_the_rest_warned_about() {
    let (read, warnings) = parse_previous("FLANNEL_SUBNET=nonsense,10.5.1.1/24,fd00::1/64\n");
    assert_eq!(read.subnet, Some(subnet("10.5.1.0-24")));
    assert_eq!(
        warnings,
        [
            "FLANNEL_SUBNET: \"nonsense\" is not a network of its family, ignored",
            "FLANNEL_SUBNET: \"fd00::1/64\" is not a network of its family, ignored",
        ]
    );
}

#[test]
fn of_two_networks_neither_is_trusted() {
    let (read, warnings) =
        parse_previous("FLANNEL_NETWORK=10.5.0.0/16,10.6.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24");
    assert_eq!(read.network, None);
    assert_eq!(read.subnet, Some(subnet("10.5.1.0-24")));
    assert_eq!(
        warnings,
        ["FLANNEL_NETWORK: \"10.5.0.0/16,10.6.0.0/16\" lists more than one network, ignored"]
    );
}

#[test]
fn a_hash_begins_a_comment_only_after_a_blank() {
    let (read, warnings) = parse_previous("FLANNEL_SUBNET=10.5.1.1/24#x\n");
    assert_eq!(read.subnet, None);
    assert_eq!(
        warnings,
        ["FLANNEL_SUBNET: \"10.5.1.1/24#x\" is not a network of its family, ignored"]
    );
}

#[test]
fn a_line_that_makes_no_sense_costs_only_itself() {
    let (read, warnings) =
        parse_previous("what?\n=x\nA=\"open\nFLANNEL_SUBNET=10.5.1.1/24\nB C=1\n");
    assert_eq!(read.subnet, Some(subnet("10.5.1.0-24")));
    assert_eq!(
        warnings,
        [
            "line 1: not KEY=VALUE, ignored",
            "line 2: not a usable key, ignored",
            "line 3: a quote that is not closed, ignored",
            "line 5: not a usable key, ignored",
        ]
    );
}

#[test]
fn escapes_and_lone_dollars_are_text() {
    assert_eq!(
        parse_previous(
            "A=1\nFLANNEL_SUBNET='$A'\nFLANNEL_IPV6_SUBNET=\\$A$\"\nFLANNEL_NETWORK=\"\\\"$\\\\\""
        )
        .1,
        [
            "FLANNEL_NETWORK: \"\\\"$\\\\\" is not a network of its family, ignored",
            "FLANNEL_SUBNET: \"$A\" is not a network of its family, ignored",
            "FLANNEL_IPV6_SUBNET: \"$A$\\\"\" is not a network of its family, ignored",
        ]
    );
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
            network: v4.map(|v4| v4.0),
            subnet: v4.map(|v4| v4.1),
            ipv6_network: v6.map(|v6| v6.0),
            ipv6_subnet: v6.map(|v6| v6.1),
            mtu,
            ip_masq,
        };
        let read = previous(&file.render());
        prop_assert_eq!(read.network, file.network);
        prop_assert_eq!(read.ipv6_network, file.ipv6_network);
        prop_assert_eq!(read.subnet, Subnet::new(file.subnet, file.ipv6_subnet));
    }
}
