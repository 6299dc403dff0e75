//! What the supervisor does for the commands.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flannel_lab::{
    Etcd, Lab, LabError, Matrix, NamespacePaths, Node, Place as _, PlaceRef, Result, Snapshot,
    Vandalism,
};

use crate::fault::{EtcdDeed, Fault};
use crate::place::PlaceName;
use crate::protocol::{Answer, NodeStatus, Request, Status};

/// How long a pair may take to reach each other before it is shown as broken.
const PING_LIMIT: Duration = Duration::from_secs(3);

/// More places than this are not tried with each other.
const ALL_PAIRS: usize = 250;

/// A lab and what is remembered about it between requests.
#[derive(Debug)]
pub(crate) struct LeaseService {
    pub(crate) lab: Lab,
    begin: Instant,
    snapshot: Mutex<Option<Snapshot>>,
}

impl LeaseService {
    pub(crate) fn new(lab: Lab) -> Self {
        Self { lab, begin: Instant::now(), snapshot: Mutex::default() }
    }

    pub(crate) fn answer(&self, request: Request) -> Answer {
        let answer = match request {
            Request::Status => Ok(Answer::Status(Box::new(self.status()))),
            Request::Matrix => self.matrix().map(Answer::Matrix),
            Request::Enter(place) => self.enter(&place).map(Answer::Enter),
            Request::Fault(fault) => self.fault(fault).map(Answer::Done),
            Request::Down => Ok(Answer::Done(String::new())),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    fn status(&self) -> Status {
        let lab = &self.lab;
        let config = lab.spec().network_config();
        let backend = config["Backend"]["Type"].as_str().unwrap_or("udp").to_owned();
        let pods = lab.pods();
        let nodes = lab.nodes().iter().map(|node| {
            let text = |address: &std::net::IpAddr| address.to_string();
            let own = pods.iter().filter(|pod| pod.node() == node.number());
            NodeStatus {
                number: node.number(),
                underlay: node.addresses().iter().map(text).collect(),
                subnets: subnets(node),
                pods: own.flat_map(|pod| pod.addresses()).map(|address| text(&address)).collect(),
                flanneld: daemon(node),
            }
        });
        Status {
            backend,
            supervisor: std::process::id(),
            up_seconds: self.begin.elapsed().as_secs(),
            etcd: lab.etcd().ok().map(store),
            nodes: nodes.collect(),
            faults: lab.standing_faults(),
        }
    }

    /// Between all pods; between the nodes if there are no pods. In labs so large that their pairs
    /// would overflow the machine's neighbour table, each is tried with the next one only.
    fn matrix(&self) -> Result<Matrix> {
        let pods = self.lab.pods();
        let places: Vec<&dyn PlaceRef> = if pods.is_empty() {
            self.lab.nodes().iter().map(|node| node as &dyn PlaceRef).collect()
        } else {
            pods.iter().map(|pod| pod as &dyn PlaceRef).collect()
        };
        let count = places.len();
        let wanted = |from: usize, to: usize| count <= ALL_PAIRS || (from + 1) % count == to;
        self.lab.matrix_where(&places, PING_LIMIT, wanted)
    }

    fn enter(&self, place: &PlaceName) -> Result<NamespacePaths> {
        match place {
            PlaceName::Node(number) => Ok(self.lab.try_node(*number)?.namespace().paths()),
            PlaceName::Pod(node, _) => {
                self.lab.try_node(*node)?;
                let label = place.label();
                let pods = self.lab.pods();
                let pod = pods.iter().find(|pod| pod.label() == label);
                let missing = || LabError::Spec(format!("there is no {label}"));
                Ok(pod.ok_or_else(missing)?.namespace().paths())
            }
            PlaceName::Etcd(member) => Ok(self.lab.etcd()?.namespace(*member)?.paths()),
            PlaceName::Switch => Ok(self.lab.switch().paths()),
        }
    }

    fn fault(&self, fault: Fault) -> Result<String> {
        let lab = &self.lab;
        let node = |number: u16| lab.try_node(number);
        let vandal = |number: u16, deed: Vandalism| -> Result<String> {
            lab.try_node(number)?.vandalize(&deed)?;
            Ok(format!("node {number}: {deed}"))
        };
        Ok(match fault {
            Fault::Partition { left, right } => {
                lab.cut(&left, &right)?;
                lab.standing_faults().join("\n")
            }
            Fault::Heal => {
                lab.heal()?;
                "all cables are plugged in and lose nothing".into()
            }
            Fault::Loss { participant, percent } => {
                lab.loss(participant, percent)?;
                format!("{participant} loses {percent} % of its packets")
            }
            Fault::Delay { participant, milliseconds } => {
                lab.delay(participant, Duration::from_millis(milliseconds))?;
                format!("packets to {participant} are delayed by {milliseconds} ms")
            }
            Fault::Unplug { node: number } => {
                node(number)?.unplug()?;
                format!("node {number} is unplugged")
            }
            Fault::Plug { node: number } => {
                node(number)?.plug()?;
                format!("node {number} is plugged in")
            }
            Fault::NicDown { node: number } => {
                node(number)?.nic_down()?;
                format!("node {number}: eth0 is down")
            }
            Fault::NicUp { node: number } => {
                node(number)?.nic_up()?;
                format!("node {number}: eth0 is up")
            }
            Fault::NicReplace { node: number } => {
                lab.replace_nic(number)?;
                format!("node {number} has a new eth0")
            }
            Fault::Address { node: number, address } => {
                lab.change_address(number, address)?;
                format!("node {number} has the address {address}")
            }
            Fault::Mtu { node: number, mtu } => {
                node(number)?.set_underlay_mtu(mtu)?;
                format!("node {number}: eth0 has MTU {mtu}")
            }
            Fault::Kill { node: number } => {
                node(number)?.flanneld().kill9();
                format!("flanneld on node {number} is killed")
            }
            Fault::Stop { node: number } => {
                node(number)?.flanneld().stop()?;
                format!("flanneld on node {number} has stopped")
            }
            Fault::Pause { node: number } => {
                node(number)?.flanneld().pause()?;
                format!("flanneld on node {number} is frozen")
            }
            Fault::Resume { node: number } => {
                node(number)?.flanneld().resume()?;
                format!("flanneld on node {number} goes on")
            }
            Fault::Restart { node: number, binary } => {
                let daemon = node(number)?.flanneld();
                match binary {
                    Some(binary) => daemon.restart_with(&binary)?,
                    None => daemon.restart()?,
                }
                format!("flanneld on node {number} is ready")
            }
            Fault::Etcd { deed } => self.etcd(deed)?,
            Fault::RouteDel { node, to } => vandal(node, Vandalism::RouteDelete(to))?,
            Fault::NeighDel { node, address, device } => {
                let address = address.to_string();
                vandal(node, Vandalism::NeighbourDelete { address, device })?
            }
            Fault::FdbDel { node, mac, device } => {
                vandal(node, Vandalism::FdbDelete { mac, device })?
            }
            Fault::AddrDel { node, address, device } => {
                vandal(node, Vandalism::AddressDelete { address, device })?
            }
            Fault::LinkDel { node, device } => vandal(node, Vandalism::LinkDelete(device))?,
            Fault::LinkDown { node, device } => vandal(node, Vandalism::LinkDown(device))?,
            Fault::LinkUp { node, device } => vandal(node, Vandalism::LinkUp(device))?,
            Fault::LinkBounce { node, device } => vandal(node, Vandalism::LinkBounce(device))?,
            Fault::SetMac { node, device, mac } => vandal(node, Vandalism::SetMac { device, mac })?,
            Fault::SetMtu { node, device, mtu } => vandal(node, Vandalism::SetMtu { device, mtu })?,
            Fault::Vandal { node: number, seed } => {
                let seed = seed.unwrap_or_else(|| fastrand::u64(..));
                let mut rng = fastrand::Rng::with_seed(seed);
                let deed = node(number)?.vandalize_at_random(&mut rng)?;
                format!("node {number}: {deed}   (seed {seed})")
            }
        })
    }

    fn etcd(&self, deed: EtcdDeed) -> Result<String> {
        let etcd = self.lab.etcd()?;
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match deed {
            EtcdDeed::Kill => {
                etcd.kill();
                "etcd is killed"
            }
            EtcdDeed::Stop => {
                etcd.stop()?;
                "etcd has stopped"
            }
            EtcdDeed::Restart => {
                etcd.restart()?;
                "etcd runs"
            }
            EtcdDeed::Pause => {
                etcd.pause()?;
                "etcd is frozen"
            }
            EtcdDeed::Resume => {
                etcd.resume()?;
                "etcd goes on"
            }
            EtcdDeed::Snapshot => {
                *snapshot = Some(etcd.snapshot()?);
                "a copy of etcd's data is kept"
            }
            EtcdDeed::Restore => {
                let missing =
                    || LabError::Spec("no copy is kept: `etcd snapshot` makes one".into());
                etcd.restore(snapshot.as_ref().ok_or_else(missing)?)?;
                "etcd has gone back to the copy"
            }
        };
        Ok(text.into())
    }
}

fn subnets(node: &Node) -> Vec<String> {
    let Ok(env) = node.subnet_env() else { return Vec::new() };
    let v4 = env.subnet.map(|net| net.trunc().to_string());
    v4.into_iter().chain(env.subnet6.map(|net| net.trunc().to_string())).collect()
}

fn daemon(node: &Node) -> String {
    let daemon = node.flanneld();
    let Some(pid) = daemon.pid() else { return "not running".into() };
    let binary = daemon.binary().map(|path| path.display().to_string()).unwrap_or_default();
    format!("pid {pid}  {binary}")
}

fn store(etcd: &Etcd) -> String {
    let pids: Vec<String> = (0..etcd.members())
        .map(|member| etcd.pid(member).map_or("not running".into(), |pid| format!("pid {pid}")))
        .collect();
    format!("{}  {}", etcd.endpoints(), pids.join(" "))
}
