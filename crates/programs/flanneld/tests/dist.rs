//! The small programs that are shipped beside the daemon, as their users call them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Docker {
    directory: tempfile::TempDir,
}

const SUBNET_ENV: &str = "FLANNEL_NETWORK=10.1.0.0/16
FLANNEL_SUBNET=10.1.74.1/24
FLANNEL_MTU=1472
FLANNEL_IPMASQ=false
";

impl Docker {
    fn new(subnet_env: &str) -> Self {
        let docker = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(docker.path("subnet.env"), subnet_env).unwrap();
        docker
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// In a network namespace without routes, except those that `prepare` makes.
    fn run(&self, prepare: &str, arguments: &str, environment: &[(&str, &str)]) -> Output {
        let script =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dist/mk-docker-opts.sh").to_owned();
        let line = format!(
            "{prepare} {script} -f {} -d {} {arguments}",
            self.path("subnet.env").display(),
            self.path("docker_opts.env").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &line]).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(environment.iter().copied());
        command.output().unwrap()
    }

    fn written(&self, arguments: &str, environment: &[(&str, &str)]) -> String {
        let output = self.run("", arguments, environment);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {errors}");
        fs::read_to_string(self.path("docker_opts.env")).unwrap()
    }
}

#[test]
fn docker_options_are_the_go_flannels() {
    let docker = Docker::new(SUBNET_ENV);
    let individual = "DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"
DOCKER_OPT_IPMASQ=\"--ip-masq=true\"
DOCKER_OPT_MTU=\"--mtu=1472\"
";
    let combined = "DOCKER_OPTS=\" --bip=10.1.74.1/24 --ip-masq=true --mtu=1472\"\n";
    assert_eq!(docker.written("", &[]), format!("{individual}{combined}"));
    assert_eq!(docker.written("-i -c", &[]), format!("{individual}{combined}"));
    assert_eq!(docker.written("-i", &[]), individual);
    assert_eq!(docker.written("-c", &[]), combined);
    assert_eq!(docker.written("-c -m -k X", &[]), "X=\" --bip=10.1.74.1/24 --mtu=1472\"\n");
}

#[test]
fn what_the_caller_has_set_already_stays() {
    let docker = Docker::new("FLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_IPMASQ=true\n");
    let environment = [("DOCKER_OPT_A", "-a -b"), ("DOCKER_OPTS", "--debug"), ("DOCKER", "no")];
    assert_eq!(
        docker.written("", &environment),
        "DOCKER_OPT_A=\"-a -b\"
DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"
DOCKER_OPT_IPMASQ=\"--ip-masq=false\"
DOCKER_OPTS=\"--debug  -a -b --bip=10.1.74.1/24 --ip-masq=false\"
"
    );
}

#[test]
fn without_a_subnet_file_there_are_no_options() {
    let docker = Docker::new("");
    fs::remove_file(docker.path("subnet.env")).unwrap();
    assert_eq!(docker.written("", &[]), "DOCKER_OPTS=\"\"\n");
}

#[test]
fn nonsense_is_refused() {
    for (subnet_env, arguments, complaint) in [
        ("FLANNEL_IPMASQ=maybe\n", "", "FLANNEL_IPMASQ is 'maybe'"),
        (SUBNET_ENV, "-k 'a b'", "not the name of a variable"),
        (SUBNET_ENV, "-h", "usage: "),
        (SUBNET_ENV, "'-?'", "usage: "),
        (SUBNET_ENV, "-z", "usage: "),
    ] {
        let output = Docker::new(subnet_env).run("", arguments, &[]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert!(errors.contains(complaint), "{arguments}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_subnet_that_is_routed_elsewhere_is_told_after_writing() {
    let docker = Docker::new(SUBNET_ENV);
    let dev = "ip link set lo up; ip route add 192.168.0.0/24 dev lo;";
    let direct = format!("{dev} ip route add 10.1.74.0/24 dev lo;");
    assert!(docker.run(&direct, "", &[]).status.success());
    let elsewhere = format!("{dev} ip route add 10.1.75.0/24 via 192.168.0.9;");
    assert!(docker.run(&elsewhere, "", &[]).status.success());
    let taken = format!("{dev} ip route add 10.1.74.0/24 via 192.168.0.9;");
    let output = docker.run(&taken, "", &[]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("10.1.74.1/24 is already routed to another node"), "{errors}");
    assert!(fs::read_to_string(docker.path("docker_opts.env")).unwrap().contains("--bip"));
}

#[test]
fn install_conf_takes_two_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("a"), directory.path().join("b"));
    fs::write(&source, "{}").unwrap();
    let program = env!("CARGO_BIN_EXE_install-conf");
    let run = |arguments: &[&PathBuf]| Command::new(program).args(arguments).output().unwrap();
    assert!(run(&[&source, &destination]).status.success());
    assert_eq!(fs::read_to_string(&destination).unwrap(), "{}");
    for wrong in [&[][..], &[&source], &[&source, &destination, &source]] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "));
    }
    let output = run(&[&directory.path().join("missing"), &destination]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
}

#[test]
fn the_systemd_unit_is_one_and_leaves_the_tunnel_alone() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dist/systemd/flanneld.service");
    let text = fs::read_to_string(unit).unwrap();
    // Without it systemd ends the process that carries the packets together with the daemon.
    assert!(text.lines().any(|line| line == "KillMode=process"), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().join("flanneld.service");
    let program = env!("CARGO_BIN_EXE_flanneld");
    fs::write(&here, text.replace("/usr/local/bin/flanneld", program)).unwrap();
    let output =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&here).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}
