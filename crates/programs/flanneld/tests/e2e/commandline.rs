//! The command as people and supervisors meet it: flags, exit statuses, signals, systemd, secrets.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use flannel_lab::{Lab, Process, Result};
use rustix::process::Signal;

use crate::support::{LIMIT, flanneld, lab, measured, put_peers};

fn run(arguments: &[&str]) -> Output {
    Command::new(flanneld()).args(arguments).env_clear().output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A second daemon on a node, with its own end to look at.
fn spawn(lab: &Lab, node: u16, more: &[&str]) -> Result<Process> {
    let mut command = Command::new(flanneld());
    command.args(["--iface=eth0", &format!("--etcd-endpoints={}", lab.etcd()?.endpoints())]);
    command.args(more).stderr(std::process::Stdio::null());
    lab.node(node).spawn(command)
}

#[test]
fn version_and_help_end_with_status_0() {
    for flag in ["-version", "--version"] {
        let output = run(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(stderr(&output), format!("v{}\n", env!("CARGO_PKG_VERSION")));
        assert!(output.stdout.is_empty());
    }
    for flag in ["-h", "-help", "--help"] {
        let output = run(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        assert!(stderr(&output).starts_with("Usage: "), "{}", stderr(&output));
    }
}

#[test]
fn defect_64_a_command_line_that_cannot_be_read_ends_with_status_2() {
    for (arguments, said) in [
        (vec!["--etcd-endpoint=x"], "did you mean -etcd-endpoints?"),
        (vec!["--healthz-port=many"], "healthz-port"),
        (vec!["--ip-masq=perhaps"], "ip-masq"),
        (vec!["--iface"], "flag needs an argument"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn a_value_that_cannot_be_used_ends_with_status_1() {
    for (arguments, said) in [
        (vec!["--subnet-lease-renew-margin=1440"], "1 to 1439"),
        (vec!["--subnet-lease-renew-margin=0"], "1 to 1439"),
        // Defect 61: 0 was a loop without a pause.
        (vec!["--iptables-resync=0"], "1 second or more"),
        (vec!["--public-ip=here"], "IPv4 address"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn a_node_without_the_interface_ends_with_status_1_and_says_which_there_are() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let endpoints = format!("--etcd-endpoints={}", lab.etcd()?.endpoints());
    let command = flanneld().to_str().unwrap();
    let output = lab.node(1).output(&[command, &endpoints, "--iface=nonsense0"])?;
    assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    assert!(
        output.stderr.contains("nonsense0") && output.stderr.contains("eth0"),
        "{}",
        output.stderr
    );
    Ok(())
}

#[test]
fn signals_end_it_with_status_0() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    for signal in [Signal::TERM, Signal::INT] {
        let file = format!("--subnet-file=/run/flannel/{signal:?}.env");
        let daemon = spawn(&lab, 1, &[&file])?;
        let path = &file["--subnet-file=".len()..];
        lab.wait_until("the subnet file", LIMIT, || lab.node(1).read_file(path))?;
        let begin = Instant::now();
        daemon.signal(signal)?;
        let status = daemon.wait(LIMIT)?.expect("it ends");
        assert_eq!(status.code(), Some(0));
        measured(format_args!("ended {:.1?} after {signal:?}", begin.elapsed()));
    }
    Ok(())
}

#[test]
fn defect_7_it_ends_also_while_it_waits_for_etcd() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let running = spawn(&lab, 1, &["--healthz-port=8081"])?;
    lab.wait_until("the subnet file", LIMIT, || lab.node(1).subnet_env())?;
    lab.etcd()?.pause()?;
    let starting = spawn(&lab, 1, &["--subnet-file=/run/flannel/other.env"])?;
    std::thread::sleep(Duration::from_millis(500));
    for daemon in [running, starting] {
        let begin = Instant::now();
        daemon.signal(Signal::TERM)?;
        // etcd answers nobody until this test lets it: whoever waits for it never ends.
        assert_eq!(daemon.wait(LIMIT)?.expect("it ends").code(), Some(0));
        measured(format_args!("ended after {:.1?}", begin.elapsed()));
    }
    lab.etcd()?.resume()
}

#[test]
fn systemd_is_told_when_the_node_is_ready_and_when_it_stops() -> Result<()> {
    let lab = lab(1).no_daemons().env("NOTIFY_SOCKET", "/run/notify").start()?;
    put_peers(&lab, 150..155)?;
    let node = lab.node(1);
    let socket = node.in_netns(|| UnixDatagram::bind("/run/notify"))?.unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let hear = || {
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    node.flanneld().start()?;
    let status = hear();
    assert!(status.contains("STATUS=5 peers, subnet 10.244."), "{status}");
    assert_eq!(hear(), "READY=1\n");
    assert!(node.subnet_env().is_ok(), "the file is there when the node is ready");
    node.flanneld().stop()?;
    let mut last = hear();
    while !last.contains("STOPPING=1") {
        last = hear();
    }
    Ok(())
}

#[test]
fn defect_63_no_log_has_the_password_in_it() -> Result<()> {
    let secret = "correct-horse-battery";
    let lab = lab(1)
        .no_daemons()
        .flag("--etcd-username=root")
        .env("FLANNELD_ETCD_PASSWORD", secret)
        .flag("-v=10")
        .start()?;
    let daemon = lab.node(1).flanneld();
    daemon.start()?;
    // etcd has no users, and says so; whatever comes of it, the password stays here.
    std::thread::sleep(Duration::from_secs(2));
    lab.etcd()?.kill();
    std::thread::sleep(Duration::from_secs(1));
    let log = daemon.log();
    assert!(log.contains("root"), "{log}");
    assert!(!log.contains(secret), "{log}");
    daemon.kill9();

    for arguments in [
        vec![format!("--etcd-endpoints=http://root:{secret}@127.0.0.1:2379")],
        vec!["--etcd-password".to_owned(), secret.to_owned(), "--nonsense".to_owned()],
        vec![format!("--etcd-pasword={secret}")],
    ] {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&words);
        assert_ne!(output.status.code(), Some(0));
        assert!(!stderr(&output).contains(secret), "{}", stderr(&output));
    }
    Ok(())
}

#[test]
fn defect_66_a_probe_port_in_use_is_waited_for() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let node = lab.node(1);
    let taken = node.in_netns(|| std::net::TcpListener::bind("0.0.0.0:8081"))?.unwrap();
    node.flanneld().start()?;
    lab.wait_until("the subnet file", LIMIT, || node.subnet_env())?;
    assert!(node.flanneld().is_running());
    assert!(node.flanneld().log().contains("healthz-port"), "{}", node.flanneld().log());
    drop(taken);
    node.flanneld().wait_ready()
}
