//! The network config: what is derived from it, and the habits of Go's decoder.

use flannel_lease::{NetworkConfig, Pool, Subnet, SubnetOrigin};
use proptest::prelude::*;

use crate::support::{any_v4, any_v6, cases, config, subnet};

fn v4(json: &str) -> (String, String, u8) {
    describe(config(json).v4.unwrap().pool().unwrap())
}

fn v6(json: &str) -> (String, String, u8) {
    describe(config(json).v6.unwrap().pool().unwrap())
}

fn describe<N: flannel_lease::Net>(pool: Pool<N>) -> (String, String, u8) {
    (pool.first().to_string(), pool.last().to_string(), pool.subnet_len())
}

fn range(first: &str, last: &str, len: u8) -> (String, String, u8) {
    (first.into(), last.into(), len)
}

#[test]
fn a_network_of_16_bits_is_cut_into_24s_without_the_first() {
    let config = config(r#"{"Network":"10.3.0.0/16"}"#);
    let pool = config.v4.unwrap().pool().unwrap();
    assert_eq!(describe(pool), range("10.3.1.0/24", "10.3.255.0/24", 24));
    assert_eq!(pool.network(), "10.3.0.0/16".parse().unwrap());
    assert_eq!(pool.capacity(), 255);
    assert_eq!(config.v6, None);
    assert!(!config.nftables);
    assert_eq!(config.backend.kind, "udp");
}

#[test]
fn an_ipv6_network_of_48_bits_is_cut_into_64s_without_the_first() {
    let json = r#"{"enableIPv4":false,"enableIPv6":true,"ipv6Network":"fc00::/48"}"#;
    assert_eq!(v6(json), range("fc00:0:0:1::/64", "fc00:0:0:ffff::/64", 64));
    assert_eq!(config(json).v4, None);
}

#[test]
fn a_small_network_is_cut_in_four() {
    assert_eq!(v4(r#"{"Network":"10.3.0.0/22"}"#), range("10.3.1.0/24", "10.3.3.0/24", 24));
    assert_eq!(v4(r#"{"Network":"10.3.0.0/23"}"#), range("10.3.0.128/25", "10.3.1.128/25", 25));
    assert_eq!(v4(r#"{"Network":"10.3.0.0/28"}"#), range("10.3.0.4/30", "10.3.0.12/30", 30));
    let v6_of = |net: &str| {
        v6(&format!(r#"{{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"{net}"}}"#))
    };
    assert_eq!(v6_of("fc00::/62"), range("fc00:0:0:1::/64", "fc00:0:0:3::/64", 64));
    assert_eq!(v6_of("fc00::/63"), range("fc00::8000:0:0:0/65", "fc00:0:0:1:8000::/65", 65));
    assert_eq!(v6_of("fc00::/124"), range("fc00::4/126", "fc00::c/126", 126));
}

#[test]
fn what_is_given_is_kept() {
    let json = r#"{"Network":"10.3.0.0/16","SubnetLen":28,"SubnetMin":"10.3.5.0","SubnetMax":"10.3.8.0",
        "EnableIPv6":true,"IPv6Network":"fc00::/48","IPv6SubnetLen":124,"IPv6SubnetMin":"fc00::10",
        "IPv6SubnetMax":"fc00:0:0:ffff::","EnableNFTables":true,"Backend":{"Type":"VXLAN"}}"#;
    assert_eq!(v4(json), range("10.3.5.0/28", "10.3.8.0/28", 28));
    assert_eq!(v6(json), range("fc00::10/124", "fc00:0:0:ffff::/124", 124));
    assert!(config(json).nftables);
    assert_eq!(config(json).backend.kind, "vxlan");
}

#[test]
fn a_range_may_begin_at_the_network_address_and_be_a_single_subnet() {
    let json = r#"{"Network":"10.3.0.0/16","SubnetMin":"10.3.0.0","SubnetMax":"10.3.0.0"}"#;
    assert_eq!(v4(json), range("10.3.0.0/24", "10.3.0.0/24", 24));
    assert_eq!(config(json).v4.unwrap().pool().unwrap().capacity(), 1);
}

#[test]
fn names_match_in_any_case_at_every_level_and_unknown_ones_are_ignored() {
    let plain =
        config(r#"{"Network":"10.3.0.0/16","SubnetLen":26,"Backend":{"Type":"vxlan","VNI":7}}"#);
    let odd = config(
        r#"{"NETWORK":"10.3.0.0/16","subnetlen":26,"Comment":{"x":[1]},"bACKEND":{"tYPE":"VxLan","vni":7}}"#,
    );
    assert_eq!(odd, plain);
}

#[test]
fn the_last_of_two_members_counts_even_when_their_case_differs() {
    assert_eq!(
        v4(r#"{"network":"10.3.0.0/16","Network":"10.4.0.0/16"}"#).0,
        v4(r#"{"Network":"10.3.0.0/16","network":"10.4.0.0/16"}"#).0,
    );
    let twice =
        config(r#"{"Network":"10.3.0.0/16","Backend":{"Type":"udp"},"backend":{"type":"vxlan"}}"#);
    assert_eq!(twice.backend.kind, "vxlan");
}

#[test]
fn host_bits_of_a_network_are_dropped() {
    assert_eq!(config(r#"{"Network":"10.3.7.9/16"}"#), config(r#"{"Network":"10.3.0.0/16"}"#));
}

#[test]
fn quotes_within_quotes_are_forgiven() {
    let json = r#"{"Network":"\"10.3.0.0/16\"","SubnetMin":"\"10.3.5.0\""}"#;
    assert_eq!(v4(json), range("10.3.5.0/24", "10.3.255.0/24", 24));
}

#[test]
fn null_means_unset_where_go_lets_it() {
    let json = r#"{"EnableIPv4":null,"EnableIPv6":true,"EnableNFTables":null,"Network":"10.3.0.0/16",
        "SubnetLen":null,"IPv6Network":"fc00::/48","IPv6SubnetLen":null,"IPv6SubnetMin":null,
        "IPv6SubnetMax":null}"#;
    assert_eq!(v4(json), range("10.3.1.0/24", "10.3.255.0/24", 24));
    assert_eq!(v6(json), range("fc00:0:0:1::/64", "fc00:0:0:ffff::/64", 64));
}

#[test]
fn the_unspecified_address_as_a_bound_means_unset() {
    let json = r#"{"Network":"10.3.0.0/16","SubnetMin":"0.0.0.0","SubnetMax":"0.0.0.0","EnableIPv6":true,
        "IPv6Network":"fc00::/48","IPv6SubnetMin":"::","IPv6SubnetMax":"::"}"#;
    assert_eq!(v4(json), range("10.3.1.0/24", "10.3.255.0/24", 24));
    assert_eq!(v6(json), range("fc00:0:0:1::/64", "fc00:0:0:ffff::/64", 64));
}

#[test]
fn a_store_that_assigns_subnets_itself_needs_only_networks() {
    let json = r#"{"Network":"10.3.0.0/30","SubnetLen":99,"SubnetMin":"1.2.3.4"}"#;
    assert!(NetworkConfig::parse(json).is_err());
    let config = NetworkConfig::read(json, SubnetOrigin::Store).unwrap();
    assert_eq!(config.v4.unwrap().network(), "10.3.0.0/30".parse().unwrap());
    assert!(NetworkConfig::read(r#"{"Backend":{"Type":"vxlan"}}"#, SubnetOrigin::Store).is_err());
    assert!(
        NetworkConfig::read(r#"{"Network":"10.3.0.0/16","SubnetLen":-1}"#, SubnetOrigin::Store)
            .is_err()
    );
}

#[test]
fn an_assigned_subnet_fits_with_any_length_inside_the_network() {
    let read = |json| NetworkConfig::read(json, SubnetOrigin::Store).unwrap();
    let v4_only = read(r#"{"Network":"10.3.0.0/16","SubnetLen":28,"SubnetMin":"10.3.16.0"}"#);
    for inside in ["10.3.0.0-24", "10.3.255.0-24", "10.3.1.128-25", "10.3.7.4-30", "10.3.0.0-16"] {
        assert!(v4_only.accepts(&subnet(inside)), "{inside}");
    }
    for outside in ["10.4.0.0-24", "10.0.0.0-8", "10.2.0.0-15", "fc00:0:0:1::-64"] {
        assert!(!v4_only.accepts(&subnet(outside)), "{outside}");
    }
    assert!(!v4_only.accepts(&subnet("10.3.1.0-24&fc00:0:0:1::-64")), "a family too many");
    let dual = read(r#"{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48"}"#);
    assert!(dual.accepts(&subnet("10.3.1.0-24&fc00:0:0:1::-80")));
    assert!(!dual.accepts(&subnet("10.3.1.0-24")), "a family too few");
    assert!(!dual.accepts(&subnet("10.3.1.0-24&fc01:0:0:1::-64")), "another network");
}

#[test]
fn how_many_subnets_there_are_follows_from_the_pool_or_from_the_assigned_ones_length() {
    let json = r#"{"Network":"10.3.0.0/16","SubnetMin":"10.3.8.0","EnableIPv6":true,"IPv6Network":"8000::/1"}"#;
    let capacity =
        |config: &NetworkConfig, net: &str| config.v4.unwrap().capacity_for(net.parse().unwrap());
    assert_eq!(capacity(&config(json), "10.3.9.0/24"), 248);
    let assigned = NetworkConfig::read(json, SubnetOrigin::Store).unwrap();
    for (net, subnets) in [("10.3.9.0/24", 256), ("10.3.9.16/28", 4096), ("10.3.0.0/16", 1)] {
        assert_eq!(capacity(&assigned, net), subnets, "{net}");
    }
    let v6 = assigned.v6.unwrap();
    assert_eq!(v6.capacity_for("8000::1/128".parse().unwrap()), 1 << 127);
}

#[test]
fn networks_without_a_pool_are_written_and_read_again_without_one() {
    let json = r#"{"Network":"10.3.0.0/30","EnableIPv6":true,"IPv6Network":"fc00::/127"}"#;
    let config = NetworkConfig::read(json, SubnetOrigin::Store).unwrap();
    let written = config.to_json();
    assert!(!written.contains("Subnet"), "{written}");
    assert_eq!(NetworkConfig::read(&written, SubnetOrigin::Store).unwrap(), config);
}

#[test]
fn a_lease_fits_when_its_families_length_and_range_do() {
    let v4_only = config(r#"{"Network":"10.3.0.0/16","SubnetMax":"10.3.9.0"}"#);
    assert!(v4_only.accepts(&subnet("10.3.1.0-24")));
    assert!(v4_only.accepts(&subnet("10.3.9.0-24")));
    assert!(!v4_only.accepts(&subnet("10.3.0.0-24")), "below the first");
    assert!(!v4_only.accepts(&subnet("10.3.10.0-24")), "above the last");
    assert!(!v4_only.accepts(&subnet("10.3.1.0-25")), "another length");
    assert!(!v4_only.accepts(&subnet("10.3.1.0-24&fc00:0:0:1::-64")), "a family too many");
    assert!(!v4_only.accepts(&subnet("fc00:0:0:1::-64")), "the other family");
    let host_bits = Subnet::V4("10.3.1.7/24".parse().unwrap());
    assert!(!v4_only.accepts(&host_bits), "between two subnets");

    let dual = config(r#"{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48"}"#);
    assert!(dual.accepts(&subnet("10.3.1.0-24&fc00:0:0:1::-64")));
    assert!(!dual.accepts(&subnet("10.3.1.0-24")), "a family too few");
    assert!(!dual.accepts(&subnet("10.3.1.0-24&fc01:0:0:1::-64")), "another network");
    assert!(!dual.accepts(&subnet("10.3.1.0-24&fc00:0:0:1::-65")), "another length");
}

#[test]
fn subnets_are_numbered_from_the_first() {
    let pool = config(r#"{"Network":"10.3.0.0/16"}"#).v4.unwrap().pool().unwrap();
    assert_eq!(pool.nth(0), Some("10.3.1.0/24".parse().unwrap()));
    assert_eq!(pool.nth(254), Some("10.3.255.0/24".parse().unwrap()));
    assert_eq!(pool.nth(255), None);
    assert_eq!(pool.nth(u128::MAX), None);
    assert_eq!(pool.index_of("10.3.2.0/24".parse().unwrap()), Some(1));
    assert_eq!(pool.index_of("10.3.2.0/25".parse().unwrap()), None);
}

#[test]
fn the_largest_ipv6_pool_can_be_counted() {
    let json =
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"8000::/1","IPv6SubnetLen":126}"#;
    let pool = config(json).v6.unwrap().pool().unwrap();
    assert_eq!(pool.capacity(), (1 << 125) - 1);
    assert_eq!(pool.nth(pool.capacity() - 1), Some(pool.last()));
    assert_eq!(pool.index_of(pool.last()), Some(pool.capacity() - 1));
}

#[test]
fn destinations_can_be_left_out_of_masquerading() {
    let given =
        config(r#"{"Network":"10.244.0.0/16","masqueradeexclude":["172.16.9.1/12","fd00::/8"]}"#);
    let nets: Vec<String> = given.masquerade_exclude.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["172.16.0.0/12", "fd00::/8"]);
    assert_eq!(NetworkConfig::parse(&given.to_json()).unwrap(), given);
    assert_eq!(config(r#"{"Network":"10.244.0.0/16"}"#).masquerade_exclude, []);
    for wrong in [r#""10.0.0.0/8""#, r#"["ten"]"#, "[1]"] {
        let text = format!(r#"{{"Network":"10.244.0.0/16","MasqueradeExclude":{wrong}}}"#);
        let error = NetworkConfig::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with("MasqueradeExclude ") && error.contains("10.0.0.0/8"), "{error}");
    }
}

#[test]
fn a_large_number_among_the_options_is_the_same_when_it_is_written_and_read() {
    let read = config(
        r#"{"Network":"10.3.0.0/16","Backend":{"Type":"x","N":1222222222222222222222222222222400}}"#,
    );
    assert_eq!(NetworkConfig::parse(&read.to_json()).unwrap(), read);
}

fn is_nobodys(net: &ipnet::Ipv4Net) -> bool {
    let (first, last) = (net.network(), net.broadcast());
    first.is_loopback() && last.is_loopback() || first.is_multicast() && last.is_multicast()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_config_spelled_out_is_the_same_config(
        net4 in any_v4(1..=28),
        net6 in any_v6(1..=124),
        families in 1u8..4,
        nft in any::<bool>(),
        secret in any::<String>(),
    ) {
        let json = serde_json::json!({
            "EnableIPv4": families & 1 != 0,
            "EnableIPv6": families & 2 != 0,
            "EnableNFTables": nft,
            "Network": net4.to_string(),
            "IPv6Network": net6.to_string(),
            "Backend": { "Type": "wireguard", "PSK": secret, "ListenPort": 7 },
        });
        if let Ok(first) = NetworkConfig::parse(&json.to_string()) {
            prop_assert_eq!(NetworkConfig::parse(&first.to_json()).unwrap(), first);
        } else {
            // Only what takes in IPv4 in the shape of IPv6, or where no pod can live, is refused among these.
            let ipv4: ipnet::Ipv6Net = "::ffff:0:0/96".parse().unwrap();
            let mapped = net6.contains(&ipv4) || ipv4.contains(&net6);
            let local = net6.network().is_unicast_link_local() || net6.network().is_multicast();
            prop_assert!(mapped || local || is_nobodys(&net4), "{}", json);
        }
    }

    #[test]
    fn a_pool_has_every_subnet_between_its_ends_inside_its_network(net in any_v4(1..=28), at in any::<u32>()) {
        prop_assume!(!is_nobodys(&net));
        let pool = config(&format!(r#"{{"Network":"{net}"}}"#)).v4.unwrap().pool().unwrap();
        prop_assert!(net.contains(&pool.first()) && net.contains(&pool.last()));
        let index = u128::from(at) % pool.capacity();
        let nth = pool.nth(index).unwrap();
        prop_assert!(net.contains(&nth) && pool.accepts(nth));
        prop_assert_eq!(pool.index_of(nth), Some(index));
    }
}
