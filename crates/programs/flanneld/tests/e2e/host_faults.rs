//! What is the host's own to decide and cuts pods off all the same: it is left as it is, and said with the
//! fix, in the log and by `/readyz`, for as long as it lasts.

use flannel_lab::{Lab, LabError, Result};

use crate::support::{LIMIT, connected_pods, lab, measured, probe, reach_each_other};

/// Does it, waits until the node tells of it in these words, undoes it, and waits until it is ready.
fn told(lab: &Lab, deed: &str, remedy: &str, words: &[&str]) -> Result<()> {
    let node = lab.node(1);
    let run = |command: &str| node.exec(&command.split_whitespace().collect::<Vec<_>>()).map(drop);
    lab.wait_until("the node to be ready", LIMIT, || node.flanneld().is_ready())?;
    let length = node.flanneld().log().len();
    let begin = std::time::Instant::now();
    run(deed)?;
    lab.wait_until(&format!("the node to tell of: {deed}"), LIMIT, || {
        let (status, why) = probe(lab, 1, "/readyz")?.unwrap();
        let told = status == 503 && words.iter().all(|word| why.contains(word));
        if told { Ok(()) } else { Err(LabError::Spec(format!("{status} {why}"))) }
    })?;
    measured(format_args!("told after {:.1?}: {deed}", begin.elapsed()));
    let log = node.flanneld().log().split_off(length);
    assert!(words.iter().all(|word| log.contains(word)), "{deed}:\n{log}");
    assert!(!log.contains("restored"), "{deed}:\n{log}");
    run(remedy)?;
    lab.wait_until(&format!("the node to be ready after: {remedy}"), LIMIT, || {
        let (status, why) = probe(lab, 1, "/readyz")?.unwrap();
        if status == 200 { Ok(()) } else { Err(LabError::Spec(why)) }
    })
}

#[test]
fn forwarding_that_is_off_is_told_with_the_command_that_turns_it_on() -> Result<()> {
    let lab = lab(2).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    for name in [
        "net.ipv4.ip_forward",
        "net.ipv6.conf.all.forwarding",
        "net/ipv4/conf/flannel.1/forwarding",
    ] {
        let set = |value: &str| format!("sysctl -q -w {name}={value}");
        let fix = format!("sysctl -w {name}=1");
        told(&lab, &set("0"), &set("1"), &[&format!("{name} is 0"), &fix])?;
    }
    reach_each_other(&lab, &one, &two)?;
    // A node that is started so has done its part: whoever is to start after it may be the one who mends it.
    let node = lab.node(1);
    node.exec(&["sysctl", "-q", "-w", "net.ipv4.ip_forward=0"])?;
    node.flanneld().stop()?;
    node.flanneld().start()?;
    lab.wait_until("the node to tell of it", LIMIT, || {
        let answer =
            probe(&lab, 1, "/readyz")?.map_err(|error| LabError::Spec(error.to_string()))?;
        let told = answer.0 == 503 && answer.1.contains("net.ipv4.ip_forward is 0");
        if told { Ok(()) } else { Err(LabError::Spec(answer.1)) }
    })?;
    assert!(node.flanneld().log().contains("flannel is ready"), "{}", node.flanneld().log());
    Ok(())
}

