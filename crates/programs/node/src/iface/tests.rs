use flannel_entries::facts::{DefaultRoute, InterfaceAddress};
use proptest::prelude::*;

use super::*;

const V4: Stack = Stack { v4: true, v6: false };
const V6: Stack = Stack { v4: false, v6: true };
const DUAL: Stack = Stack { v4: true, v6: true };

fn name(name: &str) -> IfName {
    IfName::new(name).expect("a test names interfaces well")
}

fn interface(index: u32, link: &str, addresses: &[&str]) -> Interface {
    Interface {
        index,
        name: name(link),
        mac: None,
        mtu: 1500,
        up: true,
        loopback: link == "lo",
        master: None,
        addresses: addresses.iter().map(|addr| address(addr)).collect(),
    }
}

fn address(addr: &str) -> InterfaceAddress {
    let addr = addr.parse().expect("a test writes addresses well");
    let (permanent, temporary) = (true, false);
    InterfaceAddress { addr, permanent, temporary, deprecated: false, duplicate: false }
}

fn route(link: &str, ipv6: bool, metric: u32) -> DefaultRoute {
    DefaultRoute { ipv6, link: name(link), metric, gateway: None }
}

/// A node with two uplinks and what flannel adds to it.
fn node() -> Facts {
    Facts {
        interfaces: vec![
            interface(1, "lo", &["127.0.0.1/8", "::1/128"]),
            interface(2, "eth0", &["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]),
            interface(3, "eth1", &["198.51.100.1/24", "2001:db8:1::1/64", "fe80::2/64"]),
            interface(4, "flannel.1", &["10.244.1.0/32", "fe80::3/64"]),
            interface(5, "cni0", &["10.244.1.1/24", "fd00:244::1/64"]),
        ],
        default_routes: vec![
            route("eth0", false, 100),
            route("eth1", false, 200),
            route("eth0", true, 1024),
        ],
        ..Facts::default()
    }
}

fn nowhere(_: IpAddr) -> Option<Path> {
    None
}

/// Whether the choice failed with a text that has this part.
fn fails(chosen: Result<Underlay, SelectError>, part: &str) -> bool {
    chosen.is_err_and(|error| error.to_string().contains(part))
}

fn choose(request: &Selection, stack: Stack, facts: &Facts) -> Result<Underlay, SelectError> {
    select(request, stack, facts, &nowhere)
}

/// The interface and its addresses, as one line.
fn summary(chosen: Result<Underlay, SelectError>) -> String {
    let Underlay { link, v4, v6, .. } = chosen.expect("an interface is found");
    let texts = [v4.map(|a| a.to_string()), v6.map(|a| a.to_string())];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    format!("{link} {}", texts.join(" "))
}

fn iface(wishes: &[&str]) -> Selection {
    Selection { iface: wishes.iter().map(ToString::to_string).collect(), ..Selection::default() }
}

fn regex(patterns: &[&str]) -> Selection {
    Selection { regex: patterns.iter().map(ToString::to_string).collect(), ..Selection::default() }
}

#[test]
fn without_a_wish_the_default_route_decides() {
    let none = Selection::default();
    assert_eq!(summary(choose(&none, V4, &node())), "eth0 192.0.2.1");
    assert_eq!(summary(choose(&none, V6, &node())), "eth0 2001:db8::1");
    assert_eq!(summary(choose(&none, DUAL, &node())), "eth0 192.0.2.1 2001:db8::1");
    let why = choose(&none, V4, &node()).expect("eth0").why;
    assert_eq!(why, "the default route leads through it (metric 100)");
}

#[test]
fn defect_68_the_best_metric_wins_in_any_order_of_routes() {
    let mut facts = node();
    facts.default_routes = vec![route("eth0", false, 600), route("eth1", false, 100)];
    assert_eq!(summary(choose(&Selection::default(), V4, &facts)), "eth1 198.51.100.1");
    facts.default_routes.reverse();
    assert_eq!(summary(choose(&Selection::default(), V4, &facts)), "eth1 198.51.100.1");
}

#[test]
fn defect_68_a_multipath_default_route_leads_through_its_first_usable_interface() {
    let mut facts = node();
    // The next hops in whatever order the kernel has them: the choice does not flap.
    facts.default_routes = vec![route("eth1", false, 0), route("eth0", false, 0)];
    assert_eq!(summary(choose(&Selection::default(), V4, &facts)), "eth0 192.0.2.1");
    facts.interfaces[1].addresses.clear();
    assert_eq!(summary(choose(&Selection::default(), V4, &facts)), "eth1 198.51.100.1");
}

#[test]
fn a_worse_route_does_not_step_in_while_the_best_interface_has_no_address() {
    let mut facts = node();
    facts.interfaces[1].addresses.clear();
    assert_eq!(
        choose(&Selection::default(), V4, &facts),
        Err(SelectError::no_usable_address(name("eth0"), Family::V4))
    );
}

#[test]
fn dual_stack_needs_one_interface_with_default_routes_of_both_families() {
    let mut facts = node();
    facts.default_routes =
        vec![route("eth0", false, 100), route("eth1", false, 200), route("eth1", true, 1024)];
    assert_eq!(
        summary(choose(&Selection::default(), DUAL, &facts)),
        "eth1 198.51.100.1 2001:db8:1::1"
    );
    facts.default_routes.remove(1);
    assert!(fails(
        choose(&Selection::default(), DUAL, &facts),
        "no interface has a default route of both families: IPv4 leads through eth0, IPv6 through eth1;"
    ));
    facts.default_routes.pop();
    let error = choose(&Selection::default(), DUAL, &facts).expect_err("no IPv6 route");
    assert_eq!(error, SelectError::no_default_route(Family::V6));
    assert!(error.to_string().contains("-iface"), "{error}");
}

#[test]
fn flannels_own_devices_are_an_uplink_only_by_name() {
    for own in [
        "flannel.1",
        "flannel.ipip",
        "flannel-v6.1",
        "flannel-wg",
        "flannel-wg-v6",
        "flannel0",
        "flannel-test0",
        "cni0",
        "docker0",
    ] {
        let mut facts = node();
        facts.interfaces[3] = interface(4, own, &["10.244.1.0/32"]);
        facts.interfaces.truncate(4);
        facts.default_routes = vec![route(own, false, 0), route("eth0", false, 100)];
        assert_eq!(summary(choose(&Selection::default(), V4, &facts)), "eth0 192.0.2.1", "{own}");
        facts.default_routes.pop();
        assert_eq!(
            choose(&Selection::default(), V4, &facts),
            Err(SelectError::no_default_route(Family::V4)),
            "{own}"
        );
        assert!(choose(&regex(&[r"^10\."]), V4, &facts).is_err(), "{own}");
        assert!(choose(&regex(&[own]), V4, &facts).is_err(), "{own}");
        assert_eq!(summary(choose(&iface(&[own]), V4, &facts)), format!("{own} 10.244.1.0"));
    }
    assert!(!is_own(name("flannel-uplink")) && !is_own(name("eth0")) && !is_own(name("flannel")));
}

#[test]
fn an_interface_is_found_by_name() {
    assert_eq!(summary(choose(&iface(&["eth1"]), V4, &node())), "eth1 198.51.100.1");
    assert_eq!(summary(choose(&iface(&["eth1"]), V6, &node())), "eth1 2001:db8:1::1");
    assert_eq!(
        summary(choose(&iface(&["eth1"]), DUAL, &node())),
        "eth1 198.51.100.1 2001:db8:1::1"
    );
    let error = choose(&iface(&["eth7"]), V4, &node()).expect_err("there is none");
    assert_eq!(
        error.to_string(),
        "no interface is named 'eth7': name one of lo, eth0, eth1, flannel.1, cni0"
    );
    assert!(
        choose(&iface(&[""]), V4, &node()).is_err(),
        "an empty wish is no wish for the default"
    );
}

#[test]
fn an_interface_is_found_by_its_address_even_an_unusual_one() {
    assert_eq!(summary(choose(&iface(&["198.51.100.1"]), V4, &node())), "eth1 198.51.100.1");
    assert_eq!(summary(choose(&iface(&["2001:db8:1::1"]), V6, &node())), "eth1 2001:db8:1::1");
    assert_eq!(summary(choose(&iface(&["127.0.0.1"]), V4, &node())), "lo 127.0.0.1");
    let mut facts = node();
    facts.interfaces[2]
        .addresses
        .push(InterfaceAddress { deprecated: true, ..address("198.51.100.9/24") });
    assert_eq!(summary(choose(&iface(&["198.51.100.9"]), V4, &facts)), "eth1 198.51.100.9");
    let error = choose(&iface(&["198.51.100.77"]), V4, &node()).expect_err("nobody has it");
    assert!(error.to_string().contains("eth1:[198.51.100.1 2001:db8:1::1 fe80::2]"), "{error}");
    let error = choose(&iface(&["2001:db8::1"]), V4, &node()).expect_err("of the other family");
    assert!(error.to_string().contains("2001:db8::1 is IPv6"), "{error}");
}

#[test]
fn defect_67_a_v6_literal_is_enough_on_a_dual_stack_network() {
    let request = iface(&["2001:db8:1::1"]);
    assert_eq!(summary(choose(&request, DUAL, &node())), "eth1 198.51.100.1 2001:db8:1::1");
    let link_local = iface(&["fe80::2"]);
    assert_eq!(summary(choose(&link_local, DUAL, &node())), "eth1 198.51.100.1 fe80::2");
}

#[test]
fn defect_67_a_regex_never_combines_two_interfaces() {
    let mut facts = node();
    facts.interfaces[1] = interface(2, "eth0", &["192.0.2.1/24"]);
    facts.interfaces[2] = interface(3, "eth1", &["2001:db8:1::1/64"]);
    let pattern = regex(&[r"^192\.|^2001:"]);
    assert!(fails(choose(&pattern, DUAL, &facts), "matches neither an address nor a name"));
    facts.interfaces.push(interface(6, "eth2", &["192.0.2.6/24", "2001:db8::6/64"]));
    assert_eq!(summary(choose(&pattern, DUAL, &facts)), "eth2 192.0.2.6 2001:db8::6");
}

#[test]
fn a_public_v6_address_of_this_node_goes_with_a_v4_literal() {
    let mut facts = node();
    facts.interfaces[1].addresses.push(address("2001:db8::99/64"));
    let request =
        |public: &str| Selection { public_ipv6: public.parse().ok(), ..iface(&["192.0.2.1"]) };
    assert_eq!(
        summary(choose(&request("2001:db8::99"), DUAL, &facts)),
        "eth0 192.0.2.1 2001:db8::99"
    );
    assert!(fails(
        choose(&request("2001:db8:1::1"), DUAL, &facts),
        "public-ipv6 2001:db8:1::1 is an address of eth1, but eth0 was chosen"
    ));
    let translated = choose(&request("2001:db8:ffff::1"), DUAL, &facts).expect("announced only");
    assert_eq!(translated.v6, "2001:db8::1".parse().ok());
    assert_eq!(translated.public_v6, "2001:db8:ffff::1".parse().ok());
}

#[test]
fn a_regex_is_searched_in_addresses_then_in_names() {
    assert_eq!(summary(choose(&regex(&[r"100\.1"]), V4, &node())), "eth1 198.51.100.1");
    assert_eq!(summary(choose(&regex(&["^2001:db8:1:"]), V6, &node())), "eth1 2001:db8:1::1");
    assert_eq!(summary(choose(&regex(&["th1$"]), V4, &node())), "eth1 198.51.100.1");
    assert_eq!(
        summary(choose(&regex(&["th1$"]), DUAL, &node())),
        "eth1 198.51.100.1 2001:db8:1::1"
    );
    assert_eq!(
        summary(choose(&regex(&["1"]), V4, &node())),
        "eth0 192.0.2.1",
        "an address before a name"
    );
    assert!(fails(choose(&regex(&["^127"]), V4, &node()), "matches neither"), "loopback");
    let error = choose(&regex(&["^wlan"]), V4, &node()).expect_err("there is none");
    assert!(error.to_string().contains("lo:[] eth0:[192.0.2.1 "), "{error}");
}

#[test]
fn a_regex_address_is_the_first_in_order_of_preference() {
    let mut facts = node();
    facts.interfaces[1].addresses = vec![
        address("169.254.1.1/16"),
        InterfaceAddress { deprecated: true, ..address("192.0.2.1/24") },
        address("192.0.2.2/24"),
    ];
    assert_eq!(summary(choose(&regex(&[r"^1"]), V4, &facts)), "eth0 192.0.2.2");
    assert_eq!(summary(choose(&regex(&[r"^169"]), V4, &facts)), "eth0 169.254.1.1");
}

#[test]
fn an_invalid_regex_is_an_error_and_the_next_wish_is_tried() {
    assert!(fails(choose(&regex(&["("]), V4, &node()), "'(' is not a regular expression"));
    assert_eq!(summary(choose(&regex(&["(", "eth1"]), V4, &node())), "eth1 198.51.100.1");
}

#[test]
fn the_interface_towards_an_address_is_the_kernels_with_its_source() {
    let request = Selection { can_reach: "203.0.113.5".parse().ok(), ..Selection::default() };
    let lookup = |link: &'static str, source: Option<&'static str>| {
        move |address: IpAddr| {
            assert_eq!(address.to_string(), "203.0.113.5");
            let source = source.and_then(|source| source.parse().ok());
            Some(Path { link: name(link), gateway: None, source })
        }
    };
    let choose =
        |stack, lookup: &dyn Fn(IpAddr) -> Option<Path>| select(&request, stack, &node(), lookup);
    assert_eq!(summary(choose(V4, &lookup("eth1", Some("198.51.100.7")))), "eth1 198.51.100.7");
    assert_eq!(summary(choose(V4, &lookup("eth1", None))), "eth1 198.51.100.1");
    assert_eq!(summary(choose(V6, &lookup("eth1", Some("198.51.100.7")))), "eth1 2001:db8:1::1");
    assert_eq!(
        summary(choose(DUAL, &lookup("eth1", Some("198.51.100.7")))),
        "eth1 198.51.100.7 2001:db8:1::1"
    );
    assert!(fails(choose(V4, &nowhere), "has no route to the iface-can-reach address 203.0.113.5"));
    assert!(fails(choose(V4, &lookup("cni0", None)), "cni0, which is a device for pods"));
    assert!(fails(choose(V4, &lookup("eth9", None)), "eth9 has just disappeared"));
}

#[test]
fn wishes_are_tried_in_order_and_the_answer_tells_what_failed_before() {
    let request = Selection {
        can_reach: "203.0.113.5".parse().ok(),
        regex: vec!["^wlan".into(), "^eth1".into()],
        ..iface(&["eth7", "lo"])
    };
    let chosen = choose(&request, V4, &node()).expect("eth1");
    assert_eq!(chosen.link, name("eth1"));
    for part in ["'^eth1'", "'eth7'", "lo has no usable IPv4 address", "'^wlan'"] {
        assert!(chosen.why.contains(part), "{part} in {}", chosen.why);
    }
    let request = Selection { regex: vec!["^wlan".into()], ..request };
    let error = choose(&request, V4, &node()).expect_err("nothing fits").to_string();
    assert!(error.starts_with("none of the interfaces asked for can be used: "), "{error}");
    for part in ["'eth7'", "lo has no usable IPv4 address", "'^wlan'", "203.0.113.5"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_public_address_without_other_wishes_must_be_one_of_this_node() {
    let public = |v4: &str, v6: &str| Selection {
        public_ip: v4.parse().ok(),
        public_ipv6: v6.parse().ok(),
        ..Selection::default()
    };
    assert_eq!(summary(choose(&public("198.51.100.1", ""), V4, &node())), "eth1 198.51.100.1");
    assert_eq!(summary(choose(&public("", "2001:db8:1::1"), V6, &node())), "eth1 2001:db8:1::1");
    assert_eq!(
        summary(choose(&public("", "2001:db8:1::1"), DUAL, &node())),
        "eth1 198.51.100.1 2001:db8:1::1"
    );
    let error = choose(&public("203.0.113.1", ""), V4, &node()).expect_err("behind a NAT");
    assert!(error.to_string().contains("name the interface with -iface"), "{error}");
    // The one of a family the network does not use says nothing about the interface.
    assert_eq!(summary(choose(&public("203.0.113.1", ""), V6, &node())), "eth0 2001:db8::1");
    assert_eq!(summary(choose(&public("", "2001:db8:ffff::1"), V4, &node())), "eth0 192.0.2.1");
}

#[test]
fn peers_are_told_the_public_address_or_else_that_of_the_interface() {
    let request = Selection { public_ip: "203.0.113.1".parse().ok(), ..iface(&["eth0"]) };
    let chosen = choose(&request, DUAL, &node()).expect("eth0");
    assert_eq!(chosen.v4, "192.0.2.1".parse().ok());
    assert_eq!(chosen.public_v4, "203.0.113.1".parse().ok());
    assert_eq!(chosen.public_v6, chosen.v6);
    let only_v6 = choose(&iface(&["eth0"]), V6, &node()).expect("eth0");
    assert_eq!((only_v6.v4, only_v6.public_v4), (None, None));
    let only_v4 = choose(&iface(&["eth0"]), V4, &node()).expect("eth0");
    assert_eq!((only_v4.v6, only_v4.public_v6), (None, None));
}

#[test]
fn the_best_address_is_global_then_permanent_then_not_temporary_then_first() {
    let best = |addresses: Vec<InterfaceAddress>| {
        let facts = Facts {
            interfaces: vec![Interface { addresses, ..interface(2, "eth0", &[]) }],
            ..Facts::default()
        };
        summary(choose(&iface(&["eth0"]), V6, &facts))
    };
    let local = address("fe80::1/64");
    let passing = InterfaceAddress { permanent: false, ..address("2001:db8::1/64") };
    let private =
        InterfaceAddress { temporary: true, permanent: false, ..address("2001:db8::2/64") };
    let old = InterfaceAddress { deprecated: true, ..address("2001:db8::3/64") };
    let first = address("2001:db8::4/64");
    let second = address("2001:db8::5/64");
    assert_eq!(best(vec![local.clone()]), "eth0 fe80::1");
    assert_eq!(best(vec![local.clone(), private.clone()]), "eth0 2001:db8::2");
    assert_eq!(best(vec![local.clone(), private.clone(), passing.clone()]), "eth0 2001:db8::1");
    let all = vec![local, private, passing, old.clone(), first, second];
    assert_eq!(best(all), "eth0 2001:db8::4");
    let facts = Facts {
        interfaces: vec![Interface { addresses: vec![old], ..interface(2, "eth0", &[]) }],
        ..Facts::default()
    };
    assert!(fails(choose(&iface(&["eth0"]), V6, &facts), "eth0 has no usable IPv6 address"));
}

#[test]
fn an_interface_without_an_mtu_is_no_uplink() {
    let mut facts = node();
    facts.interfaces[1].mtu = 0;
    assert!(fails(choose(&iface(&["eth0"]), V4, &facts), "eth0 has no MTU"));
    assert_eq!(summary(choose(&iface(&["eth0", "eth1"]), V4, &facts)), "eth1 198.51.100.1");
}

#[test]
fn a_network_without_a_family_has_no_uplink() {
    let stack = Stack { v4: false, v6: false };
    assert!(fails(choose(&Selection::default(), stack, &node()), "neither IPv4 nor IPv6"));
}

proptest! {
    /// Whatever order next hops and routes come in, and however often it is asked.
    #[test]
    fn equal_facts_in_any_order_of_routes_give_the_equal_answer(
        routes in proptest::collection::vec(
            (proptest::sample::select(&["eth0", "eth1", "cni0", "gone"][..]), any::<bool>(), 0u32..3),
            0..6,
        ).prop_shuffle(),
        v6 in any::<bool>(),
        dual in any::<bool>(),
    ) {
        let stack = Stack { v4: !v6 || dual, v6: v6 || dual };
        let mut facts = node();
        facts.default_routes = routes.iter().map(|(link, ipv6, metric)| route(link, *ipv6, *metric)).collect();
        let first = choose(&Selection::default(), stack, &facts);
        facts.default_routes.reverse();
        prop_assert_eq!(&first, &choose(&Selection::default(), stack, &facts));
        if let Ok(chosen) = first {
            prop_assert!(!is_own(chosen.link));
            prop_assert_eq!(chosen.v4.is_some(), stack.v4);
            prop_assert_eq!(chosen.v6.is_some(), stack.v6);
        }
    }

    #[test]
    fn no_wish_makes_it_panic(wishes in proptest::collection::vec(".{0,20}", 0..4), regexes in proptest::collection::vec(".{0,20}", 0..4)) {
        let request = Selection { iface: wishes, regex: regexes, ..Selection::default() };
        for stack in [V4, V6, DUAL] {
            let _ = choose(&request, stack, &node());
        }
    }
}

#[test]
fn a_named_card_that_became_a_port_of_a_bridge_is_used_through_the_bridge() {
    let mut facts = node();
    facts.interfaces.push(interface(6, "br0", &["192.0.2.1/24", "2001:db8::1/64"]));
    facts.interfaces[1] = Interface { master: Some(6), ..interface(2, "eth0", &["fe80::1/64"]) };
    let request = Selection { iface: vec!["eth0".to_owned()], ..Selection::default() };
    for stack in [V4, V6, DUAL] {
        let underlay = choose(&request, stack, &facts).expect("the bridge has what eth0 had");
        assert_eq!(underlay.link, name("br0"), "{stack:?}");
        assert!(underlay.why.contains("a port of br0"), "{}", underlay.why);
    }
    facts.interfaces[1].addresses = vec![address("192.0.2.1/24"), address("2001:db8::1/64")];
    assert_eq!(choose(&request, DUAL, &facts).expect("eth0").link, name("eth0"), "as in a VRF");
    facts.interfaces[1].addresses.clear();
    facts.interfaces[5].addresses.clear();
    assert!(choose(&request, V4, &facts).is_err(), "nobody has an address");
}
