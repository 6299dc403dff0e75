use flannel_backend::Stack;

use super::*;
use crate::round_trip::RoundTrips;
use crate::verdict::{Direction, ProbeAnswer};

const NOW: Duration = Duration::from_secs(10);

fn net(number: u8) -> IpNet {
    IpNet::new(IpAddr::from([10, 244, number, 0]), 24).expect("a net")
}

fn own() -> ProbingNode {
    ProbingNode {
        subnet: net(1),
        underlay: [Some(IpAddr::from([192, 0, 2, 1])), None],
        announced: [None, None],
        overlay: [Some(net(1).addr()), None],
        encapsulation: Encapsulation::usual("vxlan", Stack { v4: true, v6: true }),
        devices: vec!["flannel.1".to_owned()],
        overhead: 50,
        mtu: 1450,
        link_index: 2,
        link: "eth0".to_owned(),
        link_mtu: 1500,
        commands: OperatorCommands::default(),
        machine: None,
    }
}

fn target(number: u8) -> Target {
    Target {
        port: NonZeroU16::new(8475).expect("a port"),
        public: [Some(IpAddr::from([192, 0, 2, number])), None],
        overlay: [Some(net(number).addr()), None],
        standing: Standing::Programmed,
        machine: None,
    }
}

fn peers(numbers: &[u8]) -> (Peers, fastrand::Rng) {
    let (mut peers, mut rng) = (Peers::default(), fastrand::Rng::with_seed(1));
    let targets = numbers.iter().map(|number| (net(*number), target(*number)));
    peers.replace(own(), targets, NOW, &mut rng);
    (peers, rng)
}

fn well() -> Evidence {
    let answered = ProbeAnswer {
        latency: Duration::from_millis(1),
        standing: Standing::Programmed,
        has_heard: true,
        machine: None,
    };
    Evidence { overlay: Some(AskOutcome::Answered(answered)), ..Evidence::default() }
}

fn cut() -> Evidence {
    Evidence { overlay: Some(AskOutcome::Silent), ..Evidence::default() }
}

fn find(peers: &mut Peers, evidence: Evidence) -> Option<VerdictChange> {
    let found = vec![(0, evidence)];
    peers.conclude(&net(2), [0; 4], found, NOW, &mut fastrand::Rng::with_seed(2))
}

#[test]
fn what_is_known_of_a_peer_is_settled_when_a_whole_turn_has_shown_it_since() {
    let (mut peers, _) = peers(&[2]);
    let is_settled = |peers: &Peers, since| peers.known(&net(2)).unwrap().is_settled_since(since);
    assert_eq!(peers.turns(NOW + Duration::from_secs(1)).len(), 1);
    let begun = SystemTime::now();
    find(&mut peers, well());
    assert!(!is_settled(&peers, begun), "the turn began before");
    find(&mut peers, well());
    assert!(is_settled(&peers, begun));
    find(&mut peers, cut());
    assert!(!is_settled(&peers, begun), "one failure is a doubt");
    find(&mut peers, cut());
    assert!(is_settled(&peers, begun));
}

#[test]
fn one_lost_packet_is_no_verdict_and_two_failures_in_a_row_are_one() {
    let (mut peers, _) = peers(&[2]);
    assert_eq!(peers.known(&net(2)), None, "not probed yet");
    assert_eq!(find(&mut peers, well()).expect("the first").known.verdict, ProbeVerdict::Reached);
    assert_eq!(find(&mut peers, cut()), None);
    assert_eq!(peers.known(&net(2)).expect("known").verdict, ProbeVerdict::Reached);
    let news = find(&mut peers, cut()).expect("it is sure now");
    assert_eq!(
        (news.former, news.known.verdict),
        (Some(ProbeVerdict::Reached), ProbeVerdict::UnderlayCut)
    );
    assert_eq!(find(&mut peers, cut()), None, "that is nothing new");
    assert_eq!(find(&mut peers, well()).expect("it is back").known.verdict, ProbeVerdict::Reached);
}

#[test]
fn a_daemon_that_is_slow_is_not_called_down_at_once_and_one_that_is_gone_is() {
    let (mut slow, _) = peers(&[2]);
    let busy = || Evidence { overlay_ping: Some(true), ..cut() };
    find(&mut slow, well());
    assert!((0..3).all(|_| find(&mut slow, busy()).is_none()));
    let down = find(&mut slow, busy()).expect("it is sure now").known.verdict;
    assert_eq!(down, ProbeVerdict::DaemonDown { is_certain: false });
    let (mut gone, _) = peers(&[2]);
    let refused = || Evidence { overlay: Some(AskOutcome::Refused), ..Evidence::default() };
    find(&mut gone, refused());
    let down = find(&mut gone, refused()).expect("its kernel says so").known.verdict;
    assert_eq!(down, ProbeVerdict::DaemonDown { is_certain: true });
}

