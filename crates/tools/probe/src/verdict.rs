//! From what came back, and what did not, to what is wrong and in which layer.

use std::num::NonZeroU64;
use std::time::Duration;

use flannel_state::Layer;

use crate::round_trip::RoundTrips;
use crate::wire::Standing;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    Answered(ProbeAnswer),
    /// The host says that nobody listens there.
    Refused,
    Silent,
    /// It did not even leave this node: why.
    Unsent(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    pub latency: Duration,
    pub standing: Standing,
    /// An ask of this very turn has come to the peer through the overlay, with a checksum.
    pub has_heard: bool,
    pub machine: Option<NonZeroU64>,
}

/// All that one turn has found out, in one address family. What was not tried is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// `None` where there is no tunnel, and the underlay carries pods' packets as they are.
    pub overlay: Option<AskOutcome>,
    /// Through the overlay without a checksum.
    pub plain: Option<AskOutcome>,
    pub overlay_ping: Option<bool>,
    pub underlay: Option<AskOutcome>,
    pub underlay_ping: Option<bool>,
    pub full: Option<Full>,
    /// What became of one as large as that is in the tunnel, beside the tunnel.
    pub beside: Option<Full>,
    /// Small asks, through the overlay where there is one.
    pub asks: Asks,
    /// The shortest round trip of these: of many, where the first was slow.
    pub round_trip: Option<Duration>,
    /// The hash of the machine id in the peer's lease.
    pub machine: Option<NonZeroU64>,
}

/// How many asks were sent, and how many of them were not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    pub asked: u32,
    pub lost: u32,
}

