//! Queues and filters of devices (`tc`) that may drop packets. Decoded by hand: the codec gives up on options that it
//! does not know, and every kernel module has its own.

use std::io;

use flannel_netlink::{Attributes, Writable, ne32_at};

use super::{Kernel, not};

const RTM_GETQDISC: u16 = 38;
const RTM_GETTFILTER: u16 = 46;
/// Length of the header: family, device, handle, parent, info.
const HEADER: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const AT_ROOT: u32 = 0xffff_ffff;
const AT_INGRESS: u32 = 0xffff_0000;
const AT_CLSACT_INGRESS: u32 = 0xffff_fff2;
const AT_CLSACT_EGRESS: u32 = 0xffff_fff3;
const TCA_U32_SEL: u16 = 5;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_ACT_STATS: u16 = 4;
const ACTION_PARAMETERS: u16 = 2;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const SHOT: u32 = 2;
const ALL_PROTOCOLS: u16 = 3;

/// A queue of a device, or the anchor of its filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundQueue {
    pub link: u32,
    /// Kind, such as `fq_codel`, `tbf`, `clsact`.
    pub kind: String,
    /// Whether everything that the device sends goes through it.
    pub is_root: bool,
    pub drops: u64,
    pub waiting: u32,
    pub setting: QueueSetting,
}