#[test]
fn what_is_wrong_may_change_without_being_doubted() {
    let (mut peers, _) = peers(&[2]);
    find(&mut peers, cut());
    find(&mut peers, cut());
    let pinged = Evidence { underlay_ping: Some(true), ..cut() };
    let news = find(&mut peers, pinged).expect("the layer is another");
    assert_eq!(news.known.verdict, ProbeVerdict::TunnelBlocked(Direction::Unknown));
}

#[test]
fn a_black_hole_is_believed_at_once_and_until_a_packet_of_full_size_has_passed() {
    let (mut peers, _) = peers(&[2]);
    let hole = Evidence { full: Some(Full::Fits(1350)), ..well() };
    let news = find(&mut peers, hole).expect("measured");
    assert_eq!(news.known.verdict, ProbeVerdict::MtuBlackHole { fits: 1350 });
    assert_eq!(news.known.mtu, Some(1350));
    assert_eq!(find(&mut peers, well()), None, "a small packet shows nothing");
    let through = Evidence { full: Some(Full::Passes), ..well() };
    let news = find(&mut peers, through).expect("it is mended");
    assert_eq!((news.known.verdict, news.known.mtu), (ProbeVerdict::Reached, Some(1450)));
}

#[test]
fn that_packets_are_fragmented_is_believed_until_a_whole_one_has_passed_beside_the_tunnel() {
    let (mut peers, _) = peers(&[2]);
    let passes = Evidence { full: Some(Full::Passes), ..well() };
    let cut_up = Evidence { beside: Some(Full::Fits(1420)), ..passes.clone() };
    let news = find(&mut peers, cut_up).expect("measured");
    assert_eq!(news.known.verdict, ProbeVerdict::Fragmented { carries: 1420 });
    assert_eq!(find(&mut peers, passes.clone()), None, "it was not looked at");
    let whole = Evidence { beside: Some(Full::Passes), ..passes };
    assert_eq!(find(&mut peers, whole).expect("mended").known.verdict, ProbeVerdict::Reached);
}

#[test]
fn of_two_families_the_worse_is_told_by_its_name() {
    let (mut peers, _) = peers(&[2]);
    let mut both = |v4: Evidence, v6: Evidence| {
        let found = [v4, v6].into_iter().enumerate();
        peers.conclude(&net(2), [0; 4], found.collect(), NOW, &mut fastrand::Rng::with_seed(2))
    };
    assert_eq!(both(well(), well()).expect("new").known.family, None);
    assert_eq!(both(well(), cut()), None);
    let known = both(well(), cut()).expect("sure").known;
    assert_eq!((known.verdict, known.family), (ProbeVerdict::UnderlayCut, Some("IPv6")));
    let known = both(cut(), cut());
    assert_eq!(known, None);
    both(cut(), cut());
    assert_eq!(peers.known(&net(2)).expect("known").family, None, "both are cut");
}

#[test]
fn who_is_as_before_keeps_what_is_known_and_who_is_gone_is_forgotten() {
    let (mut peers, mut rng) = peers(&[2, 3]);
    find(&mut peers, well());
    peers.replace(own(), [(net(2), target(2)), (net(4), target(4))], NOW, &mut rng);
    assert!(peers.known(&net(2)).is_some());
    let mut all: Vec<IpNet> = peers.all().map(|(subnet, ..)| *subnet).collect();
    all.sort_unstable();
    assert_eq!(all, [net(2), net(4)]);
    assert_eq!(peers.standing(&net(3)), None);
    assert_eq!(peers.standing(&net(4)), Some(Standing::Programmed));
}

#[test]
fn a_tunnel_without_a_way_of_its_family_beside_it_is_diagnosed_in_the_other() {
    let mut own = own();
    own.overlay[1] = "fd00::".parse().ok();
    let mut target = target(2);
    target.overlay[1] = "fd00:0:0:1::".parse().ok();
    assert_eq!(own.under(&target, 1), own.under(&target, 0), "IPv6 travels over IPv4");
    own.encapsulation = Encapsulation::Underlay { direct: true };
    assert_eq!(own.under(&target, 1), None);
    assert!(!own.can_reach(&target, 1));
}

