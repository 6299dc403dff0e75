//! From a route that somebody has deleted to the same route, there again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use flannel_entries::kernel::Entry;
use flannel_lab::Lab;

use crate::{peers, raw, routes, turns};

const LIMIT: Duration = Duration::from_secs(10);
/// Each of them once in a round: what is undone again and again is left alone for a while.
const DELETED: u32 = 100;

pub(crate) fn run(count: u32, rounds: usize, against: Option<PathBuf>) -> anyhow::Result<()> {
    let lab = Lab::builder().nodes(1).config_json(peers::CONFIG).no_daemons().start()?;
    let leases: Vec<(String, String)> = (0..count)
        .map(peers::lease)
        .map(|(key, value)| (format!("/coreos.com/network/subnets/{key}"), value))
        .collect();
    lab.etcd()?.put_many(&leases)?;
    println!(
        "{DELETED} of {count} routes deleted one by one, {rounds} rounds; until each is back:"
    );
    let routes: Vec<Entry> = peers::desired(count)?
        .peers
        .into_iter()
        .take(DELETED as usize)
        .flat_map(|(_, entries)| entries)
        .filter(|entry| matches!(entry, Entry::Route(_)))
        .collect();
    turns::compare(rounds, against.as_ref(), |binary| measure(&lab, &routes, binary))
}

fn measure(lab: &Lab, routes: &[Entry], binary: Option<&Path>) -> anyhow::Result<Vec<Duration>> {
    let node = lab.node(1);
    let daemon = node.flanneld();
    daemon.set_binary(binary);
    daemon.restart()?;
    std::thread::sleep(Duration::from_secs(2));
    let times = node.in_netns(|| {
        let link = routes::index("flannel.1")?;
        routes.iter().map(|route| delete_and_wait(route, link)).collect()
    })?;
    daemon.stop()?;
    times
}

fn delete_and_wait(entry: &Entry, link: u32) -> anyhow::Result<Duration> {
    let Entry::Route(route) = entry else { anyhow::bail!("not a route") };
    let std::net::IpAddr::V4(subnet) = route.dst.addr() else { anyhow::bail!("not IPv4") };
    let begin = Instant::now();
    raw::delete_route(entry, link)?;
    let back = routes::wait_for(subnet, LIMIT).context("it was not repaired")?;
    ensure!(back > begin, "time runs backwards");
    std::thread::sleep(Duration::from_millis(2));
    Ok(back - begin)
}
