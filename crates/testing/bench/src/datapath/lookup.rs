//! What it costs to find the peer of a packet among ten thousand: our table, and what else could be one.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::time::Instant;

use flannel_tunnel::{Lookup, Prefix};

const PEERS: u32 = 10_000;
const PROBES: usize = 1 << 16;
const ROUNDS: usize = 40;

pub(super) fn run() {
    // /24s in 10.0.0.0/8, as a large network has them.
    let subnets: Vec<u32> = (0..PEERS).map(|number| 0x0a00_0000 + (number << 8)).collect();
    let near: Vec<(Prefix, u32)> = prefixes(&subnets);
    // The same, and one far away: no array spans both.
    let far: Vec<(Prefix, u32)> = prefixes(&[&subnets[..], &[0xc0a8_0000]].concat());
    let mut rng = fastrand::Rng::with_seed(1);
    let probes: Vec<u32> =
        (0..PROBES).map(|_| subnets[rng.usize(..subnets.len())] + rng.u32(1..255)).collect();
    let (array, maps) = (Lookup::new(32, &near), Lookup::new(32, &far));
    let hash: HashMap<u32, u32> = subnets.iter().copied().zip(0..).collect();
    let tree: BTreeMap<u32, u32> = subnets.iter().copied().zip(0..).collect();
    println!("finding one of {PEERS} peers:");
    say("  array over the subnets' range (used)", &probes, |probe| array.get(probe.into()));
    say("  map for each prefix length (used where they lie far apart)", &probes, |probe| {
        maps.get(probe.into())
    });
    say("  hash map of the standard library", &probes, |probe| {
        hash.get(&(probe & 0xffff_ff00)).copied()
    });
    say("  sorted tree", &probes, |probe| tree.range(..=probe).next_back().map(|(_, peer)| *peer));
    let few = &probes[..64];
    say("  list searched from its beginning", few, |probe| {
        subnets.iter().position(|subnet| probe & 0xffff_ff00 == *subnet).map(|at| at as u32)
    });
    println!();
}

fn prefixes(subnets: &[u32]) -> Vec<(Prefix, u32)> {
    let prefix = |subnet: &u32| Prefix { address: u128::from(*subnet), len: 24 };
    subnets.iter().map(prefix).zip(0..).collect()
}

fn say(name: &str, probes: &[u32], find: impl Fn(u32) -> Option<u32>) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for probe in probes {
            black_box(find(black_box(*probe)));
        }
        best = best.min(begin.elapsed().as_secs_f64() / probes.len() as f64);
    }
    println!("{name:<62} {:>8.1} ns", best * 1e9);
}
