//! Of several nodes that announce one VTEP MAC, the one that had it first keeps it.

use flannel_lab::{Lab, LabBuilder, LabError, Node, Result};

use crate::identity::reboot;
use crate::support::{Kernel, LIMIT, flanneld, lab, lease_path, own_key, peer, probe};

/// Another node had the MAC that this node would always choose.
#[test]
fn a_node_whose_mac_another_one_had_first_gets_another_one() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    let mac = |lab: &Lab| Kernel::of(lab.node(1)).map(|mut it| it.device("flannel.1").unwrap().mac);
    let (before, key) = (mac(&lab)?, own_key(&lab, 1)?);
    node.flanneld().kill9();
    reboot(node)?;
    node.exec(&["rm", "-r", "/var/lib/flannel/nodes"])?;
    assert!(lab.etcd()?.delete(&lease_path(&lab, &key))?);
    let (other, value) = peer(200);
    let value = value.replace("02:00:00:00:01:c8", &before.to_string());
    lab.etcd()?.put(&lease_path(&lab, &other), &value)?;
    node.flanneld().restart()?;
    let after = mac(&lab)?;
    assert_ne!(after, before, "{}", node.flanneld().log());
    let announced = lab.leases()?;
    let own = announced.iter().find(|(key, _)| *key != other).expect("its own");
    assert!(own.1.contains(&after.to_string()), "{own:?}");
    assert!(node.flanneld().log().contains("this node's device gets another one"));
    // It stays.
    node.flanneld().restart()?;
    assert_eq!(mac(&lab)?, after);
    Ok(())
}

/// Whoever announces the MAC of another node, below or above it, gets nothing, before and after restarts.
#[test]
fn a_mac_belongs_to_who_announced_it_first_over_restarts() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    let victim = peer(100);
    lab.etcd()?.put(&lease_path(&lab, &victim.0), &victim.1)?;
    let mac = "02:00:00:00:01:64";
    let leads_to = || -> Result<Vec<String>> {
        let all = node.output(&["bridge", "fdb", "show", "dev", "flannel.1"])?.stdout;
        let own = all.lines().filter(|line| line.starts_with(mac));
        Ok(own
            .filter_map(|line| line.split(" dst ").nth(1)?.split(' ').next())
            .map(str::to_owned)
            .collect())
    };
    let only = |address: &str| leads_to().is_ok_and(|all| all == [address]);
    lab.wait_until("the victim's entry", LIMIT, || only("192.168.100.100"))?;
    // One lease is older than the victim's by now, the other one younger; one is lower, the other higher.
    for number in [5, 150] {
        let (key, value) = peer(number);
        let value = value.replace(&format!("02:00:00:00:01:{number:02x}"), mac);
        lab.etcd()?.put(&lease_path(&lab, &key), &value)?;
    }
    let said = |why: &str| {
        let log = node.flanneld().log();
        log.contains(why)
            && log.contains("10.244.150.0/24 at 192.168.100.150: it announces the VTEP MAC")
    };
    let why = "which the lease 10.244.100.0-24 at 192.168.100.100 had first";
    lab.wait_until("the word", LIMIT, || said(why))?;
    assert!(only("192.168.100.100"), "{:?}", leads_to()?);
    let route = || node.ip("route show 10.244.5.0/24");
    assert_eq!(route()?.trim(), "");
    // The victim writes its lease again, so that the store has it after those of the thieves.
    lab.etcd()?.put(&lease_path(&lab, &victim.0), &victim.1)?;
    for _ in 0..2 {
        node.flanneld().restart()?;
        assert!(only("192.168.100.100"), "{:?}\n{}", leads_to()?, node.flanneld().log());
    }
    assert_eq!(probe(&lab, 1, "/readyz")?.unwrap_or_default().0, 200, "others are not its fault");
    // What nobody else has is theirs who has waited longest.
    assert!(lab.etcd()?.delete(&lease_path(&lab, &victim.0))?);
    lab.wait_until("its successor", LIMIT, || only("192.168.100.5"))?;
    assert!(route()?.contains("flannel.1"), "{}", route()?);
    Ok(())
}

/// The thief's lease is older and lower than the victim's, and it copies the victim's MAC while this node is switched off.
#[test]
fn a_mac_that_was_copied_while_a_node_was_switched_off_stays_its_holders() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    let (thief, victim) = (peer(5), peer(100));
    for (key, value) in [&thief, &victim] {
        lab.etcd()?.put(&lease_path(&lab, key), value)?;
    }
    let mac = "02:00:00:00:01:64";
    let leads_to = || -> Result<String> {
        let all = node.output(&["bridge", "fdb", "show", "dev", "flannel.1"])?.stdout;
        Ok(all.lines().filter(|line| line.starts_with(mac)).collect())
    };
    let is_kept = || {
        let kept = node.read_file("/var/lib/flannel/link-holders/run-flannel-subnet.env.json");
        kept.is_ok_and(|text| text.contains(mac) && text.contains(&victim.0))
    };
    lab.wait_until("the victim to be remembered", LIMIT, is_kept)?;
    node.flanneld().kill9();
    reboot(node)?;
    let copied = thief.1.replace("02:00:00:00:01:05", mac);
    assert_ne!(copied, thief.1);
    lab.etcd()?.put(&lease_path(&lab, &thief.0), &copied)?;
    node.flanneld().restart()?;
    assert!(leads_to()?.contains("192.168.100.100"), "{}", node.flanneld().log());
    assert!(!leads_to()?.contains("192.168.100.5 "), "{}", leads_to()?);
    let why = "which the lease 10.244.100.0-24 at 192.168.100.100 had first";
    assert!(node.flanneld().log().contains(why), "{}", node.flanneld().log());
    Ok(())
}

