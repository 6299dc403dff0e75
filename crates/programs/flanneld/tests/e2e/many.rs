//! Several daemons on one node, and many nodes in one network.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flannel_lab::{Lab, PingOptions, Place as _, Process, Result, SubnetEnv};
use serde_json::json;

use crate::support::{Kernel, LIMIT, connected_pods, flanneld, lab, measured, reach_each_other};

/// A second network beside the lab's own: another prefix, another subnet file.
struct Second<'a> {
    lab: &'a Lab,
    name: &'static str,
}

impl Second<'_> {
    fn start(&self, node: u16) -> Result<Process> {
        let mut command = Command::new(flanneld());
        command.arg("--iface=eth0");
        command.arg(format!("--etcd-endpoints={}", self.lab.etcd()?.endpoints()));
        command.arg(format!("--etcd-prefix=/{}/network", self.name));
        command.arg(format!("--subnet-file={}", self.file()));
        command.stderr(Stdio::null());
        self.lab.node(node).spawn(command)
    }

    fn file(&self) -> String {
        format!("/run/flannel/{}.env", self.name)
    }

    fn env(&self, node: u16) -> Result<SubnetEnv> {
        let text = self.lab.wait_until("the second subnet file", LIMIT, || {
            self.lab.node(node).read_file(self.file())
        })?;
        Ok(SubnetEnv::parse(&text).unwrap())
    }
}

/// Contract: two daemons with their own prefix and subnet file do not know of each other.
fn live_beside(config: serde_json::Value, route: &str) -> Result<()> {
    let lab = lab(2).no_daemons().start()?;
    let second = Second { lab: &lab, name: "second" };
    lab.etcd()?.put("/second/network/config", config.to_string())?;
    let daemons = [second.start(1)?, second.start(2)?];
    let addresses = [second.env(1)?, second.env(2)?].map(|env| env.subnet.unwrap().addr());
    for (number, address) in (1..).zip(addresses) {
        lab.node(number).ip(&format!("addr add {address}/32 dev lo"))?;
    }
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    let second_reaches = || {
        lab.ping_address(lab.node(1), addresses[1].into(), PingOptions::default())?;
        lab.ping_address(lab.node(2), addresses[0].into(), PingOptions::default())
    };
    lab.wait_until("the second network", LIMIT, second_reaches)?;
    let found = lab.node(1).ip(&format!("route get {}", addresses[1]))?;
    assert!(found.contains(route), "{found}");

    // Neither disturbs the other, whatever happens to it.
    let networks = ["10.244.0.0/16", "10.99.0.0/16"];
    let mut kernel = Kernel::with_networks(lab.node(1), &networks)?;
    let before = kernel.held();
    lab.node(1).flanneld().kill9();
    lab.node(1).flanneld().restart()?;
    assert_eq!(kernel.held(), before);
    drop(daemons);
    let _daemons = [second.start(1)?, second.start(2)?];
    lab.node(1).ip("link set flannel.1 down")?;
    std::thread::sleep(Duration::from_secs(1));
    lab.wait_until("all as it was", LIMIT, || kernel.held() == before)?;
    reach_each_other(&lab, &one, &two)?;
    second_reaches().map(drop)
}

#[test]
fn a_network_of_host_gw_lives_beside_one_of_vxlan_on_the_same_nodes() -> Result<()> {
    live_beside(json!({"Network": "10.99.0.0/16", "Backend": {"Type": "host-gw"}}), "dev eth0")
}

#[test]
fn two_networks_of_vxlan_live_on_the_same_nodes() -> Result<()> {
    let backend = json!({"Type": "vxlan", "VNI": 2});
    live_beside(json!({"Network": "10.99.0.0/16", "Backend": backend}), "dev flannel.2")
}

#[test]
fn flannel_958_forty_nodes_that_start_together_all_reach_each_other() -> Result<()> {
    let begin = Instant::now();
    let lab = lab(40).ready_limit(Duration::from_secs(60)).start()?;
    measured(format_args!("40 nodes made and ready after {:.1?}", begin.elapsed()));
    let begin = Instant::now();
    for node in lab.nodes() {
        let mut kernel = Kernel::of(node)?;
        lab.wait_until(&format!("all peers on {}", node.label()), LIMIT, || {
            let held = kernel.held();
            if held.len() == 2 + 3 * 39 { Ok(()) } else { Err(format!("{} lines", held.len())) }
        })?;
    }
    measured(format_args!("every node knew every other {:.1?} later", begin.elapsed()));
    for number in [1, 2, 13, 27, 40] {
        lab.pod(number)?;
    }
    lab.matrix(Duration::from_secs(10))?.check()
}
