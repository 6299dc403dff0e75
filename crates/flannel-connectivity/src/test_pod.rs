//! A test pod of this node, in a thread of its own: it blocks in the kernel, and lives for seconds.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flannel_lease::Subnet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::in_kernel::PodInKernel;
use crate::pod::{Out, PodTalk, Target};
use crate::said::{Found, Pod};

/// How often it is looked whether something is to be said again.
const TICK: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_secs(5);

/// What a test pod is made by.
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

/// What becomes of a test pod.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    Ready(Pod),
    Found(Box<Found>),
    /// All that were to be tried have been.
    Done,
    /// There is none, and why.
    Failed(String),
}

/// It is gone, with all that it has made, when this is dropped.
pub struct TestPod {
    /// Dropped first: that is how the thread knows.
    others: Option<mpsc::Sender<Vec<Pod>>>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for TestPod {
    fn drop(&mut self) {
        self.others = None;
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl TestPod {
    pub fn start(plan: PodPlan) -> io::Result<(Self, UnboundedReceiver<News>)> {
        let (others, heard) = mpsc::channel();
        let (news, told) = unbounded_channel();
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let woken = wake.try_clone()?;
        let thread = std::thread::Builder::new().name("test-pod".to_owned());
        let thread = thread.spawn(move || live(&plan, &heard, &woken, &news))?;
        Ok((Self { others: Some(others), wake, thread: Some(thread) }, told))
    }

    /// Tries all of these but itself.
    pub fn try_all(&self, pods: Vec<Pod>) {
        if let Some(others) = &self.others {
            let _ = others.send(pods);
        }
        self.ring();
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn live(
    plan: &PodPlan,
    others: &mpsc::Receiver<Vec<Pod>>,
    wake: &OwnedFd,
    news: &UnboundedSender<News>,
) {
    let mut pod = match PodInKernel::make(&plan.subnet, plan.mtu) {
        Ok(pod) => pod,
        Err(error) => return drop(news.send(News::Failed(error.to_string()))),
    };
    let addresses = pod.addresses().to_vec();
    let (mut v4, mut v6) = (None, None);
    for address in &addresses {
        match address {
            IpAddr::V4(ip) => v4 = Some(*ip),
            IpAddr::V6(ip) => v6 = Some(*ip),
        }
    }
    let _ = news.send(News::Ready(Pod { node: plan.named.clone(), v4, v6 }));
    let mut talk = PodTalk::new(addresses, plan.port, plan.mtu, fastrand::Rng::new());
    let node: Vec<UdpSocket> = plan.underlay.iter().flatten().filter_map(|ip| open(*ip)).collect();
    let (began, mut asking) = (Instant::now(), false);
    loop {
        match others.try_recv() {
            Ok(pods) => {
                asking = true;
                talk.ask(targets(plan, &node, &pods));
            }
            Err(mpsc::TryRecvError::Disconnected) => return,
            Err(mpsc::TryRecvError::Empty) => {}
        }
        let _ = rustix::io::read(wake, &mut [0u8; 8]);
        let now = || began.elapsed();
        while let Some(packet) = pod.port.receive() {
            if let Some(answer) = talk.receive(packet, now()) {
                pod.port.send(&answer);
            }
        }
        let mut buffer = [0; 2048];
        for socket in &node {
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                talk.receive_at_node(from.ip(), &buffer[..length], now());
            }
        }
        for out in talk.tick(now()) {
            match out {
                Out::Packet(packet) => pod.port.send(&packet),
                Out::OfNode(to, data) => {
                    let of_family = |socket: &&UdpSocket| is_family(socket, to);
                    if let Some(socket) = node.iter().find(of_family) {
                        let _ = socket.send_to(&data, (to, plan.port));
                    }
                }
            }
        }
        for found in talk.finished() {
            let _ = news.send(News::Found(Box::new(found)));
        }
        if asking && talk.is_idle() {
            asking = false;
            let _ = news.send(News::Done);
        }
        let mut watched =
            vec![PollFd::new(wake, PollFlags::IN), PollFd::new(&pod.port, PollFlags::IN)];
        watched.extend(
            node.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
        );
        let pause = Timespec::try_from(if asking { TICK } else { IDLE }).ok();
        let _ = rustix::event::poll(&mut watched, pause.as_ref());
    }
}

fn open(own: IpAddr) -> Option<UdpSocket> {
    let socket = UdpSocket::bind((own, 0)).ok()?;
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
        let own = node.iter().find(|socket| is_family(socket, address));
        let own = own.and_then(|socket| socket.local_addr().ok()).map(|own| own.ip());
        let node_seen_as = own.map(|own| seen_as(plan, own, address)).unwrap_or_default();
        Target { node: to, address, node_seen_as }
    };
    each.map(target).collect()
}

/// From where the other pod sees what the node sends from `own`. Masquerading takes the address that the node has
/// on the way there, which is what the kernel takes, too, where nobody has chosen one.
fn seen_as(plan: &PodPlan, own: IpAddr, to: IpAddr) -> Vec<IpAddr> {
    if !plan.masquerades {
        return vec![own];
    }
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let on_the_way = || -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((to, plan.port))?;
        socket.local_addr()
    };
    let on_the_way = on_the_way().map_or(own, |address| address.ip());
    vec![on_the_way]
}
