//! Whatever others do to flannel's entries, devices and network card: it is repaired at once, and
//! traffic with it. Tests bear the numbers of the issues of those who were not so lucky.

use std::net::IpAddr;
use std::time::Duration;

use flannel_lab::{Lab, LabBuilder, LabError, PingOptions, Pod, Result, Vandalism};
use serde_json::json;

use crate::support::{
    Kernel, LIMIT, Repairs, both_ways, connected_pods, lab, measured, probe, reach_each_other,
};

fn direct() -> serde_json::Value {
    json!({"Type": "vxlan", "DirectRouting": true})
}

/// Two nodes with pods that reach each other, and the kernel of the first.
fn two_nodes(builder: LabBuilder) -> Result<(Lab, Pod, Pod, Kernel)> {
    let lab = builder.start()?;
    let (one, two) = connected_pods(&lab)?;
    let kernel = Kernel::of(lab.node(1))?;
    Ok((lab, one, two, kernel))
}

/// Pings once, without patience.
fn reaches(lab: &Lab, from: &Pod, to: &Pod) -> Result<()> {
    let limit = Duration::from_millis(10);
    let options = PingOptions { limit, interval: limit, ..PingOptions::default() };
    lab.ping_with(from, to, options).map(drop)
}

/// Does every deed there is to node 1, one after the other, under traffic.
pub(crate) fn every_deed(builder: LabBuilder, more: impl Fn(&Lab) -> Vec<String>) -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(builder)?;
    let node = lab.node(1);
    let mut repairs = Repairs::default();
    let traffic = both_ways(&lab, &one, &two)?;
    for deed in node.possible_deeds()? {
        repairs.after(&deed.to_string(), &mut kernel, || node.vandalize(&deed))?;
    }
    // The daemon loses patience with who undoes the same entry more than ten times a minute.
    node.flanneld().restart()?;
    for command in more(&lab) {
        let words: Vec<&str> = command.split_whitespace().collect();
        repairs.after(&command, &mut kernel, || node.exec(&words).map(drop))?;
    }
    traffic.flow(&lab)?;
    measured(format_args!("over all of it: {}", traffic.stop()));
    repairs.report();
    reach_each_other(&lab, &one, &two)
}

#[test]
fn everything_removed_or_altered_comes_back_with_vxlan() -> Result<()> {
    every_deed(lab(2).ipv6(true), |lab| {
        let peer = lab.node(2).subnet_env().unwrap();
        let (v4, v6) = (peer.subnet.unwrap().trunc(), peer.subnet6.unwrap().trunc());
        let (vtep4, vtep6) = (v4.network(), v6.network());
        let mac = Kernel::of(lab.node(2)).unwrap().device("flannel.1").unwrap().mac;
        let odd = "02:ba:dd:ba:dd:02";
        vec![
            format!("ip route replace {v4} via 192.168.100.254 dev eth0"),
            format!("ip route replace blackhole {v4}"),
            format!("ip route replace {v4} via {vtep4} dev flannel.1 onlink proto 244 mtu 100"),
            format!("ip route replace {v4} via {vtep4} dev flannel.1 onlink src 192.168.100.1"),
            format!(
                "ip -6 route replace {v6} via {vtep6} dev flannel-v6.1 onlink proto 244 mtu 1280"
            ),
            format!("ip route prepend {v4} via 192.168.100.254"),
            format!("ip route append {v4} via 192.168.100.254"),
            format!("ip -6 route replace {v6} via fd00:100::fe dev eth0"),
            format!("ip neigh replace {vtep4} lladdr {odd} dev flannel.1 nud permanent"),
            format!("ip neigh change {vtep4} lladdr {odd} dev flannel.1 nud stale"),
            format!("ip neigh replace {vtep6} lladdr {odd} dev flannel-v6.1 nud permanent"),
            format!("bridge fdb replace {mac} dev flannel.1 dst 192.168.100.99 self permanent"),
            format!("bridge fdb append {mac} dev flannel.1 dst 192.168.100.99 self permanent"),
            format!("bridge fdb add {odd} dev flannel.1 dst 192.168.100.99 self permanent"),
            "ip route add 10.244.250.0/24 dev flannel.1".to_owned(),
            "ip addr add 10.244.250.1/32 dev flannel.1".to_owned(),
            "ip route flush dev flannel.1".to_owned(),
            "ip -6 route flush dev flannel-v6.1".to_owned(),
            "ip neigh flush dev flannel.1 nud permanent".to_owned(),
            "ip addr flush dev flannel.1".to_owned(),
            "ip link set dev flannel.1 type vxlan id 1 learning".to_owned(),
            "ip link set dev flannel.1 type vxlan id 1 local 192.168.100.77".to_owned(),
            "sysctl -q -w net.ipv6.conf.flannel-v6/1.disable_ipv6=1".to_owned(),
        ]
    })
}

