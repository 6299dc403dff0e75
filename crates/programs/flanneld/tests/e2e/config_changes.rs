//! The network config while nodes run: a good one is followed at once and leaves nothing of the old
//! one behind; a bad one changes nothing and is told of with its fix.

use std::time::{Duration, Instant};

use flannel_lab::{Families, Lab, LabError, PingOptions, Result, SUBNET_ENV};
use serde_json::json;

use crate::support::{
    Held, Kernel, LIMIT, both_ways, connected_pods, go_flanneld, lab, lease_path, measured,
    own_key, probe, reach_each_other,
};

const NETWORKS: [&str; 3] = ["10.244.0.0/16", "10.99.0.0/16", "fd00:244::/48"];

/// Writes a config and waits until what all nodes hold is as it should be.
fn change(
    lab: &Lab,
    what: &str,
    config: &serde_json::Value,
    right: impl Fn(&Held) -> bool,
) -> Result<()> {
    let begin = Instant::now();
    lab.put_config(&config.to_string())?;
    for node in lab.nodes() {
        let mut kernel = Kernel::with_networks(node, &NETWORKS)?;
        lab.wait_until(what, LIMIT, || {
            let held = kernel.held();
            if right(&held) { Ok(()) } else { Err(format!("{held:?}")) }
        })?;
    }
    measured(format_args!("{what}: followed after {:.1?}", begin.elapsed()));
    Ok(())
}

fn some(held: &Held, part: &str) -> bool {
    held.iter().any(|line| line.contains(part))
}

#[test]
fn a_config_that_is_not_there_yet_is_waited_for() -> Result<()> {
    let lab = lab(2).no_daemons().start()?;
    lab.etcd()?.delete("/coreos.com/network/config")?;
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    std::thread::sleep(Duration::from_millis(1500));
    let (status, why) = probe(&lab, 1, "/readyz")?.unwrap();
    assert_eq!(status, 503);
    assert!(why.contains("no network config yet"), "{why}");
    let how = "`etcdctl put /coreos.com/network/config '{\"Network\":\"10.244.0.0/16\",";
    assert!(why.contains(how) && why.contains("`flannelctl config set FILE`"), "{why}");
    let log = lab.node(1).flanneld().log();
    assert_eq!(log.matches("Couldn't fetch network config").count(), 1, "{log}");
    // One that cannot be used is no better.
    lab.put_config(r#"{"Network": "10.244.0.0/30"}"#)?;
    lab.wait_until("the other reason", LIMIT, || {
        let (_, why) = probe(&lab, 1, "/readyz")?.unwrap();
        if why.contains("10.244.0.0/30") { Ok(()) } else { Err(flannel_lab::LabError::Spec(why)) }
    })?;
    lab.put_config(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#)?;
    let begin = Instant::now();
    lab.start_daemons()?;
    measured(format_args!("ready {:.1?} after the config was written", begin.elapsed()));
    connected_pods(&lab).map(drop)
}

#[test]
fn a_bad_config_changes_nothing_and_is_told_with_its_fix() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let (before, leases) = (kernel.held(), lab.leases()?);
    let env = lab.node(1).read_file(SUBNET_ENV)?;
    let traffic = both_ways(&lab, &one, &two)?;
    let daemon = lab.node(1).flanneld();
    // What is written, and what the log must say of it.
    let bad = [
        ("{", vec!["keeping the network"]),
        ("", vec!["keeping the network"]),
        (r#"{"Network": "10.244.0.0/99"}"#, vec!["Network", "10.244.0.0/99"]),
        (r#"{"Network": "10.244.0.0/16", "SubnetLen": 31}"#, vec!["SubnetLen", "31"]),
        (
            r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlam"}}"#,
            vec!["Backend.Type", "vxlam", "vxlan, host-gw"],
        ),
        (
            r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": "one"}}"#,
            vec!["VNI", "one"],
        ),
        (
            r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "MTU": 70}}"#,
            vec!["MTU", "70", "raise"],
        ),
        // It would be udp.
        (r#"{"Network": "10.244.0.0/16"}"#, vec!["Backend is missing", "udp", "vxlan"]),
        (
            r#"{"Network": "10.224.0.0/16", "Backend": {"Type": "vxlan"}}"#,
            vec!["this node's subnet 10.244.", "the one peer", r#""Replaces": ["10.244.0.0/16"]"#],
        ),
        (
            r#"{"Network": "192.168.100.0/24", "Replaces": ["10.244.0.0/16"], "Backend": {"Type": "vxlan"}}"#,
            vec!["this node's own address 192.168.100.1 of eth0", "LAN 192.168.100.0/24"],
        ),
        (
            r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "extension", "PreStartupCommand": "touch /run/owned"}}"#,
            vec!["Backend.PreStartupCommand", "restart flanneld", "--allow-commands"],
        ),
        (
            r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "gce", "Endpoint": "http://192.168.100.2"}}"#,
            vec!["cloud credentials", "http://192.168.100.2", "--allow-commands"],
        ),
    ];
    for (config, said) in bad {
        let length = daemon.log().len();
        lab.put_config(config)?;
        lab.wait_until("the complaint", LIMIT, || {
            let log = daemon.log();
            let news = &log[length..];
            let complete = said.iter().all(|part| news.contains(part));
            if complete { Ok(()) } else { Err(format!("{config}: {news}")) }
        })?;
    }
    lab.etcd()?.delete("/coreos.com/network/config")?;
    lab.wait_until("the complaint", LIMIT, || daemon.log().contains("config was deleted"))?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    assert_eq!((kernel.held(), lab.leases()?), (before.clone(), leases.clone()));
    assert_eq!(lab.node(1).read_file(SUBNET_ENV)?, env);
    assert!(lab.node(1).read_file("/run/owned").is_err(), "no command was run");

    // The good one again, and nothing has happened.
    lab.put_config(&lab.spec().network_config().to_string())?;
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((kernel.held(), lab.leases()?), (before, leases));
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_node_does_not_start_with_its_own_lan_as_pod_network() -> Result<()> {
    let lan = r#"{"Network": "192.168.100.0/24", "Backend": {"Type": "vxlan"}}"#;
    let lab = lab(1).config_json(lan).no_daemons().start()?;
    lab.node(1).flanneld().start()?;
    lab.wait_until("the reason", LIMIT, || {
        lab.node(1).flanneld().log().contains("this node's own address 192.168.100.1 of eth0")
    })?;
    assert!(lab.leases()?.is_empty() && lab.node(1).read_file(SUBNET_ENV).is_err());
    Ok(())
}

