//! `--live`: marked packets are sent from pod to pod, and the last device of either node that sees one says where it is
//! lost. The other node's daemon is asked through the store, or somebody runs `--listen` there.

mod passages;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use flannel_common::Family;
use flannel_probe::marked::request::{COUNTERS, KIND, WatchReport, WatchRequest};
use flannel_probe::marked::{
    Devices, Direction, FIRST_LARGE, LargePacket, Mark, Packet, PacketSize, Place, Sighting, Watch,
    WatchEnd, WatchResult,
};
use flannel_state::{DropCount, Layer};
use flannel_store::OperatorStore;
use flannel_trace::pod_namespace::PodNamespace;
use flannel_trace::{DropCounters, End, Hop, Hops, Peer, Way};
use serde::Serialize;

pub(super) use self::passages::{At, Passage};
use self::passages::{Far, Loss, Sender};
use super::ends::Ends;
use super::other_node::{self, NODE_ANSWER_TIMEOUT};
use crate::commands::check::node_context::{Network, NetworkSource};
use crate::commands::daemon::foreign;
use crate::commands::store_args::block_on;

/// Small packets that are sent: what is lost once may be chance.
const PACKETS: u16 = 3;
const PACKET_INTERVAL: Duration = Duration::from_millis(100);
/// Large packets, in a burst: enough that a loss of a few of a hundred shows.
const BURST_PACKETS: u16 = 100;
const BURST_INTERVAL: Duration = Duration::from_millis(3);
/// Time for the last answer to come back: more than there and back around the world.
const LAST_ANSWER_GRACE: Duration = Duration::from_millis(1_000);
/// Who listens ends when something has come by and nothing more does for so long.
const QUIET_TIME: Duration = Duration::from_secs(2);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Live {
    pub(super) sender: IpAddr,
    pub(super) passages: Vec<Passage>,
    pub(super) last_seen: Option<Passage>,
    pub(super) lost_before: Option<Passage>,
    round_trip_micros: [Option<u64>; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<Burst>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Burst {
    bytes: u32,
    sent: u16,
    passages: Vec<Passage>,
    loss: Option<Loss>,
}

struct Seen {
    sightings: Vec<Sighting>,
    dropped: Vec<DropCount>,
}

pub(super) fn trace(ends: &Ends<'_>, source: &NetworkSource) -> anyhow::Result<(Live, Vec<Hop>)> {
    let Some((from, to, sender)) = direction(ends) else {
        anyhow::bail!("packets can be sent from pods of this node, or from this node itself")
    };
    let mark = Mark::between(from, to.0);
    let large = ends.network.mtu.and_then(LargePacket::of_mtu);
    let send = || send(mark, from, to.0, sender, ends.network, large);
    let (here, there) = match to.1 {
        End::Peer(peer) => {
            let store = source.operators_store(&ends.network.name);
            let asked = WatchRequest::new(mark, ends.network.mtu);
            block_on(watched(store, peer, asked, send))?
        }
        End::Pod | End::Host | End::World => (send()?, Err(String::new())),
    };
    let (watched, dropped_here) = here;
    let expected = passages::expected(sender, far(ends.network, to));
    let seen_there = there.as_ref().ok().map(|there| there.sightings.as_slice());
    let passages = |size| passages::passages(&expected, Some(&watched.sightings), seen_there, size);
    let micros = |time: Option<Duration>| time.and_then(|time| time.as_micros().try_into().ok());
    let burst = large.map(|large| {
        let passages = passages(PacketSize::Large);
        let loss = passages::loss(&passages, BURST_PACKETS.into());
        Burst { bytes: large.bytes(), sent: BURST_PACKETS, passages, loss }
    });
    let live = Live {
        round_trip_micros: watched.round_trips.map(micros),
        burst,
        ..Live::new(from, passages(PacketSize::Small))
    };
    let dropped_there = there.as_ref().map(|there| there.dropped.as_slice()).unwrap_or_default();
    let mut hops = tell(ends, &live, to.1, At::Sender, [&dropped_here, dropped_there]);
    if let Err(why) = there
        && live.lost_before.as_ref().is_some_and(|next| next.seen.is_none())
    {
        let mut peers = Hops::new(Way::Live);
        peers.unknown("peer", format!("the other node could not be asked to look for them: {why}"));
        hops.extend(peers.all);
    }
    Ok((live, hops))
}

/// Sends while the other node looks, and without it if it does not. What was seen there, or why nobody has looked.
async fn watched(
    store: anyhow::Result<Box<dyn OperatorStore>>,
    peer: &Peer,
    asked: WatchRequest,
    send: impl Fn() -> anyhow::Result<(WatchResult, Vec<DropCount>)>,
) -> anyhow::Result<((WatchResult, Vec<DropCount>), Result<Seen, String>)> {
    let mut here = None;
    let there = other_node::ask(store, peer, KIND, &asked, async |node| {
        let looks = |said| match said {
            WatchReport::Looking => Some(Ok(())),
            WatchReport::Failed(why) => Some(Err(why)),
            WatchReport::Seen(_) | WatchReport::Counted { .. } => None,
        };
        node.hear(NODE_ANSWER_TIMEOUT, looks).await?;
        // It blocks, and nothing else is to be done meanwhile.
        here = Some(send());
        let mut over = asked.clone();
        over.ended = true;
        node.say(&over).await?;
        let has_seen = |said| match said {
            WatchReport::Seen(sightings) => Some(Ok(Seen { sightings, dropped: Vec::new() })),
            WatchReport::Counted { seen, mut dropped } => {
                dropped.truncate(COUNTERS);
                for one in &mut dropped {
                    (one.what, one.fix) = (foreign(&one.what), foreign(&one.fix));
                }
                Some(Ok(Seen { sightings: seen, dropped }))
            }
            WatchReport::Failed(why) => Some(Err(why)),
            WatchReport::Looking => None,
        };
        node.hear(NODE_ANSWER_TIMEOUT, has_seen).await
    });
    let there = there.await.map_err(|error| format!("{error:#}"));
    let here = here.unwrap_or_else(send)?;
    Ok((here, there))
}

/// Looks for packets that somebody sends on the other node, and tells what becomes of them here.
pub(super) fn listen(ends: &Ends<'_>, limit: Duration) -> anyhow::Result<(Live, Vec<Hop>)> {
    let other = [ends.from, ends.to].into_iter().find(|end| matches!(end.1, End::Peer(_)));
    let Some(other) = other else {
        anyhow::bail!("neither pod is on another node: what is sent here is seen by --live alone")
    };
    let watch = open(Mark::between(ends.from.0, ends.to.0), ends.network, None)?;
    let there = watch.look(&WatchEnd::default(), limit, Some(QUIET_TIME))?.sightings;
    let expected = passages::expected(Sender::Pod, far(ends.network, other));
    let passages = passages::passages(&expected, None, Some(&there), PacketSize::Small);
    let live = Live::new(other.0, passages);
    let hops = tell(ends, &live, other.1, At::Receiver, [&[], &[]]);
    Ok((live, hops))
}

impl Live {
    fn new(sender: IpAddr, passages: Vec<Passage>) -> Self {
        let (last, next) = passages::lost(&passages);
        let (last_seen, lost_before) = (last.cloned(), next.cloned());
        let (round_trip_micros, burst) = ([None, None], None);
        Self { sender, last_seen, lost_before, passages, round_trip_micros, burst }
    }
}

fn direction<'a>(ends: &Ends<'a>) -> Option<(IpAddr, (IpAddr, End<'a>), Sender)> {
    let sender = |end: &End<'_>| match end {
        End::Pod => Some(Sender::Pod),
        End::Host => Some(Sender::Host),
        End::Peer(_) | End::World => None,
    };
    let there = sender(&ends.from.1).map(|sender| (ends.from.0, ends.to, sender));
    there.or_else(|| sender(&ends.to.1).map(|sender| (ends.to.0, ends.from, sender)))
}

fn far(network: &Network, to: (IpAddr, End<'_>)) -> Far {
    match to.1 {
        End::Pod | End::Host => Far::SameNode,
        End::World => Far::World,
        End::Peer(_) => Far::Peer {
            has_tunnel: network.tunnel_device(Family::of(to.0)).is_some(),
            in_the_clear: !network.encapsulation.is_encrypted(),
        },
    }
}

fn open(mark: Mark, network: &Network, large: Option<LargePacket>) -> anyhow::Result<Watch> {
    let devices = Devices {
        tunnels: network.devices.clone(),
        underlay: network.underlay.as_ref().map(|underlay| underlay.link.to_string()),
    };
    Watch::open(mark, devices, large).context("look at the frames of this node's devices")
}

fn send(
    mark: Mark,
    from: IpAddr,
    to: IpAddr,
    sender: Sender,
    network: &Network,
    large: Option<LargePacket>,
) -> anyhow::Result<(WatchResult, Vec<DropCount>)> {
    let before = DropCounters::read();
    let watch = open(mark, network, large)?;
    let ended = WatchEnd::default();
    let stop = ended.clone();
    let limit = LAST_ANSWER_GRACE * 30;
    let looking = std::thread::spawn(move || watch.look(&stop, limit, None));
    let deed = move || -> std::io::Result<()> {
        for number in 0..PACKETS {
            mark.send(from, to, number, None)?;
            std::thread::sleep(PACKET_INTERVAL);
        }
        for number in 0..BURST_PACKETS {
            let Some(large) = large else { break };
            // What the pod itself does not send is missed at the first device.
            let _ = mark.send(from, to, FIRST_LARGE + number, Some(large));
            std::thread::sleep(BURST_INTERVAL);
        }
        Ok(())
    };
    let sent = match sender {
        Sender::Host => Some(deed()),
        Sender::Pod => {
            let namespace = PodNamespace::find(from);
            let sent = namespace.map(|namespace| namespace.run(deed)).transpose();
            sent.context("enter the network namespace of the pod")?
        }
    };
    std::thread::sleep(LAST_ANSWER_GRACE);
    ended.set();
    let seen = looking.join().map_err(|_| anyhow::anyhow!("nobody has looked at the devices"))?;
    let mut dropped = DropCounters::read().grown_since(&before);
    dropped.truncate(COUNTERS);
    match sent {
        Some(Ok(())) => Ok((seen?, dropped)),
        // That is what is wrong, and where: in the pod.
        Some(Err(_)) => Ok((seen.unwrap_or_default(), dropped)),
        None => anyhow::bail!(
            "no network namespace has the address {from}: is that pod running on this node? It is looked for in \
             /run/netns and among all processes; run this on the host itself, not in a container"
        ),
    }
}

struct Teller<'a> {
    network: &'a Network,
    peer: &'a str,
    this: At,
    dropped: [&'a [DropCount]; 2],
}

/// `other`: the end on the other node. `this`: what this node is. `dropped`: what counters say, here and there.
fn tell(
    ends: &Ends<'_>,
    live: &Live,
    other: End<'_>,
    this: At,
    dropped: [&[DropCount]; 2],
) -> Vec<Hop> {
    let mut hops = Hops::new(Way::Live);
    let peer = match other {
        End::Peer(peer) => {
            peer.public.first().map_or("the other node".to_owned(), ToString::to_string)
        }
        End::Pod | End::Host | End::World => "this node".to_owned(),
    };
    let teller = Teller { network: ends.network, peer: &peer, this, dropped };
    for passage in &live.passages {
        let Some(seen) = passage.seen.as_ref().filter(|seen| seen.count > 0) else { continue };
        let carried = seen.carried.map(|(from, to)| format!(", carried from {from} to {to}"));
        let answers = if passage.packet == Packet::Answer { " answers" } else { "" };
        let came = if passage.direction == Direction::In { "came in by" } else { "went out by" };
        let (on, device) = (teller.node(passage.at), seen.device.as_deref().unwrap_or("a device"));
        let carried = carried.unwrap_or_default();
        let what = format!("{on}: {}{answers} {came} {device}{carried}", seen.count);
        hops.good(name(passage.place), what);
    }
    let took =
        |micros: Option<u64>| micros.map_or(String::new(), |it| format!(", in {}", span(it)));
    let Some(next) = &live.lost_before else {
        let took_small = took(live.round_trip_micros[0]);
        let what = format!("the packets went there, and their answers came back{took_small}");
        hops.good("pod", what);
        match &live.burst {
            Some(burst @ Burst { loss: Some(loss), .. }) => teller.burst(&mut hops, burst, *loss),
            Some(Burst { sent, bytes, .. }) => {
                let took = took(live.round_trip_micros[1]);
                hops.good("burst", format!("{sent} packets of {bytes} bytes did so, too{took}"));
            }
            None => {}
        }
        return hops.all;
    };
    let (from, to) = (ends.from.0, ends.to.0);
    match (next.seen.is_some(), this) {
        (true, _) => {
            let which = if next.packet == Packet::Request { "packet" } else { "answer" };
            let (last, which) = (live.last_seen.as_ref(), format!("the {which} did not"));
            teller.lost(&mut hops, (last, next), &which, PACKETS.into(), |likely, fix| (likely, fix));
        }
        // Nobody has looked there.
        (false, At::Sender) => hops.wrong(
            "underlay",
            Layer::Underlay,
            format!("the packets left this node for {peer}, and no answer came back: they are lost on the way or there"),
            format!("on {peer}: flannelctl trace {from} {to} --live --listen, and meanwhile here the same again"),
        ),
        (false, At::Receiver) => {
            hops.good("underlay", format!("what came here was answered, and left for {peer}"));
        }
    }
    hops.all
}

impl Teller<'_> {
    fn node(&self, at: At) -> &str {
        if at == self.this { "this node" } else { self.peer }
    }

    /// Where large packets are lost, while the small ones came back.
    fn burst(&self, hops: &mut Hops, burst: &Burst, loss: Loss) {
        let Burst { bytes, sent, passages, .. } = burst;
        let Some(next) = passages.get(loss.passage) else { return };
        let last = loss.passage.checked_sub(1).and_then(|last| passages.get(last));
        let which = if next.packet == Packet::Request { "packets" } else { "answers" };
        let Loss { lost, is_total, .. } = loss;
        let told = match is_total {
            true => format!("no {which} of {bytes} bytes did"),
            false => format!("{lost} of {sent} {which} of {bytes} bytes, sent in a burst, did not"),
        };
        let is_path = (next.place, next.direction) == (Place::Underlay, Direction::In);
        self.lost(hops, (last, next), &told, lost, |likely, fix| {
            let seen = match is_total {
                true if is_path => {
                    let cause = "the path between the nodes carries less than their cards";
                    let fix = "flannelctl check: `mtu` says how much it carries";
                    return (cause.to_owned(), fix.to_owned());
                }
                true => "smaller ones pass, so an MTU or a rule for long packets stops it",
                false => "some pass, so it is a rate, a share or a queue that is full",
            };
            (format!("{seen}, or {likely}"), fix)
        });
    }

    /// `which`: the packets that were lost. `judge`: cause and fix of a loss that no counter explains.
    fn lost(
        &self,
        hops: &mut Hops,
        (last, next): (Option<&Passage>, &Passage),
        which: &str,
        count: u32,
        judge: impl FnOnce(String, String) -> (String, String),
    ) {
        let (hop, likely, fix) = between(self.network, last, next, self.peer);
        let on = self.node(next.at);
        let dropped = self.dropped[usize::from(next.at != self.this)];
        let (cause, fix) = cause(dropped, count).unwrap_or_else(|| judge(likely, fix));
        let what = format!("{on}: {which} {}: {cause}", arrive(next, last));
        hops.wrong(hop, Layer::Reach, what, fix.replace("{here}", &format!("on {on}")));
    }
}

fn cause(dropped: &[DropCount], lost: u32) -> Option<(String, String)> {
    let likely = |one: &&DropCount| one.is_exact && one.packets.saturating_mul(2) >= lost.into();
    let named: Vec<&DropCount> = dropped.iter().filter(likely).take(2).collect();
    let first = named.first()?;
    let each = |one: &&DropCount| format!("{} has dropped {} meanwhile", one.what, one.packets);
    let what = named.iter().map(each).collect::<Vec<_>>().join(", and ");
    Some((what, format!("{{here}}: {}", first.fix)))
}

fn span(micros: u64) -> String {
    format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100)
}

