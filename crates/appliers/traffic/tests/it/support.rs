//! A node in a namespace, its neighbours, and what can be seen of them.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use flannel_common::SearchPath;
use flannel_entries::rules::{FamilyRules, Mode, NodeRules, TunnelGuard};
use flannel_traffic::TrafficApplier;
use flannel_wanted::{Applier as _, Status};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

pub(crate) const RESYNC: Duration = Duration::from_secs(1);

/// What keeps a node's rules, as the daemon has one.
pub(crate) struct Node {
    pub(crate) traffic: TrafficApplier<u8>,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    /// Takes the calling test into a namespace of its own.
    pub(crate) fn new() -> Self {
        enter_new_namespace();
        Self::here()
    }

    /// Another daemon in the same namespace, or the same one after a restart.
    pub(crate) fn here() -> Self {
        Self::with(TrafficApplier::new(RESYNC, SearchPath::of_environment(), &[], 1))
    }

    pub(crate) fn with(traffic: TrafficApplier<u8>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { traffic, runtime }
    }

    pub(crate) fn set(&self, rules: &NodeRules) {
        let status = self.try_set(rules);
        assert!(status.is_settled(), "{status:?}");
    }

    pub(crate) fn try_set(&self, rules: &NodeRules) -> Status {
        let desired = vec![(1, rules.entries())];
        self.runtime.block_on(self.traffic.replace((), desired)).unwrap()
    }
}

pub(crate) fn enter_new_namespace() {
    // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .expect("these tests make network namespaces: run them as root");
    // Its wait for an address to prove unique would be ours.
    std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
    run("ip link set lo up");
}

pub(crate) fn family(network: &str, subnet: &str) -> FamilyRules {
    let (network, subnet) = (network.parse().unwrap(), subnet.parse().unwrap());
    FamilyRules { network, subnet, exclude: Vec::new(), guard: TunnelGuard::none(network) }
}

pub(crate) fn v4(subnet: &str) -> FamilyRules {
    family("10.244.0.0/16", subnet)
}

pub(crate) fn v6() -> FamilyRules {
    family("fd00:244::/56", "fd00:244:0:24::/64")
}

/// Masquerade and forward for IPv4.
pub(crate) fn rules(mode: Mode) -> NodeRules {
    NodeRules {
        v4: Some(v4("10.244.65.0/24")),
        v6: None,
        masquerade: true,
        random_fully: true,
        forward: true,
        mode,
    }
}

pub(crate) fn dual(mode: Mode) -> NodeRules {
    NodeRules { v4: Some(v4("10.244.69.0/24")), v6: Some(v6()), ..rules(mode) }
}

/// Runs a command line by the shell; it must succeed.
pub(crate) fn run(line: &str) -> String {
    run_with(line, "")
}

pub(crate) fn run_with(line: &str, input: &str) -> String {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A table as one of the programs `iptables-save` shows it, without its remarks.
pub(crate) fn saved(program: &str, table: &str) -> String {
    let text = run(&format!("{program} -t {table}"));
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| match line.split_once(" [") {
            // Packets that the built-in chains have counted.
            Some((chain, _)) if line.starts_with(':') => format!("{chain} [0:0]\n"),
            _ => format!("{line}\n"),
        })
        .collect()
}

pub(crate) fn nft_ruleset() -> String {
    run("nft -s list ruleset")
}

/// All rules of the node, of all kinds, whichever table was made first.
pub(crate) fn picture() -> String {
    let ruleset = nft_ruleset();
    let mut tables: Vec<&str> = ruleset.split_inclusive("\n}\n").collect();
    tables.sort_unstable();
    let mut picture = tables.concat();
    for (names, program) in [("ip_tables_names", "iptables"), ("ip6_tables_names", "ip6tables")] {
        let names = std::fs::read_to_string(format!("/proc/thread-self/net/{names}"));
        for table in names.unwrap_or_default().lines() {
            picture += &saved(&format!("{program}-legacy-save"), table);
        }
    }
    picture
}

pub(crate) fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "still not after {limit:?}: {what}\n{}", picture());
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

// --- other machines -----------------------------------------------------------------------------

pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    pub(crate) fn new() -> Self {
        on_thread(|| {
            enter_new_namespace();
            Self(File::open("/proc/thread-self/ns/net").unwrap().into())
        })
    }

    /// Runs something inside.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        on_thread(|| {
            self.enter();
            work()
        })
    }

    /// For a thread of its own.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Where `ip link set … netns` finds it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A socket inside, which stays there wherever it is used.
    pub(crate) fn socket(&self, address: &str) -> UdpSocket {
        self.run(|| socket(address))
    }
}

pub(crate) fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

fn on_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The node in the middle, with a pod, the pod of another node and the outside world:
///
/// ```text
///   pod 10.244.65.5 ── .1 node 192.168.50.1 ── 192.168.50.2 other node with pod 10.244.86.5
///                         └─── 203.0.113.1 ── 203.0.113.2 world, also 198.51.100.7
/// ```
///
/// In IPv6: pod fd00:244:0:24::5, other pod fd00:244:0:86::5, world fd00:bad::2.
pub(crate) struct Neighbourhood {
    pub(crate) pod: Namespace,
    pub(crate) other: Namespace,
    pub(crate) world: Namespace,
}

impl Neighbourhood {
    /// Around the calling thread's namespace.
    pub(crate) fn new() -> Self {
        let [pod, other, world] = [Namespace::new(), Namespace::new(), Namespace::new()];
        for (name, there) in [("pod0", &pod), ("other0", &other), ("world0", &world)] {
            run(&format!(
                "ip link add {name} type veth peer name eth0 netns {} && ip link set {name} up",
                there.path()
            ));
        }
        run("ip addr add 10.244.65.1/24 dev pod0
             ip addr add 192.168.50.1/24 dev other0
             ip addr add 203.0.113.1/24 dev world0
             ip addr add fd00:244:0:24::1/64 dev pod0 nodad
             ip addr add fd00:50::1/64 dev other0 nodad
             ip addr add fd00:bad::1/64 dev world0 nodad
             ip route add 10.244.86.0/24 via 192.168.50.2
             ip route add 198.51.100.0/24 via 203.0.113.2
             ip route add fd00:244:0:86::/64 via fd00:50::2");
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap();
        }
        let prepare = |namespace: &Namespace, addresses: &[&str], gateways: [&str; 2]| {
            namespace.run(|| {
                run("ip link set eth0 up");
                for address in addresses {
                    run(&format!("ip addr add {address} dev eth0 nodad"));
                }
                for gateway in gateways {
                    run(&format!("ip route add default via {gateway}"));
                }
            });
        };
        let gateways = ["10.244.65.1", "fd00:244:0:24::1"];
        prepare(&pod, &["10.244.65.5/24", "fd00:244:0:24::5/64"], gateways);
        let addresses =
            ["192.168.50.2/24", "10.244.86.5/32", "fd00:50::2/64", "fd00:244:0:86::5/128"];
        prepare(&other, &addresses, ["192.168.50.1", "fd00:50::1"]);
        let addresses = ["203.0.113.2/24", "198.51.100.7/32", "fd00:bad::2/64"];
        prepare(&world, &addresses, ["203.0.113.1", "fd00:bad::1"]);
        Self { pod, other, world }
    }
}

/// Sends one packet and returns the address it seems to come from.
pub(crate) fn seen_from(sender: &UdpSocket, receiver: &UdpSocket, to: &str) -> String {
    try_seen_from(sender, receiver, to).unwrap_or_else(|| {
        panic!("no packet to {to} arrives\n{}", run("ip route; ip -6 route; ip neigh; ip -6 neigh"))
    })
}

pub(crate) fn try_seen_from(sender: &UdpSocket, receiver: &UdpSocket, to: &str) -> Option<String> {
    let port = receiver.local_addr().unwrap().port();
    sender.send_to(b"x", SocketAddr::new(to.parse().unwrap(), port)).unwrap();
    let (_, from) = receiver.recv_from(&mut [0; 8]).ok()?;
    Some(from.ip().to_string())
}

pub(crate) fn set_mark(socket: &UdpSocket, mark: u32) {
    // SAFETY: pointer and length describe `mark`, which outlives the call.
    let result = unsafe {
        let (pointer, length) = ((&raw const mark).cast(), size_of::<u32>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MARK, pointer, length)
    };
    assert_eq!(result, 0);
}