#[test]
fn routes_of_others_that_go_before_ours_are_told() -> Result<()> {
    for backend in ["vxlan", "host-gw", "udp"] {
        let lab = lab(2).backend(backend).ipv6(true).start()?;
        let (one, two) = connected_pods(&lab)?;
        let env = lab.node(2).subnet_env()?;
        let (v4, v6) = (env.subnet.unwrap().trunc(), env.subnet6.unwrap().trunc());
        let (net4, net6) = (v4.network(), v6.network());
        let (v4, v6) = (v4.to_string(), v6.to_string());
        for (route, subnet) in [
            (format!("{net4}/25 via 192.168.100.254 dev eth0"), &v4),
            (format!("blackhole {net4}/26"), &v4),
            (format!("{net6}/65 via fd00:100::fe dev eth0 metric 1024"), &v6),
            (format!("{v6} via fd00:100::fe dev eth0 metric 7"), &v6),
        ] {
            let family = if subnet == &v6 { "-6" } else { "-4" };
            let fix = format!("ip route del {route}");
            told(
                &lab,
                &format!("ip {family} route add {route}"),
                &format!("ip {family} route del {route}"),
                &[&fix, subnet, "not flannel's"],
            )?;
        }
        let address = format!("{net4}/32").replace(".0/", ".77/");
        told(
            &lab,
            &format!("ip addr add {address} dev eth0"),
            &format!("ip addr del {address} dev eth0"),
            &[&format!("ip addr del {address} dev eth0"), &v4],
        )?;
        // What lies beside it, or leads to the same place, harms nobody.
        let harmless = "ip route add 10.99.0.0/16 via 192.168.100.254 dev eth0";
        lab.node(1).exec(&harmless.split_whitespace().collect::<Vec<_>>())?;
        reach_each_other(&lab, &one, &two)?;
        assert_eq!(probe(&lab, 1, "/readyz")?.unwrap().0, 200);
    }
    Ok(())
}

#[test]
fn a_route_without_metric_goes_before_those_of_a_large_network_and_is_told() -> Result<()> {
    let config = serde_json::json!({"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan"}});
    let lab = lab(2).config_json(&config.to_string()).start()?;
    connected_pods(&lab)?;
    let subnet = lab.node(2).subnet_env()?.subnet.unwrap().trunc();
    let route = format!("{subnet} via 192.168.100.254 dev eth0");
    told(
        &lab,
        &format!("ip route add {route}"),
        &format!("ip route del {route} metric 0"),
        &[&route, "not flannel's"],
    )
}

#[test]
fn routing_rules_that_lead_packets_elsewhere_are_told() -> Result<()> {
    rules_are_told("vxlan", "flannel.1")?;
    rules_are_told("udp", "flannel0")
}

fn rules_are_told(backend: &str, device: &str) -> Result<()> {
    let lab = lab(2).backend(backend).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    let env = lab.node(2).subnet_env()?;
    let own = lab.node(1).subnet_env()?.subnet.unwrap().trunc();
    let (v4, v6) =
        (env.subnet.unwrap().trunc().to_string(), env.subnet6.unwrap().trunc().to_string());
    let node = lab.node(1);
    node.ip("route add default via 192.168.100.254 dev eth0 table 100")?;
    node.ip("-6 route add default via fd00:100::fe dev eth0 table 100")?;
    for (family, rule, subnet) in [
        ("-4", "from all lookup 100 pref 50".to_owned(), &v4),
        ("-4", format!("to {v4} lookup 100 pref 50"), &v4),
        ("-4", format!("to {v4} prohibit pref 50"), &v4),
        // Those that catch what pods send, not what the host sends.
        ("-4", format!("from {own} lookup 100 pref 50"), &v4),
        ("-4", "iif cni0 lookup 100 pref 50".to_owned(), &v4),
        ("-4", format!("iif {device} prohibit pref 50"), &v4),
        ("-6", "from all lookup 100 pref 50".to_owned(), &v6),
    ] {
        told(
            &lab,
            &format!("ip {family} rule add {rule}"),
            &format!("ip {family} rule del {rule}"),
            &["routing rule", subnet, "ip rule"],
        )?;
    }
    // Rules that leave the peers alone are nobody's business.
    node.ip("rule add fwmark 0x77 lookup 100 pref 50")?;
    node.ip("rule add to 203.0.113.0/24 lookup 100 pref 51")?;
    node.ip("route del default table 100")?;
    node.ip("rule add from all lookup 100 pref 52")?;
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(probe(&lab, 1, "/readyz")?.unwrap().0, 200);
    // A route of a table that always goes first, and one of the other table, are enough.
    let local = format!("local {v4} dev lo table local");
    let words = ["routing rule", &v4];
    told(&lab, &format!("ip route add {local}"), &format!("ip route del {local}"), &words)?;
    told(
        &lab,
        &format!("ip route add {v4} via 192.168.100.254 dev eth0 table 100"),
        &format!("ip route del {v4} table 100"),
        &["routing rule", &v4],
    )
}
