//! The underlay: one switch namespace with a bridge per segment, and a cable to every participant.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::filter::Filters;
use crate::namespace::{Namespace, View};
use crate::offload::wire_like;
use crate::pid_namespace::PidNamespace;
use crate::plan::{Nic, Plan, mac_text};

/// The switch that all nodes are plugged into. It routes between segments.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) namespace: Namespace,
    pub(crate) filters: Mutex<Filters>,
}

impl Switch {
    pub(crate) fn new(pid_namespace: &Arc<PidNamespace>, plan: &Plan) -> Result<Self> {
        let namespace = Namespace::new(pid_namespace, "switch", View::Host)?;
        namespace.sysctls(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/conf/default/accept_dad", "0"),
        ])?;
        let mut lines = vec!["link set dev lo up".to_owned()];
        for segment in plan.segments() {
            let (bridge, mac) = (&segment.bridge, mac_text(segment.mac));
            // Snooping would hold back neighbour discovery until a querier shows up.
            lines.push(format!(
                "link add dev {bridge} address {mac} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
            ));
            if let Some(net) = segment.v4 {
                lines.push(format!("addr add {net} dev {bridge}"));
            }
            if let Some(net) = segment.v6 {
                lines.push(format!("addr add {net} dev {bridge} nodad"));
            }
            lines.push(format!("link set dev {bridge} up"));
        }
        namespace.batch("ip", &lines)?;
        Ok(Self { namespace, filters: Mutex::default() })
    }

    /// Plugs participants in; each gets a device `eth0`, down and without addresses.
    pub(crate) fn plug<'a>(
        &self,
        participants: impl IntoIterator<Item = (&'a Nic, &'a Namespace)>,
    ) -> Result<()> {
        let mut lines = Vec::new();
        let mut wires = Vec::new();
        for (nic, namespace) in participants {
            if nic.wire {
                wires.push(nic.port.clone());
            }
            let Nic { port, mtu, .. } = nic;
            let (mac, inside) = (mac_text(nic.mac), namespace.paths().net);
            let mut line = format!("link add dev {port} mtu {mtu} type veth peer name eth0 ");
            let _ = write!(line, "address {mac} mtu {mtu} netns {}", inside.display());
            lines.push(line);
            lines.push(format!("link set dev {port} master {} up", nic.bridge()));
        }
        self.namespace.batch("ip", &lines)?;
        if wires.is_empty() { Ok(()) } else { wire_like(&self.namespace, &wires) }
    }

    /// Pulls or puts back the cable of a participant.
    pub(crate) fn set_port(&self, nic: &Nic, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        self.namespace.batch("ip", &[format!("link set dev {} {state}", nic.port)])
    }

    pub(crate) fn set_port_mtu(&self, nic: &Nic, mtu: u32) -> Result<()> {
        self.namespace.batch("ip", &[format!("link set dev {} mtu {mtu}", nic.port)])
    }
}

/// Brings a plugged-in participant on the air.
pub(crate) fn configure(namespace: &Namespace, nic: &Nic, neighbours: &[String]) -> Result<()> {
    // Only for the cable: what a daemon makes on the node lives with the kernel's defaults.
    namespace.sysctl("net/ipv6/conf/eth0/accept_dad", "0")?;
    if nic.wire {
        wire_like(namespace, &["eth0".to_owned()])?;
    }
    namespace.batch("ip", &[&nic.configure(), neighbours].concat())
}
