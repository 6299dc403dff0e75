//! The control plane: API server, controller-manager and scheduler, beside the etcd that they share.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Context, LabError, Result};
use crate::logs::{LogDir, LogFile};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::wait::wait_until;

use super::certificates::{Authority, signing_keys};
use super::spec::KubernetesSpec;

pub(crate) const PORT: u16 = 6443;
/// The addresses of services, and the first of them, which is the API server's own.
const SERVICES: &str = "10.96.0.0/16";
const SERVICES_DUAL: &str = "10.96.0.0/16,fd00:96::/112";
const OWN_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

const DIRECTORY: &str = "/run/kubernetes";
pub(crate) const ADMIN: &str = "/run/kubernetes/admin.kubeconfig";

const READY_LIMIT: Duration = Duration::from_secs(90);

/// The three programs, restarted one by one if a test wants that.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) namespace: Namespace,
    spec: KubernetesSpec,
    etcd: String,
    address: IpAddr,
    logs: Vec<(&'static str, LogFile)>,
    processes: Mutex<Vec<(&'static str, Process)>>,
}

const API_SERVER: &str = "kube-apiserver";
const CONTROLLERS: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

impl ControlPlane {
    pub(crate) fn start(
        namespace: &Namespace,
        spec: &KubernetesSpec,
        etcd: &str,
        address: IpAddr,
        authority: &Authority,
        logs: &LogDir,
    ) -> Result<Self> {
        let own_logs = [API_SERVER, CONTROLLERS, SCHEDULER].map(|name| (name, logs.log(name)));
        let plane = Self {
            namespace: namespace.clone(),
            spec: spec.clone(),
            etcd: etcd.to_owned(),
            address,
            logs: own_logs.into(),
            processes: Mutex::default(),
        };
        plane.write_files(authority)?;
        plane.run(API_SERVER)?;
        plane.wait_until_ready()?;
        plane.run(CONTROLLERS)?;
        plane.run(SCHEDULER)?;
        Ok(plane)
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}:{PORT}", self.address)
    }

    fn write_files(&self, authority: &Authority) -> Result<()> {
        let service: IpAddr = OWN_SERVICE.into();
        let names =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].as_slice();
        let addresses = [self.address, service, Ipv4Addr::LOCALHOST.into()];
        let server = authority.server(names, &addresses)?;
        let admin = authority.client("admin", Some("system:masters"))?;
        let user = |user: &str| -> Result<String> {
            Ok(authority.kubeconfig(&self.url(), &authority.client(user, None)?))
        };
        let (private, public) = signing_keys()?;
        let files = [
            ("ca.crt", authority.certificate()),
            ("accounts.key", private),
            ("accounts.pub", public),
            ("controllers.kubeconfig", user("system:kube-controller-manager")?),
            ("scheduler.kubeconfig", user("system:kube-scheduler")?),
            ("admin.kubeconfig", authority.kubeconfig(&self.url(), &admin)),
            ("admin.crt", admin.certificate),
            ("admin.key", admin.key),
            ("server.crt", server.certificate),
            ("server.key", server.key),
        ];
        write_files(&self.namespace, DIRECTORY, &files)
    }

    fn run(&self, name: &'static str) -> Result<()> {
        let mut command = Command::new(self.spec.program(name)?);
        match name {
            API_SERVER => {
                let services = if self.spec.pods.contains(',') { SERVICES_DUAL } else { SERVICES };
                command
                    .args(["--etcd-servers", &self.etcd])
                    .args(["--advertise-address", &self.address.to_string()])
                    .args(["--secure-port", &PORT.to_string()])
                    .args(["--service-cluster-ip-range", services])
                    .args(["--client-ca-file", "ca.crt"])
                    .args(["--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key"])
                    .args(["--kubelet-client-certificate", "admin.crt"])
                    .args(["--kubelet-client-key", "admin.key"])
                    .args(["--kubelet-preferred-address-types", "InternalIP"])
                    .args(["--service-account-issuer", "https://kubernetes.default.svc"])
                    .args(["--service-account-key-file", "accounts.pub"])
                    .args(["--service-account-signing-key-file", "accounts.key"])
                    .args(["--authorization-mode", "Node,RBAC", "--allow-privileged"])
            }
            CONTROLLERS => command
                .args(["--kubeconfig", "controllers.kubeconfig", "--leader-elect=false"])
                .args(["--cluster-cidr", &self.spec.pods])
                .arg(format!("--allocate-node-cidrs={}", self.spec.allocate))
                .args(["--service-account-private-key-file", "accounts.key"])
                .args(["--root-ca-file", "ca.crt", "--use-service-account-credentials"]),
            _ => command.args(["--kubeconfig", "scheduler.kubeconfig", "--leader-elect=false"]),
        };
        let process = spawn(&self.namespace, DIRECTORY, &command, self.log(name))?;
        self.processes().push((name, process));
        Ok(())
    }

    fn wait_until_ready(&self) -> Result<()> {
        let what = "the API server to be ready";
        let waited = wait_until(what, READY_LIMIT, || {
            let dead = self.processes().iter().any(|(_, process)| !process.is_running());
            if dead {
                Ok(Err("it ended"))
            } else {
                self.kubectl(&["get", "--raw", "/readyz"], None).map(Ok)
            }
        });
        let log = || self.log(API_SERVER).tail(10);
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) => Err(LabError::DaemonDied {
                what: API_SERVER.into(),
                status: why.into(),
                log: log(),
            }),
            Err(LabError::Timeout { what, waited, state, .. }) => {
                Err(LabError::Timeout { what, waited, state, logs: format!("\n{}", log()) })
            }
            Err(other) => Err(other),
        }
    }

    pub(crate) fn kubectl(&self, words: &[&str], input: Option<&str>) -> Result<String> {
        let program = self.spec.program("kubectl")?;
        let mut command = Command::new(&program);
        command.args(["--kubeconfig", ADMIN, "--cache-dir=/run/kubernetes/cache"]).args(words);
        let what = format!("kubectl {}", words.join(" "));
        let output =
            self.namespace.run_command(&mut command, &what, input, super::KUBECTL_LIMIT)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(self.namespace.failed(&what, output.status, &output.stderr))
    }

    pub(crate) fn log(&self, name: &str) -> &LogFile {
        let found = self.logs.iter().find(|(known, _)| *known == name);
        &found.unwrap_or(&self.logs[0]).1
    }

    fn processes(&self) -> MutexGuard<'_, Vec<(&'static str, Process)>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a program in a directory that the namespace alone has.
pub(crate) fn spawn(
    namespace: &Namespace,
    directory: &str,
    command: &Command,
    log: &LogFile,
) -> Result<Process> {
    let mut inside = Command::new("sh");
    inside.args(["-c", "cd \"$1\" && shift && exec \"$@\"", "sh", directory]);
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        inside.env(name, value.unwrap_or_default());
    }
    let log = log.open()?;
    let errors = log.try_clone().context(|| "share a log".into())?;
    inside.stdin(Stdio::null()).stdout(log).stderr(errors);
    namespace.spawn(inside)
}

/// Writes files that nobody else reads into a directory of a namespace.
pub(crate) fn write_files(
    namespace: &Namespace,
    directory: &str,
    files: &[(&str, String)],
) -> Result<()> {
    let written = namespace.run(|| {
        std::fs::create_dir_all(directory)?;
        files.iter().try_for_each(|(name, text)| {
            std::fs::write(std::path::Path::new(directory).join(name), text)
        })
    })?;
    written.context(|| format!("{}: write to {directory}", namespace.label()))
}
