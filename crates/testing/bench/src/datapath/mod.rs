//! Pod to pod on every path there is, in one run: TCP, small datagrams, round trips, processor time. And what
//! it costs to find a peer, and to move a packet by one system call or another.

mod calls;
mod cpu;
mod empty;
mod load;
mod lookup;
mod naive;
mod path;
mod wireguard;

use std::path::PathBuf;
use std::time::Duration;

use flannel_entries::tunnel::Features;

use self::cpu::Cpu;
use self::path::{Path, Standing};
use crate::table::percentile;

/// What was measured of one path, a figure for each round.
#[derive(Default)]
struct Row {
    tcp1: Vec<f64>,
    tcp4: Vec<f64>,
    cpu: Vec<f64>,
    small: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// Of all that took part, for each round trip.
    trip_cpu: Vec<f64>,
}

/// What is sent over a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Load {
    /// One TCP stream.
    Tcp1,
    /// Four TCP streams.
    Tcp4,
    /// Datagrams of 64 bytes.
    Small,
    /// 64 bytes there and back, one after the other.
    Trips,
}

/// What the user-space datapath is to reach.
const GOALS: [Goal; 6] = [
    Goal {
        what: "TCP, of naive",
        against: "naive",
        measure: |row| &row.tcp1,
        least: Some(6.0),
        most: None,
    },
    Goal {
        what: "TCP, of vxlan",
        against: "vxlan",
        measure: |row| &row.tcp1,
        least: Some(0.8),
        most: None,
    },
    Goal {
        what: "small datagrams, of naive",
        against: "naive",
        measure: |row| &row.small,
        least: Some(2.0),
        most: None,
    },
    Goal {
        what: "round trip, of naive",
        against: "naive",
        measure: |row| &row.p50,
        least: None,
        most: Some(1.0),
    },
    Goal {
        what: "round trip, of vxlan",
        against: "vxlan",
        measure: |row| &row.p50,
        least: None,
        most: Some(1.6),
    },
    Goal {
        what: "processor time, of naive",
        against: "naive",
        measure: |row| &row.cpu,
        least: None,
        most: Some(0.25),
    },
];

/// What our WireGuard is to reach.
const WIREGUARD_GOALS: [Goal; 4] = [
    Goal {
        what: "TCP, of wireguard-go",
        against: "wireguard-go",
        measure: |row| &row.tcp1,
        least: Some(2.0),
        most: None,
    },
    Goal {
        what: "small, of wireguard-go",
        against: "wireguard-go",
        measure: |row| &row.small,
        least: Some(1.0),
        most: None,
    },
    Goal {
        what: "round trip, of wireguard-go",
        against: "wireguard-go",
        measure: |row| &row.p50,
        least: None,
        most: Some(1.0),
    },
    Goal {
        what: "processor time, of wireguard-go",
        against: "wireguard-go",
        measure: |row| &row.cpu,
        least: None,
        most: Some(0.5),
    },
];

struct Goal {
    what: &'static str,
    against: &'static str,
    measure: fn(&Row) -> &Vec<f64>,
    least: Option<f64>,
    most: Option<f64>,
}

pub(crate) struct Wishes {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) only: Vec<String>,
    pub(crate) loads: Vec<Load>,
    pub(crate) flanneld: Option<PathBuf>,
    pub(crate) against: Option<PathBuf>,
    /// The reference implementation of WireGuard in user space.
    pub(crate) wireguard_go: Option<PathBuf>,
}