#[test]
fn everything_removed_or_altered_comes_back_with_host_gw() -> Result<()> {
    every_deed(lab(2).backend("host-gw").ipv6(true), |lab| {
        let peer = lab.node(2).subnet_env().unwrap();
        let (v4, v6) = (peer.subnet.unwrap().trunc(), peer.subnet6.unwrap().trunc());
        vec![
            format!("ip route replace {v4} via 192.168.100.254 dev eth0"),
            format!("ip route replace {v4} via 192.168.100.2 dev eth0 proto static"),
            format!("ip route replace unreachable {v4}"),
            format!("ip -6 route replace {v6} via fd00:100::fe dev eth0"),
            "ip route flush table main proto 244".to_owned(),
        ]
    })
}

#[test]
fn everything_removed_or_altered_comes_back_with_direct_routing() -> Result<()> {
    every_deed(lab(2).backend_json(direct()), |lab| {
        let v4 = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
        vec![
            format!("ip route replace {v4} via 192.168.100.254 dev eth0"),
            "ip route flush table main proto 244".to_owned(),
        ]
    })
}

#[test]
fn flannel_869_a_deleted_device_comes_back_with_all_that_stood_on_it() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2))?;
    let traffic = both_ways(&lab, &one, &two)?;
    let mut repairs = Repairs::default();
    for _ in 0..5 {
        let deed = Vandalism::LinkDelete("flannel.1".into());
        repairs.after("flannel.1 deleted", &mut kernel, || lab.node(1).vandalize(&deed))?;
        traffic.flow(&lab)?;
    }
    let reports = traffic.stop();
    measured(format_args!("five deletions: {reports}"));
    repairs.report();
    Ok(())
}

#[test]
fn flannel_877_a_network_card_that_goes_takes_nothing_along_for_good() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2).ipv6(true))?;
    let mut repairs = Repairs::default();
    for _ in 0..3 {
        // The time counts from the removal of the old card to traffic through the new one.
        repairs.after("eth0 replaced", &mut kernel, || lab.replace_nic(1))?;
        reach_each_other(&lab, &one, &two)?;
    }
    repairs.report();
    assert!(!lab.node(1).flanneld().log().contains("Announced"));
    Ok(())
}