/// Setting by which a queue drops or delays packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueSetting {
    #[default]
    None,
    /// Bytes a second.
    Rate(u64),
    /// Packets, or bytes, that may wait.
    Limit(u32),
    /// Deliberate faults (netem): packets of 1,000 that are lost, and microseconds of delay.
    Faults { lost: u32, delay: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterPlace {
    Ingress,
    Egress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFilter {
    pub link: u32,
    pub place: FilterPlace,
    /// Kind, such as `u32`, `flower`, `bpf`.
    pub kind: String,
    pub priority: u16,
    /// Ethernet type; `None` for all.
    pub protocol: Option<u16>,
    pub effect: FilterEffect,
    pub selector: FilterSelector,
    /// Packets that its action has seen, where it counts them.
    pub packets: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterEffect {
    Drops,
    Redirects(u32),
    Polices,
    Program,
    Changes,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterSelector {
    Everything,
    /// 32-bit words of the packet: mask, value, and offset from the beginning of the IP header.
    Words(Vec<(u32, u32, i32)>),
    Unknown,
}

struct Question {
    kind: u16,
    link: u32,
    parent: u32,
}

impl Writable for Question {
    fn kind(&self) -> u16 {
        self.kind
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let mut header = [0; HEADER];
        header[4..8].copy_from_slice(&self.link.to_ne_bytes());
        header[12..16].copy_from_slice(&self.parent.to_ne_bytes());
        bytes.extend_from_slice(&header);
    }
}

impl Kernel {
    pub fn queues(&mut self) -> io::Result<Vec<FoundQueue>> {
        let question = Question { kind: RTM_GETQDISC, link: 0, parent: 0 };
        let found = self.connection.ask_all(&question, |message| read_queue(message.payload));
        let found = found.map_err(not("list the queues"))?;
        // A kernel without them has none.
        Ok(found.unwrap_or_default())
    }

    pub fn filters(&mut self, link: u32) -> io::Result<Vec<FoundFilter>> {
        let mut all = Vec::new();
        for (parent, place) in [
            (AT_INGRESS, FilterPlace::Ingress),
            (AT_CLSACT_INGRESS, FilterPlace::Ingress),
            (AT_CLSACT_EGRESS, FilterPlace::Egress),
        ] {
            let question = Question { kind: RTM_GETTFILTER, link, parent };
            let found = self
                .connection
                .ask_all(&question, |message| read_filter(message.payload, place))
                .map_err(not("list the filters"))?;
            for filter in found.unwrap_or_default() {
                // Both ways of asking for incoming filters may show the same.
                if filter.link == link && !all.contains(&filter) {
                    all.push(filter);
                }
            }
        }
        Ok(all)
    }
}

fn read_queue(payload: &[u8]) -> Option<FoundQueue> {
    let (header, attributes) = payload.split_at_checked(HEADER)?;
    let attributes = Attributes(attributes);
    let kind = attributes.text(TCA_KIND)?.to_owned();
    let counts = attributes.nested(TCA_STATS2)?.get(TCA_STATS_QUEUE).unwrap_or_default();
    let options = attributes.get(TCA_OPTIONS).unwrap_or_default();
    let (link, is_root) = (ne32_at(header, 4)?, ne32_at(header, 12)? == AT_ROOT);
    let drops = ne32_at(counts, 8).unwrap_or_default().into();
    let waiting = ne32_at(counts, 0).unwrap_or_default();
    let setting = setting(&kind, options);
    Some(FoundQueue { link, kind, is_root, drops, waiting, setting })
}

fn setting(kind: &str, options: &[u8]) -> QueueSetting {
    let read = match kind {
        "tbf" => {
            let options = Attributes(options);
            let long = options.get(TCA_TBF_RATE64).and_then(|bytes| bytes.try_into().ok());
            let rate = options.get(TCA_TBF_PARMS).and_then(|bytes| ne32_at(bytes, 8));
            long.map(u64::from_ne_bytes).or(rate.map(u64::from)).map(QueueSetting::Rate)
        }
        "pfifo" | "bfifo" => ne32_at(options, 0).map(QueueSetting::Limit),
        "netem" => ne32_at(options, 0).zip(ne32_at(options, 8)).map(|(ticks, lost)| {
            // A tick has 64 nanoseconds.
            let delay = u64::from(ticks) * 64 / 1_000;
            // A share of 2³², rounded: 30 % is a little less there.
            let lost = (u64::from(lost) * 1_000 + (1 << 31)) >> 32;
            QueueSetting::Faults { lost: lost as u32, delay }
        }),
        _ => None,
    };
    read.unwrap_or_default()
}

fn read_filter(payload: &[u8], place: FilterPlace) -> Option<FoundFilter> {
    let (header, attributes) = payload.split_at_checked(HEADER)?;
    let attributes = Attributes(attributes);
    let kind = attributes.text(TCA_KIND)?.to_owned();
    let options = attributes.nested(TCA_OPTIONS)?;
    let (link, info) = (ne32_at(header, 4)?, ne32_at(header, 16)?);
    let priority = (info >> 16) as u16;
    let protocol = Some(u16::from_be(info as u16)).filter(|it| *it != ALL_PROTOCOLS);
    // Number of the option that holds the actions, by kind.
    let actions = match kind.as_str() {
        "u32" => 7,
        "matchall" => 2,
        "flower" | "basic" => 3,
        "fw" => 4,
        "cgroup" => 1,
        "bpf" => 1,
        _ => return None,
    };
    let selector = match kind.as_str() {
        "matchall" => FilterSelector::Everything,
        // Without a selector it is the table that others are in.
        "u32" => read_words(options.get(TCA_U32_SEL)?)?,
        _ => FilterSelector::Unknown,
    };
    let (mut effect, mut packets) = (FilterEffect::Other, None);
    for (_, action) in options.nested(actions).into_iter().flat_map(Attributes::iter) {
        let action = Attributes(action);
        let found = read_action(action);
        if found != FilterEffect::Other {
            let basic = action.nested(TCA_ACT_STATS).and_then(|stats| stats.get(TCA_STATS_BASIC));
            packets = basic.and_then(|basic| ne32_at(basic, 8)).map(u64::from);
            effect = found;
            break;
        }
    }
    let decides = options.get(TCA_BPF_FLAGS).and_then(|flags| ne32_at(flags, 0)) == Some(1);
    if kind == "bpf" && decides {
        effect = FilterEffect::Program;
    }
    Some(FoundFilter { link, place, kind, priority, protocol, effect, selector, packets })
}

fn read_action(action: Attributes<'_>) -> FilterEffect {
    let options = action.nested(TCA_ACT_OPTIONS).unwrap_or_default();
    let parameters = options.get(ACTION_PARAMETERS).unwrap_or_default();
    match action.text(TCA_ACT_KIND) {
        Some("gact") if ne32_at(parameters, 8) == Some(SHOT) => FilterEffect::Drops,
        // The action may drop a share of them.
        Some("gact") if options.get(3).is_some() => FilterEffect::Polices,
        Some("mirred") if ne32_at(parameters, 8) == Some(STOLEN) => {
            ne32_at(parameters, 24).map_or(FilterEffect::Other, FilterEffect::Redirects)
        }
        Some("police") => FilterEffect::Polices,
        Some(
            "pedit" | "nat" | "vlan" | "skbmod" | "mpls" | "skbedit" | "tunnel_key" | "ctinfo",
        ) => FilterEffect::Changes,
        _ => FilterEffect::Other,
    }
}

const STOLEN: u32 = 4;

/// Reads a selector; `None` for the table that others are in.
fn read_words(selector: &[u8]) -> Option<FilterSelector> {
    let count = usize::from(*selector.get(2)?);
    let mut words = Vec::new();
    for key in selector.get(16..)?.chunks_exact(16).take(count) {
        let be = |at: usize| key.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let (mask, value, offset) = (be(0)?, be(4)?, ne32_at(key, 8)?.cast_signed());
        if ne32_at(key, 12)? != 0 {
            // The offset depends on the packet itself.
            return Some(FilterSelector::Unknown);
        }
        words.push((mask, value, offset));
    }
    let everything = words.iter().all(|(mask, ..)| *mask == 0);
    Some(if everything { FilterSelector::Everything } else { FilterSelector::Words(words) })
}