#[test]
fn another_vni_and_port_are_followed() -> Result<()> {
    let lab = lab(3).start()?;
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab, &pods[0], &pods[1])?;
    let keys = (own_key(&lab, 1)?, own_key(&lab, 2)?);
    let config = |backend| json!({"Network": "10.244.0.0/16", "Backend": backend});
    let other = config(json!({"Type": "vxlan", "VNI": 77}));
    change(&lab, "VNI 77", &other, |held| {
        some(held, "device flannel.77 up") && !some(held, "flannel.1 ") && held.len() == 2 + 3 * 2
    })?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    let other = config(json!({"Type": "vxlan", "VNI": 77, "Port": 4789}));
    change(&lab, "port 4789", &other, |held| {
        some(held, "vxlan 77 port 4789") && held.len() == 2 + 3 * 2
    })?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    assert_eq!((own_key(&lab, 1)?, own_key(&lab, 2)?), keys, "the subnets stay");
    Ok(())
}

#[test]
fn defect_36_another_mtu_is_followed_by_device_and_subnet_file() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let traffic = both_ways(&lab, &one, &two)?;
    let backend = json!({"Type": "vxlan", "MTU": 1400});
    let config = json!({"Network": "10.244.0.0/16", "Backend": backend});
    change(&lab, "MTU 1400", &config, |held| some(held, "mtu 1350 "))?;
    for node in lab.nodes() {
        lab.wait_until("the subnet file", LIMIT, || {
            node.subnet_env().is_ok_and(|env| env.mtu == 1350)
        })?;
    }
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    Ok(())
}

