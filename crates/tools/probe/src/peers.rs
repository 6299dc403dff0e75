//! The peers of one network that are probed: where they are, whose turn it is, and what was found.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use flannel_backend::Encapsulation;
use flannel_common::OperatorCommands;
use ipnet::IpNet;
use tokio::sync::Notify;

use crate::round_trip::ShortestRoundTrip;
use crate::schedule::{Schedule, Turn};
use crate::verdict::{AskOutcome, Asks, Evidence, Full, ProbeVerdict};
use crate::wire::Standing;

pub type SharedPeers = Arc<Mutex<Peers>>;

/// IPv4 and IPv6.
pub type ByFamily<T> = [Option<T>; 2];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbingNode {
    /// Subnet by which peers know its lease.
    pub subnet: IpNet,
    /// Addresses of the interface towards the peers.
    pub underlay: ByFamily<IpAddr>,
    /// Others by which peers may ask it: what it announces, if that is its own.
    pub announced: ByFamily<IpAddr>,
    pub overlay: ByFamily<IpAddr>,
    pub encapsulation: Encapsulation,
    pub devices: Vec<String>,
    /// Bytes that the path adds to a packet.
    pub overhead: u32,
    pub mtu: u32,
    /// The interface towards the peers.
    pub link: String,
    /// Its number, without which link-local addresses mean nothing.
    pub link_index: u32,
    /// What that carries.
    pub link_mtu: u32,
    pub commands: OperatorCommands,
    /// The hash of its machine id, which it tells those who ask.
    pub machine: Option<NonZeroU64>,
}

/// A peer that says that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub port: NonZeroU16,
    pub public: ByFamily<IpAddr>,
    pub overlay: ByFamily<IpAddr>,
    /// What this node has done about it.
    pub standing: Standing,
    /// The hash of its machine id, as its lease has it: nobody else is to answer in its place.
    pub machine: Option<NonZeroU64>,
}