impl std::ops::AddAssign for Asks {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.lost += other.lost;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Passes,
    /// It does not: the largest that does.
    Fits(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeVerdict {
    Reached,
    /// Another machine than the one of its lease answers through the overlay.
    AnotherMachine,
    /// Packets up to so many bytes pass, and larger ones vanish.
    MtuBlackHole {
        fits: u32,
    },
    /// All packets pass, but the largest are cut up on the way: the path carries no more than so many bytes.
    Fragmented {
        carries: u32,
    },
    Lossy(Asks),
    /// Packets pass, and take far longer than this path was seen to take.
    Slow(RoundTrips),
    /// It is reached, and nobody answers probes there.
    DaemonDown {
        /// Its kernel says that nobody listens; else a firewall may drop the probes.
        is_certain: bool,
    },
    /// Its daemon answers on the underlay, and its kernel through the overlay: the probe port is closed there.
    ProbesFiltered,
    ChecksumHere,
    ChecksumThere,
    /// Nothing leads from the peer to this node.
    EntriesMissingThere(Standing),
    /// What is sent from here through the tunnel does not arrive, or what is sent back does not.
    TunnelBlocked(Direction),
    UnderlayCut,
    /// Packets do not leave this node: why.
    Unsent(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    There,
    Back,
    /// The peer's daemon could not be asked.
    Unknown,
}

impl Evidence {
    /// Whether who answered is not the machine of the lease. A node that tells no machine, as older ones, is trusted.
    fn is_of_another(&self, answered: &ProbeAnswer) -> bool {
        self.machine.zip(answered.machine).is_some_and(|(announced, answers)| announced != answers)
    }
}

impl ProbeVerdict {
    pub fn of(evidence: &Evidence) -> Self {
        let Some(overlay) = &evidence.overlay else { return Self::without_tunnel(evidence) };
        match overlay {
            AskOutcome::Answered(answered) if evidence.is_of_another(answered) => {
                Self::AnotherMachine
            }
            AskOutcome::Answered(_) => match (evidence.full, evidence.beside) {
                (Some(Full::Fits(fits)), _) => Self::MtuBlackHole { fits },
                (Some(Full::Passes), Some(Full::Fits(carries))) => Self::Fragmented { carries },
                _ => Self::Reached,
            },
            // That the answer of the peer's kernel came shows that packets go both ways.
            AskOutcome::Refused => Self::DaemonDown { is_certain: true },
            AskOutcome::Unsent(why) => Self::Unsent(why.clone()),
            AskOutcome::Silent => Self::of_silence(evidence),
        }
    }

    fn of_silence(evidence: &Evidence) -> Self {
        if let Some(AskOutcome::Answered(plain)) = &evidence.plain {
            return if plain.has_heard { Self::ChecksumThere } else { Self::ChecksumHere };
        }
        let pinged = evidence.overlay_ping == Some(true);
        match &evidence.underlay {
            Some(AskOutcome::Answered(_)) if pinged => Self::ProbesFiltered,
            Some(AskOutcome::Refused) if pinged => Self::DaemonDown { is_certain: true },
            _ if pinged => Self::DaemonDown { is_certain: false },
            Some(AskOutcome::Answered(answered)) => match answered.standing {
                // It may be about to: what is missing is told of only if nothing passes.
                Standing::Unknown | Standing::Unusable | Standing::Incomplete => {
                    Self::EntriesMissingThere(answered.standing)
                }
                Standing::Programmed if answered.has_heard => Self::TunnelBlocked(Direction::Back),
                Standing::Programmed => Self::TunnelBlocked(Direction::There),
            },
            Some(AskOutcome::Refused) => Self::TunnelBlocked(Direction::Unknown),
            _ if evidence.underlay_ping == Some(true) => Self::TunnelBlocked(Direction::Unknown),
            _ => Self::UnderlayCut,
        }
    }

    fn without_tunnel(evidence: &Evidence) -> Self {
        match &evidence.underlay {
            Some(AskOutcome::Answered(answered)) => match (answered.standing, evidence.full) {
                (Standing::Programmed, Some(Full::Fits(fits))) => Self::MtuBlackHole { fits },
                (Standing::Programmed, _) => Self::Reached,
                (missing, _) => Self::EntriesMissingThere(missing),
            },
            Some(AskOutcome::Refused) => Self::DaemonDown { is_certain: true },
            Some(AskOutcome::Unsent(why)) => Self::Unsent(why.clone()),
            _ if evidence.underlay_ping == Some(true) => Self::DaemonDown { is_certain: false },
            _ => Self::UnderlayCut,
        }
    }

    /// Name for programs, layer of the fault, whether all of pods' packets pass, whether something came back, or could.
    fn facts(&self) -> (&'static str, Option<Layer>, bool, bool) {
        match self {
            Self::Reached => ("reached", None, true, true),
            Self::AnotherMachine => ("another-machine-answers", Some(Layer::Lease), false, true),
            Self::MtuBlackHole { .. } => ("mtu-black-hole", Some(Layer::Underlay), false, true),
            Self::Fragmented { .. } => ("fragmented", Some(Layer::Underlay), true, true),
            Self::Lossy(_) => ("lossy", Some(Layer::Underlay), true, true),
            Self::Slow(_) => ("slow", Some(Layer::Underlay), true, true),
            Self::DaemonDown { .. } => ("daemon-down", Some(Layer::Daemon), true, true),
            Self::ProbesFiltered => ("probes-filtered", Some(Layer::Probe), true, true),
            Self::ChecksumHere | Self::ChecksumThere => {
                ("checksum-broken", Some(Layer::Offload), false, true)
            }
            Self::EntriesMissingThere(_) => {
                ("entries-missing-at-peer", Some(Layer::Entries), false, false)
            }
            Self::TunnelBlocked(_) => ("tunnel-blocked", Some(Layer::Tunnel), false, false),
            Self::UnderlayCut => ("underlay-cut", Some(Layer::Underlay), false, false),
            Self::Unsent(_) => ("not-sent", Some(Layer::Host), false, false),
        }
    }

    pub fn name(&self) -> &'static str {
        self.facts().0
    }

    pub fn layer(&self) -> Option<Layer> {
        self.facts().1
    }

    pub fn traffic_flows(&self) -> bool {
        self.facts().2
    }

    pub(crate) fn is_silence(&self) -> bool {
        !self.facts().3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(standing: Standing, has_heard: bool) -> Option<AskOutcome> {
        let (latency, machine) = (Duration::ZERO, None);
        Some(AskOutcome::Answered(ProbeAnswer { latency, standing, has_heard, machine }))
    }

    fn silent() -> Evidence {
        Evidence {
            overlay: Some(AskOutcome::Silent),
            plain: Some(AskOutcome::Silent),
            overlay_ping: Some(false),
            underlay: Some(AskOutcome::Silent),
            underlay_ping: Some(false),
            full: None,
            beside: None,
            asks: Asks::default(),
            round_trip: None,
            machine: None,
        }
    }

    #[test]
    fn a_peer_in_whose_place_another_machine_answers_is_not_reached() {
        let answers = |machine: u64| {
            let machine = NonZeroU64::new(machine);
            let (latency, standing) = (Duration::ZERO, Standing::Programmed);
            let answered = ProbeAnswer { latency, standing, has_heard: true, machine };
            let overlay = Some(AskOutcome::Answered(answered));
            ProbeVerdict::of(&Evidence {
                overlay,
                machine: NonZeroU64::new(7),
                ..Evidence::default()
            })
        };
        assert_eq!(answers(7), ProbeVerdict::Reached);
        assert_eq!(answers(0), ProbeVerdict::Reached, "it does not tell");
        assert_eq!(answers(8), ProbeVerdict::AnotherMachine);
        assert!(!answers(8).traffic_flows());
    }

    #[test]
    fn an_answer_through_the_overlay_is_all_that_is_asked_for() {
        let well = Evidence { overlay: answered(Standing::Unknown, true), ..Evidence::default() };
        assert_eq!(ProbeVerdict::of(&well), ProbeVerdict::Reached);
        let hole = Evidence { full: Some(Full::Fits(1350)), ..well };
        assert_eq!(ProbeVerdict::of(&hole), ProbeVerdict::MtuBlackHole { fits: 1350 });
        assert!(!ProbeVerdict::of(&hole).traffic_flows());
        let cut_up = Evidence { full: Some(Full::Passes), beside: Some(Full::Fits(1420)), ..hole };
        assert_eq!(ProbeVerdict::of(&cut_up), ProbeVerdict::Fragmented { carries: 1420 });
        assert!(ProbeVerdict::of(&cut_up).traffic_flows());
    }

    #[test]
    fn a_peer_whose_kernel_answers_is_never_called_away() {
        let programmed = || answered(Standing::Programmed, false);
        let refused = Evidence { overlay: Some(AskOutcome::Refused), ..silent() };
        assert_eq!(ProbeVerdict::of(&refused), ProbeVerdict::DaemonDown { is_certain: true });
        let pinged = |underlay| Evidence { overlay_ping: Some(true), underlay, ..silent() };
        for (underlay, verdict) in [
            (Some(AskOutcome::Refused), ProbeVerdict::DaemonDown { is_certain: true }),
            (Some(AskOutcome::Silent), ProbeVerdict::DaemonDown { is_certain: false }),
            (None, ProbeVerdict::DaemonDown { is_certain: false }),
            (programmed(), ProbeVerdict::ProbesFiltered),
        ] {
            assert_eq!(ProbeVerdict::of(&pinged(underlay)), verdict);
            assert!(verdict.traffic_flows());
        }
    }

    #[test]
    fn what_the_peer_says_on_the_underlay_tells_what_is_wrong_with_the_overlay() {
        let said = |standing, heard| {
            ProbeVerdict::of(&Evidence { underlay: answered(standing, heard), ..silent() })
        };
        assert_eq!(
            said(Standing::Programmed, false),
            ProbeVerdict::TunnelBlocked(Direction::There)
        );
        assert_eq!(said(Standing::Programmed, true), ProbeVerdict::TunnelBlocked(Direction::Back));
        for standing in [Standing::Unknown, Standing::Unusable, Standing::Incomplete] {
            assert_eq!(said(standing, true), ProbeVerdict::EntriesMissingThere(standing));
        }
    }

    #[test]
    fn a_tunnel_is_blocked_if_the_host_is_there_and_else_the_underlay_is_cut() {
        assert_eq!(ProbeVerdict::of(&silent()), ProbeVerdict::UnderlayCut);
        let pinged = Evidence { underlay_ping: Some(true), ..silent() };
        assert_eq!(ProbeVerdict::of(&pinged), ProbeVerdict::TunnelBlocked(Direction::Unknown));
        let refused = Evidence { underlay: Some(AskOutcome::Refused), ..silent() };
        assert_eq!(ProbeVerdict::of(&refused), ProbeVerdict::TunnelBlocked(Direction::Unknown));
        let unsent = Evidence { overlay: Some(AskOutcome::Unsent("no route".into())), ..silent() };
        assert_eq!(ProbeVerdict::of(&unsent), ProbeVerdict::Unsent("no route".into()));
    }

    #[test]
    fn packets_that_pass_without_a_checksum_alone_have_a_wrong_one_with_it() {
        let plain = |heard| {
            ProbeVerdict::of(&Evidence { plain: answered(Standing::Programmed, heard), ..silent() })
        };
        assert_eq!(plain(false), ProbeVerdict::ChecksumHere);
        assert_eq!(
            plain(true),
            ProbeVerdict::ChecksumThere,
            "what was asked with a checksum has arrived"
        );
    }

    #[test]
    fn without_a_tunnel_the_underlay_is_what_carries_pods_packets() {
        let on = |underlay, ping| {
            ProbeVerdict::of(&Evidence { underlay, underlay_ping: ping, ..Evidence::default() })
        };
        assert_eq!(on(answered(Standing::Programmed, false), None), ProbeVerdict::Reached);
        let missing = ProbeVerdict::EntriesMissingThere(Standing::Unknown);
        assert_eq!(on(answered(Standing::Unknown, false), None), missing);
        let down = |is_certain| ProbeVerdict::DaemonDown { is_certain };
        assert_eq!(on(Some(AskOutcome::Refused), None), down(true));
        assert_eq!(on(Some(AskOutcome::Silent), Some(true)), down(false));
        assert_eq!(on(Some(AskOutcome::Silent), Some(false)), ProbeVerdict::UnderlayCut);
    }
}