#[test]
fn another_backend_is_followed_there_and_back() -> Result<()> {
    let lab = lab(3).ipv6(true).start()?;
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab, &pods[0], &pods[1])?;
    let keys = own_key(&lab, 1)?;
    let before = Kernel::of(lab.node(1))?.held();
    let mut config = lab.spec().network_config();

    config["Backend"] = json!({"Type": "host-gw"});
    change(&lab, "host-gw", &config, |held| {
        held.len() == 4 && held.iter().all(|line| line.contains("dev eth0"))
    })?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    // It is written after all else.
    lab.wait_until("the subnet file", LIMIT, || {
        lab.node(1).subnet_env().is_ok_and(|env| env.mtu == 1500)
    })?;

    config["Backend"] = json!({"Type": "vxlan", "DirectRouting": true});
    change(&lab, "direct routing", &config, |held| {
        some(held, "device flannel.1 up")
            && held
                .iter()
                .filter(|line| line.contains("dev eth0 ") || line.ends_with("eth0"))
                .count()
                == 6
    })?;
    lab.matrix(Duration::from_secs(10))?.check()?;

    config["Backend"] = json!({"Type": "vxlan"});
    change(&lab, "vxlan", &config, |held| held.len() == before.len())?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    assert_eq!(lab.node(1).subnet_env()?.mtu, 1430);
    assert_eq!(own_key(&lab, 1)?, keys, "the subnet stays");
    Ok(())
}

#[test]
fn from_every_backend_to_every_other_nothing_of_the_former_stays() -> Result<()> {
    let lab = lab(2).backend("host-gw").start()?;
    let (one, two) = connected_pods(&lab)?;
    let kinds: [(&str, &[&str]); 3] =
        [("host-gw", &[]), ("udp", &["flannel0"]), ("vxlan", &["flannel.1"])];
    let mut config = lab.spec().network_config();
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1), (1, 0)] {
        let (kind, devices) = kinds[to];
        config["Backend"] = json!({"Type": kind});
        change(&lab, kind, &config, |held| {
            let is_there = |name: &&str| some(held, &format!("dev {name}"));
            devices.iter().all(is_there) && !kinds[from].1.iter().any(is_there)
        })?;
        reach_each_other(&lab, &one, &two)?;
        let held = Kernel::of(lab.node(1))?.held();
        let strange = |line: &&String| devices.is_empty() && !line.contains("dev eth0");
        assert_eq!(held.iter().find(strange), None, "to {kind}");
    }
    Ok(())
}

/// The Go flannel reads its config once, so a node with it changes when it is restarted: as any node would that is
/// changed by hand.
#[test]
fn a_peer_that_still_has_another_backend_is_named_once_and_until_it_has_changed() -> Result<()> {
    let lab = lab(3).node_flanneld(3, go_flanneld()).no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab, &pods[0], &pods[2])?;
    lab.put_config(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#)?;
    let words = "it uses the backend 'vxlan', we use 'host-gw'";
    let named = |expected: bool| match probe(&lab, 1, "/readyz")? {
        Ok((200, text)) if text.contains(words) == expected => Ok(()),
        other => Err(flannel_lab::LabError::Spec(format!("{other:?}"))),
    };
    lab.wait_until("the stranger to be named", LIMIT, || named(true))?;
    reach_each_other(&lab, &pods[0], &pods[1])?;
    lab.node(3).flanneld().restart()?;
    reach_each_other(&lab, &pods[0], &pods[2])?;
    lab.wait_until("no stranger to be named", LIMIT, || named(false))?;
    let log = lab.node(1).flanneld().log();
    let told = log.lines().filter(|line| line.contains(words) && line.contains("Peer")).count();
    assert!((1..=2).contains(&told), "{told} times:\n{log}");
    assert!(log.contains("Every peer uses the same backend as this node now"), "{log}");
    Ok(())
}

#[test]
fn flannel_1604_another_network_is_followed_and_the_old_one_leaves_no_routes() -> Result<()> {
    for backend in ["vxlan", "host-gw"] {
        let lab = lab(2).backend(backend).start()?;
        connected_pods(&lab)?;
        let before = (own_key(&lab, 1)?, own_key(&lab, 2)?);
        let replaces = |from: &str| json!([from]);
        let mut config = json!({"Network": "10.99.0.0/16", "Backend": {"Type": backend}});
        config["Replaces"] = replaces("10.244.0.0/16");
        change(&lab, "network 10.99.0.0/16", &config, |held| {
            some(held, "route 10.99.") && !some(held, "10.244.")
        })?;
        for node in lab.nodes() {
            lab.wait_until("the subnet file", LIMIT, || {
                node.read_file(SUBNET_ENV).is_ok_and(|env| {
                    env.starts_with("FLANNEL_NETWORK=10.99.0.0/16\nFLANNEL_SUBNET=10.99.")
                })
            })?;
        }
        let keys: Vec<String> = lab.leases()?.into_iter().map(|(key, _)| key).collect();
        assert!(keys.len() == 2 && keys.iter().all(|key| key.starts_with("10.99.")), "{keys:?}");
        let (one, two) = (lab.pod(1)?, lab.pod(2)?);
        reach_each_other(&lab, &one, &two)?;

        // And back: each node has the subnet again that its older pods have their addresses of.
        let mut config = lab.spec().network_config();
        config["Replaces"] = replaces("10.99.0.0/16");
        change(&lab, "network 10.244.0.0/16", &config, |held| {
            some(held, "route 10.244.") && !some(held, "10.99.")
        })?;
        lab.wait_until("the former subnets", LIMIT, || {
            let now = (own_key(&lab, 1)?, own_key(&lab, 2)?);
            let why = || flannel_lab::LabError::Spec(format!("{now:?}, not {before:?}"));
            if now == before { Ok(()) } else { Err(why()) }
        })?;
    }
    Ok(())
}

