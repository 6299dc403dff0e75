//! A store that is away, slow, forgetful, set back or full of nonsense: traffic goes on, and what the
//! store says is followed as soon as it says it.

use std::time::{Duration, Instant};

use flannel_lab::{Lab, LabError, Result};

use crate::support::{
    Kernel, LIMIT, both_ways, busy, compact, connected_pods, door, lab, lease_path, measured, peer,
    probe, put_peers, reach_each_other,
};

/// Waits until node 1 has a route to a peer that is in the store alone; returns how long that took.
fn learns_of(lab: &Lab, number: u8) -> Result<Duration> {
    let begin = Instant::now();
    let mut kernel = Kernel::of(lab.node(1))?;
    let route = format!("route 10.244.{number}.0/24 ");
    lab.wait_until(&format!("node 1 to learn of peer {number}"), LIMIT, || {
        let held = kernel.held();
        if held.iter().any(|line| line.starts_with(&route)) {
            Ok(())
        } else {
            Err(format!("{held:?}"))
        }
    })?;
    Ok(begin.elapsed())
}

#[test]
fn etcd_that_is_away_at_the_start_is_waited_for() -> Result<()> {
    let lab = lab(2).no_daemons().start()?;
    lab.etcd()?.kill();
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    let (status, why) = lab.wait_until("an answer to the probe", LIMIT, || {
        probe(&lab, 1, "/readyz")?.map_err(|error| LabError::Spec(error.to_string()))
    })?;
    assert_eq!(status, 503);
    assert!(why.starts_with("flanneld is not ready yet"), "{why}");
    assert_eq!(probe(&lab, 1, "/healthz")?.unwrap().0, 200);
    std::thread::sleep(Duration::from_secs(2));
    assert!(lab.nodes().iter().all(|node| node.flanneld().is_running()));
    let log = lab.node(1).flanneld().log();
    assert!(
        log.contains("Couldn't fetch network config") && log.contains("192.168.100.253"),
        "{log}"
    );
    lab.etcd()?.restart()?;
    let begin = Instant::now();
    lab.start_daemons()?;
    measured(format_args!("ready {:.1?} after etcd came", begin.elapsed()));
    connected_pods(&lab).map(drop)
}

#[test]
fn defect_2_etcd_that_stumbles_at_the_start_is_asked_again() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    put_peers(&lab, 150..160)?;
    let daemon = lab.node(1).flanneld();
    daemon.start()?;
    // In the midst of its first questions.
    std::thread::sleep(Duration::from_millis(20));
    lab.etcd()?.pause()?;
    std::thread::sleep(Duration::from_secs(7));
    lab.etcd()?.resume()?;
    daemon.wait_ready()?;
    learns_of(&lab, 159).map(drop)
}

#[test]
fn flannel_520_traffic_goes_on_while_etcd_is_away() -> Result<()> {
    let lab = lab(3).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    let held: Vec<_> = lab.nodes().iter().map(|node| Kernel::of(node).unwrap().held()).collect();
    let traffic = both_ways(&lab, &one, &two)?;
    lab.etcd()?.stop()?;
    std::thread::sleep(Duration::from_secs(2));
    // A daemon that starts without a store leaves everything as it is.
    lab.node(1).flanneld().kill9();
    lab.node(1).flanneld().start()?;
    std::thread::sleep(Duration::from_secs(1));
    lab.etcd()?.restart()?;
    lab.node(1).flanneld().wait_ready()?;
    lab.wait_until("the store to be back", LIMIT, || {
        lab.node(2).flanneld().log().contains("The store is reachable again")
    })?;
    let reports = traffic.stop();
    measured(format_args!("etcd away, one daemon restarted meanwhile: {reports}"));
    reports.nothing_is_lost();
    for (node, before) in lab.nodes().iter().zip(held) {
        assert_eq!(Kernel::of(node)?.held(), before);
    }
    let log = lab.node(2).flanneld().log();
    assert_eq!(log.matches("The store is unreachable").count(), 1, "{log}");
    Ok(())
}

#[test]
fn repairs_go_on_while_etcd_is_away() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let before = kernel.held();
    lab.etcd()?.kill();
    lab.node(1).ip("link del flannel.1")?;
    lab.wait_until("the device to be back", LIMIT, || kernel.held() == before)?;
    lab.replace_nic(1)?;
    lab.wait_until("all to be back", LIMIT, || kernel.held() == before)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn etcd_killed_and_started_again_is_followed_as_before() -> Result<()> {
    let lab = lab(1).start()?;
    for round in 0..3 {
        lab.etcd()?.kill();
        lab.etcd()?.restart()?;
        put_peers(&lab, 150 + round..151 + round)?;
        measured(format_args!("peer known after {:.1?}", learns_of(&lab, 150 + round)?));
    }
    Ok(())
}

