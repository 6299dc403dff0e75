//! A private etcd on loopback ports, with its data in a directory that goes away with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{RawEtcd, free_ports};
use crate::{EtcdOptions, EtcdStore};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running etcd; ends with this value, and with the test process however that ends.
#[derive(Debug)]
pub struct EtcdServer {
    directory: TempDir,
    ports: Ports,
    /// Name and peer port of every member.
    members: String,
    tls: Option<ServerTls>,
    /// How many bytes it may hold, if that is not to be what etcd thinks best.
    quota: Option<u64>,
    process: Option<Child>,
}

/// PEM files for a server that speaks TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// When given, clients must show a certificate signed by this.
    pub client_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
}

impl Ports {
    fn free() -> Self {
        let [client, peer, metrics] = free_ports();
        Self { client, peer, metrics }
    }

    fn name(self) -> String {
        format!("member-{}", self.peer)
    }

    fn member(self) -> String {
        format!("{}={}", self.name(), local(self.peer))
    }
}

impl EtcdServer {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    pub fn start_with(tls: Option<ServerTls>) -> Self {
        let ports = Ports::free();
        let mut server = Self::stopped(ports, ports.member(), tls);
        server.restart();
        server
    }

    /// One that is full before long.
    pub fn start_small(quota: u64) -> Self {
        let ports = Ports::free();
        let mut server = Self::stopped(ports, ports.member(), None);
        server.quota = Some(quota);
        server.restart();
        server
    }

    /// The members of one cluster.
    pub fn start_cluster<const N: usize>() -> [Self; N] {
        let ports: [Ports; N] = std::array::from_fn(|_| Ports::free());
        let members = ports.map(Ports::member).join(",");
        let mut servers = ports.map(|ports| Self::stopped(ports, members.clone(), None));
        for server in &mut servers {
            server.process = Some(server.spawn());
        }
        servers.iter_mut().for_each(Self::wait_until_healthy);
        servers
    }

    fn stopped(ports: Ports, members: String, tls: Option<ServerTls>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self { directory, ports, members, tls, quota: None, process: None }
    }

    /// The prefix of [`Self::options`].
    pub const PREFIX: &'static str = "/coreos.com/network";

    pub fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports.client)
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.client))
    }

    pub fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.endpoint()],
            prefix: Self::PREFIX.to_owned(),
            ..EtcdOptions::default()
        }
    }

    pub fn store(&self, seed: u64) -> EtcdStore {
        EtcdStore::new(&self.options(), None, seed).expect("options of a test server are right")
    }

    pub fn raw(&self) -> RawEtcd {
        RawEtcd::new(&self.options())
    }

    /// As a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("etcd can be killed");
            process.wait().expect("etcd ends when killed");
        }
    }

    /// Same ports, same data; ends the one that runs.
    pub fn restart(&mut self) {
        self.kill();
        self.process = Some(self.spawn());
        self.wait_until_healthy();
    }

    /// Sends a signal such as `libc::SIGSTOP`.
    pub fn signal(&self, signal: libc::c_int) {
        let process = self.process.as_ref().expect("etcd runs");
        // SAFETY: kill(2) takes no pointers, and the process is our own child, not yet waited for.
        let sent = unsafe { libc::kill(process.id().cast_signed(), signal) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// Kills etcd and copies its data: a backup to go back to with [`Self::restore`].
    pub fn back_up(&mut self) -> TempDir {
        self.kill();
        let backup = tempfile::tempdir().expect("a temporary directory");
        copy(&self.data(), &backup.path().join("data"));
        self.restart();
        backup
    }

    pub fn restore(&mut self, backup: &TempDir) {
        self.kill();
        fs::remove_dir_all(self.data()).expect("the data can be removed");
        copy(&backup.path().join("data"), &self.data());
        self.restart();
    }

    /// How many requests this server has answered since it was started, by name: `Range`, `Txn`, …
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let mut requests = BTreeMap::new();
        for line in
            self.metrics().lines().filter(|line| line.starts_with("grpc_server_started_total{"))
        {
            let name = line.split("grpc_method=\"").nth(1).and_then(|rest| rest.split('"').next());
            let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
            if let (Some(name), Some(count)) = (name, count) {
                *requests.entry(name.to_owned()).or_default() += count as u64;
            }
        }
        requests
    }

    /// How many ranges of keys are being watched.
    pub fn open_watches(&self) -> u64 {
        let metrics = self.metrics();
        let count =
            metrics.lines().find_map(|l| l.strip_prefix("etcd_debugging_mvcc_watcher_total "));
        count.and_then(|count| count.parse().ok()).expect("etcd counts its watches")
    }

    fn metrics(&self) -> String {
        self.http_get("/metrics").expect("etcd tells its metrics")
    }

    fn spawn(&self) -> Child {
        let Ports { peer, metrics, .. } = self.ports;
        let log = File::create(self.log()).expect("the log can be written");
        let mut command = Command::new(binary());
        command
            .env_clear()
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .args(["--name", &self.ports.name()])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .arg("--data-dir")
            .arg(self.data())
            .args(["--listen-client-urls", &self.endpoint()])
            .args(["--advertise-client-urls", &self.endpoint()])
            .args(["--listen-peer-urls", &local(peer)])
            .args(["--initial-advertise-peer-urls", &local(peer)])
            .args(["--initial-cluster", &self.members])
            .args(["--listen-metrics-urls", &local(metrics)])
            .stdout(log.try_clone().expect("the log can be shared"))
            .stderr(log);
        if let Some(ServerTls { cert, key, client_ca }) = &self.tls {
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
            if let Some(ca) = client_ca {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
            }
        }
        if let Some(quota) = self.quota {
            command.arg("--quota-backend-bytes").arg(quota.to_string());
        }
        // SAFETY: prctl is async-signal-safe, and the closure does nothing else.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command.spawn().unwrap_or_else(|e| panic!("{} does not start: {e}", binary().display()))
    }

    fn wait_until_healthy(&mut self) {
        let began = Instant::now();
        while !self.http_get("/health").is_some_and(|text| text.contains("\"true\"")) {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if ended.is_some() || began.elapsed() > START_TIMEOUT {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                panic!("etcd does not come up (ended: {ended:?}); its log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn http_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports.metrics)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn local(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// `$FLANNEL_TEST_ETCD`, the one the project's scripts put into the cache, or the system's.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("FLANNEL_TEST_ETCD") {
        return PathBuf::from(path);
    }
    let cache = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/flannel-rs/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = cache.into_iter().chain(std::env::split_paths(&path));
    let found = places.map(|place| place.join("etcd")).find(|etcd| etcd.is_file());
    found.expect(
        "this test needs an etcd server: install one, or set FLANNEL_TEST_ETCD to its path; no test is \
         skipped for want of it",
    )
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
}