#[test]
fn a_peer_is_heard_by_what_comes_from_its_end_of_the_tunnel_alone() {
    let (mut peers, _) = peers(&[2]);
    for pretender in [IpAddr::from([10, 244, 2, 5]), IpAddr::from([10, 244, 3, 0])] {
        peers.hear(&net(2), false, pretender, NOW);
        assert_eq!(peers.heard(&net(2), false), None, "{pretender} is not its end");
    }
    peers.hear(&net(2), false, net(2).addr(), NOW);
    assert_eq!(peers.heard(&net(2), false), Some(NOW));
}

#[test]
fn losses_beyond_chance_are_told_with_their_number_and_forgotten_when_they_have_ended() {
    let (mut peers, _) = peers(&[2]);
    let asks = |asked, lost| Evidence { asks: Asks { asked, lost }, ..well() };
    find(&mut peers, asks(1, 0));
    assert_eq!(find(&mut peers, asks(12, 1)), None, "one is chance");
    let news = find(&mut peers, asks(12, 3)).expect("a share of them");
    assert_eq!(news.known.verdict, ProbeVerdict::Lossy(Asks { asked: 25, lost: 4 }));
    assert!(news.known.verdict.traffic_flows());
    assert_eq!(find(&mut peers, asks(11, 2)), None, "more of the same is nothing new");
    (0..7).for_each(|_| drop(find(&mut peers, asks(11, 0))));
    let known = peers.known(&net(2)).expect("known");
    assert_eq!((known.verdict, known.asks), (ProbeVerdict::Reached, Asks { asked: 64, lost: 0 }));
}

#[test]
fn what_a_peer_says_of_its_own_large_packets_is_known_here_by_the_same_number() {
    let (mut peers, _) = peers(&[2]);
    find(&mut peers, well());
    let (from, fits) = (target(2).overlay[0].expect("its end"), NonZeroU16::new(1350));
    let somebody = "192.0.2.99".parse().expect("an address");
    peers.note_fits(&net(2), somebody, false, fits);
    assert_eq!(peers.known(&net(2)).expect("known").verdict, ProbeVerdict::Reached, "not its word");
    peers.note_fits(&net(2), from, false, fits);
    let known = peers.known(&net(2)).expect("known");
    assert_eq!((known.verdict, known.mtu), (ProbeVerdict::MtuBlackHole { fits: 1350 }, Some(1350)));
    peers.note_fits(&net(2), from, false, None);
    assert_eq!(peers.known(&net(2)).expect("known").verdict, ProbeVerdict::Reached);
}

#[test]
fn a_peer_that_did_not_answer_the_last_time_is_in_doubt_before_it_counts_as_away() {
    let (mut peers, _) = peers(&[2]);
    let doubted = |peers: &Peers| peers.known(&net(2)).expect("it was asked").is_doubted;
    find(&mut peers, well());
    assert!(!doubted(&peers));
    find(&mut peers, cut());
    assert!(doubted(&peers), "one turn is not enough to call it away");
    find(&mut peers, well());
    assert!(!doubted(&peers));
}

#[test]
fn a_path_that_takes_far_longer_than_it_did_is_told_once_and_forgotten_when_it_is_fast_again() {
    let (mut peers, _) = peers(&[2]);
    let took = |millis| Evidence { round_trip: Some(Duration::from_millis(millis)), ..well() };
    find(&mut peers, took(1));
    assert_eq!(find(&mut peers, took(120)), None, "one turn may be a busy moment");
    let news = find(&mut peers, took(130)).expect("it is sure now");
    let slow = RoundTrips { shortest: 1_000, now: 130_000 };
    assert_eq!(news.known.verdict, ProbeVerdict::Slow(slow));
    assert!(news.known.verdict.traffic_flows());
    assert_eq!(find(&mut peers, took(125)), None, "more of the same is nothing new");
    assert_eq!(find(&mut peers, took(2)).expect("news").known.verdict, ProbeVerdict::Reached);
    // Another address is another way, which may be longer.
    let elsewhere = Target { public: [Some(IpAddr::from([192, 0, 2, 99])), None], ..target(2) };
    peers.put(net(2), elsewhere, NOW, &mut fastrand::Rng::with_seed(3));
    (0..3).for_each(|_| drop(find(&mut peers, took(120))));
    assert_eq!(peers.known(&net(2)).expect("known").verdict, ProbeVerdict::Reached);
}
