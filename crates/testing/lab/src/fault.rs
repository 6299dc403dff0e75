//! Faults of the underlay: cables, cards, addresses, partitions, loss.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};
use crate::filter::Filters;
use crate::lab::Lab;
use crate::node::{Node, Place as _};
use crate::plan::Nic;

/// Who is plugged into the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Participant {
    /// A node by its number.
    Node(u16),
    /// All members of the store.
    Etcd,
    /// One member of the store, from 0.
    EtcdMember(usize),
}

impl Lab {
    /// Cuts the nodes of one side off from those of the other; both sides still reach the store
    /// and whoever is on neither side.
    pub fn partition(&self, left: &[u16], right: &[u16]) -> Result<()> {
        let side = |nodes: &[u16]| nodes.iter().copied().map(Participant::Node).collect::<Vec<_>>();
        self.cut(&side(left), &side(right))
    }

    /// Cuts nodes off from the store, but not from each other.
    pub fn partition_from_store(&self, nodes: &[u16]) -> Result<()> {
        let nodes: Vec<_> = nodes.iter().copied().map(Participant::Node).collect();
        self.cut(&nodes, &[Participant::Etcd])
    }

    /// Cuts every pair of two sides, in addition to what is cut already.
    pub fn cut(&self, left: &[Participant], right: &[Participant]) -> Result<()> {
        let (left, right) = (self.ports(left)?, self.ports(right)?);
        if let Some(both) = left.iter().find(|port| right.contains(port)) {
            return Err(LabError::Spec(format!("{both} cannot be on both sides of a partition")));
        }
        self.change_filters(|filters| filters.cut(&left, &right))
    }

    /// Lets a share of what passes a participant's cable get lost, in each direction; 0 ends it.
    pub fn loss(&self, participant: Participant, percent: f64) -> Result<()> {
        if !(0.0..=100.0).contains(&percent) {
            return Err(LabError::Spec(format!("a loss of {percent} %: 0 to 100 are possible")));
        }
        let ports = self.ports(&[participant])?;
        // In range, as was just checked.
        let millionths = (percent * 10_000.0) as u32;
        self.change_filters(|filters| {
            for port in ports {
                if millionths == 0 {
                    filters.loss.remove(&port);
                } else {
                    filters.loss.insert(port, millionths);
                }
            }
        })
    }

    /// Delays everything towards a participant. Needs a kernel with netem.
    pub fn delay(&self, participant: Participant, delay: Duration) -> Result<()> {
        let micros = delay.as_micros();
        let ports = self.ports(&[participant])?;
        let lines: Vec<String> = ports
            .iter()
            .map(|port| format!("qdisc replace dev {port} root netem delay {micros}us"))
            .collect();
        self.switch.namespace.batch("tc", &lines).map_err(|error| {
            needs(error, "qdisc kind is unknown", "a delay", "netem in the kernel (sch_netem)")
        })?;
        self.filters().delayed.extend(ports);
        Ok(())
    }

    /// Ends all partitions, losses and delays and puts all cables back.
    pub fn heal(&self) -> Result<()> {
        self.change_filters(|filters| {
            filters.cut.clear();
            filters.loss.clear();
        })?;
        let delayed = std::mem::take(&mut self.filters().delayed);
        let lines: Vec<String> =
            delayed.iter().map(|port| format!("qdisc del dev {port} root")).collect();
        self.switch.namespace.batch("tc", &lines)?;
        let up = |nic: &Nic| format!("link set dev {} up", nic.port);
        self.switch.namespace.batch("ip", &self.nics().iter().map(up).collect::<Vec<_>>())
    }

    /// The partitions and losses that stand at present, one line each.
    pub fn standing_faults(&self) -> Vec<String> {
        let filters = self.filters();
        let name = |port: &str| match port.split_at_checked(1) {
            Some(("p", number)) => format!("node {number}"),
            Some(("s", member)) => format!("etcd member {member} (from 0)"),
            _ => port.to_owned(),
        };
        let cuts = filters.cut.iter().filter(|(from, to)| from < to);
        let cuts = cuts.map(|(from, to)| format!("{} and {} are cut off", name(from), name(to)));
        let losses = filters.loss.iter().map(|(port, millionths)| {
            format!("{} loses {} % of its packets", name(port), f64::from(*millionths) / 10_000.0)
        });
        let delays = filters.delayed.iter().map(|port| format!("{} is delayed", name(port)));
        cuts.chain(losses).chain(delays).collect()
    }

    fn change_filters(&self, change: impl FnOnce(&mut Filters)) -> Result<()> {
        let mut filters = self.filters();
        change(&mut filters);
        let nics = self.nics();
        let lines: Vec<String> = nics.iter().flat_map(|nic| filters.commands(nic, &nics)).collect();
        self.switch.namespace.batch("tc", &lines).map_err(|error| {
            let needed = "the kernel's BPF classifier (cls_bpf)";
            needs(error, "classifier not found", "dropping packets", needed)
        })
    }

    fn filters(&self) -> MutexGuard<'_, Filters> {
        self.switch.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nics(&self) -> Vec<Nic> {
        let nodes = self.nodes().iter().map(Node::nic);
        let store = self.etcd().map(|etcd| etcd.participants().cloned().collect::<Vec<_>>());
        nodes.chain(store.unwrap_or_default()).collect()
    }

