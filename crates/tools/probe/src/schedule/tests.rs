use super::*;
use crate::cost;

const HOUR: Duration = Duration::from_secs(3_600);

fn peer(number: u32) -> IpNet {
    let ip = std::net::Ipv4Addr::from(0x0a00_0000 | number << 8);
    IpNet::new(ip.into(), 24).expect("a net")
}

/// Between two turns of one peer, which has had several.
fn longest_gap(times: &[Duration]) -> Duration {
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_else(|| panic!("no two turns: {times:?}"))
}

/// A network that is probed in a time of its own.
struct Simulation {
    schedule: Schedule,
    rng: fastrand::Rng,
    now: Duration,
    costs: Costs,
    bytes: u64,
    turns: Vec<(Duration, Turn)>,
}

impl Simulation {
    fn new(peers: u32) -> Self {
        let mut this = Self {
            schedule: Schedule::default(),
            rng: fastrand::Rng::with_seed(7),
            now: Duration::from_secs(1),
            costs: cost(1450, 50),
            bytes: 0,
            turns: Vec::new(),
        };
        (0..peers).for_each(|number| this.came(number));
        this
    }

    fn came(&mut self, number: u32) {
        self.schedule.came(peer(number), self.now, &mut self.rng);
    }

    /// A turn takes as long as a packet there and back, or as one that is waited for in vain.
    fn run(&mut self, time: Duration, is_well: impl Fn(&IpNet) -> bool) {
        let end = self.now + time;
        while let Some(next) = self.schedule.next_look().filter(|next| *next < end) {
            self.now = self.now.max(next);
            let turns = self.schedule.turns(self.now, self.costs);
            assert!(turns.len() <= HANDFUL, "{turns:?}");
            for turn in turns {
                self.bytes += self.costs.small * (1 + u64::from(turn.both))
                    + if turn.full { self.costs.full } else { 0 };
                self.turns.push((self.now, turn));
                let well = is_well(&turn.peer);
                let after = Duration::from_millis(if well { 1 } else { 1_600 });
                self.schedule.done(&turn.peer, well, self.now + after, &mut self.rng);
            }
        }
        self.now = end;
    }

    fn times(&self, number: u32) -> Vec<Duration> {
        let of = |(at, turn): &(Duration, Turn)| (turn.peer == peer(number)).then_some(*at);
        self.turns.iter().filter_map(of).collect()
    }

    fn times_of_all(&self) -> HashMap<IpNet, Vec<Duration>> {
        let mut all: HashMap<IpNet, Vec<Duration>> = HashMap::new();
        self.turns.iter().for_each(|(at, turn)| all.entry(turn.peer).or_default().push(*at));
        all
    }
}

#[test]
fn a_peer_that_somebody_waits_to_know_of_is_next_among_ten_thousand() {
    let mut network = Simulation::new(10_000);
    network.run(2 * HOUR, |_| true);
    let asked_at = network.now;
    network.schedule.hasten(&peer(77), asked_at);
    network.schedule.hasten(&peer(20_000), asked_at);
    network.run(Duration::from_secs(2), |_| true);
    let times = network.times(77);
    assert!(times.iter().any(|time| *time >= asked_at), "{times:?}");
    assert!(network.times(20_000).is_empty(), "nobody is added");
}

#[test]
fn ten_thousand_peers_have_their_turn_within_an_hour_at_less_than_two_kilobytes_a_second() {
    let mut network = Simulation::new(10_000);
    network.run(3 * HOUR, |_| true);
    let times_of_all = network.times_of_all();
    assert_eq!(times_of_all.len(), 10_000);
    for (peer, times) in times_of_all {
        assert!(times[0] < HOUR, "{peer} is first seen to at {:?}", times[0]);
        assert!(longest_gap(&times) <= HOUR, "{peer}: {times:?}");
    }
    // A node is asked as often as it asks.
    let a_second = 2 * network.bytes / (3 * 3_600);
    assert!(a_second < 2_000, "{a_second} bytes a second");
    assert!(network.turns.iter().any(|(_, turn)| turn.full), "full-sized ones as well");
}

#[test]
fn among_few_each_is_looked_at_every_other_second_in_full() {
    let mut network = Simulation::new(2);
    network.run(Duration::from_secs(60), |_| true);
    for number in 0..2 {
        let times = network.times(number);
        assert!(times[0] < Duration::from_secs(2));
        assert!(longest_gap(&times) < Duration::from_secs(3), "{times:?}");
    }
    let full = network.turns.iter().filter(|(_, turn)| turn.full).count();
    assert!(full * 3 > network.turns.len() * 2, "{full} of {}", network.turns.len());
}

#[test]
fn who_comes_or_changes_is_looked_at_at_once() {
    let mut network = Simulation::new(1_000);
    network.run(HOUR, |_| true);
    let before = network.now;
    network.came(5);
    network.came(1_000);
    network.run(Duration::from_secs(10), |_| true);
    for number in [5, 1_000] {
        assert!(network.times(number).iter().any(|at| *at >= before), "{number}");
    }
}

#[test]
fn who_fails_is_looked_at_again_to_make_sure_and_then_sooner_than_others() {
    let mut network = Simulation::new(1_000);
    network.run(HOUR, |net| *net != peer(3));
    let times = network.times(3);
    assert!(times[1] - times[0] < Duration::from_secs(3), "to make sure: {times:?}");
    assert!(times.len() > 3 * network.times(4).len(), "{times:?}");
}

#[test]
fn that_all_fail_keeps_nobody_from_a_turn_and_is_no_flood() {
    let mut network = Simulation::new(3_000);
    network.run(HOUR, |_| false);
    assert_eq!(network.times_of_all().len(), 3_000);
    let most = HANDFUL as u64 * 3_600_000 / u64::try_from(INTERVAL.as_millis()).expect("few");
    assert!(network.turns.len() as u64 <= most);
}

#[test]
fn who_changes_while_it_is_looked_at_is_looked_at_again_and_who_goes_is_forgotten() {
    let mut network = Simulation::new(1);
    let turns = network.schedule.turns(network.now + INTERVAL, network.costs);
    assert_eq!(turns.len(), 1);
    assert_eq!(network.schedule.next_look(), None, "it has its turn");
    network.came(0);
    network.schedule.done(&peer(0), true, network.now, &mut network.rng);
    let next = network.schedule.next_look().expect("it is waited for");
    assert!(next < network.now + Duration::from_secs(2), "{next:?}");
    network.schedule.gone(&peer(0));
    assert!(network.schedule.slots.is_empty() && network.schedule.next_look().is_none());
}
