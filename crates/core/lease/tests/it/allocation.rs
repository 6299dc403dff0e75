//! Allocation: never a subnet that overlaps a lease, always one inside the range, at any scale.

use std::collections::BTreeSet;

use fastrand::Rng;
use flannel_lease::{CANDIDATES, FreeMap, Net, Pool4, Pool6};
use ipnet::Ipv4Net;
use proptest::prelude::*;

use crate::support::{cases, config};

fn pool(json: &str) -> Pool4 {
    config(json).v4.unwrap().pool().unwrap()
}

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn small() -> FreeMap<Ipv4Net> {
    FreeMap::new(pool(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.8.0"}"#))
}

/// Everything that `pick` can return.
fn candidates<N: Net>(free: &FreeMap<N>) -> BTreeSet<N> {
    (0..4000).filter_map(|seed| free.pick(&mut Rng::with_seed(seed))).collect()
}

#[test]
fn a_pool_is_used_up_subnet_by_subnet() {
    let mut free = small();
    let mut rng = Rng::with_seed(1);
    let mut taken = BTreeSet::new();
    while let Some(net) = free.pick(&mut rng) {
        assert!(free.is_free(net));
        free.occupy(net);
        assert!(!free.is_free(net));
        assert!(taken.insert(net), "{net} was handed out twice");
        assert_eq!(free.free(), 8 - taken.len() as u128);
    }
    assert_eq!(taken.len(), 8);
    assert_eq!(taken.first(), Some(&net("10.5.1.0/24")));
    assert_eq!(taken.last(), Some(&net("10.5.8.0/24")));
}

#[test]
fn the_choice_is_among_the_hundred_lowest_free_ones() {
    let mut free = FreeMap::new(pool(r#"{"Network":"10.5.0.0/16"}"#));
    (1..=20).step_by(2).for_each(|n| free.occupy(net(&format!("10.5.{n}.0/24"))));
    let expected: BTreeSet<Ipv4Net> = (1..=255)
        .filter(|n| *n > 20 || n % 2 == 0)
        .map(|n| net(&format!("10.5.{n}.0/24")))
        .take(CANDIDATES as usize)
        .collect();
    assert_eq!(candidates(&free), expected);
}

#[test]
fn every_candidate_is_about_equally_likely() {
    let free = small();
    let mut rng = Rng::with_seed(7);
    let mut count = std::collections::BTreeMap::new();
    (0..8000).for_each(|_| *count.entry(free.pick(&mut rng)).or_insert(0) += 1);
    assert_eq!(count.len(), 8);
    assert!(count.values().all(|n| (800..1200).contains(n)), "{count:?}");
}

#[test]
fn a_lease_of_another_length_blocks_all_it_touches() {
    let mut free = small();
    free.occupy(net("10.5.2.128/25"));
    free.occupy(net("10.5.4.0/22"));
    assert_eq!(candidates(&free), [1, 3, 8].map(|n| net(&format!("10.5.{n}.0/24"))).into());
    free.occupy(net("10.0.0.0/8"));
    assert_eq!((free.free(), free.pick(&mut Rng::with_seed(1))), (0, None));
}

#[test]
fn a_lease_outside_the_pool_blocks_nothing() {
    let mut free = small();
    for other in ["10.5.0.0/24", "10.5.9.0/24", "192.168.0.0/16", "255.255.255.254/31", "0.0.0.0/8"]
    {
        free.occupy(net(other));
    }
    assert_eq!(free.free(), 8);
}

#[test]
fn a_subnet_is_free_again_when_the_last_lease_on_it_is_gone() {
    let mut free = small();
    let (whole, half, quarter) = (net("10.5.4.0/22"), net("10.5.5.0/25"), net("10.5.5.128/26"));
    [whole, half, quarter, half].into_iter().for_each(|net| free.occupy(net));
    free.release(whole);
    assert_eq!((free.free(), free.is_free(net("10.5.5.0/24"))), (7, false));
    free.release(half);
    free.release(quarter);
    assert_eq!(free.free(), 7, "one half is still held");
    free.release(half);
    assert_eq!((free.free(), free.is_free(net("10.5.5.0/24"))), (8, true));
    free.release(half);
    assert_eq!(free.free(), 8, "releasing what nobody holds does nothing");
}

#[test]
fn defect_14_sixty_five_thousand_subnets_are_handed_out_without_overlap() {
    let pool = pool(r#"{"Network":"10.0.0.0/8","SubnetMin":"10.0.0.0"}"#);
    assert_eq!(pool.capacity(), 65_536);
    let mut free = FreeMap::new(pool);
    let mut rng = Rng::with_seed(3);
    let mut taken = vec![false; 65_536];
    while let Some(net) = free.pick(&mut rng) {
        free.occupy(net);
        let index = pool.index_of(net).unwrap() as usize;
        assert!(!std::mem::replace(&mut taken[index], true), "{net} was handed out twice");
    }
    assert!(taken.iter().all(|taken| *taken), "all were handed out");
}

#[test]
fn an_ipv6_pool_too_large_to_walk_is_no_burden() {
    let json =
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/8","IPv6SubnetLen":126}"#;
    let pool: Pool6 = config(json).v6.unwrap().pool().unwrap();
    let mut free = FreeMap::new(pool);
    let mut rng = Rng::with_seed(5);
    for _ in 0..1000 {
        let net = free.pick(&mut rng).unwrap();
        assert!(pool.accepts(net) && free.is_free(net));
        free.occupy(net);
    }
    free.occupy("fc00::/9".parse().unwrap());
    let above = free.pick(&mut rng).unwrap();
    assert!(above >= "fc80::/126".parse().unwrap(), "{above}");
    assert_eq!(free.free(), 1 << 117);
}

#[derive(Clone, Debug)]
enum Step {
    Occupy(Ipv4Net),
    Release(usize),
    Take(u64),
}

/// Leases of any length in and around a range of sixteen subnets.
fn any_step() -> impl Strategy<Value = Step> {
    let near = (0u32..0x1800, 16u8..=30)
        .prop_map(|(low, len)| Ipv4Net::new((0x0a05_0000 + low).into(), len).unwrap().trunc());
    prop_oneof![
        near.prop_map(Step::Occupy),
        any::<prop::sample::Index>().prop_map(|index| Step::Release(index.index(1000))),
        any::<u64>().prop_map(Step::Take),
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_free_map_agrees_with_looking_at_every_lease(steps in prop::collection::vec(any_step(), 0..60)) {
        let pool = pool(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.2.0","SubnetMax":"10.5.17.0"}"#);
        let mut free = FreeMap::new(pool);
        let mut held: Vec<Ipv4Net> = Vec::new();
        let overlaps = |held: &[Ipv4Net], net: Ipv4Net| {
            held.iter().any(|other| other.contains(&net) || net.contains(other))
        };
        for step in steps {
            match step {
                Step::Occupy(net) => {
                    free.occupy(net);
                    held.push(net);
                }
                Step::Release(index) if !held.is_empty() => {
                    let net = held.swap_remove(index % held.len());
                    free.release(net);
                }
                Step::Release(_) => {}
                Step::Take(seed) => match free.pick(&mut Rng::with_seed(seed)) {
                    Some(net) => {
                        prop_assert!(pool.accepts(net) && !overlaps(&held, net), "{} {:?}", net, held);
                        free.occupy(net);
                        held.push(net);
                    }
                    None => prop_assert_eq!(free.free(), 0),
                },
            }
            let mut count = 0;
            for net in (0..pool.capacity()).filter_map(|index| pool.nth(index)) {
                let expected = !overlaps(&held, net);
                prop_assert_eq!(free.is_free(net), expected, "{} {:?}", net, &held);
                count += u128::from(expected);
            }
            prop_assert_eq!(free.free(), count);
        }
    }
}
