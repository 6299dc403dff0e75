//! Vandalism: what somebody else's hands do to a node's kernel while flanneld runs.

use std::fmt;

use fastrand::Rng;
use serde_json::Value;

use crate::error::{LabError, Result};
use crate::node::{Node, Place as _};

/// One deed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vandalism {
    /// Delete the route to a prefix (`10.244.5.0/24`, `fd00:244:0:5::/64`, `default`).
    RouteDelete(String),
    /// Delete a neighbour entry.
    NeighbourDelete {
        /// The neighbour's address.
        address: String,
        /// On which device.
        device: String,
    },
    /// Delete a forwarding entry.
    FdbDelete {
        /// The hardware address.
        mac: String,
        /// On which device.
        device: String,
    },
    /// Delete an address with its length (`10.244.1.0/32`).
    AddressDelete {
        /// The address.
        address: String,
        /// On which device.
        device: String,
    },
    /// Delete a device.
    LinkDelete(String),
    /// Set a device down.
    LinkDown(String),
    /// Set a device up.
    LinkUp(String),
    /// Set a device down and up again at once.
    LinkBounce(String),
    /// Give a device another hardware address.
    SetMac {
        /// Which device.
        device: String,
        /// The new hardware address.
        mac: String,
    },
    /// Give a device another MTU.
    SetMtu {
        /// Which device.
        device: String,
        /// The new MTU.
        mtu: u32,
    },
    /// Give a device another name.
    Rename {
        /// Which device.
        device: String,
        /// Its new name.
        to: String,
    },
    /// Put a device under a bridge, as a network manager does with what it finds.
    Enslave(String),
    /// Let a device resolve no addresses.
    ArpOff(String),
    /// Hold a device down that is up.
    ProtoDown(String),
}

/// The bridge that devices are put under.
const BRIDGE: &str = "br-vandal";

impl Node {
    /// Does it.
    pub fn vandalize(&self, deed: &Vandalism) -> Result<()> {
        if matches!(deed, Vandalism::Enslave(_)) {
            // It may be there from the last time.
            let _ = self.namespace().batch("ip", &[format!("link add {BRIDGE} type bridge")]);
        }
        let done = deed
            .commands()
            .into_iter()
            .try_for_each(|(tool, line)| self.namespace().batch(tool, &[line]));
        match deed {
            // Before 6.2 the kernel renames no device that is up.
            Vandalism::Rename { device, to } if done.is_err() => {
                let lines = [
                    format!("link set dev {device} down"),
                    format!("link set dev {device} name {to}"),
                    format!("link set dev {to} up"),
                ];
                // A daemon that is quicker has set it up again before it is renamed.
                let mut done = done;
                for _ in 0..50 {
                    if done.is_ok() {
                        break;
                    }
                    done = self.namespace().batch("ip", &lines);
                }
                done
            }
            _ => done,
        }
    }

    /// Does something bad, chosen at random, to what flannel has made on the node.
    pub fn vandalize_at_random(&self, rng: &mut Rng) -> Result<Vandalism> {
        let mut deeds = self.possible_deeds()?;
        if deeds.is_empty() {
            let number = self.number();
            return Err(LabError::Spec(format!("flannel has made nothing on node {number} yet")));
        }
        let deed = deeds.swap_remove(rng.usize(..deeds.len()));
        self.vandalize(&deed)?;
        Ok(deed)
    }