/// Peers to whom this node lacks something that leads there, though it knows their leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IncompletePeers {
    #[default]
    Nobody,
    /// What all others stand on is missing.
    All,
    These(HashSet<IpNet>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReachability {
    pub verdict: ProbeVerdict,
    /// Set where only one of two families is concerned.
    pub family: Option<&'static str>,
    pub latency: Option<Duration>,
    /// The largest packet that is known to pass.
    pub mtu: Option<u32>,
    pub asks: Asks,
    pub at: SystemTime,
    /// When the turn that found it began: whatever changed later it does not know.
    pub asked_at: SystemTime,
    /// It counts as reached, and the last time it was not: that is to be seen again before it is believed.
    pub is_doubted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerdictChange {
    pub(crate) former: Option<ProbeVerdict>,
    pub(crate) known: PeerReachability,
}

#[derive(Default)]
pub struct Peers {
    own: Option<Arc<ProbingNode>>,
    /// Boxed: a map has up to twice as many places as it has entries.
    all: HashMap<IpNet, Box<Peer>>,
    schedule: Schedule,
    /// What was the largest packet that passed, when last one did not.
    guess: Option<u32>,
    incomplete: IncompletePeers,
    heard_again: Vec<IpNet>,
    /// Notified when there is somebody to be asked.
    pub(crate) changed: Arc<Notify>,
}

/// A peer that is heard again after this long may be reachable again.
const LONG_SILENCE: Duration = Duration::from_secs(5);

struct Peer {
    target: Target,
    /// Cookies as the peer has given them out: for the underlay and for the overlay, of either family.
    cookies: [u64; 4],
    /// Through the tunnel, by family.
    heard: ByFamily<Duration>,
    records: [Record; 2],
    latency: Option<Duration>,
    turn_began: Option<SystemTime>,
    /// When its last turn began and ended.
    last_turn: Option<(SystemTime, SystemTime)>,
}

#[derive(Default)]
struct Record {
    /// What is believed.
    verdict: Option<ProbeVerdict>,
    /// How often in succession something was wrong.
    doubts: u8,
    mtu: Option<u32>,
    /// What the peer says of its packets to this node: larger ones vanish.
    told_fits: Option<NonZeroU16>,
    recent: RecentAsks,
    shortest: ShortestRoundTrip,
}

/// The last asks, a bit for each that was lost.
#[derive(Clone, Copy, Default)]
struct RecentAsks {
    lost: u64,
    asked: u8,
}

/// So many lost ones are not chance,
const LOSSY: u32 = 3;
/// nor is one of so many.
const LOSSY_SHARE: u32 = 20;

impl RecentAsks {
    /// Which of them were lost is not known, and does not matter.
    fn note(&mut self, asks: Asks) {
        for number in 0..asks.asked.min(u64::BITS) {
            self.lost = self.lost << 1 | u64::from(number < asks.lost);
            self.asked = (self.asked + 1).min(u64::BITS as u8);
        }
    }

    fn sum(self) -> Asks {
        Asks { asked: self.asked.into(), lost: self.lost.count_ones() }
    }

    /// Number of lost asks, if that is more than chance.
    fn lossy(self) -> Option<Asks> {
        let Asks { asked, lost } = self.sum();
        (lost >= LOSSY && lost * LOSSY_SHARE >= asked).then_some(Asks { asked, lost })
    }
}

pub(crate) struct Plan {
    pub(crate) own: Arc<ProbingNode>,
    pub(crate) target: Target,
    pub(crate) cookies: [u64; 4],
    pub(crate) families: Vec<usize>,
    pub(crate) full: bool,
    pub(crate) guess: Option<u32>,
    /// The largest packet that passes, by family, where larger ones are known to vanish.
    pub(crate) fits: ByFamily<NonZeroU16>,
    /// Some asks were lost lately: it is to be found out how many are.
    pub(crate) counts_losses: bool,
    /// What the path was seen to take, by family: if it takes far longer, it is to be found out whether all asks do.
    pub(crate) shortest: [ShortestRoundTrip; 2],
}

impl Peers {
    /// The peers of before stay what they were, if they are as they were.
    pub fn replace(
        &mut self,
        own: ProbingNode,
        targets: impl IntoIterator<Item = (IpNet, Target)>,
        now: Duration,
        rng: &mut fastrand::Rng,
    ) {
        let is_other = self.own.as_deref() != Some(&own);
        self.own = Some(Arc::new(own));
        let mut former: HashSet<IpNet> = self.all.keys().copied().collect();
        for (subnet, target) in targets {
            former.remove(&subnet);
            self.put(subnet, target, now, rng);
            if is_other {
                self.schedule.came(subnet, now, rng);
            }
        }
        former.iter().for_each(|subnet| self.remove(subnet));
    }

    pub fn put(&mut self, subnet: IpNet, target: Target, now: Duration, rng: &mut fastrand::Rng) {
        if let Some(peer) = self.all.get_mut(&subnet) {
            if peer.target == target {
                return;
            }
            if peer.target.public != target.public {
                // The way there may be another.
                peer.records.iter_mut().for_each(|record| record.shortest = Default::default());
            }
            peer.target = target;
            peer.cookies = [0; 4];
        } else {
            self.all.insert(subnet, Box::new(Peer::new(target)));
        }
        self.schedule.came(subnet, now, rng);
    }

    pub fn remove(&mut self, subnet: &IpNet) {
        self.all.remove(subnet);
        self.schedule.gone(subnet);
    }

    /// Whoever lacked something and does so no more may be reached again: those that were not are asked at once.
    pub fn set_incomplete(
        &mut self,
        incomplete: IncompletePeers,
        now: Duration,
        rng: &mut fastrand::Rng,
    ) {
        if std::mem::replace(&mut self.incomplete, incomplete) == self.incomplete {
            return;
        }
        let lost = self.all.iter().filter(|(subnet, peer)| {
            let is_lost = peer.known().is_some_and(|known| !known.verdict.traffic_flows());
            is_lost && !self.incomplete.concerns(subnet)
        });
        let lost: Vec<IpNet> = lost.map(|(subnet, _)| *subnet).collect();
        lost.into_iter().for_each(|subnet| self.schedule.came(subnet, now, rng));
    }

    /// These peers are asked as soon as the limits of probing allow.
    pub(crate) fn hasten(&mut self, subnets: &[IpNet], now: Duration) {
        subnets.iter().for_each(|subnet| self.schedule.hasten(subnet, now));
    }

    /// What was found out about a peer, once it is sure.
    pub fn known(&self, subnet: &IpNet) -> Option<PeerReachability> {
        self.all.get(subnet)?.known()
    }

    pub fn all(&self) -> impl Iterator<Item = (&IpNet, &Target, Option<PeerReachability>)> {
        self.all.iter().map(|(subnet, peer)| (subnet, &peer.target, peer.known()))
    }

    pub fn target(&self, subnet: &IpNet) -> Option<&Target> {
        self.all.get(subnet).map(|peer| &peer.target)
    }

    pub fn own(&self) -> Option<&Arc<ProbingNode>> {
        self.own.as_ref()
    }

    pub(crate) fn next_look(&self) -> Option<Duration> {
        self.own.as_ref().and_then(|_| self.schedule.next_look())
    }

    pub(crate) fn turns(&mut self, now: Duration) -> Vec<(IpNet, Plan)> {
        let Some(own) = self.own.clone() else { return Vec::new() };
        for subnet in std::mem::take(&mut self.heard_again) {
            if self.all.contains_key(&subnet) {
                self.schedule.came(subnet, now, &mut fastrand::Rng::new());
            }
        }
        let turns = self.schedule.turns(now, crate::cost(own.mtu, own.overhead));
        for turn in &turns {
            if let Some(peer) = self.all.get_mut(&turn.peer) {
                peer.turn_began = Some(SystemTime::now());
            }
        }
        turns.into_iter().filter_map(|turn| Some((turn.peer, self.plan(&own, turn)?))).collect()
    }

    fn plan(&self, own: &Arc<ProbingNode>, turn: Turn) -> Option<Plan> {
        let peer = self.all.get(&turn.peer)?;
        let mut families: Vec<usize> =
            (0..2).filter(|family| own.can_reach(&peer.target, *family)).collect();
        if families.len() > 1 && !turn.both && !turn.has_failed {
            families = vec![families[turn.round as usize % families.len()]];
        }
        Some(Plan {
            own: own.clone(),
            target: peer.target.clone(),
            cookies: peer.cookies,
            families,
            // What did not pass the last time is tried again.
            full: turn.full || turn.has_failed,
            guess: self.guess,
            fits: peer.records.each_ref().map(|record| match record.verdict {
                Some(ProbeVerdict::MtuBlackHole { fits }) => {
                    u16::try_from(fits).ok().and_then(NonZeroU16::new)
                }
                _ => None,
            }),
            counts_losses: peer.records.iter().any(|record| record.recent.lost != 0),
            shortest: peer.records.each_ref().map(|record| record.shortest),
        })
    }

    /// Ends a turn, which has found this out by family.
    pub(crate) fn conclude(
        &mut self,
        subnet: &IpNet,
        cookies: [u64; 4],
        found: Vec<(usize, Evidence)>,
        now: Duration,
        rng: &mut fastrand::Rng,
    ) -> Option<VerdictChange> {
        let mtu = self.own.as_ref().map(|own| own.mtu);
        let peer = self.all.get_mut(subnet)?;
        let former = peer.known().map(|former| former.verdict);
        peer.cookies = cookies;
        let ended = SystemTime::now();
        peer.last_turn = Some((peer.turn_began.take().unwrap_or(ended), ended));
        for (family, evidence) in &found {
            for full in [evidence.full, evidence.beside] {
                if let Some(Full::Fits(fits)) = full {
                    self.guess = Some(fits);
                }
            }
            peer.take_in(*family, evidence, mtu);
        }
        let is_well = peer.records.iter().all(|record| {
            record.doubts == 0
                && record.verdict.as_ref().is_none_or(|v| *v == ProbeVerdict::Reached)
        });
        let known = peer.known();
        self.schedule.done(subnet, is_well, now, rng);
        let known = known?;
        // How many are lost, and how long they take, differs from turn to turn.
        let is_same = match (&former, &known.verdict) {
            (Some(ProbeVerdict::Lossy(_)), ProbeVerdict::Lossy(_))
            | (Some(ProbeVerdict::Slow(_)), ProbeVerdict::Slow(_)) => true,
            (former, verdict) => former.as_ref() == Some(verdict),
        };
        (!is_same).then_some(VerdictChange { former, known })
    }
}

/// For those who answer.
impl Peers {
    pub(crate) fn standing(&self, subnet: &IpNet) -> Option<Standing> {
        let standing = self.all.get(subnet).map(|peer| peer.target.standing)?;
        let lacks = standing == Standing::Programmed && self.incomplete.concerns(subnet);
        Some(if lacks { Standing::Incomplete } else { standing })
    }

    pub(crate) fn heard(&self, subnet: &IpNet, is_v6: bool) -> Option<Duration> {
        self.all.get(subnet)?.heard[usize::from(is_v6)]
    }

    /// A peer speaks for itself alone.
    pub(crate) fn note_fits(
        &mut self,
        subnet: &IpNet,
        from: IpAddr,
        is_v6: bool,
        fits: Option<NonZeroU16>,
    ) {
        let peer = self.all.get_mut(subnet);
        if let Some(peer) = peer.filter(|peer| peer.target.overlay.contains(&Some(from))) {
            peer.records[usize::from(is_v6)].told_fits = fits;
        }
    }

    /// Who is heard again after a long silence may be reached again, and is asked at once. What does not come
    /// from the peer's end of the tunnel is somebody else's, whoever it says it is.
    pub(crate) fn hear(&mut self, subnet: &IpNet, is_v6: bool, from: IpAddr, now: Duration) {
        let Some(peer) = self.all.get_mut(subnet) else { return };
        if !peer.target.overlay.contains(&Some(from)) {
            return;
        }
        let last = peer.heard[usize::from(is_v6)].replace(now);
        let was_silent = last.is_none_or(|last| now.saturating_sub(last) > LONG_SILENCE);
        if was_silent && peer.known().is_some_and(|known| known.verdict.is_silence()) {
            self.heard_again.push(*subnet);
            self.changed.notify_one();
        }
    }
}

impl PeerReachability {
    /// Whether it is sure how the peer has been since then.
    pub fn is_settled_since(&self, since: SystemTime) -> bool {
        self.asked_at >= since && !self.is_doubted
    }
}

impl IncompletePeers {
    pub fn concerns(&self, subnet: &IpNet) -> bool {
        match self {
            Self::Nobody => false,
            Self::All => true,
            Self::These(subnets) => subnets.contains(subnet),
        }
    }
}

impl Peer {
    fn new(target: Target) -> Self {
        let (cookies, heard, records) = Default::default();
        Self { target, cookies, heard, records, latency: None, turn_began: None, last_turn: None }
    }

    fn take_in(&mut self, family: usize, evidence: &Evidence, mtu: Option<u32>) {
        let Some(record) = self.records.get_mut(family) else { return };
        record.recent.note(evidence.asks);
        let slow = evidence.round_trip.and_then(|now| record.shortest.note(now));
        let verdict = match (ProbeVerdict::of(evidence), record.recent.lossy(), slow) {
            (ProbeVerdict::Reached, Some(asks), _) => ProbeVerdict::Lossy(asks),
            (ProbeVerdict::Reached, None, Some(round_trips)) => ProbeVerdict::Slow(round_trips),
            (other, ..) => other,
        };
        let answered = evidence.overlay.as_ref().or(evidence.underlay.as_ref());
        if let Some(AskOutcome::Answered(answered)) = answered {
            self.latency = Some(answered.latency);
        }
        match evidence.full {
            Some(Full::Passes) => record.mtu = mtu,
            Some(Full::Fits(fits)) => record.mtu = Some(fits),
            None => {}
        }
        // Small packets pass; of large ones nothing is known this time.
        let is_untold = match &record.verdict {
            Some(ProbeVerdict::MtuBlackHole { .. }) => evidence.full.is_none(),
            Some(ProbeVerdict::Fragmented { .. }) => evidence.beside.is_none(),
            _ => false,
        };
        if is_untold && is_of_small_packets(&verdict) {
            return;
        }
        let is_well = verdict == ProbeVerdict::Reached;
        record.doubts = if is_well { 0 } else { record.doubts.saturating_add(1) };
        let was_bad =
            record.verdict.as_ref().is_some_and(|former| *former != ProbeVerdict::Reached);
        if is_well || was_bad || record.doubts >= doubts_needed(&verdict) {
            record.verdict = Some(verdict);
        }
    }

    /// What is worst of its families.
    fn known(&self) -> Option<PeerReachability> {
        let records = self.records.iter().enumerate();
        let judged: Vec<(usize, ProbeVerdict)> =
            records.filter_map(|(family, record)| Some((family, record.effective()?))).collect();
        let rank = |verdict: &ProbeVerdict| match verdict {
            ProbeVerdict::Reached => 0,
            ProbeVerdict::Fragmented { .. } | ProbeVerdict::Lossy(_) | ProbeVerdict::Slow(_) => 1,
            other if other.traffic_flows() => 2,
            ProbeVerdict::MtuBlackHole { .. } => 3,
            _ => 4,
        };
        // The first of equals: IPv4.
        let (family, verdict) = judged.iter().rev().max_by_key(|(_, verdict)| rank(verdict))?;
        let (asked_at, at) = self.last_turn?;
        let is_one_of_two = judged.iter().any(|(_, other)| other != verdict);
        Some(PeerReachability {
            verdict: verdict.clone(),
            family: is_one_of_two.then_some(if *family == 0 { "IPv4" } else { "IPv6" }),
            latency: self.latency,
            mtu: self.records.iter().filter_map(Record::largest).min(),
            asks: self.records.iter().fold(Asks::default(), |mut sum, record| {
                sum += record.recent.sum();
                sum
            }),
            at,
            asked_at,
            is_doubted: self.records.iter().any(Record::is_doubted),
        })
    }
}

impl Record {
    /// Whether it counts as reached, and was not the last time.
    fn is_doubted(&self) -> bool {
        self.doubts > 0 && self.verdict == Some(ProbeVerdict::Reached)
    }

    /// What is believed, and what the peer has found the other way.
    fn effective(&self) -> Option<ProbeVerdict> {
        let verdict = self.verdict.as_ref()?;
        Some(match self.told_fits.filter(|_| is_of_small_packets(verdict)) {
            Some(fits) => ProbeVerdict::MtuBlackHole { fits: fits.get().into() },
            None => verdict.clone(),
        })
    }

    fn largest(&self) -> Option<u32> {
        let told = self.told_fits.map(|fits| u32::from(fits.get()));
        self.mtu.into_iter().chain(told).min()
    }
}

/// How often in succession something must be found before it is believed. A peer that was just told of this lease, or
/// is busy, needs a moment; what is measured to the byte is certain.
fn doubts_needed(verdict: &ProbeVerdict) -> u8 {
    match verdict {
        ProbeVerdict::Reached
        | ProbeVerdict::MtuBlackHole { .. }
        | ProbeVerdict::Fragmented { .. }
        | ProbeVerdict::Lossy(_) => 1,
        ProbeVerdict::EntriesMissingThere(_) => 3,
        ProbeVerdict::DaemonDown { is_certain: false } => 4,
        _ => 2,
    }
}

/// Whether a verdict says that small packets pass, and nothing of large ones.
fn is_of_small_packets(verdict: &ProbeVerdict) -> bool {
    matches!(verdict, ProbeVerdict::Reached | ProbeVerdict::Lossy(_) | ProbeVerdict::Slow(_))
}

impl ProbingNode {
    /// Every place at which peers may ask this node, and which way what comes there has come.
    pub(crate) fn addresses(&self, port: u16) -> Vec<(SocketAddr, crate::Way)> {
        use crate::Way::{Overlay, Underlay};
        let under = self.underlay.iter().chain(&self.announced).flatten();
        let over = self.overlay.iter().flatten();
        let at = |ip: &IpAddr| self.at(*ip, port);
        let mut all: Vec<_> =
            under.map(|ip| (at(ip), Underlay)).chain(over.map(|ip| (at(ip), Overlay))).collect();
        all.sort_unstable();
        all.dedup_by_key(|(at, _)| *at);
        all
    }

    /// An address of this node, or one that it reaches. A link-local one is that of the interface towards the peers.
    pub(crate) fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, self.link_index).into()
            }
            ip => SocketAddr::new(ip, port),
        }
    }

    /// Source and destination through the tunnel.
    pub(crate) fn over(&self, target: &Target, family: usize) -> Option<(IpAddr, IpAddr)> {
        self.encapsulation.tunnel()?;
        (*self.overlay.get(family)?).zip(*target.overlay.get(family)?)
    }

    /// Source and destination beside the tunnel: in the family, or in the other, which may carry it.
    pub(crate) fn under(&self, target: &Target, family: usize) -> Option<(IpAddr, IpAddr)> {
        let way = |family: usize| (*self.underlay.get(family)?).zip(*target.public.get(family)?);
        way(family).or_else(|| way(1 - family).filter(|_| self.encapsulation.tunnel().is_some()))
    }

    fn can_reach(&self, target: &Target, family: usize) -> bool {
        let way = if self.encapsulation.tunnel().is_some() { Self::over } else { Self::under };
        way(self, target, family).is_some()
    }
}

#[cfg(test)]
mod tests;
