//! How long ADD and DEL of a pod take: our plugins against the Go ones, in one run, as a runtime
//! runs them (flannel, then portmap; each a program started anew).
//!
//! ```sh
//! scripts/deps cni-plugins && eval "$(scripts/deps --print-env)"
//! cargo run --release -p flannel-cni --example bench-cni [-- ROUNDS]
//! ```
//!
//! flanneld waits for the kernel on our plugins' behalf, as it does on a node; `FLANNEL_BENCH_ALONE=1`
//! shows what it is like without. Starting two programs that do nothing is measured beside, as the
//! benchmark's own cost; the third ratio leaves it out.
//!
//! Needs root, iproute2 and iptables.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot go on must say so and stop"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::{Value, json};

const AT_ONCE: usize = 20;

fn main() {
    let rounds: usize =
        std::env::args().nth(1).map_or(40, |text| text.parse().expect("a number of rounds"));
    // SAFETY: nothing else runs in this process yet.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("run this as root");
    ip("link set lo up");
    let ours = ours();
    let go = Chain::go();
    println!(
        "chain of {} and {}, {rounds} rounds one at a time, {AT_ONCE} at once\n",
        ours.name, go.name
    );
    println!(
        "                                          p50 ours     Go   ratio    p99 ours     Go   ratio   p50 without the benchmark's own"
    );
    let contestants: [(&Chain, Port); 6] = [Port::None, Port::Tcp, Port::Udp]
        .map(|port| [(&ours, port), (&go, port)])
        .concat()
        .try_into()
        .unwrap_or_else(|_| panic!("two for each"));
    for (at_once, rounds) in [(1, rounds), (AT_ONCE, rounds.div_ceil(4))] {
        let crowd = if at_once > 1 { format!(", {at_once} at once") } else { String::new() };
        let (times, own) = alternate(contestants, rounds, at_once);
        for (port, times) in
            ["", ", hostPort", ", hostPort UDP"].into_iter().zip(times.chunks_exact(2))
        {
            let (ours, go) = (&times[0], &times[1]);
            report(&format!("ADD{port}{crowd}"), &ours.add, &go.add, &own);
            report(&format!("DEL{port}{crowd}"), &ours.del, &go.del, &own);
            report(&format!("ADD{port}{crowd}, processor"), &ours.add_cpu, &go.add_cpu, &[]);
            report(&format!("DEL{port}{crowd}, processor"), &ours.del_cpu, &go.del_cpu, &[]);
        }
    }
    println!("\nprograms: ours {:.2} MB, Go {:.2} MB", ours.megabytes(), go.megabytes());
}

#[derive(Clone, Copy)]
enum Port {
    None,
    Tcp,
    Udp,
}

/// Whose plugins.
struct Chain {
    name: &'static str,
    directory: PathBuf,
    programs: &'static [&'static str],
    _temporary: Option<tempfile::TempDir>,
}

fn ours() -> Chain {
    let program = std::env::var_os("FLANNEL_BENCH_PLUGIN").map_or_else(build, PathBuf::from);
    println!("ours is {}", program.display());
    let directory = tempfile::tempdir().unwrap();
    for name in ["flannel", "portmap"] {
        std::os::unix::fs::symlink(&program, directory.path().join(name)).unwrap();
    }
    if std::env::var_os("FLANNEL_BENCH_ALONE").is_none() {
        flannel_cni::deferred_kernel_work::serve(&directory.path().join("cni.sock")).unwrap();
    }
    Chain {
        name: "ours",
        directory: directory.path().into(),
        programs: &["flannel"],
        _temporary: Some(directory),
    }
}

/// The program as it is shipped: linked statically, where the compiler has what it takes.
fn build() -> PathBuf {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let built = |arguments: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--release", "-p", "flannel-cni", "--bin", "flannel"]);
        command.args(arguments).stderr(Stdio::null()).status().unwrap().success()
    };
    let example = std::env::current_exe().unwrap();
    let release = example.parent().and_then(Path::parent).unwrap();
    if built(&["--target", &target]) {
        return release.parent().unwrap().join(target).join("release/flannel");
    }
    println!("no static program: rustup target add {target}");
    assert!(built(&[]), "cargo build --release -p flannel-cni fails");
    release.join("flannel")
}

impl Chain {
    fn go() -> Self {
        let directory = std::env::var_os("FLANNEL_TEST_CNI_DIR")
            .expect("scripts/deps --print-env says where they are");
        Self {
            name: "Go",
            directory: directory.into(),
            programs: &["flannel", "bridge", "host-local", "portmap"],
            _temporary: None,
        }
    }

    fn megabytes(&self) -> f64 {
        let bytes = |name: &&str| std::fs::metadata(self.directory.join(name)).unwrap().len();
        self.programs.iter().map(bytes).sum::<u64>() as f64 / 1e6
    }

    fn call(&self, plugin: &str, command: &str, pod: &Pod, conf: &Value) -> Vec<u8> {
        let mut child = Command::new(self.directory.join(plugin))
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &pod.id)
            .env("CNI_NETNS", &pod.netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.directory)
            .env("FLANNEL_CNI_SOCKET", self.directory.join("cni.sock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
        let mut stdout = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success(),
            "{} {plugin} {command}: {}",
            self.name,
            String::from_utf8_lossy(&stdout)
        );
        stdout
    }
}

struct Pod {
    id: String,
    netns: String,
    _file: File,
    ports: Value,
}