    /// Everything bad that can be done to what flannel has made on the node.
    pub fn possible_deeds(&self) -> Result<Vec<Vandalism>> {
        let mut deeds = Vec::new();
        let mut devices = Vec::new();
        for link in self.json(&["ip", "-d", "-j", "link", "show"])? {
            let name = text(&link, "ifname");
            if name.starts_with("flannel") {
                let mtu = link["mtu"].as_u64().and_then(|mtu| u32::try_from(mtu).ok());
                // A device that is not Ethernet has no MAC, cannot be put under a bridge and cannot be held down.
                if text(&link, "link_type") == "ether" {
                    let mac = "02:ba:dd:ba:dd:01".into();
                    deeds.push(Vandalism::SetMac { device: name.clone(), mac });
                    deeds.push(Vandalism::Enslave(name.clone()));
                    deeds.push(Vandalism::ArpOff(name.clone()));
                    if text(&link["linkinfo"], "info_kind") != "dummy" {
                        deeds.push(Vandalism::ProtoDown(name.clone()));
                    }
                }
                let mtu = mtu.map_or(1000, |mtu| mtu.saturating_sub(100));
                deeds.push(Vandalism::SetMtu { device: name.clone(), mtu });
                deeds.push(Vandalism::LinkDelete(name.clone()));
                deeds.push(Vandalism::LinkDown(name.clone()));
                deeds.push(Vandalism::LinkBounce(name.clone()));
                deeds.push(Vandalism::Rename { device: name.clone(), to: "renamed0".into() });
                devices.push(name);
            }
        }
        let ours = |entry: &Value| devices.contains(&text(entry, "dev"));
        for family in ["-4", "-6"] {
            for route in self.json(&["ip", "-j", family, "route", "show"])? {
                let to = text(&route, "dst");
                // On a device of flannel's, or through another node as host-gw does.
                let direct = text(&route, "dev") == "eth0" && !text(&route, "gateway").is_empty();
                let own = text(&route, "protocol") == "kernel" || to == "default";
                if !own && (ours(&route) || direct) {
                    deeds.push(Vandalism::RouteDelete(to));
                }
            }
        }
        for device in &devices {
            for entry in self.json(&["ip", "-j", "neigh", "show", "dev", device])? {
                let address = text(&entry, "dst");
                let permanent = entry["state"].to_string().contains("PERMANENT");
                if permanent {
                    deeds.push(Vandalism::NeighbourDelete { address, device: device.clone() });
                }
            }
            for entry in self.json(&["bridge", "-j", "fdb", "show", "dev", device])? {
                if !text(&entry, "dst").is_empty() {
                    let mac = text(&entry, "mac");
                    deeds.push(Vandalism::FdbDelete { mac, device: device.clone() });
                }
            }
            for link in self.json(&["ip", "-j", "addr", "show", "dev", device])? {
                let addresses = link["addr_info"].as_array().cloned().unwrap_or_default();
                for info in addresses.iter().filter(|info| text(info, "scope") == "global") {
                    let address = format!("{}/{}", text(info, "local"), info["prefixlen"]);
                    deeds.push(Vandalism::AddressDelete { address, device: device.clone() });
                }
            }
        }
        Ok(deeds)
    }

    fn json(&self, words: &[&str]) -> Result<Vec<Value>> {
        let answer = self.exec(words)?;
        if answer.trim().is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_str(&answer).map_err(|error| {
            let command = words.join(" ");
            LabError::Spec(format!("{}: `{command}` did not print JSON: {error}", self.label()))
        })
    }
}

impl Vandalism {
    fn commands(&self) -> Vec<(&'static str, String)> {
        let ip = |line: String| vec![("ip", line)];
        let set = |device: &str, what: &str| format!("link set dev {device} {what}");
        match self {
            Self::RouteDelete(to) => ip(format!("route del {to}")),
            Self::NeighbourDelete { address, device } => {
                ip(format!("neigh del {address} dev {device}"))
            }
            Self::FdbDelete { mac, device } => {
                vec![("bridge", format!("fdb del {mac} dev {device} self"))]
            }
            Self::AddressDelete { address, device } => {
                ip(format!("addr del {address} dev {device}"))
            }
            Self::LinkDelete(device) => ip(format!("link del dev {device}")),
            Self::LinkDown(device) => ip(set(device, "down")),
            Self::LinkUp(device) => ip(set(device, "up")),
            Self::LinkBounce(device) => {
                vec![("ip", set(device, "down")), ("ip", set(device, "up"))]
            }
            Self::SetMac { device, mac } => ip(set(device, &format!("address {mac}"))),
            Self::SetMtu { device, mtu } => ip(set(device, &format!("mtu {mtu}"))),
            Self::Rename { device, to } => ip(set(device, &format!("name {to}"))),
            Self::Enslave(device) => ip(set(device, &format!("master {BRIDGE}"))),
            Self::ArpOff(device) => ip(set(device, "arp off")),
            Self::ProtoDown(device) => ip(set(device, "protodown on")),
        }
    }
}

impl fmt::Display for Vandalism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commands: Vec<String> =
            self.commands().iter().map(|(tool, line)| format!("{tool} {line}")).collect();
        f.write_str(&commands.join("; "))
    }
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("").to_owned()
}