    fn ports(&self, participants: &[Participant]) -> Result<Vec<String>> {
        let mut ports = Vec::new();
        for participant in participants {
            match *participant {
                Participant::Node(number) => ports.push(self.try_node(number)?.nic().port),
                Participant::Etcd => {
                    ports.extend(self.etcd()?.participants().map(|nic| nic.port.clone()));
                }
                Participant::EtcdMember(member) => {
                    let nic = self.etcd()?.participants().nth(member);
                    let missing = || LabError::Spec(format!("etcd has no member {}", member + 1));
                    ports.push(nic.ok_or_else(missing)?.port.clone());
                }
            }
        }
        Ok(ports)
    }

    /// Takes a node's card out and puts an equal one in: same hardware address, same addresses,
    /// another interface index.
    pub fn replace_nic(&self, number: u16) -> Result<()> {
        let node = self.try_node(number)?;
        let nic = node.nic();
        self.switch.namespace.batch("ip", &[format!("link del dev {}", nic.port)])?;
        self.switch.plug([(&nic, node.namespace())])?;
        node.configure_nic()?;
        self.change_filters(|filters| {
            filters.hooked.remove(&nic.port);
            filters.delayed.remove(&nic.port);
        })
    }

    /// Gives a node another underlay address in place of the one of that family.
    pub fn change_address(&self, number: u16, address: IpAddr) -> Result<()> {
        let node = self.try_node(number)?;
        if let Some(taken) = self.nics().iter().find(|nic| nic.addresses().contains(&address)) {
            return Err(LabError::Spec(format!("{address} belongs to {} already", taken.port)));
        }
        node.change_address(address)?;
        // Partitions between segments go by address.
        self.change_filters(|_| {})
    }
}

impl Node {
    /// Pulls the node's cable out of the switch: its device loses the carrier.
    pub fn unplug(&self) -> Result<()> {
        self.switch.set_port(&self.nic(), false)
    }

    /// Puts the cable back.
    pub fn plug(&self) -> Result<()> {
        self.switch.set_port(&self.nic(), true)
    }

    /// Sets the node's device down; the kernel removes its routes and IPv6 addresses.
    pub fn nic_down(&self) -> Result<()> {
        self.namespace().batch("ip", &["link set dev eth0 down".to_owned()])
    }

    /// Sets the node's device up and restores its addresses and default routes, as a network manager
    /// would.
    pub fn nic_up(&self) -> Result<()> {
        self.configure_nic()
    }

    /// Changes the MTU of the node's device and of the switch's end of the cable.
    pub fn set_underlay_mtu(&self, mtu: u32) -> Result<()> {
        let mut nic = self.nic_mut();
        self.switch.set_port_mtu(&nic, mtu)?;
        self.namespace().batch("ip", &[format!("link set dev eth0 mtu {mtu}")])?;
        nic.mtu = mtu;
        Ok(())
    }

    fn change_address(&self, address: IpAddr) -> Result<()> {
        let mut nic = self.nic_mut();
        let old = match address {
            IpAddr::V4(new) => {
                let old = nic.v4;
                let fits = old.filter(|old| old.contains(&new)).map(|old| old.prefix_len());
                nic.v4 = fits.map(|length| Ipv4Net::new_assert(new, length)).or(old);
                fits.and(old).map(|old| old.to_string())
            }
            IpAddr::V6(new) => {
                let old = nic.v6;
                let fits = old.filter(|old| old.contains(&new)).map(|old| old.prefix_len());
                nic.v6 = fits.map(|length| Ipv6Net::new_assert(new, length)).or(old);
                fits.and(old).map(|old| old.to_string())
            }
        };
        let Some(old) = old else {
            let number = self.number();
            return Err(LabError::Spec(format!("{address} is in no network of node {number}")));
        };
        let mut lines = vec![format!("addr del {old} dev eth0")];
        lines.extend(nic.address_lines());
        self.namespace().batch("ip", &lines)
    }
}

impl fmt::Display for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(number) => write!(f, "node {number}"),
            Self::Etcd => f.write_str("etcd"),
            Self::EtcdMember(member) => write!(f, "etcd member {}", member + 1),
        }
    }
}

impl FromStr for Participant {
    type Err = String;

    /// `2`, `node2`, `etcd` (all members), `etcd2` (one).
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: a node's number, `etcd`, or `etcd1` to `etcd3`");
        if let Some(member) = text.strip_prefix("etcd") {
            if member.is_empty() {
                return Ok(Self::Etcd);
            }
            let member: usize = member.parse().map_err(|_| wrong())?;
            return member.checked_sub(1).map(Self::EtcdMember).ok_or_else(wrong);
        }
        let number = text.strip_prefix("node").unwrap_or(text);
        number.parse().map(Self::Node).map_err(|_| wrong())
    }
}

/// Turns the failure of a command into what the kernel lacks, if it says so.
fn needs(error: LabError, sign: &str, what: &str, needed: &str) -> LabError {
    match error {
        LabError::Command { stderr, .. } if stderr.contains(sign) => {
            LabError::Unsupported { what: what.into(), needs: needed.into() }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn participants_are_named_as_people_name_them() {
        assert_eq!("2".parse(), Ok(Participant::Node(2)));
        assert_eq!("node12".parse(), Ok(Participant::Node(12)));
        assert_eq!("etcd".parse(), Ok(Participant::Etcd));
        assert_eq!("etcd3".parse(), Ok(Participant::EtcdMember(2)));
        for wrong in ["", "etcd0", "node", "pod1", "-1"] {
            assert!(wrong.parse::<Participant>().is_err(), "{wrong}");
        }
    }
}
