//! `flannelctl diff`: what the daemon wants beside what the kernel has now, read from the kernel, where they differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use flannel_entries::kernel::ROUTE_PROTOCOL;
use flannel_kernel::look::{Device, Kernel};
use flannel_state::{EntryCondition, EntryState};
use ipnet::IpNet;
use netlink_packet_route::neighbour::NeighbourState;
use serde::Serialize;

use super::client::Daemon;
use super::{Asking, plain};
use crate::commands::store_args::block_on;
use flannel_cli::table::{Colour, Paint};

/// What is wanted of the kernel beside what it has, where that differs
///
/// Ends with 0 if nothing differs, 1 if something does.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    asking: Asking,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Difference {
    /// As `ip` or `bridge` would show it; absent if nobody wants what is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<String>,
    found: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl DiffArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (compared, differences) = look(&self.asking.socket)?;
        let paint = Paint::for_stdout();
        self.asking.output.output.show(&differences, |_| screen(&differences, compared, paint))?;
        Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

pub(crate) fn report(socket: &Path) -> anyhow::Result<String> {
    Ok(format!("{:#}\n", serde_json::to_value(look(socket)?.1)?))
}

/// How many entries were compared, and which differ.
fn look(socket: &Path) -> anyhow::Result<(usize, Vec<Difference>)> {
    let wanted: Vec<EntryState> = block_on(Daemon::Here(socket).list("/v1/entries"))?;
    let found = Found::read(&wanted)?;
    Ok((wanted.len(), compare(&wanted, &found)))
}

/// What the kernel has: lines as the daemon writes what it wants, by what they are about.
#[derive(Default)]
struct Found {
    by_key: BTreeMap<String, Vec<String>>,
    /// Of these, what would be flannel's.
    ours: Vec<(String, String)>,
}

impl Found {
    fn read(wanted: &[EntryState]) -> anyhow::Result<Self> {
        let mut kernel = Kernel::open()?;
        let mut found = Self::default();
        for route in kernel.routes()? {
            let text = format!("route {route}");
            let ours = route.protocol == ROUTE_PROTOCOL;
            found.put(key("route", &text), text, ours);
        }
        // Flannel's devices: those that are wanted.
        let devices = wanted.iter().filter(|entry| entry.kind == "device");
        let devices: Vec<&str> =
            devices.filter_map(|entry| entry.entry.split_whitespace().nth(1)).collect();
        let is_ours = |device: &&Device| devices.contains(&device.name.as_str());
        let there: Vec<Device> = kernel.devices.iter().filter(is_ours).cloned().collect();
        for device in there {
            let parent = device.vxlan.as_ref().and_then(|vxlan| kernel.by_index(vxlan.parent?));
            let text = device_text(&device, parent.map(|parent| parent.name.as_str()));
            found.put(key("device", &text), text, false);
            for address in &device.addresses {
                let link_local =
                    matches!(address, IpNet::V6(net) if net.addr().is_unicast_link_local());
                let text = format!("address {address} dev {}", device.name);
                found.put(key("address", &text), text, !link_local);
            }
            for ipv4 in [true, false] {
                for entry in kernel.neighbours(ipv4, device.index)? {
                    let Some(mac) = entry.mac else { continue };
                    let text = format!("neighbour {} lladdr {mac} dev {}", entry.ip, device.name);
                    let ours = entry.state == NeighbourState::Permanent;
                    found.put(key("neighbour", &text), text, ours);
                }
            }
            for entry in kernel.fdb(device.index)? {
                let Some(dst) = entry.dst else { continue };
                let text = format!("fdb {} dst {dst} dev {}", entry.mac, device.name);
                found.put(key("fdb", &text), text, true);
            }
        }
        Ok(found)
    }

    fn put(&mut self, key: String, text: String, ours: bool) {
        if ours {
            self.ours.push((key.clone(), text.clone()));
        }
        self.by_key.entry(key).or_default().push(text);
    }
}

/// What an entry is about: all versions of it have the same.
fn key(kind: &str, text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let after = |name: &str| {
        let at = words.iter().position(|word| *word == name);
        at.map(|at| word(at + 1)).unwrap_or_default()
    };
    match kind {
        "route" if word(1) == "blackhole" => format!("route {}", word(2)),
        "route" | "device" => format!("{kind} {}", word(1)),
        _ => format!("{kind} {} {}", word(1), after("dev")),
    }
}

fn device_text(device: &Device, parent: Option<&str>) -> String {
    let mut text = format!("device {} (", device.name);
    match &device.vxlan {
        Some(vxlan) => {
            let local = vxlan.local.map(|ip| format!(" local {ip}")).unwrap_or_default();
            let parent = parent.map(|parent| format!(" dev {parent}")).unwrap_or_default();
            text += &format!("vxlan id {}{local}{parent} dstport {}", vxlan.vni, vxlan.port);
        }
        None => text += &device.kind,
    }
    text += &format!(" mtu {}", device.mtu);
    text.extend(device.mac.map(|mac| format!(" address {mac}")));
    let down = if device.up { "" } else { " DOWN" };
    text + ")" + down
}