#[test]
fn flannel_2247_a_parent_that_stays_away_for_a_while_is_waited_for() -> Result<()> {
    // As a restarted tailscaled does it: its device goes, and another of the name comes.
    let lab = lab(2).node_flag(1, "--iface=under0").no_daemons().start()?;
    let node = lab.node(1);
    let make = || -> Result<()> {
        node.ip("addr flush dev eth0 scope global")?;
        node.ip("link add link eth0 name under0 type macvlan mode bridge")?;
        node.ip("link set under0 up")?;
        node.ip("addr add 192.168.100.1/24 dev under0")?;
        node.ip("route replace default via 192.168.100.254 dev under0").map(drop)
    };
    make()?;
    let daemon = node.flanneld();
    let flags = daemon.flags().into_iter().filter(|flag| flag != "--iface=eth0").collect();
    daemon.set_flags(flags);
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    let mut kernel = Kernel::of(node)?;
    let before = kernel.held();
    node.ip("link del under0")?;
    std::thread::sleep(Duration::from_secs(3));
    assert!(kernel.device("flannel.1").is_none());
    assert!(daemon.is_running());
    let (status, why) = probe(&lab, 1, "/readyz")?.unwrap();
    assert!(status == 503 && why.contains("under0"), "{status} {why}");
    let mut repairs = Repairs::default();
    repairs.until(&lab, "under0 came again", make, || match kernel.held() {
        held if held == before => Ok(()),
        held => Err(format!("{held:?}")),
    })?;
    repairs.report();
    lab.wait_until("the node to be ready again", LIMIT, || daemon.is_ready())?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn flannel_1070_direct_routes_come_back_after_a_link_flap() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2).ipv6(true).backend_json(direct()))?;
    let leases = lab.leases()?;
    let mut repairs = Repairs::default();
    for _ in 0..3 {
        repairs.after("eth0 down and up", &mut kernel, || {
            lab.node(1).nic_down()?;
            lab.node(1).nic_up()
        })?;
        reach_each_other(&lab, &one, &two)?;
    }
    repairs.report();
    // Nothing has changed that the others would have to know, not even for a moment.
    assert_eq!(lab.leases()?, leases);
    assert!(!lab.node(1).flanneld().log().contains("Announced"));
    Ok(())
}

#[test]
fn flannel_1434_routes_of_host_gw_come_back_after_a_link_flap() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2).backend("host-gw").ipv6(true))?;
    let mut repairs = Repairs::default();
    for _ in 0..3 {
        repairs.after("eth0 down and up", &mut kernel, || {
            lab.node(1).nic_down()?;
            lab.node(1).nic_up()
        })?;
        reach_each_other(&lab, &one, &two)?;
    }
    repairs.after("eth0 replaced", &mut kernel, || lab.replace_nic(1))?;
    reach_each_other(&lab, &one, &two)?;
    repairs.report();
    Ok(())
}

#[test]
fn a_cable_pulled_and_put_back_leaves_no_trace() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2).backend_json(direct()))?;
    let before = kernel.held();
    lab.node(1).unplug()?;
    lab.wait_until("the pods to be cut off", LIMIT, || reaches(&lab, &one, &two).is_err())?;
    lab.node(1).plug()?;
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(kernel.held(), before);
    Ok(())
}

#[test]
fn flannel_1155_a_mac_rewritten_by_udev_is_put_right() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2).ipv6(true))?;
    let traffic = both_ways(&lab, &one, &two)?;
    let leases = lab.leases()?;
    let mut repairs = Repairs::default();
    for device in ["flannel.1", "flannel-v6.1"] {
        let (device, mac) = (device.to_owned(), "02:ba:dd:ba:dd:03".to_owned());
        let deed = Vandalism::SetMac { device, mac };
        repairs.after(&deed.to_string(), &mut kernel, || lab.node(1).vandalize(&deed))?;
    }
    traffic.flow(&lab)?;
    measured(traffic.stop());
    repairs.report();
    // The others were told nothing, for nothing has changed.
    assert_eq!(lab.leases()?, leases);
    Ok(())
}

#[test]
fn k3s_14142_all_remote_routes_lost_at_once_come_back() -> Result<()> {
    let lab = lab(5).start()?;
    let pods = lab.pod_on_every_node()?;
    lab.wait_until("all to reach all", LIMIT, || lab.matrix(Duration::from_secs(1))?.check())?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let mut repairs = Repairs::default();
    repairs.after("all routes of flannel.1 flushed", &mut kernel, || {
        lab.node(1).ip("route flush dev flannel.1").map(drop)
    })?;
    repairs.report();
    pods[1..].iter().try_for_each(|pod| reach_each_other(&lab, &pods[0], pod))
}