fn name(place: Place) -> &'static str {
    match place {
        Place::Veth => "veth",
        Place::Bridge => "bridge",
        Place::Tunnel => "tunnel",
        Place::Underlay => "underlay",
        Place::Other => "device",
    }
}

fn arrive(next: &Passage, last: Option<&Passage>) -> String {
    let after = last.map(|last| {
        let device = last.seen.as_ref().and_then(|seen| seen.device.as_deref());
        format!(" after {}", device.unwrap_or(name(last.place)))
    });
    let way = if next.direction == Direction::In { "come in" } else { "go out" };
    format!("{way} by the {}{}", name(next.place), after.unwrap_or_default())
}

/// What lies between two devices: the name of the hop, what may be wrong there, and what to type.
fn between(
    network: &Network,
    last: Option<&Passage>,
    next: &Passage,
    peer: &str,
) -> (&'static str, String, String) {
    // What can be told without packets stands above.
    let device = last.and_then(|last| last.seen.as_ref()?.device.clone());
    let device = device.unwrap_or_else(|| "DEVICE".to_owned());
    let look = format!(
        "{{here}}: nft list ruleset; tc -s qdisc; tc -s filter show dev {device} ingress; ip xfrm policy; ip rule"
    );
    let carrying = &network.encapsulation;
    let of = |hop, likely: &str, fix: &str| (hop, likely.to_owned(), fix.to_owned());
    match (next.place, next.direction) {
        (Place::Veth, Direction::In) => {
            let likely = match next.packet {
                Packet::Request => {
                    "it did not leave the pod: its interface, its route, or a rule inside of it"
                }
                Packet::Answer => {
                    "the pod has it and does not answer: it is gone, a rule inside of it drops it, or it answers no echo requests"
                }
            };
            of("pod", likely, "in the pod: ip addr; ip route; nft list ruleset")
        }
        (Place::Bridge, Direction::In) => {
            let likely = "the bridge does not take it: its port is blocked, or the pod sends to another MAC than the bridge's";
            let fix = "{here}: bridge link; ip addr show cni0; nft list table bridge filter";
            of("bridge", likely, fix)
        }
        // Where there is no tunnel, it is forwarded to the card.
        (Place::Tunnel | Place::Underlay, Direction::Out)
            if next.place == Place::Tunnel
                || last.is_none_or(|last| matches!(last.place, Place::Bridge | Place::Veth)) =>
        {
            let likely = "forwarding, a route, a rule or a missing neighbour of the node stops it";
            of("rules", likely, &look)
        }
        (Place::Tunnel | Place::Underlay, Direction::Out) => {
            let likely = "the tunnel does not send it: the FDB has no node for it, there is no route to that node, or a rule \
                          drops what is sent";
            of("fdb", likely, &look)
        }
        // What a tunnel carries is seen as such.
        (Place::Underlay, Direction::In) if left_outside_the_tunnel(network, last) => {
            let likely = format!(
                "it went out by {device}, and not in the tunnel: a rule gives it another address (NAT), or a route leads \
                 it there"
            );
            let fix = "on the node that sent it: nft list ruleset; iptables-save -t nat; ip rule; ip route";
            of("route", &likely, fix)
        }
        (Place::Underlay, Direction::In) => {
            let carried = last.and_then(|last| last.seen.as_ref()?.carried);
            let to = carried.map(|(_, to)| format!(" (it was sent to {to})")).unwrap_or_default();
            let likely = format!(
                "it is lost between the nodes{to}: a cable, a switch, a security group, or the wrong address"
            );
            let fix = format!("ping {peer}; look at what is between the nodes: {carrying}");
            ("underlay", likely, fix)
        }
        (Place::Tunnel, Direction::In) => {
            let likely = format!(
                "the node has got it and does not unpack it: a rule drops {carrying}, rp_filter does, or its tunnel device \
                 is missing or has another VNI or port"
            );
            ("tunnel", likely, look)
        }
        (Place::Bridge, Direction::Out) => {
            let likely = "forwarding, a route or a rule of the node stops it, or nobody on the bridge answers for the pod's address";
            of("rules", likely, &look)
        }
        (Place::Veth, Direction::Out) => {
            let likely = "the bridge does not pass it on to the pod: no port of it has the pod's MAC, or a rule of the bridge \
                          drops it";
            of("bridge", likely, "{here}: bridge fdb show br cni0; bridge link")
        }
        (Place::Other, _) => of("device", "it is not known why", &look),
    }
}

/// Whether a packet that a tunnel was to carry has left its node without one.
fn left_outside_the_tunnel(network: &Network, last: Option<&Passage>) -> bool {
    let seen =
        last.filter(|last| last.place == Place::Underlay).and_then(|last| last.seen.as_ref());
    let is_plain = seen.is_some_and(|seen| seen.count > 0 && seen.carried.is_none());
    !network.encapsulation.is_encrypted() && !network.devices.is_empty() && is_plain
}
