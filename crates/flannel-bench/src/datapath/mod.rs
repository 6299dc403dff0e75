//! Pod to pod on every path there is, in one run: TCP, small datagrams, round trips, processor time.

mod cpu;
mod load;
mod naive;
mod path;

use std::time::Duration;

use flannel_tunnel::Features;

use self::cpu::Cpu;
use self::path::{Path, Standing};
use crate::table::percentile;

#[derive(Default)]
struct Row {
    tcp1: Vec<f64>,
    tcp4: Vec<f64>,
    cpu: Vec<f64>,
    small: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

pub(crate) struct Wishes {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) only: Vec<String>,
}

pub(crate) fn run(wishes: &Wishes) -> anyhow::Result<()> {
    let all = Features::default();
    let paths = [
        ("raw", Path::Raw),
        ("host-gw", Path::HostGw),
        ("vxlan", Path::Vxlan),
        ("naive", Path::Naive),
        ("udp", Path::Tunnel(all)),
        ("udp-1lane", Path::Tunnel(Features { lanes: 1, ..all })),
        ("udp-nogso", Path::Tunnel(Features { udp_gso: false, ..all })),
        ("udp-nogro", Path::Tunnel(Features { udp_gro: false, ..all })),
        ("udp-notso", Path::Tunnel(Features { tun_offload: false, ..all })),
    ];
    let chosen: Vec<_> = paths
        .into_iter()
        .filter(|(name, _)| wishes.only.is_empty() || wishes.only.iter().any(|only| only == name))
        .collect();
    let mut rows: Vec<Row> = chosen.iter().map(|_| Row::default()).collect();
    let time = Duration::from_secs_f64(wishes.seconds);
    for _ in 0..wishes.rounds {
        for ((_, path), row) in chosen.iter().zip(&mut rows) {
            let standing = Standing::new(*path)?;
            let ends = standing.ends()?;
            let cpu = Cpu::of(Vec::new());
            let one = ends.tcp(1, time, &cpu)?;
            row.tcp1.push(one.bits_per_second / 1e9);
            row.cpu.push(one.cpu_seconds_per_gigabyte);
            row.tcp4.push(ends.tcp(4, time, &cpu)?.bits_per_second / 1e9);
            row.small.push(ends.small_datagrams(time)? / 1e3);
            let trips = ends.round_trips(time)?;
            row.p50.push(percentile(&trips, 50).as_secs_f64() * 1e6);
            row.p99.push(percentile(&trips, 99).as_secs_f64() * 1e6);
        }
    }
    println!("path        TCP 1      TCP 4      64 B UDP   RTT p50  RTT p99  CPU");
    println!("            Gbit/s     Gbit/s     kpackets/s us       us       s/GB");
    for ((name, _), row) in chosen.iter().zip(&rows) {
        println!(
            "{name:<10} {:>6.2} {:>10.2} {:>10.0} {:>10.1} {:>8.1} {:>8.3}",
            median(&row.tcp1),
            median(&row.tcp4),
            median(&row.small),
            median(&row.p50),
            median(&row.p99),
            median(&row.cpu)
        );
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
