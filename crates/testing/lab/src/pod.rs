//! Pods: namespaces behind a bridge on a node, with the addresses that flannel gave to the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::error::{LabError, Result};
use crate::namespace::{Namespace, View};
use crate::node::{Node, Place};
use crate::pid_namespace::PidNamespace;
use crate::process::Process;
use crate::subnet_env::SubnetEnv;

/// The bridge that a CNI plugin would make.
const BRIDGE: &str = "cni0";

/// A pod; clones are the same pod.
#[derive(Clone, Debug)]
pub struct Pod(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: u16,
    on: Namespace,
    namespace: Namespace,
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.namespace.hide_on(&self.on);
    }
}

/// The pods' bridge on a node and how many pods it has had.
#[derive(Debug)]
pub(crate) struct PodBridge {
    env: SubnetEnv,
    pods: u16,
}

impl Pod {
    pub(crate) fn new(pid_namespace: &Arc<PidNamespace>, node: &Node) -> Result<Self> {
        let env = node.subnet_env()?;
        let mut bridge = node.bridge.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = Vec::new();
        let pods = match &*bridge {
            Some(bridge) if bridge.env == env => bridge.pods,
            // The node has another subnet now: the bridge moves there, older pods are stranded.
            Some(_) => {
                lines.push(format!("addr flush dev {BRIDGE}"));
                lines.extend(bridge_lines(&env));
                0
            }
            None => {
                let mtu = env.mtu;
                node.namespace().batch("ip", &[format!(
                    "link add dev {BRIDGE} mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
                )])?;
                // Without a usable link-local address the node asks for no neighbour.
                node.namespace().sysctl(&format!("net/ipv6/conf/{BRIDGE}/accept_dad"), "0")?;
                lines.extend(bridge_lines(&env));
                0
            }
        };
        let index = pods + 1;
        let (v4, v6) = addresses(&env, index)?;
        let number = node.number();
        let label =
            if index == 1 { format!("pod{number}") } else { format!("pod{number}.{index}") };
        let namespace = Namespace::new(pid_namespace, &label, View::PodOf(node.namespace()))?;
        let (mtu, inside) = (env.mtu, namespace.paths().net);
        let port = format!("veth{}", fastrand::u32(..));
        lines.push(format!(
            "link add dev {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}",
            inside.display()
        ));
        lines.push(format!("link set dev {port} master {BRIDGE} up"));
        node.namespace().batch("ip", &lines)?;
        *bridge = Some(PodBridge { env: env.clone(), pods: index });
        drop(bridge);

        namespace.sysctl("net/ipv6/conf/eth0/accept_dad", "0")?;
        let mut lines = vec!["link set dev lo up".to_owned(), "link set dev eth0 up".to_owned()];
        if let (Some(net), Some(gateway)) = (v4, env.subnet) {
            lines.push(format!("addr add {net} dev eth0"));
            lines.push(format!("route add default via {}", gateway.addr()));
        }
        if let (Some(net), Some(gateway)) = (v6, env.subnet6) {
            lines.push(format!("addr add {net} dev eth0 nodad"));
            lines.push(format!("route add ::/0 via {}", gateway.addr()));
        }
        namespace.batch("ip", &lines)?;
        namespace.show_on(node.namespace())?;
        let on = node.namespace().clone();
        Ok(Self(Arc::new(Inner { node: number, on, namespace, v4, v6 })))
    }

    /// The number of its node.
    pub fn node(&self) -> u16 {
        self.0.node
    }

    /// Its IPv4 address.
    pub fn v4(&self) -> Option<Ipv4Addr> {
        self.0.v4.map(|net| net.addr())
    }

    /// Its IPv6 address.
    pub fn v6(&self) -> Option<Ipv6Addr> {
        self.0.v6.map(|net| net.addr())
    }

    /// Runs a command in the pod and returns what it printed; a failing status is an error.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        self.0.namespace.exec(words)
    }

    /// As [`Self::exec`], for a command that may take longer (or must take less) than a minute.
    pub fn exec_within(&self, limit: Duration, words: &[&str]) -> Result<String> {
        self.0.namespace.exec_within(limit, words)
    }

    /// Starts a command in the pod that runs until the handle is dropped or the lab ends.
    pub fn spawn(&self, command: Command) -> Result<Process> {
        self.0.namespace.spawn(command)
    }

    /// Runs a closure on a thread inside the pod's namespace; see [`Namespace::run`].
    pub fn in_netns<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        self.0.namespace.run(work)
    }
}

impl Place for Pod {
    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.v4().map(IpAddr::V4).into_iter().chain(self.v6().map(IpAddr::V6)).collect()
    }
}

fn bridge_lines(env: &SubnetEnv) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(net) = env.subnet {
        lines.push(format!("addr add {net} dev {BRIDGE}"));
    }
    if let Some(net) = env.subnet6 {
        lines.push(format!("addr add {net} dev {BRIDGE} nodad"));
    }
    lines.push(format!("link set dev {BRIDGE} up"));
    lines
}

/// The addresses that follow the bridge's own.
fn addresses(env: &SubnetEnv, index: u16) -> Result<(Option<Ipv4Net>, Option<Ipv6Net>)> {
    let full = || LabError::Spec(format!("no room for pod {index} in the node's subnet"));
    let v4 = env.subnet.map(|net| {
        let address = Ipv4Addr::from(u32::from(net.addr()) + u32::from(index));
        let inside = net.contains(&address) && address != net.broadcast();
        inside.then(|| Ipv4Net::new_assert(address, net.prefix_len())).ok_or_else(full)
    });
    let v6 = env.subnet6.map(|net| {
        let address = Ipv6Addr::from(u128::from(net.addr()) + u128::from(index));
        let inside = net.contains(&address);
        inside.then(|| Ipv6Net::new_assert(address, net.prefix_len())).ok_or_else(full)
    });
    Ok((v4.transpose()?, v6.transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_get_the_addresses_after_the_bridge_until_the_subnet_is_full() {
        let env = SubnetEnv {
            subnet: Some("10.244.40.1/24".parse().unwrap()),
            subnet6: Some("fd00:244:0:24::1/64".parse().unwrap()),
            ..SubnetEnv::default()
        };
        let (v4, v6) = addresses(&env, 1).unwrap();
        assert_eq!(v4.unwrap().to_string(), "10.244.40.2/24");
        assert_eq!(v6.unwrap().to_string(), "fd00:244:0:24::2/64");
        assert_eq!(addresses(&env, 253).unwrap().0.unwrap().to_string(), "10.244.40.254/24");
        assert!(addresses(&env, 254).is_err());
    }
}
