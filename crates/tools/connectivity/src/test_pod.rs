//! A test pod of this node, in a thread of its own: it blocks in the kernel, and lives for seconds.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flannel_common::{Work, Worker};
use flannel_lease::Subnet;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::in_kernel::{PodInKernel, unspecified};
use crate::pod::{Outgoing, PodTalk, Target};
use crate::protocol::{Pod, TrialResult};

/// How often it is looked whether something is to be said again.
const TICK: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_secs(5);
const QUEUE: usize = 16;

#[derive(Clone, Debug)]
pub struct PodPlan {
    /// How the request names this node.
    pub named: String,
    pub subnet: Subnet,
    pub mtu: u32,
    pub port: u16,
    /// The node's own addresses towards other nodes.
    pub underlay: [Option<IpAddr>; 2],
    /// Whether what the node itself sends into the network is masqueraded.
    pub masquerades: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PodEvent {
    Ready(Pod),
    Found(Box<TrialResult>),
    /// All that were to be tried have been.
    Done,
    Failed(String),
}

/// It goes, with all that it has made, when this is dropped. Nobody waits for that but [`wait_until_gone`].
pub struct TestPod(Worker<Vec<Pod>>);

impl TestPod {
    pub fn start(plan: PodPlan) -> io::Result<(Self, UnboundedReceiver<PodEvent>)> {
        let (news, told) = unbounded_channel();
        let counted = PodCount::new();
        let work = move || PodWork { pod: MadePod::make(plan, &news), news, _counted: counted };
        Ok((Self(Worker::start("test-pod", QUEUE, work)?), told))
    }

    /// Tries all of these but itself.
    pub async fn try_all(&self, pods: Vec<Pod>) {
        let _ = self.0.send(pods).await;
    }
}

/// How many have been started and are not gone.
static STANDING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

struct PodCount;

impl PodCount {
    fn new() -> Self {
        *STANDING.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for PodCount {
    fn drop(&mut self) {
        *STANDING.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        STANDING.1.notify_all();
    }
}

/// Waits until no test pod of this process is left, but not for long. For the end of the process: it blocks.
pub fn wait_until_gone() {
    let standing = STANDING.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(STANDING.1.wait_timeout_while(standing, IDLE, |count| *count > 0));
}

struct PodWork {
    /// `None`: it could not be made.
    pod: Option<MadePod>,
    news: UnboundedSender<PodEvent>,
    /// Dropped after the pod.
    _counted: PodCount,
}

struct MadePod {
    plan: PodPlan,
    pod: PodInKernel,
    talk: PodTalk,
    node: Vec<UdpSocket>,
    began: Instant,
    asking: bool,
}

impl Work for PodWork {
    type Command = Vec<Pod>;

    fn carry_out(&mut self, pods: Vec<Pod>) {
        if let Some(pod) = &mut self.pod {
            pod.asking = true;
            pod.talk.ask(targets(&pod.plan, &pod.node, &pods));
        }
    }

    fn tick(&mut self) {
        if let Some(pod) = &mut self.pod {
            pod.talk(&self.news);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let asking = self.pod.as_ref()?.asking;
        Some(Instant::now() + if asking { TICK } else { IDLE })
    }

    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        let Some(MadePod { pod, node, .. }) = &self.pod else { return Vec::new() };
        std::iter::once(pod.port.as_fd()).chain(node.iter().map(|it| it.as_fd())).collect()
    }
}

impl MadePod {
    fn make(plan: PodPlan, news: &UnboundedSender<PodEvent>) -> Option<Self> {
        let made = PodInKernel::make(&plan.subnet, plan.mtu);
        let pod = made.map_err(|why| news.send(PodEvent::Failed(why))).ok()?;
        let addresses = pod.addresses.chosen.clone();
        let mut ready = Pod { node: plan.named.clone(), v4: None, v6: None };
        for address in &addresses {
            match *address {
                IpAddr::V4(ip) => ready.v4 = Some(ip),
                IpAddr::V6(ip) => ready.v6 = Some(ip),
            }
        }
        let _ = news.send(PodEvent::Ready(ready));
        let talk = PodTalk::new(addresses, plan.port, plan.mtu, fastrand::Rng::new());
        let node = plan.underlay.iter().flatten().filter_map(|ip| open(&plan, *ip)).collect();
        Some(Self { plan, pod, talk, node, began: Instant::now(), asking: false })
    }

    /// Hears what has come, answers, says what is to be said again, and tells what was found.
    fn talk(&mut self, news: &UnboundedSender<PodEvent>) {
        let Self { plan, pod, talk, node, began, asking } = self;
        let now = || began.elapsed();
        while let Some(packet) = pod.port.receive() {
            if let Some(answer) = talk.receive(packet, now()) {
                pod.port.send(&answer);
            }
        }
        let mut buffer = [0; 2048];
        for socket in &*node {
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                talk.receive_at_node(from.ip(), &buffer[..length], now());
            }
        }
        for out in talk.tick(now()) {
            match out {
                Outgoing::Packet(packet) => pod.port.send(&packet),
                Outgoing::OfNode(to, data) => {
                    if let Some(socket) = node.iter().find(|socket| is_family(socket, to)) {
                        let _ = socket.send_to(&data, (to, plan.port));
                    }
                }
            }
        }
        for found in talk.finished() {
            let _ = news.send(PodEvent::Found(Box::new(found)));
        }
        if *asking && talk.is_idle() {
            *asking = false;
            let _ = news.send(PodEvent::Done);
        }
    }
}

/// The socket by which the node itself asks. With masquerade rules it asks from its underlay address, which they must
/// translate. Without them the kernel chooses the address, as it does for every program of the node: a tunnel may carry
/// no other one (WireGuard drops what is not of the peer's subnet).
fn open(plan: &PodPlan, own: IpAddr) -> Option<UdpSocket> {
    let from = if plan.masquerades { own } else { unspecified(own) };
    let socket = UdpSocket::bind((from, 0)).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

fn is_family(socket: &UdpSocket, ip: IpAddr) -> bool {
    socket.local_addr().is_ok_and(|own| own.is_ipv4() == ip.is_ipv4())
}

fn targets(plan: &PodPlan, node: &[UdpSocket], pods: &[Pod]) -> Vec<Target> {
    let others = pods.iter().filter(|pod| pod.node != plan.named);
    let each = others.flat_map(|pod| pod.addresses().map(|address| (pod.node.clone(), address)));
    let target = |(to, address): (String, IpAddr)| {
        let asks = node.iter().any(|socket| is_family(socket, address));
        // Without a route it asks all the same, and fails.
        let to_pod = SocketAddr::from((address, plan.port));
        let seen_as = asks.then(|| source_towards(to_pod).unwrap_or(unspecified(address)));
        Target { node: to, address, node_seen_as: seen_as.into_iter().collect() }
    };
    each.map(target).collect()
}

/// The address that the kernel chooses for what the node sends there. Masquerading chooses the same one.
fn source_towards(to: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((unspecified(to.ip()), 0)).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
