//! A marked packet and the answer of the kernel, seen among all frames of this machine. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use flannel_probe::marked::{Devices, FIRST_LARGE, LargePacket, Mark, Packet, Watch, WatchEnd};

#[test]
fn a_small_and_a_large_packet_are_seen_with_their_answers_and_the_watch_waits_for_them() {
    let here: IpAddr = Ipv4Addr::LOCALHOST.into();
    let mark = Mark::between(here, Ipv4Addr::new(127, 0, 0, 77).into());
    let large = LargePacket::of_mtu(1450);
    let watch = Watch::open(mark, Devices::default(), large).expect("a packet socket");
    let sender = std::thread::spawn(move || {
        // Later than one tick: the watch goes on while nothing comes.
        std::thread::sleep(Duration::from_millis(200));
        mark.send(here, here, 1, None).expect("a small packet");
        mark.send(here, here, FIRST_LARGE, large).expect("a large packet");
    });
    let limit = Duration::from_secs(20);
    let seen = watch.look(&WatchEnd::default(), limit, Some(Duration::from_millis(500)));
    sender.join().expect("the packets were sent");
    let seen = seen.expect("frames can be read");
    for packet in [Packet::Request, Packet::Answer] {
        let of_packet: Vec<_> = seen.sightings.iter().filter(|it| it.packet == packet).collect();
        assert!(of_packet.iter().any(|it| it.device == "lo"), "{packet:?}: {seen:?}");
        let sizes: std::collections::BTreeSet<_> = of_packet.iter().map(|it| it.size).collect();
        assert_eq!(sizes.len(), 2, "small and large: {seen:?}");
    }
    assert!(seen.round_trips.iter().all(Option::is_some), "{seen:?}");
}
