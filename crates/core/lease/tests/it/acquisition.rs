//! The decision which subnet a host gets: its own, its former one, or a free one.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use flannel_lease::{
    AcquireError, Choice, Claimant, Decision, Expiry, Lease, NetworkConfig, SubnetOrigin, decide,
};
use proptest::prelude::*;

use crate::support::{cases, config, lease, subnet};

const V4: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.4.0"}"#;
const V6: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}"#;
const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}"#;

fn me(address: &str) -> Claimant {
    Claimant {
        public_ip: address.parse().ok(),
        public_ipv6: address.parse().ok(),
        ..Claimant::default()
    }
}

fn before(address: &str, previous: &str) -> Claimant {
    Claimant { previous: Some(subnet(previous)), ..me(address) }
}

fn decision(config: &str, leases: &[Lease], me: Claimant) -> Decision {
    decide(&NetworkConfig::parse(config).unwrap(), leases, &me, &mut Rng::with_seed(1)).unwrap()
}

fn keep(key: &str) -> Decision {
    Decision { discard: vec![], choice: Choice::Keep(subnet(key)) }
}

fn take(key: &str) -> Decision {
    Decision { discard: vec![], choice: Choice::Take(subnet(key)) }
}

#[test]
fn a_host_gets_a_free_subnet_inside_the_range() {
    let leases = [lease("10.5.1.0-24", "192.168.0.2"), lease("10.5.3.0-24", "192.168.0.3")];
    let config = config(V4);
    for seed in 0..100 {
        let decision =
            decide(&config, &leases, &me("192.168.0.1"), &mut Rng::with_seed(seed)).unwrap();
        assert!([take("10.5.2.0-24"), take("10.5.4.0-24")].contains(&decision), "{decision:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_subnet() {
    let choose = || decision(DUAL, &[], me("192.168.0.1"));
    assert_eq!(choose(), choose());
}

#[test]
fn a_host_keeps_the_lease_that_bears_its_address() {
    let leases = [lease("10.5.1.0-24", "192.168.0.2"), lease("10.5.3.0-24", "192.168.0.1")];
    assert_eq!(decision(V4, &leases, me("192.168.0.1")), keep("10.5.3.0-24"));
    assert_eq!(decision(V4, &leases, before("192.168.0.1", "10.5.2.0-24")), keep("10.5.3.0-24"));
}

#[test]
fn of_several_own_leases_the_previous_one_is_kept() {
    let leases = [lease("10.5.1.0-24", "192.168.0.1"), lease("10.5.3.0-24", "192.168.0.1")];
    assert_eq!(decision(V4, &leases, before("192.168.0.1", "10.5.3.0-24")), keep("10.5.3.0-24"));
    assert_eq!(decision(V4, &leases, me("192.168.0.1")), keep("10.5.1.0-24"));
}

#[test]
fn own_leases_the_config_no_longer_allows_are_discarded() {
    let leases = [lease("10.9.1.0-24", "192.168.0.1"), lease("10.5.1.0-25", "192.168.0.1")];
    let decision = decision(V4, &leases, me("192.168.0.1"));
    assert_eq!(decision.discard, [subnet("10.9.1.0-24"), subnet("10.5.1.0-25")]);
    let Choice::Take(taken) = decision.choice else { panic!("{decision:?}") };
    assert!(config(V4).accepts(&taken));
}

#[test]
fn an_outdated_lease_beside_a_good_one_is_discarded_too() {
    let leases = [lease("10.9.1.0-24", "192.168.0.1"), lease("10.5.2.0-24", "192.168.0.1")];
    let decision = decision(V4, &leases, me("192.168.0.1"));
    assert_eq!(decision.discard, [subnet("10.9.1.0-24")]);
    assert_eq!(decision.choice, Choice::Keep(subnet("10.5.2.0-24")));
}

#[test]
fn a_host_keeps_its_ipv6_subnet_when_ipv4_is_turned_on_and_leaves_no_lease_behind() {
    let former = "fd00:5:0:7::-64";
    let leases = [lease(former, "fd00::1"), lease("fd00:5:0:8::-64", "fd00::2")];
    let me = Claimant {
        public_ip: Some([192, 168, 0, 1].into()),
        previous: Some(subnet(former)),
        ..me("fd00::1")
    };
    let decision = decision(DUAL, &leases, me);
    assert_eq!(decision.discard, [subnet(former)]);
    let Choice::Take(taken) = decision.choice else { panic!("{decision:?}") };
    assert_eq!(taken.v6(), subnet(former).v6());
}

#[test]
fn leases_of_others_are_never_discarded() {
    let leases =
        [lease("10.9.1.0-24", "192.168.0.2"), lease("10.5.1.0-24&fd00:5:0:1::-64", "192.168.0.3")];
    assert_eq!(decision(V4, &leases, me("192.168.0.1")).discard, []);
}

#[test]
fn the_previous_subnet_is_taken_again_when_it_is_free() {
    for seed in 0..20 {
        let me = before("192.168.0.1", "10.5.4.0-24");
        let decision = decide(&config(V4), &[], &me, &mut Rng::with_seed(seed)).unwrap();
        assert_eq!(decision, take("10.5.4.0-24"));
    }
}

#[test]
fn the_previous_subnet_is_not_taken_from_another_host() {
    for other in ["10.5.4.0-24", "10.5.4.128-25", "10.5.4.0-24&fd00:5:0:1::-64"] {
        let leases = [lease(other, "192.168.0.2")];
        let decision = decision(V4, &leases, before("192.168.0.1", "10.5.4.0-24"));
        assert_ne!(decision, take("10.5.4.0-24"), "{other}");
    }
}

#[test]
fn a_previous_subnet_the_config_does_not_allow_is_forgotten() {
    for previous in ["10.5.9.0-24", "10.5.2.0-25", "192.168.7.0-24", "fd00:5:0:1::-64"] {
        let decision = decision(V4, &[], before("192.168.0.1", previous));
        let Choice::Take(taken) = decision.choice else { panic!("{decision:?}") };
        assert!(config(V4).accepts(&taken), "{previous} led to {taken}");
    }
}

#[test]
fn a_config_for_another_network_moves_the_lease() {
    let leases = [lease("10.5.2.0-24", "192.168.0.1")];
    let decision =
        decision(r#"{"Network":"10.6.0.0/16"}"#, &leases, before("192.168.0.1", "10.5.2.0-24"));
    assert_eq!(decision.discard, [subnet("10.5.2.0-24")]);
    let Choice::Take(taken) = decision.choice else { panic!("{decision:?}") };
    assert!(taken.v4().unwrap().to_string().starts_with("10.6."), "{taken}");
}

#[test]
fn defect_10_a_reservation_is_reused_by_its_host_and_given_to_nobody_else() {
    // What makes it a reservation is that it never ends; the decision treats it like any lease.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    assert!(!Expiry::Never.is_over(now));
    assert_eq!(Expiry::Never.remaining(now), None);
    let reservation = [lease("10.5.3.0-24", "192.168.0.1")];
    assert_eq!(decision(V4, &reservation, me("192.168.0.1")), keep("10.5.3.0-24"));
    for seed in 0..50 {
        let me = before("192.168.0.2", "10.5.3.0-24");
        let decision = decide(&config(V4), &reservation, &me, &mut Rng::with_seed(seed)).unwrap();
        assert_ne!(decision, take("10.5.3.0-24"));
    }
}

#[test]
fn a_lease_is_over_at_its_end() {
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
    assert_eq!(Expiry::At(end).remaining(at(400)), Some(Duration::from_secs(600)));
    assert!(!Expiry::At(end).is_over(at(999)));
    assert!(Expiry::At(end).is_over(at(1000)));
    assert_eq!(Expiry::At(end).remaining(at(2000)), Some(Duration::ZERO));
}

#[test]
fn defect_11_without_ipv4_a_host_is_known_by_its_ipv6_address() {
    let others = [lease("fd00:5:0:1::-64", "fd00:100::2")];
    assert_eq!(others[0].attrs.public_ip, None);
    let decision = decision(V6, &others, me("fd00:100::1"));
    let Choice::Take(taken) = decision.choice else { panic!("took over a lease: {decision:?}") };
    assert!(config(V6).accepts(&taken) && !taken.overlaps(&others[0].subnet));
}

#[test]
fn defect_11_without_ipv4_a_host_keeps_its_own_lease() {
    let leases = [lease("fd00:5:0:1::-64", "fd00:100::2"), lease("fd00:5:0:2::-64", "fd00:100::1")];
    assert_eq!(decision(V6, &leases, me("fd00:100::1")), keep("fd00:5:0:2::-64"));
}

#[test]
fn defect_11_no_address_is_nobodys_identity() {
    let mut leases = [lease("10.5.1.0-24", "0.0.0.0"), lease("fd00:5:0:1::-64", "::")];
    for json in [V4, V6] {
        for claimant in [me("0.0.0.0"), me("::"), Claimant::default()] {
            let decision = decision(json, &leases, claimant);
            assert!(
                matches!(decision.choice, Choice::Take(_)) && decision.discard.is_empty(),
                "{decision:?}"
            );
        }
    }
    leases.iter_mut().for_each(|lease| lease.attrs = Default::default());
    assert!(matches!(decision(V6, &leases, Claimant::default()).choice, Choice::Take(_)));
}

#[test]
fn defect_12_dual_stack_is_turned_on_over_ipv4_leases() {
    let leases = [lease("10.5.1.0-24", "192.168.0.1"), lease("10.5.2.0-24", "192.168.0.2")];
    let decision = decision(DUAL, &leases, before("192.168.0.1", "10.5.1.0-24"));
    assert_eq!(decision.discard, [subnet("10.5.1.0-24")]);
    let Choice::Take(taken) = decision.choice else { panic!("{decision:?}") };
    assert!(config(DUAL).accepts(&taken));
    assert_eq!(taken.v4(), subnet("10.5.1.0-24").v4(), "the pods keep their IPv4 addresses");
}

#[test]
fn turning_ipv6_off_again_keeps_the_ipv4_subnet() {
    let leases = [lease("10.5.2.0-24&fd00:5:0:7::-64", "192.168.0.1")];
    let decision = decision(V4, &leases, me("192.168.0.1"));
    assert_eq!(decision.discard, [leases[0].subnet]);
    assert_eq!(decision.choice, Choice::Take(subnet("10.5.2.0-24")));
}

#[test]
fn a_dual_stack_lease_blocks_its_subnet_in_each_family() {
    let json = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0","EnableIPv6":true,
        "IPv6Network":"fd00:5::/48","IPv6SubnetMin":"fd00:5:0:1::","IPv6SubnetMax":"fd00:5:0:2::"}"#;
    let leases = [lease("10.5.1.0-24&fd00:5:0:2::-64", "192.168.0.2")];
    for seed in 0..20 {
        let decision =
            decide(&config(json), &leases, &me("192.168.0.1"), &mut Rng::with_seed(seed)).unwrap();
        assert_eq!(decision, take("10.5.2.0-24&fd00:5:0:1::-64"));
    }
}

#[test]
fn a_full_pool_is_reported_with_its_size_and_the_ways_out() {
    let leases: Vec<Lease> =
        (1..=4).map(|n| lease(&format!("10.5.{n}.0-24"), &format!("192.168.0.{n}"))).collect();
    let error =
        decide(&config(V4), &leases, &me("192.168.0.9"), &mut Rng::with_seed(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of subnets: all 4 /24 subnets of Network 10.5.0.0/16 from 10.5.1.0/24 to 10.5.4.0/24 are leased or \
         reserved: delete the leases of hosts that are gone, choose a larger Network, or a longer subnet length so \
         that each host takes less"
    );
}

#[test]
fn a_full_pool_still_serves_the_host_that_has_a_lease() {
    let leases: Vec<Lease> =
        (1..=4).map(|n| lease(&format!("10.5.{n}.0-24"), &format!("192.168.0.{n}"))).collect();
    assert_eq!(decision(V4, &leases, me("192.168.0.3")), keep("10.5.3.0-24"));
}

#[test]
fn defect_14_the_last_free_subnet_of_sixty_five_thousand_is_found() {
    let config = config(r#"{"Network":"10.0.0.0/8","SubnetMin":"10.0.0.0"}"#);
    let keys = (0..65_536u32).map(|n| format!("10.{}.{}.0-24", n / 256, n % 256));
    let leases: Vec<Lease> =
        keys.filter(|key| key != "10.200.7.0-24").map(|key| lease(&key, "192.168.0.2")).collect();
    let decision = decide(&config, &leases, &me("192.168.0.1"), &mut Rng::with_seed(1)).unwrap();
    assert_eq!(decision, take("10.200.7.0-24"));
}

#[test]
fn the_family_that_is_full_is_named() {
    let json = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48",
        "IPv6SubnetMin":"fd00:5:0:1::","IPv6SubnetMax":"fd00:5:0:1::"}"#;
    let leases = [lease("10.5.1.0-24&fd00:5:0:1::-64", "192.168.0.2")];
    let error =
        decide(&config(json), &leases, &me("192.168.0.1"), &mut Rng::with_seed(1)).unwrap_err();
    assert!(error.to_string().contains("subnets of IPv6Network fd00:5::/48"), "{error}");
}

#[test]
fn nothing_is_handed_out_where_subnets_are_assigned() {
    let config = NetworkConfig::read(V4, SubnetOrigin::Store).unwrap();
    let me = me("192.0.2.1");
    let error = decide(&config, &[], &me, &mut Rng::with_seed(1)).unwrap_err();
    assert!(matches!(error, AcquireError::Assigned { key: "Network", .. }), "{error}");
    // What it was assigned is a lease like any other.
    let assigned = lease("10.5.0.64-26", "192.0.2.1");
    let kept = decide(&config, &[assigned], &me, &mut Rng::with_seed(1)).unwrap();
    assert_eq!(kept.choice, Choice::Keep(subnet("10.5.0.64-26")));
}

proptest! {
    #![proptest_config(cases(300))]

    /// A cluster of hosts that start, restart and vanish in any order.
    #[test]
    fn no_two_hosts_ever_share_an_address(
        steps in prop::collection::vec((0u8..12, any::<u64>(), 0u8..4), 1..60),
    ) {
        let configs = [V4, V6, DUAL].map(config);
        for config in &configs {
            let mut leases: Vec<Lease> = Vec::new();
            for (host, seed, action) in &steps {
                let address = if config.v4.is_some() {
                    format!("192.168.0.{host}")
                } else {
                    format!("fd00:100::{}", host + 1)
                };
                let own = leases.iter().position(|l| l.attrs == lease("10.5.1.0-24", &address).attrs);
                if *action == 0 {
                    own.map(|at| leases.swap_remove(at));
                    continue;
                }
                let previous = leases.first().filter(|_| *action == 1).map(|lease| lease.subnet);
                let me = Claimant { previous, ..me(&address) };
                let Ok(decision) = decide(config, &leases, &me, &mut Rng::with_seed(*seed)) else {
                    prop_assert!(leases.len() >= 4, "a pool with room was called full");
                    continue;
                };
                prop_assert_eq!(decision.discard, []);
                match decision.choice {
                    Choice::Keep(subnet) => prop_assert_eq!(own.map(|at| leases[at].subnet), Some(subnet)),
                    Choice::Take(subnet) => {
                        prop_assert_eq!(own, None);
                        prop_assert!(config.accepts(&subnet));
                        prop_assert!(leases.iter().all(|lease| !lease.subnet.overlaps(&subnet)));
                        leases.push(Lease { subnet, ..lease("10.5.1.0-24", &address) });
                    }
                }
            }
        }
    }
}
