//! What one lease costs among many, beside what it costs among few: close to 1 means that a large
//! network does not slow it down. Pure computation, without a kernel or a store.

use std::time::{Duration, Instant};

use anyhow::Context;
use flannel_lease::{Claimant, FreeMap, Lease, LeaseAttrs, LeaseTable, NetworkConfig, decide};

use crate::table::{median, ratio};

const CONFIG: &str = r#"{"Network":"10.0.0.0/8","SubnetMin":"10.0.0.0"}"#;
/// All /24 of the network.
const MANY: u32 = 65_536;
const FEW: u32 = MANY / 256;

/// Returns the time that one lease takes.
type Measure = fn(u32) -> anyhow::Result<Duration>;

pub(crate) fn run(rounds: usize) -> anyhow::Result<()> {
    println!("time per lease, median of {rounds} rounds\n");
    let few = format!("of {FEW}");
    let many = format!("of {MANY}");
    println!("{:<40}  {few:>10}  {many:>10}  {:>8}", "", "ratio");
    let rows: [(&str, Measure); 4] = [
        ("put into the lease table", put),
        ("compared with a listing of all leases", snapshot),
        ("handed out until the pool is empty", hand_out),
        ("looked at to find the last free subnet", last_free),
    ];
    for (what, measure) in rows {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            // As much work in both columns, so that both are measured as exactly.
            let few: Duration = (0..MANY / FEW).map(|_| measure(FEW)).sum::<anyhow::Result<_>>()?;
            times[0].push(few / (MANY / FEW));
            times[1].push(measure(MANY)?);
        }
        let [few, many] = times.map(median);
        println!("{what:<40}  {few:>10.1?}  {many:>10.1?}  {:>7.1}x", ratio(many, few));
    }
    Ok(())
}

fn put(count: u32) -> anyhow::Result<Duration> {
    let (leases, mut table) = (leases(count)?, LeaseTable::new());
    per_lease(count, || leases.into_iter().filter_map(|lease| table.put(lease)).count() as u32)
}

fn snapshot(count: u32) -> anyhow::Result<Duration> {
    let (leases, mut table) = (leases(count)?, LeaseTable::new());
    table.snapshot(leases.clone());
    per_lease(count, || count - table.snapshot(leases).len() as u32)
}

fn hand_out(count: u32) -> anyhow::Result<Duration> {
    let json = format!(
        r#"{{"Network":"10.0.0.0/8","SubnetMin":"10.0.0.0","SubnetMax":"10.{}.{}.0"}}"#,
        (count - 1) / 256,
        (count - 1) % 256
    );
    let source = NetworkConfig::parse(&json)?.v4.context("an IPv4 network")?;
    let mut free = FreeMap::new(source.pool().context("a pool")?);
    let mut rng = fastrand::Rng::with_seed(1);
    per_lease(count, || {
        let mut taken = 0;
        while let Some(net) = free.pick(&mut rng) {
            free.occupy(net);
            taken += 1;
        }
        taken
    })
}

fn last_free(count: u32) -> anyhow::Result<Duration> {
    let config = NetworkConfig::parse(CONFIG)?;
    let (mut leases, mut rng) = (leases(count)?, fastrand::Rng::with_seed(1));
    leases.remove(count as usize / 2);
    let me = Claimant { public_ip: Some([192, 168, 0, 1].into()), ..Claimant::default() };
    per_lease(count, || decide(&config, &leases, &me, &mut rng).map_or(0, |_| count))
}

fn leases(count: u32) -> anyhow::Result<Vec<Lease>> {
    let attrs = LeaseAttrs { public_ip: Some([192, 168, 0, 2].into()), ..LeaseAttrs::default() };
    let lease = |n: u32| {
        let subnet = format!("10.{}.{}.0-24", n / 256, n % 256).parse()?;
        Ok(Lease { subnet, attrs: attrs.clone() })
    };
    (0..count).map(lease).collect()
}

/// `work` returns how many leases it has dealt with.
fn per_lease(count: u32, work: impl FnOnce() -> u32) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let done = work();
    let elapsed = start.elapsed();
    anyhow::ensure!(done == count, "{done} leases instead of {count}");
    Ok(elapsed / count)
}
