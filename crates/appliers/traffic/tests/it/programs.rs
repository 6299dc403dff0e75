//! Which programs are needed, and how often they run.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use flannel_common::SearchPath;
use flannel_entries::rules::{Mode, NodeRules};
use flannel_traffic::TrafficApplier;
use flannel_wanted::Applier as _;

use crate::support::{
    Node, RESYNC, dual, enter_new_namespace, picture, rules, run, run_with, wait_until,
};

/// A directory with some of the machine's programs, which keeps count of their use.
struct Toolbox {
    directory: tempfile::TempDir,
}

/// NodeRules in nftables need no program.
const NONE: &[&str] = &[];
const IPTABLES: &[&str] = &[
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

impl Toolbox {
    fn with(programs: &[&str]) -> Self {
        let toolbox = Self { directory: tempfile::tempdir().unwrap() };
        programs.iter().for_each(|program| toolbox.add(program));
        toolbox
    }

    fn add(&self, program: &str) {
        let path = self.directory.path().join(program);
        let real = run(&format!("command -v {program}"));
        let log = self.log();
        let script = format!(
            "#!/bin/sh\necho \"{program} $*\" >> {}\nexec {} \"$@\"\n",
            log.display(),
            real.trim()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn used(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn node(&self) -> Node {
        let path = SearchPath::exactly(self.directory.path().as_os_str());
        Node::with(TrafficApplier::new(RESYNC, path, &[], 1))
    }
}

fn write_iptables_leftovers() {
    run("iptables -t nat -N FLANNEL-POSTRTG; iptables -N FLANNEL-FWD
         iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -j MASQUERADE
         iptables -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG
         iptables -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD");
}

#[test]
fn without_any_program_nftables_works_and_iptables_is_cleaned() {
    enter_new_namespace();
    write_iptables_leftovers();
    Toolbox::with(NONE).node().set(&dual(Mode::Nftables));
    let now = picture();
    assert!(now.contains("flannel-ipv6") && !now.contains("FLANNEL"), "{now}");
}

#[test]
fn with_iptables_alone_iptables_works_and_nftables_is_cleaned() {
    enter_new_namespace();
    run("nft add table ip flannel-ipv4; nft add table ip6 flannel-ipv6");
    Toolbox::with(IPTABLES).node().set(&dual(Mode::Iptables));
    let now = picture();
    assert!(!now.contains("flannel-ipv") && now.contains("FLANNEL-POSTRTG"), "{now}");
}

#[test]
fn with_iptables_for_one_family_alone_that_family_works() {
    enter_new_namespace();
    let toolbox = Toolbox::with(&IPTABLES[..3]);
    toolbox.node().set(&rules(Mode::Iptables));
    let status = toolbox.node().try_set(&dual(Mode::Iptables));
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    let said = "IPv6 masquerade rules of fd00:244::/56: ip6tables is not installed";
    assert!(problems[0].starts_with(said), "{problems:?}");
    assert!(picture().contains("10.244.69.0/24"), "what can be kept is kept");
}

#[test]
fn what_is_missing_is_said_and_what_is_installed_later_is_found() {
    enter_new_namespace();
    run("nft add table ip flannel-ipv4");
    let toolbox = Toolbox::with(NONE);
    let node = toolbox.node();
    let status = node.try_set(&rules(Mode::Iptables));
    assert_eq!(
        status.problems[0].reason,
        "iptables is not installed: install the package iptables, or use nftables \
         (\"EnableNFTables\": true in the network config)"
    );
    assert!(picture().contains("flannel-ipv4"), "what is there stays until ours is in place");
    let watched = node.traffic.watch_status();
    assert_eq!(*watched.borrow(), status);
    IPTABLES.iter().for_each(|program| toolbox.add(program));
    wait_until("the rules", Duration::from_secs(10), || watched.borrow().is_settled());
    wait_until("the sweep", Duration::from_secs(10), || !picture().contains("flannel-ipv4"));
}

#[test]
fn legacy_rules_that_cannot_be_removed_do_not_stop_the_daemon() {
    enter_new_namespace();
    run("iptables-legacy -t nat -N FLANNEL-POSTRTG");
    Toolbox::with(NONE).node().set(&rules(Mode::Nftables));
    assert!(picture().contains("flannel-ipv4"));
}

/// How much processor time the threads that keep rules in this network namespace have used, in hundredths of a second.
/// Threads of other tests have namespaces of their own.
fn rule_threads_time() -> u64 {
    let here = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let tasks =
        tasks.filter(|task| std::fs::read_link(task.join("ns/net")).is_ok_and(|it| it == here));
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (_, rest) = stat.split_once("(traffic) ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
        })
        .sum()
}

#[test]
fn without_work_it_rests_whatever_is_announced() {
    enter_new_namespace();
    let idle = Node::here();
    let helpless = Toolbox::with(&[]).node();
    assert!(!helpless.try_set(&rules(Mode::Iptables)).is_settled());
    run("nft add table ip flannel-ipv4; nft add table ip nat");
    let before = rule_threads_time();
    std::thread::sleep(Duration::from_secs(1));
    // One that does not rest would use all of the second.
    let used = rule_threads_time().saturating_sub(before);
    assert!(used < 50, "{used} hundredths of a second");
    drop((idle, helpless));
}

/// Somebody else's rules, many and often.
fn be_busy() {
    run_with(
        "iptables-nft-restore --noflush",
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n\
         -A KUBE-SERVICES -d 10.96.0.1/32 -j ACCEPT\n-I POSTROUTING -j KUBE-POSTROUTING\nCOMMIT\n\
         *filter\n:DOCKER - [0:0]\n-A DOCKER -j ACCEPT\n-I FORWARD -j DOCKER\nCOMMIT\n",
    );
    run("iptables-nft -D FORWARD -j DOCKER");
    run("nft 'add table inet busy; add chain inet busy c; flush ruleset inet'");
}

#[test]
fn defect_56_when_nothing_happens_to_the_rules_nothing_runs() {
    for (mode, programs, canary) in [
        (Mode::Nftables, NONE, ""),
        (Mode::Iptables, IPTABLES, ""),
        (
            Mode::Iptables,
            &["iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore"][..],
            "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY",
        ),
    ] {
        let test = move || {
            enter_new_namespace();
            run(canary);
            let toolbox = Toolbox::with(programs);
            let node = toolbox.node();
            node.set(&rules(mode));
            let at_start = toolbox.used();
            println!("{mode:?} {canary}: {at_start:#?}");
            assert!(at_start.len() <= 6, "{at_start:?}");
            for _ in 0..5 {
                be_busy();
            }
            std::thread::sleep(RESYNC * 2 + RESYNC / 2);
            assert_eq!(toolbox.used(), at_start);
            node.set(&NodeRules { random_fully: false, ..rules(mode) });
            let changed = toolbox.used().len() - at_start.len();
            assert!(changed <= 5, "{:?}", toolbox.used());
            node.set(&NodeRules { random_fully: false, ..rules(mode) });
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn a_repair_takes_no_run_with_nftables_and_five_with_iptables() {
    for (mode, programs, vandalism, most) in [
        (Mode::Nftables, NONE, "nft flush ruleset", 0),
        (Mode::Iptables, IPTABLES, "iptables -t nat -F", 5),
    ] {
        let test = move || {
            enter_new_namespace();
            let toolbox = Toolbox::with(programs);
            let node = toolbox.node();
            node.set(&rules(mode));
            let (before, used) = (picture(), toolbox.used().len());
            run(vandalism);
            wait_until(vandalism, Duration::from_secs(5), || picture() == before);
            std::thread::sleep(Duration::from_millis(200));
            let runs = toolbox.used().split_off(used);
            assert!(runs.len() <= most, "{runs:?}");
        };
        std::thread::spawn(test).join().unwrap();
    }
}