/// Whether what is found says what is wanted; of a device, it may say more.
fn says(kind: &str, found: &str, wanted: &str) -> bool {
    if kind != "device" {
        return found == wanted;
    }
    let clean = |text: &str| text.replace(['(', ')'], " ");
    let (found, wanted) = (clean(found), clean(wanted));
    let mut words = found.split_whitespace();
    !found.ends_with("DOWN")
        && wanted.split_whitespace().all(|word| words.any(|found| found == word))
}

fn compare(wanted: &[EntryState], found: &Found) -> Vec<Difference> {
    // Of these the daemon alone can tell.
    let seen = |kind: &str| ["route", "device", "address", "neighbour", "fdb"].contains(&kind);
    let mut differences = Vec::new();
    let mut keys = BTreeSet::new();
    for entry in wanted {
        let in_kernel = entry.applier == "kernel" && seen(&entry.kind);
        let here = in_kernel.then(|| key(&entry.kind, &entry.entry));
        let there =
            here.as_ref().and_then(|key| found.by_key.get(key)).map_or(&[][..], Vec::as_slice);
        keys.extend(here);
        let same = match in_kernel {
            true => there.iter().any(|found| says(&entry.kind, found, &entry.entry)),
            false => entry.state == EntryCondition::Programmed,
        };
        // Another peer's version goes before this one.
        if same || entry.state == EntryCondition::Contested {
            continue;
        }
        differences.push(Difference {
            wanted: Some(entry.entry.clone()),
            found: there.to_vec(),
            why: entry.why.clone(),
        });
    }
    for (key, text) in &found.ours {
        if !keys.contains(key) {
            let why = Some("nobody wants it: it is flannel's, and stale".to_owned());
            differences.push(Difference { wanted: None, found: vec![text.clone()], why });
        }
    }
    differences
}

fn screen(differences: &[Difference], compared: usize, paint: Paint) -> String {
    let mut text = String::new();
    for Difference { wanted, found, why } in differences {
        if let Some(wanted) = wanted {
            let _ = writeln!(text, "{}", paint.text(Colour::Good, &format!("- {}", plain(wanted))));
        }
        for found in found {
            let _ = writeln!(text, "{}", paint.text(Colour::Bad, &format!("+ {}", plain(found))));
        }
        if let Some(why) = why {
            let _ = writeln!(text, "  {}", plain(why));
        }
    }
    text += &match differences.len() {
        0 => format!("the kernel has all {compared} entries that are wanted, and no stale ones\n"),
        count => format!(
            "{count} of {compared} differ (- wanted, + what the kernel has); `flannelctl repair` compares and puts right now, \
             `flannelctl events` says who undoes it\n"
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str, text: &str) -> EntryState {
        EntryState {
            network: "_".to_owned(),
            subnet: None,
            ipv6_subnet: None,
            applier: "kernel".to_owned(),
            kind: kind.to_owned(),
            entry: text.to_owned(),
            state: EntryCondition::Programmed,
            why: None,
        }
    }

    fn found(lines: &[(&str, &str)]) -> Found {
        let mut found = Found::default();
        for (kind, text) in lines {
            found.put(key(kind, text), (*text).to_owned(), true);
        }
        found
    }

    #[test]
    fn what_is_wanted_and_not_so_there_is_shown_with_what_is_in_its_place() {
        let wanted = [
            entry("route", "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink"),
            entry("neighbour", "neighbour 10.244.2.0 lladdr 02:00:00:00:00:02 dev flannel.1"),
            entry(
                "device",
                "device flannel.1 (vxlan id 1 local 192.0.2.1 dev eth0 mtu 1450 address 02:00:00:00:00:01)",
            ),
        ];
        let device = "device flannel.1 (vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 mtu 1450 address 02:00:00:00:00:01)";
        let neighbour =
            ("neighbour", "neighbour 10.244.2.0 lladdr 02:00:00:00:00:02 dev flannel.1");
        let route = ("route", "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink");
        assert_eq!(compare(&wanted, &found(&[route, neighbour, ("device", device)])), []);
        let other = ("route", "route 10.244.2.0/24 via 192.0.2.9 dev eth0");
        let differences = compare(&wanted, &found(&[other, neighbour, ("device", device)]));
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert_eq!(differences[0].found, ["route 10.244.2.0/24 via 192.0.2.9 dev eth0"]);
        let smaller = device.replace("1450", "1400");
        let differences = compare(&wanted, &found(&[route, neighbour, ("device", &smaller)]));
        assert_eq!(differences[0].found, [smaller]);
        let stale = ("route", "route 10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink");
        let differences = compare(&wanted, &found(&[route, neighbour, ("device", device), stale]));
        assert_eq!(
            (differences[0].wanted.as_ref(), differences[0].found[0].as_str()),
            (None, stale.1)
        );
    }
}
