//! Pods, streams and transfers on nodes that a test has wired by hand.

use std::time::Duration;

use flannel_lab::{Lab, Result, SUBNET_ENV, StreamOptions};

/// Two nodes with subnets and the routes between them, as host-gw would make them.
fn wired_by_hand() -> Result<Lab> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    for (own, peer) in [(1, 2), (2, 1)] {
        let node = lab.node(own);
        let text = format!(
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.{own}.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/48\n\
             FLANNEL_IPV6_SUBNET=fd00:244:0:{own}::1/64\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n"
        );
        node.write_file(SUBNET_ENV, &text)?;
        node.ip(&format!("route add 10.244.{peer}.0/24 via 192.168.100.{peer}"))?;
        node.ip(&format!("route add fd00:244:0:{peer}::/64 via fd00:100::{peer}"))?;
    }
    Ok(lab)
}

#[test]
fn all_pods_reach_each_other() -> Result<()> {
    let lab = wired_by_hand()?;
    lab.pod_on_every_node()?;
    let second = lab.pod(1)?;
    assert_eq!(second.v4().unwrap().to_string(), "10.244.1.3");
    assert_eq!(second.v6().unwrap().to_string(), "fd00:244:0:1::3");
    let matrix = lab.matrix(Duration::from_secs(5))?;
    assert_eq!(matrix.labels, ["pod1", "pod2", "pod1.2"]);
    matrix.check()
}

#[test]
fn a_matrix_shows_who_does_not_reach_whom() -> Result<()> {
    let lab = wired_by_hand()?;
    lab.pod_on_every_node()?;
    lab.pod(1)?;
    lab.node(1).ip("route del 10.244.2.0/24")?;
    let matrix = lab.matrix(Duration::from_secs(2))?;
    let mut failures: Vec<_> = matrix.failures().map(|(from, to, _)| (from, to)).collect();
    failures.sort_unstable();
    // The pods of node 1 have no way to node 2, and no way to answer it either.
    assert_eq!(
        failures,
        [("pod1", "pod2"), ("pod1.2", "pod2"), ("pod2", "pod1"), ("pod2", "pod1.2")]
    );
    assert!(matrix.check().is_err());
    Ok(())
}

#[test]
fn a_quiet_stream_loses_nothing() -> Result<()> {
    let lab = wired_by_hand()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    lab.ping(&one, &two)?;
    for ipv6 in [false, true] {
        let options = StreamOptions { packets_per_second: 1000, payload: 200, ipv6 };
        let stream = lab.stream_with(&one, &two, options)?;
        std::thread::sleep(Duration::from_millis(300));
        let report = stream.stop();
        assert!((200..400).contains(&report.sent), "{report:?}");
        assert_eq!((report.lost, report.duplicates, report.refused), (0, 0, 0), "{report:?}");
    }
    Ok(())
}

#[test]
fn a_stream_measures_an_outage() -> Result<()> {
    let lab = wired_by_hand()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    lab.ping(&one, &two)?;
    let stream = lab.stream(&one, &two, 1000)?;
    lab.wait_until("some traffic", Duration::from_secs(5), || stream.received() > 100)?;
    lab.partition(&[1], &[2])?;
    std::thread::sleep(Duration::from_millis(300));
    lab.heal()?;
    let before = stream.received();
    lab.wait_until("traffic again", Duration::from_secs(5), || stream.received() > before)?;
    let report = stream.stop();
    assert!(report.lost >= 250, "{report:?}");
    assert!(report.longest_gap >= Duration::from_millis(290), "{report:?}");
    assert!(report.longest_gap < Duration::from_secs(3), "{report:?}");
    assert!(report.longest_gap_at >= Duration::from_millis(90), "{report:?}");
    Ok(())
}

#[test]
fn a_stream_that_never_arrives_is_one_long_gap() -> Result<()> {
    let lab = wired_by_hand()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    lab.partition(&[1], &[2])?;
    let stream = lab.stream(&one, &two, 1000)?;
    std::thread::sleep(Duration::from_millis(100));
    let report = stream.stop();
    assert_eq!(report.received, 0);
    assert_eq!(report.longest_gap, report.elapsed);
    Ok(())
}

#[test]
fn a_transfer_arrives_whole() -> Result<()> {
    let lab = wired_by_hand()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    for bytes in [0, 1, 65_536, 20_000_001] {
        let transfer = lab.tcp_transfer(&one, &two, bytes)?;
        assert_eq!(transfer.bytes, bytes);
        assert!(transfer.bits_per_second() >= 0.0);
    }
    Ok(())
}

#[test]
fn a_transfer_that_cannot_begin_says_so() -> Result<()> {
    let lab = wired_by_hand()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    lab.node(1).ip("route replace unreachable 10.244.2.0/24")?;
    let error = lab.tcp_transfer(&one, &two, 1).unwrap_err().to_string();
    assert!(error.contains("pod1") && error.contains("connect"), "{error}");
    Ok(())
}

#[test]
fn a_wire_carries_no_packet_above_its_mtu() -> Result<()> {
    // Bytes per packet that node 2 has received, as its device counts them.
    let packet_size = |wire: bool| -> Result<u64> {
        let lab = Lab::builder().nodes(2).wire(wire).bare().start()?;
        lab.tcp_transfer(lab.node(1), lab.node(2), 20_000_000)?;
        let count = |name: &str| -> Result<u64> {
            let text = lab.node(2).read_file(format!("/sys/class/net/eth0/statistics/{name}"))?;
            Ok(text.trim().parse().expect("a number"))
        };
        Ok(count("rx_bytes")? / count("rx_packets")?)
    };
    assert!(packet_size(false)? > 2000);
    assert!(packet_size(true)? <= 1514);
    Ok(())
}
