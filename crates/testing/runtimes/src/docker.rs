//! Docker on a lab node, with the options file made from what flanneld says about the node.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use flannel_lab::{Cgroups, Node, Place as _, Process, wait_until};
use rustix::process::Signal;

use crate::image;
use crate::programs::{Unpacked, env_command, of_repository, own_directory};
use crate::runtime::Runtime;

const OPTIONS_FILE: &str = "/run/docker_opts.env";
const SOCKET: &str = "unix:///run/docker.sock";
const LOG: &str = "/run/dockerd.log";
/// How long the daemon may take until it answers.
const LIMIT: Duration = Duration::from_secs(20);

/// A node's Docker.
#[derive(Debug)]
pub struct Docker<'a> {
    node: &'a Node,
    client: Vec<OsString>,
    daemon: Process,
    /// Dropped last: after the containers.
    _cgroups: Cgroups,
}

impl<'a> Docker<'a> {
    /// Makes the options file and starts the daemon with what it says.
    pub fn on(node: &'a Node) -> Self {
        let programs = Unpacked::find("docker");
        let cgroups = Cgroups::new(node.namespace().label());
        own_directory(node, "/etc");
        own_directory(node, "/var/lib");
        image::make(node);

        let script = of_repository("dist/mk-docker-opts.sh");
        node.exec(&["sh", &script, "-c", "-d", OPTIONS_FILE]).expect("make the options file");
        let daemon = node
            .spawn(daemon_command(&programs, &cgroups))
            .unwrap_or_else(|error| panic!("start dockerd: {error}"));

        let mut client = env_command(&[programs.path(), "HOME=/run".to_owned()]);
        client.extend([programs.program("docker").into(), "--host".into(), SOCKET.into()]);
        let docker = Self { node, client, daemon, _cgroups: cgroups };
        docker.wait_until_it_answers();
        docker.run(&["import", image::IMAGE_TAR, "busybox"]);
        docker
    }

    /// The address that Docker gave to a container.
    pub fn address(&self, name: &str) -> Ipv4Addr {
        let address = self.run(&["inspect", "--format", "{{.NetworkSettings.IPAddress}}", name]);
        address.trim().parse().unwrap_or_else(|_| panic!("{name} has the address {address:?}"))
    }

    fn run(&self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    fn wait_until_it_answers(&self) {
        let answers = wait_until("dockerd to answer", LIMIT, || self.try_run(&["version"]));
        answers.unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
    }

    fn log(&self) -> String {
        self.node.read_file(LOG).unwrap_or_default()
    }
}

impl Runtime for Docker<'_> {
    fn start(&self, name: &str, options: &[&str], command: &[&str]) {
        let mut words = vec!["run", "--detach", "--name", name];
        words.extend(options);
        words.push("busybox");
        words.extend(command);
        self.run(&words);
    }

    fn try_run(&self, words: &[&str]) -> flannel_lab::Result<String> {
        let mut command = self.client.clone();
        command.extend(words.iter().map(OsString::from));
        self.node.namespace().exec(&command)
    }
}

impl Drop for Docker<'_> {
    fn drop(&mut self) {
        if let Ok(names) = self.try_run(&["ps", "--all", "--quiet"]) {
            let mut words = vec!["rm", "--force"];
            words.extend(names.split_whitespace());
            let _ = self.try_run(&words);
        }
        // It takes along the containerd that it has started.
        let _ = self.daemon.signal(Signal::TERM);
        let _ = self.daemon.wait(LIMIT);
    }
}

/// As a service file does it: the options file gives variables, the command line uses one of them.
fn daemon_command(programs: &Unpacked, cgroups: &Cgroups) -> Command {
    let parent = cgroups.parent();
    let words = env_command(&[programs.path(), programs.libraries()]);
    let [env, settings @ ..] = words.as_slice() else { unreachable!("`env` comes first") };
    let mut command = Command::new(env);
    // Limits: Docker's own are higher than an unprivileged machine allows.
    let line = format!(
        "set -a; . {OPTIONS_FILE}; exec dockerd $DOCKER_OPTS --host {SOCKET} \
         --data-root /run/docker-data --exec-root /run/docker-exec --pidfile /run/docker.pid \
         --storage-driver vfs --cgroup-parent {parent} --default-ulimit nofile=1024:1024 \
         >{LOG} 2>&1"
    );
    command.args(settings).args(["sh", "-c", &line]);
    command
}