/// Gives node 1 other addresses and waits until pods talk through them.
pub(crate) fn follow_the_address(builder: LabBuilder) -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(builder)?;
    let keys =
        || -> Result<Vec<String>> { Ok(lab.leases()?.into_iter().map(|(key, _)| key).collect()) };
    let (before, vxlan) = (keys()?, kernel.device("flannel.1").is_some());
    let mut repairs = Repairs::default();
    for address in ["192.168.100.77", "fd00:100::77"] {
        let address: IpAddr = address.parse().unwrap();
        let what = format!("pods talk through {address}, the node's new address");
        repairs.until(
            &lab,
            &what,
            || lab.change_address(1, address),
            || {
                let local = format!("local {address} ");
                if vxlan && !kernel.held().iter().any(|line| line.contains(&local)) {
                    return Err(LabError::Spec("the device still sends from the old one".into()));
                }
                let told = |(_, value): &(String, String)| value.contains(&address.to_string());
                if !lab.leases()?.iter().any(told) {
                    return Err(LabError::Spec("the others are not told yet".into()));
                }
                reaches(&lab, &one, &two)
            },
        )?;
    }
    repairs.report();
    assert_eq!(keys()?, before, "the subnets stay");
    reach_each_other(&lab, &one, &two)
}

#[test]
fn k3s_2827_a_node_that_changes_its_address_is_followed_with_vxlan() -> Result<()> {
    follow_the_address(lab(2).ipv6(true))
}

#[test]
fn k3s_2827_a_node_that_changes_its_address_is_followed_with_host_gw() -> Result<()> {
    follow_the_address(lab(2).backend("host-gw").ipv6(true))
}

#[test]
fn somebody_who_undoes_the_same_thing_again_and_again_is_met_with_pauses() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes(lab(2))?;
    let (node, before) = (lab.node(1), kernel.held());
    let route = lab.node(2).subnet_env()?.subnet.unwrap().trunc();
    let undo = || node.output(&["ip", "route", "del", &route.to_string()]).map(drop);
    for _ in 0..40 {
        undo()?;
    }
    let log = node.flanneld().log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("again and again")).collect();
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains(&route.to_string()), "{log}");
    let lines = log.lines().filter(|line| line.contains("restored")).count();
    assert!(lines < 25, "{lines} lines:\n{log}");
    // Once they stop, it is put right.
    lab.wait_until("the route to be back", LIMIT, || kernel.held() == before)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn what_is_not_ours_is_never_touched() -> Result<()> {
    let (lab, _, _, mut kernel) = two_nodes(lab(2).ipv6(true))?;
    let node = lab.node(1);
    // Another tool's device, routes and neighbours, some of them looking much like ours.
    for command in [
        "link add flannel.77 type vxlan id 77 dev eth0 dstport 4789 nolearning",
        "addr add 10.99.0.0/32 dev flannel.77",
        "link set flannel.77 up",
        "route add 10.99.1.0/24 via 10.99.1.0 dev flannel.77 onlink",
        "route add 10.98.0.0/16 via 192.168.100.254 proto static",
        "route add 10.244.199.0/24 via 192.168.100.254 proto static metric 77",
        "neigh add 192.168.100.200 lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
    ] {
        node.ip(command)?;
    }
    let theirs = || -> Result<String> {
        Ok(node.ip("-d link show flannel.77")?
            + &node.ip("addr show flannel.77")?
            + &node.ip("route show 10.99.1.0/24")?
            + &node.ip("route show 10.98.0.0/16")?
            + &node.ip("route show 10.244.199.0/24")?
            + &node.ip("neigh show 192.168.100.200")?)
    };
    lab.wait_until("the kernel to find their link-local address unused", LIMIT, || {
        theirs().is_ok_and(|state| !state.contains("tentative"))
    })?;
    let (before, held) = (theirs()?, kernel.held());
    // Whatever makes the daemon compare everything.
    node.vandalize(&Vandalism::LinkBounce("flannel.1".into()))?;
    lab.wait_until("a repair", LIMIT, || kernel.held() == held)?;
    node.flanneld().restart()?;
    lab.wait_until("all as it was", LIMIT, || kernel.held() == held)?;
    assert_eq!(theirs()?, before);
    Ok(())
}
