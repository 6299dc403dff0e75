//! A real Kubernetes cluster on lab nodes, with flannel installed from a manifest as people do it.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flannel_lab::{Kubernetes, KubernetesSpec, Lab, Place as _, ProxyMode};

/// Until a pod of a DaemonSet runs on every node of a busy machine.
const ROLLOUT: &str = "--timeout=180s";
/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(10);
const READY_LIMIT: Duration = Duration::from_secs(120);

/// How many pings one run of it sends.
const BURST: u32 = 100;

/// The name of the image in our manifests.
pub const IMAGE: &str = "flannel-rs/flannel:v0.1.0";

/// A server on every node, that says which node it is on: as pods, as services of each kind, and as a
/// port of its node.
const WEB: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: lab/pod:1
        command: ["sh", "-c", "mkdir -p /tmp/web; echo $NODE >/tmp/web/index.html; exec httpd -f -p [::]:80 -h /tmp/web"]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        ports: [{containerPort: 80, hostPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 80, nodePort: 30080}]
"#;

/// A machine has memory and cores for one cluster at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Three nodes, and nothing installed yet.
pub struct Cluster {
    lab: Lab,
    _alone: MutexGuard<'static, ()>,
}

/// A pod of the servers.
#[derive(Clone, Debug)]
pub struct WebPod {
    pub name: String,
    pub node: String,
    /// One of each family that the cluster has.
    pub addresses: Vec<IpAddr>,
}