pub(crate) fn run(wishes: &Wishes) -> anyhow::Result<()> {
    if wishes.only.is_empty() && wishes.loads.is_empty() {
        lookup::run();
        calls::run()?;
    }
    let chosen = chosen(wishes);
    let mut rows: Vec<Row> = chosen.iter().map(|_| Row::default()).collect();
    let time = Duration::from_secs_f64(wishes.seconds);
    for _ in 0..wishes.rounds {
        for ((_, path), row) in chosen.iter().zip(&mut rows) {
            measure(path, time, &wishes.loads, row)?;
        }
    }
    println!(
        "{} rounds of {} s each, medians; cables that carry packets of their MTU only, cubic",
        wishes.rounds, wishes.seconds
    );
    println!("path              TCP 1      TCP 4      64 B UDP   RTT p50  RTT p99  CPU      CPU");
    println!(
        "                  Gbit/s     Gbit/s     kpackets/s us       us       s/GB     us/trip"
    );
    for ((name, _), row) in chosen.iter().zip(&rows) {
        println!(
            "{name:<16} {:>6.2} {:>10.2} {:>10.0} {:>10.1} {:>8.1} {:>8.3} {:>8.1}",
            median(&row.tcp1),
            median(&row.tcp4),
            median(&row.small),
            median(&row.p50),
            median(&row.p99),
            median(&row.cpu),
            median(&row.trip_cpu)
        );
    }
    let row = |wanted: &str| {
        chosen.iter().zip(&rows).find(|((name, _), _)| *name == wanted).map(|(_, row)| row)
    };
    for subject in ["udp", "flanneld udp", "wireguard"] {
        let Some(udp) = row(subject) else { continue };
        let goals: &[Goal] = if subject == "wireguard" { &WIREGUARD_GOALS } else { &GOALS };
        for goal in goals {
            let Some(other) = row(goal.against) else { continue };
            // Rounds are compared one by one: what else the machine does changes from one to the next.
            if (goal.measure)(udp).is_empty() {
                continue;
            }
            let pairs = (goal.measure)(udp).iter().zip((goal.measure)(other));
            let ratio = median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>());
            let (bound, reached) = match (goal.least, goal.most) {
                (Some(least), _) => (format!("at least {least}"), ratio >= least),
                (_, Some(most)) => (format!("at most {most}"), ratio <= most),
                (None, None) => continue,
            };
            let verdict = if reached { "reached" } else { "missed" };
            println!("{subject}: {:<26} {ratio:>6.2}  ({bound}: {verdict})", goal.what);
        }
    }
    Ok(())
}

fn chosen(wishes: &Wishes) -> Vec<(&'static str, Path)> {
    let all = Features::default();
    let mut paths = vec![
        ("raw", Path::Raw),
        ("host-gw", Path::HostGw),
        ("vxlan", Path::Vxlan),
        ("naive", Path::Naive),
        ("empty relay", Path::Empty),
        ("udp", Path::Tunnel(all)),
        ("udp, 1 queue", Path::Tunnel(Features { lanes: 1, ..all })),
        ("udp, no UDP GSO", Path::Tunnel(Features { udp_gso: false, ..all })),
        ("udp, no UDP GRO", Path::Tunnel(Features { udp_gro: false, ..all })),
        ("udp, no TUN TSO", Path::Tunnel(Features { tun_offload: false, ..all })),
        ("wireguard", Path::Wireguard(all)),
    ];
    if let Some(program) = &wishes.wireguard_go {
        paths.push(("wireguard-go", Path::WireguardGo(program.clone())));
    }
    if let Some(program) = &wishes.flanneld {
        for (name, backend) in
            [("flanneld host-gw", "host-gw"), ("flanneld vxlan", "vxlan"), ("flanneld udp", "udp")]
        {
            paths.push((name, Path::Flanneld { program: program.clone(), backend }));
        }
    }
    if let Some(program) = &wishes.against {
        paths.push(("other udp", Path::Flanneld { program: program.clone(), backend: "udp" }));
    }
    paths.retain(|(name, _)| wishes.only.is_empty() || wishes.only.iter().any(|only| only == name));
    paths
}

fn measure(path: &Path, time: Duration, loads: &[Load], row: &mut Row) -> anyhow::Result<()> {
    let wanted = |load| loads.is_empty() || loads.contains(&load);
    let standing = Standing::new(path)?;
    let ends = standing.ends()?;
    let cpu = Cpu::of(standing.processes());
    if wanted(Load::Tcp1) {
        let one = ends.tcp(1, time, &cpu)?;
        row.tcp1.push(one.bits_per_second / 1e9);
        row.cpu.push(one.cpu_seconds_per_gigabyte);
    }
    if wanted(Load::Tcp4) {
        row.tcp4.push(ends.tcp(4, time, &cpu)?.bits_per_second / 1e9);
    }
    if wanted(Load::Small) {
        row.small.push(ends.small_datagrams(time)? / 1e3);
    }
    if wanted(Load::Trips) {
        let before = cpu.spent();
        let trips = ends.round_trips(time)?;
        row.trip_cpu.push((cpu.spent() - before) * 1e6 / trips.len() as f64);
        row.p50.push(percentile(&trips, 50).as_secs_f64() * 1e6);
        row.p99.push(percentile(&trips, 99).as_secs_f64() * 1e6);
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
