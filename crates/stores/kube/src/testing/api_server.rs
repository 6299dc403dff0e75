//! A real kube-apiserver and its etcd, on ports of their own, gone when dropped. Two at a time on the whole
//! machine: it is a large program.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use flannel_common::replace_file;
use flannel_store::testing::free_ports;
use http::Method;
use rustix::fs::{FlockOperation, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::certificates::{Authority, signing_key};
use crate::access::Access;
use crate::client::{ApiAnswer, Client};

const START_TIMEOUT: Duration = Duration::from_secs(120);
const JSON: &str = "application/json";
/// How many run at a time on this machine, whichever test programs start them.
const RUNNING_AT_ONCE: usize = 2;
/// What the server must answer before tests begin. Roles and priority classes that Kubernetes makes for its own programs
/// come a second later, and no test looks at them.
const READY: [&str; 3] = [
    "/readyz?exclude=poststarthook/rbac/bootstrap-roles\
     &exclude=poststarthook/scheduling/bootstrap-system-priority-classes",
    "/api/v1/namespaces/kube-system",
    "/api/v1/namespaces/default",
];
const NAMES: [&str; 3] = ["localhost", "kubernetes", "kubernetes.default.svc"];

pub struct ApiServer {
    directory: TempDir,
    authority: Authority,
    address: IpAddr,
    port: u16,
    etcd_port: u16,
    peer_port: u16,
    network: Option<PathBuf>,
    flags: Vec<String>,
    etcd: Option<Child>,
    server: Option<Child>,
    _turn: File,
}

#[derive(Clone, Debug)]
pub struct ApiServerBuilder {
    address: IpAddr,
    network: Option<PathBuf>,
    flags: Vec<String>,
}

impl ApiServerBuilder {
    /// Inside this network namespace, and known by this address there.
    pub fn inside(mut self, network: impl Into<PathBuf>, address: IpAddr) -> Self {
        (self.network, self.address) = (Some(network.into()), address);
        self
    }

    /// One more flag for kube-apiserver.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Returns when it answers.
    pub fn start(self) -> ApiServer {
        let turn = take_turn();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [port, etcd_port, peer_port] = match self.network {
            Some(_) => [6443, 2379, 2380],
            None => free_ports(),
        };
        let mut server = ApiServer {
            directory,
            authority: Authority::new(),
            address: self.address,
            port,
            etcd_port,
            peer_port,
            network: self.network,
            flags: self.flags,
            etcd: None,
            server: None,
            _turn: turn,
        };
        server.make_certificates();
        server.etcd = Some(server.spawn_etcd());
        server.server = Some(server.spawn_server());
        server.wait_until_ready();
        server
    }
}

impl ApiServer {
    /// On the loopback address.
    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn builder() -> ApiServerBuilder {
        let address = Ipv4Addr::LOCALHOST.into();
        ApiServerBuilder { address, network: None, flags: Vec::new() }
    }

    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the cluster's authority.
    pub fn authority_file(&self) -> PathBuf {
        self.file("ca.crt")
    }

    /// The kubeconfig of somebody who may do everything.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.kubeconfig(
            "admin",
            &self.url(),
            json!({"client-certificate": "admin.crt", "client-key": "admin.key"}),
        )
    }

    /// Writes a kubeconfig for a user who is known as `user` says; `url` may lead through something else.
    pub fn kubeconfig(&self, name: &str, url: &str, user: Value) -> PathBuf {
        let file = self.file(&format!("{name}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": url, "certificate-authority": "ca.crt", "tls-server-name": "kubernetes",
            }}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        });
        // Others may be reading it.
        let config = config.to_string();
        if fs::read_to_string(&file).is_ok_and(|written| written == config) {
            return file;
        }
        replace_file(&file, config.as_bytes(), 0o600).expect("a kubeconfig");
        file
    }

    /// For what is done as an administrator.
    pub fn admin(&self) -> Access {
        Access::Kubeconfig { file: self.admin_kubeconfig(), url: None }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Asks as an administrator; the answer's status and content.
    pub fn ask(
        &self,
        method: &Method,
        path: &str,
        content: Option<(&'static str, &str)>,
    ) -> (u16, Value) {
        let answer = self.answer(method, path, JSON, content);
        let value = serde_json::from_slice(&answer.body);
        let text = || Value::String(String::from_utf8_lossy(&answer.body).into_owned());
        (answer.status.as_u16(), value.unwrap_or_else(|_| text()))
    }

    /// What is answered to an administrator who wants it in this form.
    pub fn bytes(&self, path: &str, accept: &'static str) -> Vec<u8> {
        let answer = self.answer(&Method::GET, path, accept, None);
        assert!(answer.status.is_success(), "{path}: {}", answer.status);
        answer.body.to_vec()
    }

    fn answer(
        &self,
        method: &Method,
        path: &str,
        accept: &'static str,
        content: Option<(&'static str, &str)>,
    ) -> ApiAnswer {
        let answered = self.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let client = Client::new(self.admin(), "test");
            let request = client.answer(method.clone(), path, accept, content);
            runtime.expect("a runtime").block_on(request)
        });
        answered.unwrap_or_else(|why| panic!("{method} {path}: {why}\n{}", self.log()))
    }

    /// What status somebody with this token is answered with.
    pub fn status_for(&self, token: &str, path: &str) -> u16 {
        self.ask_as(token, &Method::GET, path, None).0
    }

    /// Asks with a token; the answer's status and content.
    pub fn ask_as(
        &self,
        token: &str,
        method: &Method,
        path: &str,
        content: Option<(&'static str, &str)>,
    ) -> (u16, String) {
        let user = serde_json::json!({ "token": token });
        let access =
            Access::Kubeconfig { file: self.kubeconfig("asker", &self.url(), user), url: None };
        let answered = self.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let client = Client::new(access, "test");
            let request = client.answer(method.clone(), path, JSON, content);
            runtime.expect("a runtime").block_on(request)
        });
        let answer = answered.expect("the API server answers");
        (answer.status.as_u16(), String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// As [`Self::ask`], for what must succeed.
    pub fn must(
        &self,
        method: &Method,
        path: &str,
        content: Option<(&'static str, &str)>,
    ) -> Value {
        let (status, value) = self.ask(method, path, content);
        assert!((200..300).contains(&status), "{method} {path}: {status} {value}");
        value
    }

    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.must(&Method::POST, path, Some((JSON, &object.to_string())))
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        end(&mut self.server);
    }

    /// The same server again, with the same data.
    pub fn restart(&mut self) {
        self.kill();
        self.server = Some(self.spawn_server());
        self.wait_until_ready();
    }

    /// Gives the server another certificate by another authority; it is used after [`Self::restart`].
    pub fn replace_authority(&mut self) {
        self.authority = Authority::new();
        self.make_certificates();
    }

    /// Freezes the server, or lets it go on.
    pub fn freeze(&self, yes: bool) {
        let server = self.server.as_ref().expect("the API server runs");
        let signal = if yes { libc::SIGSTOP } else { libc::SIGCONT };
        // SAFETY: kill(2) takes no pointers, and the process is our own child, not yet waited for.
        let sent = unsafe { libc::kill(server.id().cast_signed(), signal) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// The server's log of its last run.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("kube-apiserver.log")).unwrap_or_default()
    }

    /// Processor time that the server has used, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let pid = self.server.as_ref().expect("the API server runs").id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
        let after = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
        // What Linux tells programs is in hundredths of a second, whatever it counts in itself.
        (ticks(11) + ticks(12)) / 100.0
    }

    /// Runs something on a thread of its own where the server is.
    pub fn inside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                if let Some(network) = &self.network {
                    let network = File::open(network).expect("the network namespace is there");
                    let kind = Some(LinkNameSpaceType::Network);
                    move_into_link_name_space(network.as_fd(), kind).expect("it can be entered");
                }
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn make_certificates(&self) {
        let directory = self.directory.path();
        fs::write(self.file("ca.crt"), self.authority.pem()).expect("a file");
        let mut names: Vec<String> = NAMES.map(str::to_owned).to_vec();
        names.extend([self.address.to_string(), Ipv4Addr::LOCALHOST.to_string()]);
        self.authority.server(directory, "server", names);
        self.authority.user(directory, "admin", "system:masters");
        if !self.file("accounts.key").exists() {
            signing_key(directory, "accounts");
        }
        if !self.file("tokens.csv").exists() {
            fs::write(self.file("tokens.csv"), "\n").expect("a file");
        }
    }

    fn spawn_etcd(&self) -> Child {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = self.command("etcd");
        command
            .arg("--data-dir")
            .arg(self.file("etcd"))
            .args(["--listen-client-urls", &url(self.etcd_port)])
            .args(["--advertise-client-urls", &url(self.etcd_port)])
            .args(["--listen-peer-urls", &url(self.peer_port)])
            .args(["--initial-advertise-peer-urls", &url(self.peer_port)])
            .args(["--initial-cluster", &format!("default={}", url(self.peer_port))])
            .args(["--unsafe-no-fsync", "--log-level", "warn"]);
        command.spawn().expect("etcd starts")
    }

    fn spawn_server(&self) -> Child {
        let file = |name: &str| self.file(name).display().to_string();
        let mut command = self.command("kube-apiserver");
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port))
            .arg("--bind-address=0.0.0.0")
            .arg(format!("--advertise-address={}", self.advertised()))
            .arg(format!("--secure-port={}", self.port))
            .args(["--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16"])
            .arg(format!("--tls-cert-file={}", file("server.crt")))
            .arg(format!("--tls-private-key-file={}", file("server.key")))
            .arg(format!("--client-ca-file={}", file("ca.crt")))
            .arg(format!("--token-auth-file={}", file("tokens.csv")))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-account-key-file={}", file("accounts.pub")))
            .arg(format!("--service-account-signing-key-file={}", file("accounts.key")))
            .args(["--authorization-mode=Node,RBAC", "--allow-privileged"])
            .args(&self.flags);
        command.spawn().expect("kube-apiserver starts")
    }

    /// It must not be a loopback address, and nobody connects to it.
    fn advertised(&self) -> IpAddr {
        let loopback = self.address.is_loopback();
        if loopback { Ipv4Addr::new(192, 0, 2, 1).into() } else { self.address }
    }

    fn command(&self, program: &str) -> Command {
        let binary = binary(program);
        let mut command = match &self.network {
            Some(network) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", network.display())).arg("--").arg(binary);
                command
            }
            None => Command::new(binary),
        };
        let log = File::create(self.file(&format!("{program}.log"))).expect("a log");
        command.env_clear().current_dir(self.directory.path());
        command.stdout(log.try_clone().expect("a log that is shared")).stderr(log);
        // SAFETY: prctl is async-signal-safe, and the closure does nothing else.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command
    }

    fn wait_until_ready(&mut self) {
        let began = Instant::now();
        while !self.is_ready() {
            let both = [&mut self.server, &mut self.etcd].into_iter().flatten();
            let ended = both.into_iter().find_map(|child| child.try_wait().ok().flatten());
            if ended.is_some() || began.elapsed() > START_TIMEOUT {
                panic!("the API server does not come up (ended: {ended:?}):\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_ready(&self) -> bool {
        self.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let client = Client::new(self.admin(), "test");
                for path in READY {
                    let answer = client.answer(Method::GET, path, "*/*", None).await;
                    if !answer.is_ok_and(|answer| answer.status.is_success()) {
                        return false;
                    }
                }
                true
            })
        })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        end(&mut self.server);
        end(&mut self.etcd);
    }
}

fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Waits until less than [`RUNNING_AT_ONCE`] API servers of tests run on this machine.
fn take_turn() -> File {
    let lock = |number: usize| {
        let name = format!("flannel-test-api-server-{number}.lock");
        File::create(std::env::temp_dir().join(name)).expect("a lock")
    };
    let locks: Vec<File> = (0..RUNNING_AT_ONCE).map(lock).collect();
    loop {
        let is_free = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if let Some(number) = locks.iter().position(is_free) {
            return locks.into_iter().nth(number).expect("it is among them");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// In `$FLANNEL_TEST_KUBERNETES_DIR`, or where the project's scripts put it.
fn binary(program: &str) -> PathBuf {
    let directory = std::env::var_os("FLANNEL_TEST_KUBERNETES_DIR").map(PathBuf::from);
    let cache = std::env::var_os("HOME")
        .map(|home| Path::new(&home).join(".cache/flannel-rs/bin/kubernetes"));
    let found = directory.or(cache).map(|directory| directory.join(program));
    found.filter(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "this test needs {program}: `scripts/deps kubernetes` builds it, FLANNEL_TEST_KUBERNETES_DIR says where \
             it is; no test is skipped for want of it"
        )
    })
}
