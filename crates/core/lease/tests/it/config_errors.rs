//! What an operator reads when the config is wrong: the member, its value, and what to do.

use flannel_lease::{ConfigError, NetworkConfig, remarks};

fn refusal(json: &str) -> String {
    NetworkConfig::parse(json).expect_err(json).to_string()
}

fn v4(members: &str) -> String {
    refusal(&format!(r#"{{"Network":"10.3.0.0/16",{members}}}"#))
}

fn v6(members: &str) -> String {
    refusal(&format!(r#"{{"EnableIPv4":false,"EnableIPv6":true,{members}}}"#))
}

#[test]
fn text_that_is_no_json_object_is_refused_with_the_place_and_an_example() {
    let example = r#"it must be one JSON object, for example {"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    assert_eq!(
        refusal(" \n"),
        format!("the network config cannot be read (it is empty): {example}")
    );
    assert_eq!(
        refusal("[1]"),
        format!("the network config cannot be read (it is JSON but not an object): {example}")
    );
    assert_eq!(
        refusal("{\"Network\":\n10.3.0.0/16}"),
        format!(
            "the network config cannot be read (expected `,` or `}}` at line 2 column 5): {example}"
        )
    );
}

#[test]
fn anything_after_the_object_is_an_error() {
    assert!(
        refusal(r#"{"Network":"10.3.0.0/16"} x"#)
            .contains("trailing characters at line 1 column 27")
    );
    assert!(refusal(r#"{"Network":"10.3.0.0/16"}{}"#).contains("trailing characters"));
    assert!(NetworkConfig::parse("{\"Network\":\"10.3.0.0/16\"}\r\n\t ").is_ok());
}

#[test]
fn a_missing_network_is_named_with_both_ways_out() {
    let missing = "Network is missing: IPv4 is enabled, so the config needs the network of all pods, for example \
                   \"Network\": \"10.244.0.0/16\"; or turn IPv4 off with \"EnableIPv4\": false";
    assert_eq!(refusal("{}"), missing);
    assert_eq!(refusal(r#"{"Network":"0.0.0.0/0"}"#), missing);
    assert_eq!(
        v4(r#""EnableIPv6":true"#),
        "IPv6Network is missing: IPv6 is enabled, so the config needs the network of all pods, for example \
         \"IPv6Network\": \"fd00:244::/48\"; or turn IPv6 off with \"EnableIPv6\": false"
    );
}

#[test]
fn no_family_is_an_error() {
    let error = NetworkConfig::parse(r#"{"EnableIPv4":false}"#).unwrap_err();
    assert_eq!(error, ConfigError::NoFamily);
    assert_eq!(
        error.to_string(),
        "no address family is enabled: set EnableIPv4 or EnableIPv6 to true"
    );
}

#[test]
fn a_network_that_cannot_be_read_is_shown() {
    assert_eq!(
        refusal(r#"{"Network":"10.3.0.0"}"#),
        "Network \"10.3.0.0\" is not an IPv4 network in CIDR form: write for example \"10.244.0.0/16\""
    );
    for value in [
        "\"fc00::/48\"",
        "\"10.3.0.0/33\"",
        "\"010.3.0.0/16\"",
        "\"10.3.0.0/+16\"",
        "16",
        "null",
        "[]",
    ] {
        let text = refusal(&format!(r#"{{"Network":{value}}}"#));
        assert!(text.starts_with(&format!("Network {value} is not an IPv4 network")), "{text}");
    }
    assert!(
        refusal(r#"{"IPv6Network":null,"Network":"10.3.0.0/16"}"#)
            .starts_with("IPv6Network null is not")
    );
}

#[test]
fn defect_70_ipv6_members_refuse_ipv4() {
    assert_eq!(
        v6(r#""IPv6Network":"10.3.0.0/16""#),
        "IPv6Network \"10.3.0.0/16\" is not an IPv6 network in CIDR form: write for example \"fd00:244::/48\""
    );
    assert!(v6(r#""IPv6Network":"::ffff:10.3.0.0/112""#).contains("is not an IPv6 network"));
    assert!(
        v6(r#""IPv6Network":"fc00::/48","IPv6SubnetMin":"10.3.0.0""#)
            .contains("is not an IPv6 address")
    );
}

#[test]
fn an_ipv6_network_keeps_clear_of_ipv4_written_as_ipv6() {
    assert_eq!(
        v6(r#""IPv6Network":"::/64""#),
        "IPv6Network ::/64 takes in ::ffff:0.0.0.0/96, where IPv4 addresses live: use another network, for example \
         \"fd00:244::/48\""
    );
    assert!(v6(r#""IPv6Network":"::fffc:0:0/94""#).contains("where IPv4 addresses live"));
}

#[test]
fn a_subnet_length_out_of_bounds_is_told_the_bound() {
    assert_eq!(v4(r#""SubnetLen":31"#), "SubnetLen 31 is too long: use 30 or less");
    assert_eq!(
        v4(r#""SubnetLen":17"#),
        "SubnetLen 17 is too short for Network 10.3.0.0/16, which must hold at least four subnets: use 18 or \
         more, or a larger network"
    );
    assert_eq!(
        v6(r#""IPv6Network":"fc00::/48","IPv6SubnetLen":127"#),
        "IPv6SubnetLen 127 is too long: use 126 or less"
    );
    assert!(v6(r#""IPv6Network":"fc00::/48","IPv6SubnetLen":49"#).contains("use 50 or more"));
    assert!(v4(r#""SubnetLen":18446744073709551615"#).contains("use 30 or less"));
}

#[test]
fn a_subnet_length_that_is_no_plain_number_is_refused() {
    for value in ["-1", "24.0", "1e1", "\"24\"", "true", "18446744073709551616"] {
        let text = v4(&format!("\"SubnetLen\":{value}"));
        assert!(
            text.contains("is not a whole number of bits: write a prefix length such as 24"),
            "{text}"
        );
    }
}

#[test]
fn a_network_too_small_for_four_hosts_is_told_the_smallest_useful() {
    let text = "Network 10.3.0.0/29 is too small to hold four subnets of four addresses: use a network of /28 or \
                larger";
    assert_eq!(refusal(r#"{"Network":"10.3.0.0/29"}"#), text);
    assert_eq!(refusal(r#"{"Network":"10.3.0.0/29","SubnetLen":30}"#), text);
    assert!(v6(r#""IPv6Network":"fc00::/125""#).ends_with("use a network of /124 or larger"));
}

#[test]
fn bounds_lie_inside_the_network() {
    assert_eq!(
        v4(r#""SubnetMin":"10.4.0.0""#),
        "SubnetMin 10.4.0.0 is outside Network 10.3.0.0/16: choose an address inside it, or leave SubnetMin out to \
         use 10.3.1.0"
    );
    assert!(v4(r#""SubnetMax":"10.2.255.0""#).contains("leave SubnetMax out to use 10.3.255.0"));
    assert!(
        v6(r#""IPv6Network":"fc00::/48","IPv6SubnetMax":"fc00:0:1::""#)
            .starts_with("IPv6SubnetMax fc00:0:1:: is outside IPv6Network fc00::/48")
    );
}

#[test]
fn bounds_lie_on_subnet_boundaries() {
    assert_eq!(
        v4(r#""SubnetMin":"10.3.5.64""#),
        "SubnetMin 10.3.5.64 is not on a SubnetLen boundary: with /24 subnets use 10.3.5.0"
    );
    assert_eq!(
        v6(r#""IPv6Network":"fc00::/48","IPv6SubnetMax":"fc00:0:0:5::1""#),
        "IPv6SubnetMax fc00:0:0:5::1 is not on a SubnetLen boundary: with /64 subnets use fc00:0:0:5::"
    );
}

#[test]
fn the_lower_bound_is_not_above_the_upper() {
    assert_eq!(
        v4(r#""SubnetMin":"10.3.9.0","SubnetMax":"10.3.5.0""#),
        "SubnetMin 10.3.9.0 is above SubnetMax 10.3.5.0: exchange them, or leave both out to use all of Network \
         10.3.0.0/16"
    );
    // The default lower bound counts too: it is the second subnet.
    assert!(
        v4(r#""SubnetMax":"10.3.0.0""#).contains("SubnetMin 10.3.1.0 is above SubnetMax 10.3.0.0")
    );
}

#[test]
fn a_null_bound_is_an_error_for_ipv4_as_in_go() {
    assert_eq!(
        v4(r#""SubnetMin":null"#),
        "SubnetMin null is not an IPv4 address: write for example \"10.244.10.0\", or leave SubnetMin out"
    );
}

#[test]
fn switches_are_true_or_false() {
    assert_eq!(
        v4(r#""EnableIPv6":"true""#),
        "EnableIPv6 \"true\" is neither true nor false: write true or false, without quotes"
    );
    assert!(v4(r#""EnableNFTables":1"#).starts_with("EnableNFTables 1 is neither"));
}

#[test]
fn values_of_a_family_that_is_off_must_still_be_readable() {
    assert!(v4(r#""IPv6Network":"nonsense""#).starts_with("IPv6Network \"nonsense\" is not"));
}

#[test]
fn a_backend_needs_a_type() {
    let fix = "name a backend, for example \"Backend\": {\"Type\": \"vxlan\"}";
    assert_eq!(v4(r#""Backend":{}"#), format!("Backend.Type is missing: {fix}"));
    assert_eq!(v4(r#""Backend":{"Type":null}"#), format!("Backend.Type is missing: {fix}"));
    assert_eq!(
        v4(r#""Backend":{"Type":""}"#),
        format!("Backend.Type \"\" is not the name of a backend: {fix}")
    );
    assert_eq!(
        v4(r#""Backend":{"Type":7}"#),
        format!("Backend.Type 7 is not the name of a backend: {fix}")
    );
    assert_eq!(v4(r#""Backend":"vxlan""#), format!("Backend \"vxlan\" is not an object: {fix}"));
    assert_eq!(v4(r#""Backend":null"#), format!("Backend null is not an object: {fix}"));
}

#[test]
fn a_message_stays_short_whatever_the_value() {
    let text = v4(&format!("\"SubnetMin\":\"{}\"", "é".repeat(10_000)));
    assert!(text.contains("é...") && text.len() < 400, "{text}");
}

#[test]
fn a_network_where_no_pod_can_live_is_refused() {
    for (network, where_) in [
        ("127.0.0.0/16", "is a part of 127.0.0.0/8, where loopback addresses live"),
        ("224.0.0.0/8", "is a part of 224.0.0.0/4, where multicast addresses live"),
    ] {
        let text = refusal(&format!(r#"{{"Network":"{network}"}}"#));
        assert!(text.contains(where_), "{text}");
    }
    for network in ["ff05::/48", "fe80::/48", "fe80::/64"] {
        let text = v6(&format!(r#""IPv6Network":"{network}""#));
        assert!(text.contains("addresses live: use another network"), "{text}");
    }
    // Of another family that is off, nobody cares.
    assert!(NetworkConfig::parse(r#"{"Network":"10.3.0.0/16","IPv6Network":"fe80::/48"}"#).is_ok());
}

fn odd(text: &str) -> Vec<String> {
    let text = format!(r#"{{"Network":"10.3.0.0/16","Backend":{{"Type":"vxlan"}}{text}}}"#);
    NetworkConfig::parse(&text).expect("it can be used");
    remarks(&text, &["VNI", "Port"]).iter().map(ToString::to_string).collect()
}

#[test]
fn a_key_that_nobody_looks_at_is_told_of_with_the_one_that_was_meant() {
    assert!(odd(r#","enableipv6":false,"SUBNETLEN":24,"MasqueradeExclude":[]"#).is_empty());
    assert_eq!(
        odd(r#","SubnetLenght":26,"_comment":"x""#),
        [
            "SubnetLenght is not a key of the network config and is ignored: did you mean SubnetLen?",
            "_comment is not a key of the network config and is ignored: leave it out",
        ]
    );
    assert_eq!(
        odd(r#","Backend":{"Type":"vxlan","VNID":7,"macprefix":"0E-2A","PSK":"secret"}"#),
        [
            "Backend is given more than once and the last one counts: leave the others out",
            "Backend.VNID is not a key of the network config and is ignored: did you mean Backend.VNI?",
            "Backend.PSK is not a key of the network config and is ignored: leave it out",
        ]
    );
}

#[test]
fn remarks_stay_few_short_and_plain() {
    let many: String =
        (0..5_000).map(|n| format!(r#","\u001b{n}{}":1"#, "x".repeat(200))).collect();
    let told = odd(&many);
    assert!(told.len() <= 16 && told.iter().all(|line| line.len() < 200), "{told:?}");
    assert!(!told.concat().contains('\u{1b}'));
    let again: String = (0..20_000).map(|_| r#","Network":"10.3.0.0/16""#).collect();
    assert_eq!(odd(&again).len(), 1);
}