impl Cluster {
    pub fn start(proxy: ProxyMode, change: impl FnOnce(&mut KubernetesSpec)) -> Self {
        let alone = one_cluster_at_a_time();
        let mut spec = KubernetesSpec::find().unwrap_or_else(|error| panic!("{error}"));
        spec.images.push(image());
        spec.proxy = proxy;
        change(&mut spec);
        let lab = Lab::builder().nodes(3).kubernetes(spec).start();
        Self { lab: lab.unwrap_or_else(|error| panic!("{error}")), _alone: alone }
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn kubernetes(&self) -> &Kubernetes {
        self.lab.kubernetes().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn kubectl(&self, words: &[&str]) -> String {
        self.kubernetes().kubectl(words).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn apply(&self, manifest: &str) {
        self.kubernetes().apply(manifest).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until a DaemonSet runs on every node as it was last said.
    pub fn rolled_out(&self, namespace: &str, daemonset: &str) {
        let words = ["-n", namespace, "rollout", "status", &format!("ds/{daemonset}"), ROLLOUT];
        if let Err(error) = self.kubernetes().kubectl(&words) {
            panic!("{error}\n{}", self.state(namespace));
        }
    }

    pub fn nodes_are_ready(&self) {
        let limit = format!("--timeout={}s", READY_LIMIT.as_secs());
        let words = ["wait", "nodes", "--all", "--for=condition=Ready", &limit];
        if let Err(error) = self.kubernetes().kubectl(&words) {
            panic!("{error}\n{}", self.state("kube-flannel"));
        }
    }

    /// Starts the servers and waits until they answer.
    pub fn serve(&self) -> Vec<WebPod> {
        self.apply(WEB);
        self.rolled_out("default", "web");
        self.web_pods()
    }

    pub fn stop_serving(&self) {
        self.kubernetes().delete(WEB).unwrap_or_else(|error| panic!("{error}"));
        let words = ["wait", "pods", "-l", "app=web", "--for=delete", "--timeout=60s"];
        self.kubectl(&words);
    }

    pub fn web_pods(&self) -> Vec<WebPod> {
        let path = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.podIPs[*].ip}{'\\n'}{end}";
        let text = self.kubectl(&["get", "pods", "-l", "app=web", "-o", path]);
        text.lines()
            .map(|line| {
                let mut words = line.split_whitespace().map(str::to_owned);
                let (Some(name), Some(node)) = (words.next(), words.next()) else {
                    panic!("no pod: {line}")
                };
                let address = |word: String| word.parse().unwrap_or_else(|_| panic!("{line}"));
                WebPod { name, node, addresses: words.map(address).collect() }
            })
            .collect()
    }

    /// Every pod reaches every pod, the service by its own addresses, and every node's ports, in each
    /// family.
    pub fn everything_reaches_everything(&self) {
        let pods = self.web_pods();
        let services = ["get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}"];
        let services: Vec<IpAddr> = self
            .kubectl(&services)
            .split_whitespace()
            .map(|word| word.parse().unwrap_or_else(|_| panic!("no address: {word}")))
            .collect();
        let is_dual = pods.iter().all(|pod| pod.addresses.len() == 2);
        assert_eq!(services.len(), if is_dual { 2 } else { 1 }, "{pods:?}");
        for from in &pods {
            for to in &pods {
                for address in &to.addresses {
                    let answer = self.fetch(from, *address, 80);
                    assert_eq!(answer, to.node, "{} asks {} at {address}", from.node, to.node);
                }
            }
            for service in &services {
                let answer = self.fetch(from, *service, 80);
                assert!(answer.starts_with("node"), "{}: the service: {answer}", from.node);
            }
            for (node, address) in self.node_addresses() {
                if !is_dual && address.is_ipv6() {
                    continue;
                }
                let answer = self.fetch(from, address, 8080);
                assert_eq!(answer, node, "{}: the host port of {node} at {address}", from.node);
                let answer = self.fetch(from, address, 30080);
                assert!(answer.starts_with("node"), "{}: {node}'s node port", from.node);
            }
        }
        for (node, address) in self.node_addresses().into_iter().filter(|it| it.1.is_ipv4()) {
            let answer = self.fetch_from_outside(address, 8080);
            assert_eq!(answer, node, "the host port of {node}, from outside");
            let answer = self.fetch_from_outside(address, 30080);
            assert!(answer.starts_with("node"), "{node}'s node port, from outside: {answer}");
        }
    }

    fn fetch(&self, from: &WebPod, address: IpAddr, port: u16) -> String {
        // Not wget, which asks a resolver that a static program has not.
        let line = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 10 {address} {port}");
        let answer = self.kubernetes().kubectl(&["exec", &from.name, "--", "sh", "-c", &line]);
        body(&answer.unwrap_or_else(|error| panic!("{} asks {address}: {error}", from.node)))
    }

    fn fetch_from_outside(&self, address: IpAddr, port: u16) -> String {
        let talk = || -> io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), LIMIT)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = self.lab.switch().run(talk).unwrap_or_else(|error| panic!("{error}"));
        body(&answer.unwrap_or_else(|error| panic!("{address}:{port} from outside: {error}")))
    }

    /// Of every node, those of both families.
    pub fn node_addresses(&self) -> Vec<(String, IpAddr)> {
        let of_node = |node: &flannel_lab::Node| {
            let label = node.label();
            node.addresses().into_iter().map(move |address| (label.clone(), address))
        };
        self.lab.nodes().iter().flat_map(of_node).collect()
    }

    /// Pings all addresses of one pod from another while something is done, and says how many pings were sent and how
    /// many came back, as ping itself counts them.
    pub fn ping_during(&self, from: &WebPod, to: &WebPod, work: impl FnOnce()) -> (u32, u32) {
        let sh = |line: &str| self.kubectl(&["exec", &from.name, "--", "sh", "-c", line]);
        let addresses: Vec<String> = to.addresses.iter().map(ToString::to_string).collect();
        // Each run waits for its last answer. The first ones are done before the work begins, the last ones begin
        // after it has ended.
        let start = format!(
            "cd /tmp; rm -f ping.*; for to in {}; do {{ \
               while true; do [ -e ping.end ] && last=yes; \
                 ping -c {BURST} -i 0.02 -W 5 $to; echo done >>ping.runs.$to; [ -z \"$last\" ] || break; \
               done >ping.out.$to 2>&1; touch ping.over.$to; }} </dev/null >/dev/null 2>&1 & done; \
             for to in {}; do while [ ! -e ping.runs.$to ]; do sleep 0.1; done; done",
            addresses.join(" "),
            addresses.join(" ")
        );
        sh(&start);
        work();
        let end = format!(
            "cd /tmp; touch ping.end; for to in {}; do while [ ! -e ping.over.$to ]; do sleep 0.1; done; \
             cat ping.out.$to; done",
            addresses.join(" ")
        );
        let text = sh(&end);
        let runs: Vec<(u32, u32)> = text.lines().filter_map(summary).collect();
        let least = 2 * addresses.len();
        assert!(runs.len() >= least, "{} runs of ping:\n{text}", runs.len());
        runs.into_iter().fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
    }

    /// What an operator would look at.
    pub fn state(&self, namespace: &str) -> String {
        let ask = |words: &[&str]| {
            self.kubernetes().kubectl(words).unwrap_or_else(|error| error.to_string())
        };
        let pods = ask(&["get", "pods", "-A", "-o", "wide"]);
        let described = ask(&["-n", namespace, "describe", "pods"]);
        let logs = ["-n", namespace, "logs", "-l", "tier=node", "--tail=20", "--prefix"];
        let logs = ask(&logs);
        format!("{pods}\n{described}\n{logs}")
    }
}

/// What ping says at its end: how many it has sent, and how many answers it has got.
fn summary(line: &str) -> Option<(u32, u32)> {
    let (sent, rest) = line.split_once(" packets transmitted, ")?;
    let (back, _) = rest.split_once(" packets received")?;
    Some((sent.parse().ok()?, back.parse().ok()?))
}

/// What follows the header of an answer.
fn body(answer: &str) -> String {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
    body.trim().to_owned()
}

/// For whoever starts one by other means.
pub fn one_cluster_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The archive that `scripts/image` has made.
pub fn image() -> PathBuf {
    let path = std::env::var_os("FLANNEL_TEST_IMAGE").map(PathBuf::from).unwrap_or_else(|| {
        let me = std::env::current_exe().expect("know this program's path");
        me.ancestors().nth(3).expect("a target directory").join("flannel-image.tar")
    });
    assert!(path.exists(), "no {}: run `scripts/image`, or set FLANNEL_TEST_IMAGE", path.display());
    path
}