impl Pod {
    fn new(number: usize, port: Port) -> Self {
        let file = std::thread::spawn(|| {
            // SAFETY: only the network namespace of this thread is left, which ends here.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        })
        .join()
        .unwrap();
        let mapping = |protocol| json!([{"hostPort": 8000 + number, "containerPort": 80, "protocol": protocol}]);
        let ports = match port {
            Port::None => json!([]),
            Port::Tcp => mapping("tcp"),
            Port::Udp => mapping("udp"),
        };
        Self {
            id: format!("{number:064x}"),
            netns: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()),
            _file: file,
            ports,
        }
    }
}

#[derive(Default)]
struct Times {
    add: Vec<Duration>,
    del: Vec<Duration>,
    /// Processor time, which does not depend on what else the machine does.
    add_cpu: Vec<Duration>,
    del_cpu: Vec<Duration>,
}

/// Each in turn, so that whatever else the machine does falls on all alike. And how long the same takes
/// with programs that do nothing.
fn alternate<const N: usize>(
    contestants: [(&Chain, Port); N],
    rounds: usize,
    at_once: usize,
) -> ([Times; N], Vec<Duration>) {
    let mut times = std::array::from_fn(|_| Times::default());
    let directory = tempfile::tempdir().unwrap();
    let node = Node::new(directory.path());
    let mut own = Vec::new();
    for round in 0..=rounds {
        let pods: Vec<Pod> = (0..at_once).map(|number| Pod::new(number, Port::None)).collect();
        own.extend(together(&pods, |_, ()| do_nothing(), vec![(); at_once]).0);
        for ((chain, port), times) in contestants.into_iter().zip(&mut times) {
            let pods: Vec<Pod> = (0..at_once).map(|number| Pod::new(number, port)).collect();
            let before = cpu_of_children();
            let (add, results) = together(&pods, |pod, ()| node.add(chain, pod), vec![(); at_once]);
            let between = cpu_of_children();
            let (del, _) = together(&pods, |pod, result| node.del(chain, pod, &result), results);
            let after = cpu_of_children();
            // The first round makes the bridge and the tables.
            if round > 0 {
                times.add.extend(add);
                times.del.extend(del);
                times.add_cpu.push((between - before) / at_once as u32);
                times.del_cpu.push((after - between) / at_once as u32);
            }
            // What the kernel does afterwards is not the next one's to wait for.
            drop(pods);
            std::thread::sleep(Duration::from_millis(60));
        }
    }
    (times, own)
}

/// Twice: a chain is two programs.
fn do_nothing() {
    for _ in 0..2 {
        let mut child = Command::new("/bin/true")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _ = child.stdout.take().unwrap().read_to_end(&mut Vec::new());
        child.wait().unwrap();
    }
}

/// All at the same moment; how long each took.
fn together<I: Send, T: Send>(
    pods: &[Pod],
    work: impl Fn(&Pod, I) -> T + Sync,
    inputs: Vec<I>,
) -> (Vec<Duration>, Vec<T>) {
    let start = Barrier::new(pods.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = pods
            .iter()
            .zip(inputs)
            .map(|(pod, input)| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    let begin = Instant::now();
                    let result = work(pod, input);
                    (begin.elapsed(), result)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).unzip()
    })
}

/// Of all that have ended.
fn cpu_of_children() -> Duration {
    // SAFETY: the structure is the kernel's to fill, and all zero is a value of it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

struct Node {
    flannel: Value,
}

impl Node {
    fn new(directory: &Path) -> Self {
        let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.57.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        std::fs::write(directory.join("subnet.env"), env).unwrap();
        let flannel = json!({
            "cniVersion": "1.0.0", "name": "cbr0", "type": "flannel",
            "subnetFile": directory.join("subnet.env"), "dataDir": directory.join("flannel"),
            "ipam": {"dataDir": directory.join("networks")},
            "delegate": {"hairpinMode": true, "isDefaultGateway": true},
        });
        Self { flannel }
    }

    fn add(&self, chain: &Chain, pod: &Pod) -> Value {
        let result =
            serde_json::from_slice(&chain.call("flannel", "ADD", pod, &self.flannel)).unwrap();
        chain.call("portmap", "ADD", pod, &portmap(pod, &result));
        result
    }

    fn del(&self, chain: &Chain, pod: &Pod, result: &Value) {
        chain.call("portmap", "DEL", pod, &portmap(pod, result));
        let mut conf = self.flannel.clone();
        conf["prevResult"] = result.clone();
        chain.call("flannel", "DEL", pod, &conf);
    }
}

fn portmap(pod: &Pod, result: &Value) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "cbr0", "type": "portmap", "capabilities": {"portMappings": true},
        "runtimeConfig": {"portMappings": pod.ports}, "prevResult": result,
    })
}

/// `own`: what the benchmark itself costs.
fn report(what: &str, ours: &[Duration], go: &[Duration], own: &[Duration]) {
    let at = |times: &[Duration], percent: usize| {
        let mut times = times.to_vec();
        times.sort();
        times
            .get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let cell = |percent| {
        let (ours, go) = (at(ours, percent), at(go, percent));
        format!("{ours:8.2} {go:8.2} {:6.1}x", go / ours)
    };
    let own = at(own, 50);
    let (ours_net, go_net) = (at(ours, 50) - own, at(go, 50) - own);
    let net = match ours_net > 0.0 && own > 0.0 {
        true => format!("{:6.1}x ({own:.2})", go_net / ours_net),
        false => String::new(),
    };
    println!("{what:40} {}   {}   {net}", cell(50), cell(99));
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success());
}
