//! A node and its pods as network namespaces. Every test has a node of its own: the namespace of the
//! test's thread, which programs that it starts are born into.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use flannel_cni::builtin::BUILT_IN;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde_json::{Value, json};

use crate::support::{Answer, FLANNEL, Request};

/// Whose plugins answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Go,
}

pub(crate) struct Node {
    pub(crate) root: tempfile::TempDir,
    pub(crate) network: String,
    /// What the flannel plugin's configuration says beyond the usual.
    pub(crate) delegate: Value,
    /// The same of portmap's.
    pub(crate) portmap: Value,
    pub(crate) version: &'static str,
}

pub(crate) struct Netns {
    file: File,
}

pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) netns: Netns,
    pub(crate) port_mappings: Value,
    /// What ADD returned: runtimes hand it to later calls.
    pub(crate) result: Value,
}

pub(crate) const V4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.57.1/24\n";
pub(crate) const V6: &str =
    "FLANNEL_IPV6_NETWORK=fd00:244::/56\nFLANNEL_IPV6_SUBNET=fd00:244:0:55::1/64\n";

/// The same with another subnet, `number` in both families: for tests of what becomes of an address that no
/// pod has any more. The pods of tests that run at the same time are on this host too.
pub(crate) fn apart(families: &str, number: u8) -> String {
    families
        .replace("10.244.57.", &format!("10.244.{number}."))
        .replace("fd00:244:0:55:", &format!("fd00:244:0:{number}:"))
}

impl Node {
    pub(crate) fn new(families: &str) -> Self {
        // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("these tests make network namespaces: run them as root");
        run("ip", "link set lo up");
        let root = tempfile::tempdir().unwrap();
        let node = Self {
            network: "cbr0".into(),
            delegate: json!({"hairpinMode": true, "isDefaultGateway": true}),
            portmap: json!({}),
            version: "1.0.0",
            root,
        };
        node.write_subnet_env(&format!("{families}FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"));
        let ours = node.path("ours");
        fs::create_dir(&ours).unwrap();
        for name in ["flannel"].into_iter().chain(BUILT_IN.map(|(name, _)| name)) {
            std::os::unix::fs::symlink(FLANNEL, ours.join(name)).unwrap();
        }
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn write_subnet_env(&self, text: &str) {
        fs::write(self.path("subnet.env"), text).unwrap();
    }

    pub(crate) fn reservations_dir(&self) -> PathBuf {
        self.path("networks").join(&self.network)
    }

    /// The addresses that are given out.
    pub(crate) fn reserved(&self) -> Vec<String> {
        let Ok(listing) = fs::read_dir(self.reservations_dir()) else { return Vec::new() };
        let mut names: Vec<String> = listing
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.parse::<IpAddr>().is_ok())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn flannel_conf(&self) -> Value {
        json!({
            "cniVersion": self.version,
            "name": self.network,
            "type": "flannel",
            "subnetFile": self.path("subnet.env"),
            "dataDir": self.path("flannel"),
            "delegate": self.delegate,
            "ipam": {"dataDir": self.path("networks")},
        })
    }

    pub(crate) fn portmap_conf(&self, pod: &Pod) -> Value {
        let mut conf = json!({
            "cniVersion": self.version,
            "name": self.network,
            "type": "portmap",
            "capabilities": {"portMappings": true},
            "runtimeConfig": {"portMappings": pod.port_mappings},
        });
        for (key, value) in self.portmap.as_object().into_iter().flatten() {
            conf[key] = value.clone();
        }
        conf
    }

    pub(crate) fn call(
        &self,
        whose: Whose,
        plugin: &str,
        command: &str,
        pod: &Pod,
        conf: &Value,
    ) -> Answer {
        let mut conf = conf.clone();
        if !pod.result.is_null() && command != "ADD" {
            conf["prevResult"] = pod.result.clone();
        }
        self.request(whose, plugin, command, pod).send(&conf.to_string())
    }

    pub(crate) fn request(&self, whose: Whose, plugin: &str, command: &str, pod: &Pod) -> Request {
        let mut request = Request::new(command);
        let plugins = match whose {
            Whose::Ours => self.path("ours"),
            Whose::Go => go_plugins(),
        };
        request.program = plugins.join(plugin);
        request.path = plugins.display().to_string();
        request.container_id = pod.id.clone();
        request.ifname = pod.ifname.clone();
        request.netns = pod.netns.path();
        request
    }

    /// The whole chain, as a runtime runs it.
    #[track_caller]
    pub(crate) fn add(&self, whose: Whose, pod: &mut Pod) {
        let answer = self.call(whose, "flannel", "ADD", pod, &self.flannel_conf()).expect_success();
        pod.result = answer.json();
        let mut conf = self.portmap_conf(pod);
        conf["prevResult"] = pod.result.clone();
        let answer = self.call(whose, "portmap", "ADD", pod, &conf).expect_success();
        assert_eq!(answer.json(), pod.result, "portmap hands on the result");
    }

    #[track_caller]
    pub(crate) fn del(&self, whose: Whose, pod: &Pod) {
        self.call(whose, "portmap", "DEL", pod, &self.portmap_conf(pod)).expect_success();
        self.call(whose, "flannel", "DEL", pod, &self.flannel_conf()).expect_success();
    }

    #[track_caller]
    pub(crate) fn check(&self, whose: Whose, pod: &Pod) {
        self.call(whose, "flannel", "CHECK", pod, &self.flannel_conf()).expect_success();
        self.call(whose, "portmap", "CHECK", pod, &self.portmap_conf(pod)).expect_success();
    }

    /// A pod that is attached by our plugins.
    #[track_caller]
    pub(crate) fn attached(&self, id: &str) -> Pod {
        let mut pod = Pod::new(id);
        self.add(Whose::Ours, &mut pod);
        pod
    }

    /// Nothing that belongs to any pod is left.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.reserved(), [""; 0], "addresses are lost");
        assert_eq!(crate::support::files(&self.path("flannel")), [], "records are left");
        let links = run("ip", "-o link");
        assert!(!links.contains("veth"), "interfaces are left: {links}");
        let rules = run("nft", "list ruleset");
        for trace in ["dnat to", "CNI-DN", "comment \"pod", "saddr 10.244", "saddr fd00"] {
            assert!(!rules.contains(trace), "rules are left ({trace}):\n{rules}");
        }
    }
}

