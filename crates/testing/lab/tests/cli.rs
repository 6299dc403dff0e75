//! `flannel-lab` as people use it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const FLANNEL_LAB: &str = env!("CARGO_BIN_EXE_flannel-lab");

/// A lab of this test alone, removed at the end however the test ends.
struct TestLab(String);

impl TestLab {
    fn new(what: &str) -> Self {
        Self(format!("test-{what}-{}", std::process::id()))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FLANNEL_LAB);
        command.args(["--name", &self.0]).args(words).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("run flannel-lab")
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success(), "{words:?}: {}\n{stdout}{stderr}", output.status);
        stdout
    }

    fn fails(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (stdout, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {stdout}{stderr}");
        stdout + &stderr
    }

    fn dir(&self) -> PathBuf {
        Path::new("/run/flannel-lab").join(&self.0)
    }

    /// The number after a word of the status, e.g. `supervisor pid`.
    fn number(&self, after: &str) -> u32 {
        let status = self.ok(&["status"]);
        let rest = status.split(after).nth(1).unwrap_or_else(|| panic!("no {after}: {status}"));
        let digits: String = rest.trim().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("no number after {after}: {status}"))
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn wait_for(what: &str, mut look: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !look() {
        assert!(begin.elapsed() < Duration::from_secs(10), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn go_flanneld() -> String {
    let path = flannel_lab::find_go_flanneld().unwrap_or_else(|error| panic!("{error}"));
    path.to_str().expect("a path of text").to_owned()
}

#[test]
fn a_lab_goes_up_shows_itself_and_goes_down() {
    let lab = TestLab::new("up");
    let up = lab.ok(&["up", "--nodes=2", "--flanneld", &go_flanneld()]);
    for expected in [
        "making 2 nodes",
        "2 nodes, vxlan",
        "192.168.100.2",
        "http://192.168.100.253:2379",
        "all 2 pairs reach each other",
        "exec 1 -- ip route",
        "fault partition 1 2",
        "down",
    ] {
        assert!(up.contains(expected), "no `{expected}` in:\n{up}");
    }
    assert!(!up.contains('\x1b'), "colours without a terminal:\n{up}");
    let status = lab.ok(&["status"]);
    assert!(status.contains("all 2 pairs reach each other"), "{status}");
    assert!(status.contains("go-flanneld"), "{status}");

    let routes = lab.ok(&["exec", "1", "--", "ip", "route"]);
    assert!(routes.contains("flannel.1"), "{routes}");
    let pod = lab.ok(&["exec", "pod2", "--", "sh", "-c", "hostname; ls /sys/class/net"]);
    assert!(pod.starts_with("pod2\n") && pod.contains("eth0"), "{pod}");
    let data = lab.ok(&["exec", "etcd", "--", "ls", "/run/etcd"]);
    assert!(data.contains("member"), "{data}");
    assert!(lab.ok(&["logs", "2"]).contains("Running backend"));
    assert!(!lab.ok(&["logs", "etcd"]).contains("panic"));

    let (supervisor, etcd) = (lab.number("supervisor pid"), lab.number(":2379  pid"));
    let down = lab.ok(&["down"]);
    assert!(down.contains("gone"), "{down}");
    assert!(!runs(etcd) && !lab.dir().exists());
    wait_for("the supervisor to end", || !runs(supervisor));
    assert!(lab.fails(&["down"]).contains("no lab"));
    assert!(lab.fails(&["status"]).contains("lab up"));
}

#[test]
fn faults_are_seen_and_healed() {
    let lab = TestLab::new("fault");
    lab.ok(&["up", "--nodes=3", "--flanneld", &go_flanneld()]);
    let said = lab.ok(&["fault", "partition", "1", "2,3"]);
    assert!(said.contains("node 1 and node 3 are cut off"), "{said}");
    let status = lab.fails(&["status"]);
    assert!(status.contains("4 of 6 tried pairs"), "{status}");
    assert!(status.contains("node 1 and node 2 are cut off"), "{status}");
    lab.ok(&["fault", "heal"]);
    lab.ok(&["status"]);

    lab.ok(&["fault", "kill", "2"]);
    assert!(lab.ok(&["status"]).contains("not running"));
    lab.ok(&["fault", "restart", "2"]);
    assert!(!lab.ok(&["status"]).contains("not running"));

    let subnet = lab.ok(&["exec", "1", "--", "ip", "route", "show", "dev", "flannel.1"]);
    let subnet = subnet.split(' ').next().expect("a route").to_owned();
    assert!(lab.ok(&["fault", "route-del", "1", &subnet]).contains(&subnet));
    lab.fails(&["status"]);
    assert!(lab.ok(&["fault", "vandal", "3", "--seed", "7"]).contains("seed 7"));
    assert!(lab.fails(&["fault", "kill", "4"]).contains("nodes 1 to 3"));
    assert!(lab.fails(&["fault", "route-del", "1", "10.99.0.0/16"]).contains("10.99.0.0/16"));

    lab.ok(&["fault", "etcd", "snapshot"]);
    lab.ok(&["fault", "etcd", "kill"]);
    assert!(lab.run(&["status"]).stdout.windows(11).any(|part| part == b"not running"));
    lab.ok(&["fault", "etcd", "restore"]);
}

#[test]
fn the_exit_status_of_a_command_is_passed_on() {
    let lab = TestLab::new("exec");
    lab.ok(&["up", "--nodes=1", "--no-daemon"]);
    let code = |words: &[&str]| lab.run(&[&["exec", "1", "--"], words].concat()).status.code();
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 42"]), Some(42));
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), Some(143));
    assert_eq!(code(&["/no/such/program"]), Some(127));
    assert!(lab.fails(&["exec", "2", "--", "true"]).contains("nodes 1 to 1"));
    assert!(lab.fails(&["exec", "pod1", "--", "true"]).contains("there is no pod1"));
    // Where a command does not say, it runs where we are.
    let here = std::env::current_dir().expect("a directory");
    assert_eq!(lab.ok(&["exec", "1", "--", "pwd"]).trim(), here.to_str().expect("text"));
}

#[test]
fn live_traces_find_pods_of_the_lab_and_exec_ends_what_it_started() {
    let lab = TestLab::new("live");
    lab.ok(&["up", "--nodes=2", "--store=server"]);
    let address = |pod: &str| {
        let shown = lab.ok(&["exec", pod, "--", "hostname", "-I"]);
        shown.split_whitespace().next().expect("an address").to_owned()
    };
    let (from, to) = (address("pod1"), address("pod2"));
    // Built beside it, as all programs of the workspace.
    let flannelctl = Path::new(FLANNEL_LAB).with_file_name("flannelctl");
    let flannelctl = flannelctl.to_str().expect("a path in UTF-8");
    let traced = lab.ok(&["exec", "1", "--", flannelctl, "trace", "--live", &from, &to]);
    assert!(traced.contains(&to), "{traced}");

    let mut exec = lab.command(&["exec", "1", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let mut exec = exec.stdout(Stdio::piped()).spawn().expect("run flannel-lab");
    let output = exec.stdout.take().expect("a pipe");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).expect("a process id");
    let sleeps = || lab.ok(&["exec", "1", "--", "ps", "-e"]).contains("sleep");
    assert!(sleeps(), "{line}");
    exec.kill().expect("kill -9");
    exec.wait().expect("it ends");
    wait_for("the command to end", || !sleeps());
}

#[test]
fn a_second_lab_needs_another_name() {
    let lab = TestLab::new("twice");
    let other = TestLab::new("beside");
    lab.ok(&["up", "--nodes=1", "--no-daemon"]);
    let said = lab.fails(&["up", "--nodes=1", "--no-daemon"]);
    assert!(said.contains("running already") && said.contains("down"), "{said}");
    other.ok(&["up", "--nodes=2", "--no-daemon"]);
    lab.ok(&["status"]);
    other.ok(&["status"]);
}

#[test]
fn a_killed_supervisor_leaves_no_process_and_the_next_lab_can_start() {
    let lab = TestLab::new("crash");
    for clearing in ["up", "down"] {
        lab.ok(&["up", "--nodes=1", "--no-daemon"]);
        let (supervisor, etcd) = (lab.number("supervisor pid"), lab.number(":2379  pid"));
        let mut stuck = lab.command(&["exec", "1", "--", "sleep", "1000"]).spawn().expect("spawn");
        assert!(runs(etcd));
        let killed = Command::new("kill").args(["-9", &supervisor.to_string()]).status();
        assert!(killed.expect("kill").success());
        wait_for("etcd to be gone", || !runs(etcd));
        // What runs in the lab ends with it.
        wait_for("the command to end", || stuck.try_wait().expect("wait").is_some());
        assert!(lab.dir().exists(), "only the directory is left");
        if clearing == "down" {
            assert!(lab.ok(&["down"]).contains("had crashed"));
            assert!(!lab.dir().exists());
        }
    }
}

#[test]
fn a_reader_that_goes_away_does_not_take_the_lab_along() {
    let lab = TestLab::new("pipe");
    let mut up = lab.command(&["up", "--nodes=1", "--no-daemon"]).stdout(Stdio::piped()).spawn();
    let up = up.as_mut().expect("spawn");
    drop(up.stdout.take());
    assert!(up.wait().expect("wait").success());
    lab.ok(&["status"]);
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let lab = TestLab::new("interrupt");
    let tools = tempfile::tempdir().expect("a directory");
    let never_ready = tools.path().join("flanneld");
    std::fs::write(&never_ready, "#!/bin/sh\nexec sleep 1000\n").expect("write");
    std::fs::set_permissions(&never_ready, PermissionsExt::from_mode(0o755)).expect("chmod");

    let mut up: Child = lab
        .command(&["up", "--nodes=2", "--flanneld", never_ready.to_str().expect("text")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn");
    let lines = BufReader::new(up.stdout.take().expect("its output")).lines();
    let started = lines.map_while(Result::ok).any(|line| line.contains("starting flanneld"));
    assert!(started);
    assert!(lab.dir().exists());
    let interrupted = Command::new("kill").args(["-INT", &up.id().to_string()]).status();
    assert!(interrupted.expect("kill").success());
    assert!(!up.wait().expect("wait").success());
    wait_for("the lab to be removed", || !lab.dir().exists());
}

#[test]
fn what_is_missing_is_said_before_anything_starts() {
    let lab = TestLab::new("missing");
    let said = lab.fails(&["up", "--flanneld", "/no/such/flanneld"]);
    assert!(said.contains("/no/such/flanneld"), "{said}");
    let said = lab.fails(&["up", "--no-daemon", "--nodes=1001"]);
    assert!(said.contains("1000"), "{said}");
    let said = lab.fails(&["up", "--no-daemon", "--node-flag", "4=-v=5"]);
    assert!(said.contains("no node 4"), "{said}");
    assert!(!lab.dir().exists());
}

#[test]
fn a_missing_etcd_is_named_with_the_way_to_get_it() {
    let lab = TestLab::new("no-etcd");
    // A PATH without etcd, but with all else that a lab needs.
    let tools = tempfile::tempdir().expect("a directory");
    let path = std::env::var_os("PATH").expect("PATH is set");
    for tool in ["ip", "tc", "bridge", "cat"] {
        let found =
            std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|path| path.exists());
        symlink(found.expect(tool), tools.path().join(tool)).expect("symlink");
    }
    let mut up = lab.command(&["up", "--no-daemon"]);
    for name in ["FLANNEL_ETCD", "FLANNEL_TEST_ETCD", "HOME"] {
        up.env_remove(name);
    }
    let output = up.env("PATH", tools.path()).output().expect("run flannel-lab");
    let (_, said) = texts(&output);
    assert!(!output.status.success() && said.contains("scripts/deps etcd"), "{said}");
    assert!(!lab.dir().exists());
}

#[test]
fn whoever_is_not_root_is_told_so() {
    let lab = TestLab::new("user");
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    // The build directory may be closed to others.
    let program = place.path().join("flannel-lab");
    std::fs::copy(FLANNEL_LAB, &program).expect("copy");
    let output = Command::new(&program)
        .args(["--name", &lab.0, "up", "--no-daemon"])
        .uid(65534)
        .gid(65534)
        .output()
        .expect("run flannel-lab");
    let (_, said) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("root"), "{said}");
}
