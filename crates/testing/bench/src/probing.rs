//! What it costs that nodes probe each other: a prober with many peers, all of which are this very process, so
//! that it asks and answers as a node does; against one with few.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flannel_backend::{Encapsulation, Stack};
use flannel_common::OperatorCommands;
use flannel_probe::{Listeners, Prober, ProbingNode, Standing, Target};
use ipnet::IpNet;
use rustix::time::{ClockId, clock_gettime};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Loopback carries no more than this without a thought.
const MTU: u32 = 1450;
const OVERHEAD: u32 = 50;

pub(crate) fn run(peers: &[u32], seconds: u64) -> anyhow::Result<()> {
    println!("probing, asking and answering alike, for {seconds} s each:");
    for (number, peers) in peers.iter().enumerate() {
        let port = flannel_probe::PORT + 1 + u16::try_from(number)?;
        let port = NonZeroU16::new(port).context("a port")?;
        measure(*peers, port, Duration::from_secs(seconds))?;
    }
    Ok(())
}

fn measure(count: u32, port: NonZeroU16, time: Duration) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (busy, elapsed, asked) = runtime.block_on(async {
        let prober = Prober::new("bench", Arc::new(Listeners::new(port.get())));
        prober.replace(own(), (0..count).map(|number| (net(number), target(port))));
        let (began, before) = (Instant::now(), busy());
        let _ = tokio::time::timeout(time, prober.clone().run()).await;
        let asked = prober.peers().all().filter(|(_, _, known)| known.is_some()).count();
        (busy() - before, began.elapsed(), asked)
    });
    let share = busy.as_secs_f64() / elapsed.as_secs_f64();
    println!("  {count:>6} peers: {:.3} % of a core; {asked} of them asked", share * 100.0);
    Ok(())
}

/// Processor time of this process.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn net(number: u32) -> IpNet {
    let ip = Ipv4Addr::from(0x0a00_0000 | (number + 1) << 8);
    IpNet::new(ip.into(), 24).unwrap_or_default()
}

fn own() -> ProbingNode {
    ProbingNode {
        subnet: net(0),
        underlay: [Some(HERE), None],
        announced: [None, None],
        overlay: [Some(HERE), None],
        encapsulation: Encapsulation::usual("vxlan", Stack { v4: true, v6: false }),
        devices: Vec::new(),
        overhead: OVERHEAD,
        mtu: MTU,
        link_index: 1,
        link: "lo".to_owned(),
        link_mtu: MTU + OVERHEAD,
        commands: OperatorCommands::default(),
        machine: None,
    }
}

fn target(port: NonZeroU16) -> Target {
    let at = [Some(HERE), None];
    Target { port, public: at, overlay: at, standing: Standing::Programmed, machine: None }
}
