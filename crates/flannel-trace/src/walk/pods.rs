//! Between a pod of this node and its bridge.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use flannel_kernel::Mac;
use flannel_kernel::look::Device;
use ipnet::IpNet;

use super::{ARP, POLL, Walk, nudge};
use crate::hop::Hops;
use crate::judge;

impl Walk<'_> {
    /// By which device it comes in.
    pub(super) fn leave_pod(&mut self, hops: &mut Hops, pod: IpAddr) -> io::Result<Option<String>> {
        let Some(bridge) = self.pods_device(pod) else {
            self.no_bridge(hops);
            return Ok(None);
        };
        Ok(self.on_the_bridge(hops, pod, &bridge)?.then_some(bridge.name))
    }

    pub(super) fn no_bridge(&self, hops: &mut Hops) -> bool {
        let own: Vec<String> = self.node.own.iter().map(ToString::to_string).collect();
        let own = own.join(" ");
        hops.wrong(
            "bridge",
            format!("no device of this node has an address of {own}, so pods have no gateway"),
            "restart the pods of this node: the CNI plugin makes the bridge",
        );
        false
    }

    /// Whether the pod is there, and the bridge passes its packets on.
    pub(super) fn on_the_bridge(
        &mut self,
        hops: &mut Hops,
        pod: IpAddr,
        bridge: &Device,
    ) -> io::Result<bool> {
        if !hops.take("bridge", judge::bridge(bridge)) {
            return Ok(false);
        }
        let name = &bridge.name;
        let Some(found) = self.resolve(pod, bridge)? else {
            hops.wrong(
                "pod",
                format!(
                    "nobody on {name} answers for {pod}: the pod is gone, or its interface is down"
                ),
                "look for the pod (crictl pods, kubectl get pod -o wide), and restart it",
            );
            return Ok(false);
        };
        let is_bridge = bridge.kind == "bridge";
        let ports: Vec<Device> = self
            .kernel
            .devices
            .iter()
            .filter(|port| port.master == Some(bridge.index))
            .cloned()
            .collect();
        let mut port = self.port_of(&ports, found.mac)?;
        if port.is_none() && is_bridge {
            // A bridge forgets those who are silent, and all that is behind a port that goes down.
            nudge(pod);
            let deadline = Instant::now() + ARP;
            while port.is_none() && Instant::now() < deadline {
                std::thread::sleep(POLL);
                port = self.port_of(&ports, found.mac)?;
            }
        }
        match port {
            // One with too large an MTU passes packets all the same.
            Some(port) => {
                hops.take("veth", judge::veth(port, pod, found.mac, self.node.mtu));
                Ok(port.up && port.carrier)
            }
            None if is_bridge && found.learned => {
                Ok(hops.take("veth", Err(judge::no_veth(name, pod, found.mac, &ports))))
            }
            None => {
                let what = format!(
                    "{pod} is {}, and {name} does not know on which of its ports",
                    found.mac
                );
                hops.unknown("veth", what);
                Ok(true)
            }
        }
    }

    fn port_of<'d>(&mut self, ports: &'d [Device], mac: Mac) -> io::Result<Option<&'d Device>> {
        for port in ports {
            if self.kernel.fdb(port.index)?.iter().any(|entry| entry.mac == mac) {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }

    /// The bridge of pods, or whatever else has the gateway of this node's subnet.
    pub(super) fn pods_device(&self, pod: IpAddr) -> Option<Device> {
        let leads = |net: &&IpNet| net.contains(&pod) && net.prefix_len() < net.max_prefix_len();
        let ours = |device: &&Device| !self.node.devices.contains(&device.name);
        let mut devices = self.kernel.devices.iter().filter(ours);
        devices.find(|device| device.addresses.iter().any(|net| leads(&net))).cloned()
    }
}
