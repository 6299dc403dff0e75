//! Nothing stays behind, however a lab ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use flannel_lab::{Lab, Result, wait_until};

const OWNER: &str = "FLANNEL_LAB_TEST_OWNER";

fn runs(pid: u32) -> bool {
    // A zombie whose parent has not looked yet is not a running process.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// What a careless lab could leave on the host: mounts, named namespaces, devices.
fn host() -> [BTreeSet<String>; 3] {
    let lines = |text: String| text.lines().map(str::to_owned).collect();
    let names = |dir: &str| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    [
        lines(fs::read_to_string("/proc/self/mounts").unwrap_or_default()),
        names("/run/netns"),
        names("/sys/class/net"),
    ]
}

/// A lab with a store, and a process that its parent has left alone.
fn start_lab() -> Result<(Lab, BTreeSet<u32>)> {
    let lab = Lab::builder().nodes(2).no_daemons().start()?;
    let orphan = lab.node(1).exec(&["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"])?;
    let inside: u32 = orphan.trim().parse().expect("a number");
    let mut pids: BTreeSet<u32> = lab.etcd()?.pid(0).into_iter().collect();
    let orphan =
        wait_until("the orphan to be a sleep", Duration::from_secs(5), || host_pid(inside))?;
    pids.insert(orphan);
    Ok((lab, pids))
}

/// The host's number of the `sleep` that has this number in the lab.
fn host_pid(inside: u32) -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let own = format!("\t{inside}");
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with(&own))
            && status.lines().any(|line| line == "Name:\tsleep")
    })
}

#[test]
fn a_dropped_lab_leaves_nothing_behind() -> Result<()> {
    let before = host();
    let (lab, pids) = start_lab()?;
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|&pid| runs(pid)));
    drop(lab);
    assert!(!pids.iter().any(|&pid| runs(pid)));
    assert_eq!(host(), before);
    Ok(())
}

#[test]
fn a_killed_owner_leaves_nothing_behind() -> Result<()> {
    const NAME: &str = "a_killed_owner_leaves_nothing_behind";
    if std::env::var_os(OWNER).is_some() {
        let (_lab, pids) = start_lab()?;
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        println!("\npids {}", pids.join(" "));
        std::thread::sleep(Duration::from_secs(60));
        return Ok(());
    }
    let before = host();
    let mut owner = Command::new(std::env::current_exe().expect("own path"))
        .args([NAME, "--exact", "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the owner");
    let output = BufReader::new(owner.stdout.take().expect("its output"));
    let line = output
        .lines()
        .map_while(std::result::Result::ok)
        .find_map(|line| line.strip_prefix("pids ").map(str::to_owned))
        .expect("the owner starts its lab");
    let pids: Vec<u32> = line.split(' ').map(|pid| pid.parse().expect("a number")).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|&pid| runs(pid)));

    owner.kill().expect("kill -9");
    owner.wait().expect("the owner's end");
    wait_until("the lab's processes to be gone", Duration::from_secs(5), || {
        let left: Vec<_> = pids.iter().filter(|&&pid| runs(pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    assert_eq!(host(), before);
    Ok(())
}

#[test]
fn a_lab_that_fails_to_start_leaves_nothing_behind() {
    let before = host();
    let error = Lab::builder().nodes(2).no_daemons().etcd_flag("--data-dir=/proc/nowhere").start();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("etcd") && error.contains("/proc/nowhere"), "{error}");
    assert_eq!(host(), before);
}

#[test]
fn a_missing_program_is_named_before_anything_is_made() {
    let error = Lab::builder().nodes(1).flanneld("/no/such/flanneld").start().unwrap_err();
    assert!(error.to_string().contains("/no/such/flanneld"), "{error}");
    let error = Lab::builder().nodes(1).no_daemons().etcd_binary("/no/etcd").start().unwrap_err();
    assert!(error.to_string().contains("/no/etcd"), "{error}");
}

#[test]
fn a_spawned_process_ends_with_its_handle() -> Result<()> {
    let lab = Lab::builder().nodes(1).bare().start()?;
    let mut command = Command::new("sleep");
    command.arg("1000");
    let process = lab.node(1).spawn(command)?;
    let pid = process.pid();
    assert!(runs(pid) && process.is_running());
    drop(process);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

#[test]
fn a_process_handle_that_outlives_the_lab_is_no_obstacle() -> Result<()> {
    let lab = Lab::builder().nodes(1).bare().start()?;
    let mut command = Command::new("sleep");
    command.arg("1000");
    let process = lab.node(1).spawn(command)?;
    drop(lab);
    assert!(!process.is_running());
    Ok(())
}