#[test]
fn defect_12_a_second_family_is_turned_on_and_off_while_nodes_run() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (key, single) = (own_key(&lab, 1)?, lab.spec().network_config());
    let traffic = both_ways(&lab, &one, &two)?;
    let mut dual = single.clone();
    dual["EnableIPv6"] = json!(true);
    dual["IPv6Network"] = json!("fd00:244::/48");
    change(&lab, "IPv6 on", &dual, |held| {
        some(held, "device flannel-v6.1 up") && some(held, "route fd00:244:")
    })?;
    traffic.flow(&lab)?;
    measured(format_args!("IPv4 meanwhile: {}", traffic.stop()));
    lab.wait_until("both in the subnet file", LIMIT, || {
        own_key(&lab, 1).is_ok_and(|now| now != key)
    })?;
    assert!(own_key(&lab, 1)?.starts_with(&format!("{key}&")), "the IPv4 subnet stays");
    lab.wait_until("all leases", LIMIT, || {
        lab.leases().is_ok_and(|leases| {
            leases.len() == 2 && leases.iter().all(|(key, _)| key.contains('&'))
        })
    })?;
    // The end of the other node's tunnel.
    let far = lab.node(2).subnet_env()?.subnet6.unwrap().network();
    lab.ping_address(lab.node(1), far.into(), PingOptions::default())?;
    reach_each_other(&lab, &one, &two)?;

    change(&lab, "IPv6 off", &single, |held| !some(held, "fd00:244:") && !some(held, "-v6"))?;
    lab.wait_until("one in the subnet file", LIMIT, || {
        own_key(&lab, 1).is_ok_and(|now| now == key)
    })?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_node_keeps_its_lease_and_subnet_when_a_network_of_ipv6_alone_gains_ipv4() -> Result<()> {
    for builder in [lab(2), lab(2).lease_server()] {
        let lab = builder.overlay(Families::Ipv6).start()?;
        let (one, two) = connected_pods(&lab)?;
        let before = [own_key(&lab, 1)?, own_key(&lab, 2)?];
        let mut dual = lab.spec().network_config();
        dual["Network"] = json!("10.244.0.0/16");
        dual["EnableIPv4"] = json!(true);
        lab.put_config(&dual.to_string())?;
        for (node, v6) in [1, 2].into_iter().zip(&before) {
            lab.wait_until("both families in the subnet file", LIMIT, || {
                match own_key(&lab, node) {
                    Ok(key) if key.starts_with("10.244.") && key.ends_with(&format!("&{v6}")) => {
                        Ok(())
                    }
                    other => Err(LabError::Spec(format!("{other:?}, not {v6}"))),
                }
            })?;
        }
        lab.wait_until("no lease of before to stay", LIMIT, || {
            let keys: Vec<String> = lab.leases()?.into_iter().map(|(key, _)| key).collect();
            let dual = keys.len() == 2 && keys.iter().all(|key| key.contains('&'));
            if dual { Ok(()) } else { Err(LabError::Spec(format!("{keys:?}"))) }
        })?;
        reach_each_other(&lab, &one, &two)?;
    }
    Ok(())
}