#[test]
fn etcd_that_freezes_for_a_while_is_followed_as_before() -> Result<()> {
    let lab = lab(1).start()?;
    lab.etcd()?.pause()?;
    std::thread::sleep(Duration::from_secs(3));
    lab.etcd()?.resume()?;
    put_peers(&lab, 150..151)?;
    measured(format_args!("peer known after {:.1?}", learns_of(&lab, 150)?));
    Ok(())
}

/// Waits until the device of node 1 sends from this address.
fn sends_from(lab: &Lab, address: &str) -> Result<Duration> {
    let begin = Instant::now();
    let local = format!(" local {address} ");
    lab.wait_until(&format!("flannel.1 to send from {address}"), LIMIT, || {
        let link = lab.node(1).ip("-d link show flannel.1")?;
        if link.contains(&local) { Ok(()) } else { Err(LabError::Spec(link)) }
    })?;
    Ok(begin.elapsed())
}

/// How long the daemon of node 1 takes to say how it is: the median of 20 times, and the sum of those above 100 ms.
fn status_times(lab: &Lab) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let begin = Instant::now();
            let (status, state) = door(lab, 1, "GET", "/v1/state").unwrap();
            assert_eq!(status, 200, "{state}");
            begin.elapsed()
        })
        .collect();
    times.sort();
    let slow = times.iter().filter(|time| **time > Duration::from_millis(100)).sum();
    (times[times.len() / 2], slow)
}

/// Each announcement takes two seconds, and then it is given up. Whoever waits for them takes six seconds here; the bounds
/// are for machines that are busy with other things.
#[test]
fn an_address_is_followed_and_status_answers_while_etcd_is_frozen() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (usual, _) = status_times(&lab);
    lab.etcd()?.pause()?;
    let (mut followed, mut answered_late) = (Duration::ZERO, Duration::ZERO);
    for round in 0..3 {
        // The first is announced, which etcd does not answer; the second comes meanwhile.
        for number in [70 + round, 80 + round] {
            let address = format!("192.168.100.{number}");
            lab.change_address(1, address.parse().unwrap())?;
            followed += sends_from(&lab, &address)?;
        }
        let (median, slow) = status_times(&lab);
        assert!(median < Duration::from_millis(100).max(20 * usual), "{median:?}");
        answered_late += slow;
        measured(format_args!(
            "status in {median:.1?}, {usual:.1?} before; above 100 ms: {slow:.1?}"
        ));
    }
    measured(format_args!("six addresses followed within {followed:.1?}"));
    assert!(followed < Duration::from_secs(3), "{followed:?}");
    assert!(answered_late < Duration::from_secs(1), "{answered_late:?}");
    lab.etcd()?.resume()?;
    lab.wait_until("the last address to be announced", LIMIT, || {
        let leases = lab.leases()?;
        let told = leases.iter().any(|(_, value)| value.contains("192.168.100.82"));
        if told { Ok(()) } else { Err(LabError::Spec(format!("{leases:?}"))) }
    })?;
    assert_eq!(lab.leases()?.len(), 2, "the subnets stay:\n{}", lab.node(1).flanneld().log());
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_cluster_of_three_goes_on_without_any_one_of_them() -> Result<()> {
    let lab = lab(1).etcd_members(3).start()?;
    for member in 0..3 {
        lab.etcd()?.kill_member(member)?;
        lab.etcd()?.wait_healthy(LIMIT)?;
        let number = 150 + u8::try_from(member).unwrap();
        // The others may still be choosing their leader.
        lab.wait_until("a write", LIMIT, || put_peers(&lab, number..number + 1))?;
        let time = learns_of(&lab, number)?;
        measured(format_args!("member {member} killed: peer known after {time:.1?}"));
        // And so does a daemon that starts just now.
        lab.node(1).flanneld().restart()?;
        lab.etcd()?.restart()?;
    }
    Ok(())
}