impl Pod {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.into(),
            ifname: "eth0".into(),
            netns: Netns::new(),
            port_mappings: json!([]),
            result: Value::Null,
        }
    }

    pub(crate) fn with_ports(id: &str, mappings: Value) -> Self {
        Self { port_mappings: mappings, ..Self::new(id) }
    }

    /// Its addresses, without prefix lengths.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let ips = self.result["ips"].as_array().unwrap();
        ips.iter()
            .map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap())
            .collect()
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.addresses()[0]
    }
}

impl Netns {
    pub(crate) fn new() -> Self {
        let file = std::thread::spawn(|| {
            // SAFETY: only the network namespace of this thread is left, which ends here.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            run("ip", "link set lo up");
            File::open("/proc/thread-self/ns/net").unwrap()
        })
        .join()
        .unwrap();
        Self { file }
    }

    /// The node's own.
    pub(crate) fn current() -> Self {
        Self { file: File::open("/proc/thread-self/ns/net").unwrap() }
    }

    /// Good for other processes as long as this lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        use std::os::fd::AsFd;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
                    .unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(crate) fn ip(&self, arguments: &str) -> String {
        self.inside(|| run("ip", arguments))
    }
}

#[track_caller]
pub(crate) fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Where `scripts/deps cni-plugins` has put the Go plugins.
pub(crate) fn go_plugins() -> PathBuf {
    let directory = std::env::var("FLANNEL_TEST_CNI_DIR").unwrap_or_else(|_| {
        panic!(
            "no Go CNI plugins: run scripts/deps cni-plugins; eval \"$(scripts/deps --print-env)\""
        )
    });
    let directory = Path::new(&directory).to_owned();
    assert!(directory.join("bridge").exists(), "no Go plugins in {}", directory.display());
    directory
}