/// A daemon that is slow, as on a busy machine, finds several configs at once: it announces itself for each of them, and
/// hears of these writes when it has made all of them.
#[test]
fn a_node_whose_config_flaps_takes_none_of_its_own_writes_for_another_nodes() -> Result<()> {
    const TIMES: usize = 4;
    let lab = lab(1).backend("host-gw").start()?;
    let (daemon, key) = (lab.node(1).flanneld(), own_key(&lab, 1)?);
    let host_gw = lab.spec().network_config();
    let mut alloc = host_gw.clone();
    alloc["Backend"] = json!({"Type": "alloc"});
    daemon.pause()?;
    for config in [&alloc, &host_gw].into_iter().cycle().take(2 * TIMES) {
        lab.put_config(&config.to_string())?;
    }
    daemon.resume()?;
    lab.wait_until("every config to be followed", LIMIT, || {
        let log = daemon.log();
        let followed = log.matches("The network config has changed").count();
        // What has changed again before it could be announced is not.
        let announced = log.matches("Announced").count();
        if followed == 2 * TIMES && announced >= 2 { Ok(()) } else { Err(log) }
    })?;
    // What the store tells after all of them.
    let marker = r#"{"PublicIP":"192.168.100.77","PublicIPv6":null,"BackendType":"host-gw"}"#;
    lab.etcd()?.put(&lease_path(&lab, "10.244.200.0-24"), marker)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    lab.wait_until("a later peer to be known", LIMIT, || {
        some(&kernel.held(), "route 10.244.200.0/24 ")
    })?;
    let log = daemon.log();
    assert!(!log.contains("was written by another node"), "{log}");
    assert_eq!(probe(&lab, 1, "/readyz")?.unwrap().0, 200, "{log}");
    assert_eq!(own_key(&lab, 1)?, key);
    Ok(())
}

#[test]
fn a_config_changed_while_a_node_was_down_is_followed_at_its_start() -> Result<()> {
    let lab = lab(2).start()?;
    connected_pods(&lab)?;
    lab.node(1).flanneld().stop()?;
    let mut config = json!({"Network": "10.99.0.0/16", "Backend": {"Type": "vxlan", "VNI": 3}});
    config["Replaces"] = json!(["10.244.0.0/16"]);
    lab.put_config(&config.to_string())?;
    // Its pods are gone: with the former address of their bridge the node would not be ready.
    lab.node(1).ip("addr flush dev cni0")?;
    lab.node(1).flanneld().restart()?;
    change(&lab, "network 10.99.0.0/16", &config, |held| {
        some(held, "device flannel.3 up") && !some(held, "10.244.") && !some(held, "flannel.1 ")
    })?;
    for node in lab.nodes() {
        lab.wait_until("the subnet file", LIMIT, || {
            node.read_file(SUBNET_ENV).is_ok_and(|env| env.contains("FLANNEL_SUBNET=10.99."))
        })?;
    }
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    reach_each_other(&lab, &one, &two)
}

/// The network grows and shrinks around the nodes' subnets, over the border from which on routes are
/// spread over metrics and back: every route is there at any time, and none stays behind.
#[test]
fn a_wider_or_narrower_network_keeps_the_routes_of_all_peers() -> Result<()> {
    for backend in ["vxlan", "host-gw"] {
        let lab = lab(2).backend(backend).start()?;
        let (one, two) = connected_pods(&lab)?;
        let keys = (own_key(&lab, 1)?, own_key(&lab, 2)?);
        let traffic = both_ways(&lab, &one, &two)?;
        for (network, spread) in [
            ("10.240.0.0/12", true),
            ("10.244.0.0/15", false),
            ("10.0.0.0/8", true),
            ("10.240.0.0/12", true),
            ("10.244.0.0/16", false),
        ] {
            let config = json!({
                "Network": network,
                "SubnetLen": 24,
                "Backend": {"Type": backend},
            });
            change(&lab, network, &config, |held| {
                let routes: Vec<_> = held.iter().filter(|line| line.contains("route")).collect();
                routes.len() == 1 && routes[0].contains("metric") == spread
            })?;
            for node in lab.nodes() {
                lab.wait_until("the subnet file", LIMIT, || {
                    node.read_file(SUBNET_ENV).is_ok_and(|env| env.contains(network))
                })?;
            }
            // What is put right only by the next thing that happens is not right.
            std::thread::sleep(Duration::from_millis(300));
            reach_each_other(&lab, &one, &two)?;
        }
        let reports = traffic.stop();
        measured(&reports);
        reports.nothing_is_lost();
        assert_eq!((own_key(&lab, 1)?, own_key(&lab, 2)?), keys, "the subnets stay");
    }
    Ok(())
}
