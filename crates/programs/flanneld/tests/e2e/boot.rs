//! A node that boots among thousands of others: it writes peers while the store still lists others.

use std::collections::BTreeSet;
use std::time::Duration;

use flannel_lab::{Lab, Result};
use serde_json::{Value, json};

use crate::support::{LIMIT, ask_etcd, compact, lab, lease_path, own_key, seed};

const CONFIG: &str = r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#;
const PEERS: u32 = 3_500;

fn subnet(n: u32) -> String {
    format!("10.{}.{}.0", 16 + n / 256, n % 256)
}

fn peer(lab: &Lab, n: u32, version: u8) -> (String, String) {
    let [_, b, c, d] = n.to_be_bytes();
    let value = format!(
        r#"{{"PublicIP":"172.{}.{c}.{d}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:{version:02x}:00:{b:02x}:{c:02x}:{d:02x}"}}}}"#,
        16 + b
    );
    (lease_path(lab, &format!("{}-24", subnet(n))), value)
}

/// Many pages of leases, and a node that has a lease among them.
fn crowd() -> Result<Lab> {
    let lab = lab(1).config_json(CONFIG).no_daemons().start()?;
    lab.etcd()?.put_many(&(0..PEERS).map(|n| peer(&lab, n, 0)).collect::<Vec<_>>())?;
    lab.node(1).flanneld().restart()?;
    Ok(lab)
}

/// What a boot does to what flannel had in the kernel.
fn shut_down(lab: &Lab) -> Result<()> {
    lab.node(1).flanneld().stop()?;
    lab.node(1).ip("link del flannel.1").map(drop)
}

/// Who is reached, and by which hardware address.
fn programmed(lab: &Lab) -> Result<BTreeSet<(String, String)>> {
    let routes = lab.node(1).ip("route show dev flannel.1")?;
    let neighbours = lab.node(1).ip("neigh show dev flannel.1")?;
    let known = neighbours.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.nth(1)?))
    });
    let routed: BTreeSet<&str> =
        routes.lines().filter_map(|line| Some(line.split_once("/24 via")?.0)).collect();
    let both = known.filter(|(ip, _)| routed.contains(ip));
    Ok(both.map(|(ip, mac)| (ip.to_owned(), mac.to_owned())).collect())
}

/// What all leases but the node's own say.
fn leased(lab: &Lab) -> Result<BTreeSet<(String, String)>> {
    let own = own_key(lab, 1)?;
    let leases = lab.leases()?.into_iter().filter(|(key, _)| *key != own);
    let said = leases.filter_map(|(key, value)| {
        let value: Value = serde_json::from_str(&value).ok()?;
        let mac = value["BackendData"]["VtepMAC"].as_str()?;
        Some((key.strip_suffix("-24")?.to_owned(), mac.to_owned()))
    });
    Ok(said.collect())
}

/// Whether the kernel leads to the subnets of all leases, and to no others.
fn leads_to_all(lab: &Lab) -> Result<(), String> {
    let now = programmed(lab).map_err(|error| error.to_string())?;
    let wanted = leased(lab).map_err(|error| error.to_string())?;
    let differences: Vec<_> = now.symmetric_difference(&wanted).take(4).collect();
    let routes = lab.node(1).ip("route show dev flannel.1").map_err(|error| error.to_string())?;
    match differences.is_empty() && routes.lines().count() == wanted.len() {
        true => Ok(()),
        false => Err(format!("{} of {}: {differences:?}", now.len(), wanted.len())),
    }
}

/// As when etcd's disk is full: it answers, and takes no writes.
fn fill_up(lab: &Lab, full: bool) -> Result<()> {
    let action = if full { "ACTIVATE" } else { "DEACTIVATE" };
    let request = json!({"action": action, "memberID": "1", "alarm": "NOSPACE"});
    ask_etcd(lab, "/v3/maintenance/alarm", &request).map(drop)
}

/// The lease is taken when all are listed. Who has to wait for it has the routes of its peers all the same.
#[test]
fn a_node_that_boots_and_cannot_write_its_lease_yet_has_its_device_and_its_routes() -> Result<()> {
    let lab = crowd()?;
    lab.wait_until("all routes", LIMIT, || leads_to_all(&lab))?;
    let (subnet, link) = (lab.node(1).subnet_env()?.subnet, "link show dev flannel.1");
    let mac = |text: String| text.split_once("link/ether ").map(|(_, mac)| mac[..17].to_owned());
    let before = mac(lab.node(1).ip(link)?);
    shut_down(&lab)?;
    fill_up(&lab, true)?;
    lab.node(1).flanneld().start()?;
    lab.wait_until("all routes", LIMIT, || leads_to_all(&lab))?;
    assert!(!lab.node(1).flanneld().is_ready(), "nobody has promised it the subnet");
    fill_up(&lab, false)?;
    lab.node(1).flanneld().wait_ready()?;
    assert_eq!(lab.node(1).subnet_env()?.subnet, subnet);
    assert_eq!(mac(lab.node(1).ip(link)?), before);
    leads_to_all(&lab).expect("still all routes");
    Ok(())
}

#[test]
fn a_node_that_boots_while_leases_change_and_etcd_dies_misses_nobody_and_keeps_nobody() -> Result<()>
{
    let lab = crowd()?;
    let mut rng = fastrand::Rng::with_seed(seed());
    let etcd = lab.etcd()?;
    for boot in 1..=4 {
        shut_down(&lab)?;
        lab.node(1).flanneld().start()?;
        // Now the first page has come, and now all have.
        std::thread::sleep(Duration::from_millis(rng.u64(10..120)));
        let changed = rng.choose_multiple(0..PEERS, 20);
        // A peer that is missing from a whole new list, which is told after a compaction, is spared a while.
        let compacted = boot % 2 == 0;
        let (gone, other) = changed.split_at(if compacted { 0 } else { 10 });
        for n in gone {
            etcd.delete(&peer(&lab, *n, boot).0)?;
        }
        etcd.put_many(&other.iter().map(|n| peer(&lab, *n, boot)).collect::<Vec<_>>())?;
        if compacted {
            compact(&lab)?;
        }
        etcd.kill();
        std::thread::sleep(Duration::from_millis(rng.u64(0..500)));
        etcd.restart()?;
        lab.node(1).flanneld().wait_ready()?;
        lab.wait_until("all routes", LIMIT, || leads_to_all(&lab))?;
        etcd.put_many(&gone.iter().map(|n| peer(&lab, *n, boot)).collect::<Vec<_>>())?;
        lab.wait_until("all routes", LIMIT, || leads_to_all(&lab))?;
    }
    Ok(())
}
