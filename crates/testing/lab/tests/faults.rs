//! Faults do what they say, and healing ends them.

use std::time::Duration;

use flannel_lab::{Lab, LabError, Participant, PingOptions, Place as _, Result};

fn quick() -> PingOptions {
    PingOptions { limit: Duration::from_millis(400), ..PingOptions::default() }
}

fn reaches(lab: &Lab, from: u16, to: u16) -> bool {
    lab.ping_with(lab.node(from), lab.node(to), quick()).is_ok()
}

/// Neighbour entries that were asked for in vain are asked for again after a second, and a busy machine may be slow.
fn reach_soon(lab: &Lab, from: u16, to: u16) -> Result<()> {
    lab.wait_until("nodes to reach each other", Duration::from_secs(5), || {
        lab.ping_with(lab.node(from), lab.node(to), quick())
    })?;
    Ok(())
}

#[test]
fn a_partition_cuts_the_two_sides_and_nobody_else() -> Result<()> {
    let lab = Lab::builder().nodes(4).bare().start()?;
    lab.partition(&[1], &[2, 3])?;
    assert!(!reaches(&lab, 1, 2) && !reaches(&lab, 3, 1));
    for (from, to) in [(2, 3), (1, 4), (4, 3)] {
        reach_soon(&lab, from, to)?;
    }
    lab.partition(&[4], &[1])?;
    assert!(!reaches(&lab, 1, 4) && !reaches(&lab, 1, 2));
    lab.heal()?;
    for (from, to) in [(1, 2), (3, 1), (1, 4)] {
        reach_soon(&lab, from, to)?;
    }
    assert!(lab.partition(&[1, 2], &[2]).is_err());
    assert!(matches!(lab.partition(&[1], &[9]), Err(LabError::NoSuchNode { number: 9, .. })));
    Ok(())
}

#[test]
fn a_partition_cuts_nodes_of_different_segments() -> Result<()> {
    let lab = Lab::builder().nodes(4).segments(2).bare().start()?;
    lab.partition(&[1], &[3])?;
    for address in lab.node(3).addresses() {
        assert!(lab.ping_address(lab.node(1), address, quick()).is_err(), "{address}");
    }
    reach_soon(&lab, 1, 4)?;
    reach_soon(&lab, 2, 3)?;
    lab.change_address(3, "192.168.101.33".parse().unwrap())?;
    let moved = "192.168.101.33".parse().unwrap();
    assert!(lab.ping_address(lab.node(1), moved, quick()).is_err());
    lab.heal()?;
    reach_soon(&lab, 1, 3)
}

#[test]
fn nodes_are_cut_off_from_the_store_alone() -> Result<()> {
    let lab = Lab::builder().nodes(2).no_daemons().start()?;
    let store = "192.168.100.253".parse().unwrap();
    lab.partition_from_store(&[1])?;
    assert!(lab.ping_address(lab.node(1), store, quick()).is_err());
    lab.ping_address(lab.node(2), store, quick())?;
    reach_soon(&lab, 1, 2)?;
    lab.heal()?;
    lab.ping_address(lab.node(1), store, PingOptions::default())?;
    Ok(())
}

#[test]
fn a_pulled_cable_is_a_lost_carrier() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    let carrier = || lab.node(1).read_file("/sys/class/net/eth0/carrier");
    assert_eq!(carrier()?.trim(), "1");
    lab.node(1).unplug()?;
    lab.wait_until("no carrier", Duration::from_secs(2), || {
        carrier().map(|text| text.trim() == "0").unwrap_or(false)
    })?;
    assert!(!reaches(&lab, 1, 2));
    lab.node(1).plug()?;
    reach_soon(&lab, 1, 2)
}

#[test]
fn a_device_set_down_comes_back_with_its_addresses() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    lab.node(1).nic_down()?;
    assert!(!reaches(&lab, 2, 1));
    lab.node(1).nic_up()?;
    reach_soon(&lab, 2, 1)?;
    assert!(lab.node(1).ip("route show default")?.contains("192.168.100.254"));
    assert!(lab.node(1).ip("-6 route show default")?.contains("fd00:100::fe"));
    Ok(())
}

#[test]
fn a_replaced_card_has_another_index_and_the_same_hardware_address() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    let read = |name: &str| lab.node(1).read_file(format!("/sys/class/net/eth0/{name}"));
    let (index, mac) = (read("ifindex")?, read("address")?);
    lab.partition(&[1], &[2])?;
    lab.replace_nic(1)?;
    assert_ne!(read("ifindex")?, index);
    assert_eq!(read("address")?, mac);
    assert!(!reaches(&lab, 1, 2), "the partition ended with the old card");
    lab.heal()?;
    reach_soon(&lab, 1, 2)
}

#[test]
fn a_changed_address_replaces_the_old_one() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    let old = lab.node(1).addresses();
    let new = ["192.168.100.77", "fd00:100::77"].map(|text| text.parse().unwrap());
    for address in new {
        lab.change_address(1, address)?;
    }
    assert_eq!(lab.node(1).addresses(), new);
    reach_soon(&lab, 2, 1)?;
    for address in old {
        assert!(lab.ping_address(lab.node(2), address, quick()).is_err(), "{address}");
    }
    assert!(lab.node(1).ip("route show default")?.contains("192.168.100.254"));
    assert!(lab.change_address(1, "10.0.0.1".parse().unwrap()).is_err());
    assert!(lab.change_address(1, "192.168.100.2".parse().unwrap()).is_err());
    Ok(())
}

#[test]
fn a_smaller_mtu_lets_no_large_packet_through_whole() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    let large = PingOptions { payload: 1452, dont_fragment: true, ..quick() };
    lab.ping_with(lab.node(1), lab.node(2), large)?;
    lab.node(2).set_underlay_mtu(1400)?;
    assert_eq!(lab.node(2).read_file("/sys/class/net/eth0/mtu")?.trim(), "1400");
    assert!(lab.ping_with(lab.node(1), lab.node(2), large).is_err());
    reach_soon(&lab, 1, 2)?;
    Ok(())
}

#[test]
fn loss_is_the_share_that_was_asked_for() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    lab.ping(lab.node(1), lab.node(2))?;
    lab.loss(Participant::Node(2), 30.0)?;
    let stream = lab.stream(lab.node(1), lab.node(2), 5000)?;
    std::thread::sleep(Duration::from_secs(1));
    let report = stream.stop();
    let share = report.lost as f64 / report.sent as f64;
    assert!((0.2..0.4).contains(&share), "{share}: {report:?}");
    lab.loss(Participant::Node(2), 0.0)?;
    let stream = lab.stream(lab.node(1), lab.node(2), 1000)?;
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(stream.stop().lost, 0);
    assert!(lab.loss(Participant::Node(2), 101.0).is_err());
    Ok(())
}

#[test]
fn a_delay_works_or_says_what_the_kernel_lacks() -> Result<()> {
    let lab = Lab::builder().nodes(2).bare().start()?;
    match lab.delay(Participant::Node(2), Duration::from_millis(500)) {
        Ok(()) => {
            lab.ping(lab.node(1), lab.node(2))?;
            let round_trip = lab.ping(lab.node(1), lab.node(2))?;
            assert!(round_trip > Duration::from_millis(450), "{round_trip:?}");
        }
        Err(error) => assert!(error.to_string().contains("netem"), "{error}"),
    }
    lab.heal()?;
    assert!(lab.ping(lab.node(1), lab.node(2))? < Duration::from_millis(450));
    Ok(())
}