/// It has never seen either of them alone, and the one who came later has the lower subnet.
#[test]
fn a_new_node_goes_by_the_store_for_who_announced_a_mac_first() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let (node, (first, value), (later, copied)) = (lab.node(1), peer(100), peer(5));
    let mac = "02:00:00:00:01:64";
    let copied = copied.replace("02:00:00:00:01:05", mac);
    // The first one renews its lease after it was copied.
    for (key, value) in [(&first, &value), (&later, &copied), (&first, &value)] {
        lab.etcd()?.put(&lease_path(&lab, key), value)?;
    }
    node.flanneld().start()?;
    node.flanneld().wait_ready()?;
    let all = node.output(&["bridge", "fdb", "show", "dev", "flannel.1"])?.stdout;
    let leads_to: String = all.lines().filter(|line| line.starts_with(mac)).collect();
    assert!(leads_to.contains("192.168.100.100"), "{all}\n{}", node.flanneld().log());
    Ok(())
}

/// Forwarding entries of a node for a MAC.
fn leads_to(node: &Node, mac: &str) -> Result<String> {
    let all = node.output(&["bridge", "fdb", "show", "dev", "flannel.1"])?.stdout;
    Ok(all.lines().filter(|line| line.starts_with(mac)).collect())
}

/// A lease that is older than the victim's, the victim's, and the older one again with the victim's MAC, which is returned.
fn steal_from_a_younger_lease(lab: &Lab) -> Result<&'static str> {
    let (thief, victim, mac) = (peer(5), peer(100), "02:00:00:00:01:64");
    let copied = thief.1.replace("02:00:00:00:01:05", mac);
    assert_ne!(copied, thief.1);
    // Renewals before and after it change nothing.
    for (key, value) in [
        (&thief.0, &thief.1),
        (&victim.0, &victim.1),
        (&thief.0, &thief.1),
        (&victim.0, &victim.1),
        (&thief.0, &copied),
        (&victim.0, &victim.1),
        (&thief.0, &copied),
    ] {
        lab.etcd()?.put(&lease_path(lab, key), value)?;
    }
    Ok(mac)
}

/// The victim of [`steal_from_a_younger_lease`] gets its packets, and the thief is named.
fn sends_to_the_victim(node: &Node, mac: &str) -> Result<()> {
    let (leads, log) = (leads_to(node, mac)?, node.flanneld().log());
    assert!(
        leads.contains("dst 192.168.100.100 ") && !leads.contains("dst 192.168.100.5 "),
        "{leads}\n{log}"
    );
    let why = "which the lease 10.244.100.0-24 at 192.168.100.100 had first";
    assert!(log.contains("10.244.5.0/24 at 192.168.100.5") && log.contains(why), "{log}");
    assert_eq!(node.ip("route show 10.244.5.0/24")?.trim(), "");
    Ok(())
}

/// It has never seen the victim alone, and the thief's lease is older and lower than the victim's.
#[test]
fn a_new_node_sends_to_the_victim_though_the_lease_of_the_thief_is_older() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let mac = steal_from_a_younger_lease(&lab)?;
    lab.node(1).flanneld().start()?;
    lab.node(1).flanneld().wait_ready()?;
    sends_to_the_victim(lab.node(1), mac)
}

#[test]
fn a_new_node_of_a_lease_server_sends_to_the_victim_though_the_lease_of_the_thief_is_older()
-> Result<()> {
    let serving = ["--listen=:10253", "--listen-insecure", "--store=etcd", "--remote=self"];
    let builder = serving.into_iter().fold(lab(3), |lab, flag| lab.node_flag(1, flag));
    let remote = |lab: LabBuilder, node| lab.node_flag(node, "--remote=192.168.100.1:10253");
    let lab = remote(remote(builder, 2), 3).no_daemons().start()?;
    let start = |number| -> Result<()> {
        lab.node(number).flanneld().start()?;
        lab.node(number).flanneld().wait_ready()
    };
    start(1)?;
    let mac = steal_from_a_younger_lease(&lab)?;
    let seen = || leads_to(lab.node(1), mac).is_ok_and(|leads| !leads.is_empty());
    lab.wait_until("the server to know of it", LIMIT, seen)?;
    // The server has seen the theft.
    start(2)?;
    sends_to_the_victim(lab.node(2), mac)?;
    // It finds it when it starts, and so does its own node.
    lab.node(1).flanneld().kill9();
    lab.node(1).exec(&["rm", "-r", "/var/lib/flannel/link-holders"])?;
    start(1)?;
    sends_to_the_victim(lab.node(1), mac)?;
    start(3)?;
    sends_to_the_victim(lab.node(3), mac)
}

/// The victim, and everybody else, names whoever announces the victim's MAC; no probe has to be believed.
#[test]
fn a_node_whose_mac_is_copied_names_the_one_who_copied_it() -> Result<()> {
    let lab = lab(2).start()?;
    let mac = Kernel::of(lab.node(1))?.device("flannel.1").expect("its device").mac.to_string();
    let (key, value) = peer(7);
    let copied = value.replace("02:00:00:00:01:07", &mac);
    lab.etcd()?.put(&lease_path(&lab, &key), &copied)?;
    let holder = own_key(&lab, 1)?.replace('-', "/");
    for node in [1, 2] {
        let named = || {
            let program = flanneld().with_file_name("flannelctl");
            // It fails where something is not right.
            let status = lab.node(node).output(&[program.to_str().unwrap(), "status"])?.stdout;
            let all = ["10.244.7.0", &mac, &holder].iter().all(|word| status.contains(*word));
            if all { Ok(()) } else { Err(LabError::Spec(status)) }
        };
        lab.wait_until("both to be named", LIMIT, named)?;
    }
    Ok(())
}