#[test]
fn etcd_set_back_to_an_old_backup_is_told_anew_and_nobody_is_cut_off() -> Result<()> {
    let lab = lab(3).no_daemons().start()?;
    let start = |node: u16| -> Result<()> {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()
    };
    start(1)?;
    let backup = lab.etcd()?.snapshot()?;
    start(2)?;
    start(3)?;
    let pods = lab.pod_on_every_node()?;
    lab.wait_until("all to reach all", LIMIT, || lab.matrix(Duration::from_secs(1))?.check())?;
    let leases = lab.leases()?;
    assert_eq!(leases.len(), 3);

    let traffic = [both_ways(&lab, &pods[0], &pods[1])?, both_ways(&lab, &pods[1], &pods[2])?];
    lab.etcd()?.restore(&backup)?;
    assert!(lab.leases()?.len() < 3, "the backup is older");
    let begin = Instant::now();
    lab.wait_until("all leases to be back", LIMIT, || {
        let now = lab.leases()?;
        if now == leases { Ok(()) } else { Err(LabError::Spec(format!("{now:?}"))) }
    })?;
    measured(format_args!("all leases back, the same, after {:.1?}", begin.elapsed()));
    for traffic in traffic {
        traffic.flow(&lab)?;
        let reports = traffic.stop();
        measured(format_args!("over all of it: {reports}"));
        reports.nothing_is_lost();
    }
    lab.matrix(Duration::from_secs(5))?.check()
}

#[test]
fn flannel_2470_compaction_while_cut_off_is_caught_up_with() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    put_peers(&lab, 150..160)?;
    learns_of(&lab, 159)?;
    lab.partition_from_store(&[1])?;
    put_peers(&lab, 160..170)?;
    let (key, value) = peer(150);
    lab.etcd()?.put(&lease_path(&lab, &key), value.replace("02:00:00:00:01", "02:00:00:00:02"))?;
    compact(&lab)?;
    let used = busy(&lab, 1);
    // Until the daemon has noticed that nobody answers.
    lab.wait_until("the daemon to notice", LIMIT, || {
        lab.node(1).flanneld().log().contains("The store is unreachable")
    })?;
    lab.heal()?;
    learns_of(&lab, 169)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let changed = "neighbour 10.244.150.0 lladdr 02:00:00:00:02:96 dev flannel.1";
    lab.wait_until("the changed peer", LIMIT, || kernel.held().contains(changed))?;
    let log = lab.node(1).flanneld().log();
    assert!(log.lines().count() < 100, "{} lines", log.lines().count());
    let used = busy(&lab, 1) - used;
    assert!(used < Duration::from_secs(1), "{used:?}");
    reach_each_other(&lab, &one, &two)
}

/// Writes what is not a lease into the store; returns the keys.
fn write_nonsense(lab: &Lab) -> Result<Vec<String>> {
    let (key, value) = peer(190);
    let nonsense = [
        ("garbage", value.as_str()),
        ("10.244.191.0", &value),
        ("10.244.300.0-24", &value),
        ("10.244.192.0-24&nothing", &value),
        (&key, "{"),
        ("10.244.193.0-24", ""),
        ("10.244.194.0-24", "\u{0}\u{1}"),
        ("10.244.195.0-24", r#"{"PublicIP": 7}"#),
    ];
    for (key, value) in nonsense {
        lab.etcd()?.put(&lease_path(lab, key), value)?;
    }
    // The Go flannel watches everything that begins like its own directory.
    lab.etcd()?.put(&format!("{}/subnets-of-another-tool", lab.spec().etcd_prefix), "x")?;
    Ok(nonsense.iter().map(|(key, _)| (*key).to_owned()).collect())
}

#[test]
fn defect_1_nonsense_in_the_store_leaves_all_peers_in_place() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    put_peers(&lab, 150..160)?;
    learns_of(&lab, 159)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let before = kernel.held();
    let traffic = both_ways(&lab, &one, &two)?;
    write_nonsense(&lab)?;
    // A peer whose own value turns to nonsense stays as it was.
    lab.etcd()?.put(&lease_path(&lab, &peer(155).0), "nonsense")?;
    put_peers(&lab, 160..161)?;
    learns_of(&lab, 160)?;
    let after = kernel.held();
    assert!(before.is_subset(&after), "{:?}", before.difference(&after));
    let log = lab.node(1).flanneld().log();
    for key in ["garbage", "10.244.300.0-24", "10.244.195.0-24", "10.244.155.0-24"] {
        let said = log.lines().filter(|line| line.contains(key)).count();
        assert_eq!(said, 1, "{key} is told of {said} times:\n{log}");
    }

    // And so it is for a daemon that starts with all that.
    lab.node(1).flanneld().restart()?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    assert_eq!(kernel.held(), after);
    Ok(())
}
