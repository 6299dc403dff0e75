//! Queues and filters (`tc`) on a packet's way: which drop it, and which may. Pure, but for reading them.

use std::net::IpAddr;

use flannel_kernel::look::{
    Device, FilterEffect, FilterPlace, FilterSelector, FoundFilter, FoundQueue, Kernel,
    QueueSetting,
};

use flannel_state::{Finding, Layer};

use crate::firewall::{Drop, Dropped};
use crate::judge::broken;

/// Queues that drop only when a device has more to send than it can.
const ORDINARY: [&str; 10] =
    ["noqueue", "pfifo_fast", "fq_codel", "fq", "mq", "cake", "codel", "mqprio", "sfq", "fq_pie"];
/// What holds filters and is not a queue.
const HOLDERS: [&str; 2] = ["clsact", "ingress"];
/// A queue in which fewer packets may wait drops with the first burst.
const TINY_LIMIT: u32 = 16;
/// Beginning of the names of links that the CNI plugin for bandwidth makes: `bwp…`.
const BANDWIDTH_LINK: &str = "bwp";

/// All queues of a network namespace, and the filters of some devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    queues: Vec<FoundQueue>,
    filters: Vec<FoundFilter>,
    devices: Vec<Device>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: Option<u8>,
    pub(crate) port: Option<u16>,
}

impl Queues {
    pub(crate) fn read(kernel: &mut Kernel) -> Self {
        let queues = kernel.queues().unwrap_or_default();
        let holds = |device: &&Device| {
            let of = |queue: &FoundQueue| queue.link == device.index;
            queues.iter().any(|queue| of(queue) && HOLDERS.contains(&queue.kind.as_str()))
        };
        let devices = kernel.devices.clone();
        let filters = devices
            .iter()
            .filter(holds)
            .flat_map(|device| kernel.filters(device.index).unwrap_or_default())
            .collect();
        Self { queues, filters, devices }
    }

    pub(crate) fn coming_in(&self, device: &Device, header: Header) -> Dropped {
        self.filtered(device, FilterPlace::Ingress, header)
    }

    pub(crate) fn going_out(&self, device: &Device, header: Header) -> Dropped {
        let mut dropped = self.filtered(device, FilterPlace::Egress, header);
        if dropped.surely.is_none() {
            for queue in self.queues.iter().filter(|queue| queue.link == device.index) {
                dropped.followed_by(judge_queue(queue, &device.name));
            }
        }
        dropped
    }

    pub(crate) fn delays(&self, device: &Device) -> Option<Finding> {
        let of = |queue: &&FoundQueue| queue.link == device.index;
        self.queues.iter().filter(of).find_map(|queue| {
            let QueueSetting::Faults { delay: delay @ 1.., .. } = queue.setting else {
                return None;
            };
            let (name, kind) = (&device.name, &queue.kind);
            let took = format!("{}.{} ms", delay / 1_000, delay % 1_000 / 100);
            let what = format!("the queue {kind} of {name} delays all that it sends by {took}");
            let fix = format!("tc qdisc del dev {name} root");
            Some(Finding::warning(Layer::Queues, what, "", fix))
        })
    }

    fn filtered(&self, device: &Device, place: FilterPlace, header: Header) -> Dropped {
        let mut dropped = Dropped::default();
        let here = |filter: &&FoundFilter| filter.link == device.index && filter.place == place;
        for filter in self.filters.iter().filter(here) {
            let mut found = judge_filter(filter, &device.name, &self.name(filter), header);
            if filter.effect == FilterEffect::Program {
                // A program counts nothing, and what holds it does.
                let holder = |queue: &&FoundQueue| {
                    queue.link == device.index && HOLDERS.contains(&queue.kind.as_str())
                };
                let drops = self.queues.iter().find(holder).map(|queue| queue.drops);
                found.perhaps.iter_mut().for_each(|drop| drop.packets = drops);
            }
            if !dropped.followed_by(found) {
                break;
            }
        }
        dropped
    }

    fn name(&self, filter: &FoundFilter) -> String {
        match filter.effect {
            FilterEffect::Redirects(index) => {
                self.device(index).map_or_else(|| index.to_string(), |device| device.name.clone())
            }
            _ => String::new(),
        }
    }

    fn device(&self, index: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.index == index)
    }

    pub(crate) fn counters(&self) -> Vec<Drop> {
        let name = |index: u32| self.device(index).map(|device| device.name.clone());
        let queues = self.queues.iter().filter_map(|queue| {
            let device = name(queue.link)?;
            let (rule, fix) = if HOLDERS.contains(&queue.kind.as_str()) {
                let show = |place: &str| format!("tc -s filter show dev {device} {place}");
                let fix = format!("{}; {}", show("ingress"), show("egress"));
                (format!("a filter (tc) of {device}"), fix)
            } else {
                let fix = format!("tc -s qdisc show dev {device}; tc qdisc del dev {device} root");
                (format!("the queue {} of {device}", queue.kind), fix)
            };
            Some(Drop { rule, fix, packets: Some(queue.drops) })
        });
        let filters = self.filters.iter().filter_map(|filter| {
            let drops = matches!(filter.effect, FilterEffect::Drops | FilterEffect::Polices);
            let device = name(filter.link).filter(|_| drops)?;
            let (rule, fix) = (words(filter, &device), deletion(filter, &device));
            Some(Drop { rule, fix, packets: filter.packets })
        });
        queues.chain(filters).collect()
    }
}

fn judge_queue(queue: &FoundQueue, device: &str) -> Dropped {
    let kind = queue.kind.as_str();
    if ORDINARY.contains(&kind) || HOLDERS.contains(&kind) {
        return Dropped::default();
    }
    let fix = format!("tc qdisc del dev {device} root");
    let drop = |rule: String| Drop { rule, fix: fix.clone(), packets: Some(queue.drops) };
    let surely = |rule: String| Dropped { surely: Some(drop(rule)), perhaps: Vec::new() };
    let perhaps = |rule: String| Dropped { surely: None, perhaps: vec![drop(rule)] };
    match (kind, queue.setting) {
        ("blackhole" | "noop", _) if queue.is_root => {
            surely(format!("the queue {kind} of {device}, which drops everything,"))
        }
        // One that delays only drops nothing.
        ("netem", QueueSetting::Faults { lost: 0, .. }) => Dropped::default(),
        ("netem", QueueSetting::Faults { lost, .. }) if lost >= 999 => {
            surely(format!("the queue netem of {device}, which drops everything,"))
        }
        ("netem", QueueSetting::Faults { lost, .. }) => perhaps(format!(
            "the queue netem of {device}, which drops {}.{} % of what it sends on purpose,",
            lost / 10,
            lost % 10
        )),
        ("tbf", QueueSetting::Rate(rate)) => perhaps(format!(
            "the queue tbf of {device}, which lets {} through and holds {} back now,",
            bits(rate),
            packets(queue.waiting)
        )),
        (_, QueueSetting::Limit(0)) => {
            surely(format!("the queue {kind} of {device}, in which nothing may wait,"))
        }
        (_, QueueSetting::Limit(limit)) if kind == "bfifo" || limit < TINY_LIMIT => {
            perhaps(format!("the queue {kind} of {device}, in which {limit} may wait,"))
        }
        (_, QueueSetting::Limit(_)) => Dropped::default(),
        _ => perhaps(format!("the queue {kind} of {device}")),
    }
}

fn judge_filter(filter: &FoundFilter, device: &str, to: &str, header: Header) -> Dropped {
    let matched = is_for(filter, header);
    if matched == Some(false) {
        return Dropped::default();
    }
    let mut rule = words(filter, device);
    match filter.effect {
        FilterEffect::Other => return Dropped::default(),
        // How pods' bandwidth is limited.
        FilterEffect::Redirects(_) if to.starts_with(BANDWIDTH_LINK) => return Dropped::default(),
        FilterEffect::Redirects(_) => rule.push_str(&format!(", which leads it to {to},")),
        FilterEffect::Program => rule.push_str(", a program of BPF,"),
        FilterEffect::Changes => rule.push_str(", which changes packets,"),
        FilterEffect::Drops | FilterEffect::Polices => {}
    }
    let drop = Drop { rule, fix: deletion(filter, device), packets: filter.packets };
    let sure = matches!(filter.effect, FilterEffect::Drops | FilterEffect::Redirects(_));
    match sure && matched == Some(true) {
        true => Dropped { surely: Some(drop), perhaps: Vec::new() },
        false => Dropped { surely: None, perhaps: vec![drop] },
    }
}

fn words(filter: &FoundFilter, device: &str) -> String {
    let place = place(filter.place);
    format!("the filter {} (tc, pref {}, {place} of {device})", filter.kind, filter.priority)
}

fn deletion(filter: &FoundFilter, device: &str) -> String {
    format!("tc filter del dev {device} {} pref {}", place(filter.place), filter.priority)
}

fn place(place: FilterPlace) -> &'static str {
    match place {
        FilterPlace::Ingress => "ingress",
        FilterPlace::Egress => "egress",
    }
}

/// Whether a filter is for a packet; `None` if that is not known.
fn is_for(filter: &FoundFilter, header: Header) -> Option<bool> {
    let family = if header.dst.is_ipv4() { 0x0800 } else { 0x86dd };
    if filter.protocol.is_some_and(|protocol| protocol != family) {
        return Some(false);
    }
    match &filter.selector {
        FilterSelector::Everything => Some(true),
        FilterSelector::Unknown => None,
        FilterSelector::Words(words) => {
            let mut all = Some(true);
            for (mask, value, offset) in words {
                match word(header, *offset, *mask) {
                    Some(found) if found & mask == value & mask => {}
                    Some(_) => return Some(false),
                    None => all = None,
                }
            }
            all
        }
    }
}

/// 32 bits of an IPv4 packet, if all that the mask asks for is known.
fn word(header: Header, offset: i32, mask: u32) -> Option<u32> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (header.src, header.dst) else { return None };
    match offset {
        0 if mask & 0x00ff_ffff == 0 => Some(0x4500_0000),
        8 if mask & !0x00ff_0000 == 0 => header.protocol.map(|protocol| u32::from(protocol) << 16),
        12 => Some(src.to_bits()),
        16 => Some(dst.to_bits()),
        20 if mask & 0xffff_0000 == 0 => header.port.map(u32::from),
        _ => None,
    }
}

fn bits(bytes_a_second: u64) -> String {
    match bytes_a_second * 8 {
        bits @ 0..1_000_000 => format!("{} kbit/s", bits / 1_000),
        bits => format!("{} Mbit/s", bits / 1_000_000),
    }
}

fn packets(count: u32) -> String {
    if count == 1 { "1 packet".to_owned() } else { format!("{count} packets") }
}

pub(crate) fn finding(drop: Drop) -> Finding {
    broken(Layer::Queues, format!("{} drops it", drop.rule), drop.fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(kind: &str, setting: QueueSetting) -> FoundQueue {
        FoundQueue { link: 1, kind: kind.to_owned(), is_root: true, drops: 5, waiting: 0, setting }
    }

    fn filter(effect: FilterEffect, selector: FilterSelector) -> FoundFilter {
        FoundFilter {
            link: 1,
            place: FilterPlace::Ingress,
            kind: "u32".to_owned(),
            priority: 7,
            protocol: Some(0x0800),
            effect,
            selector,
            packets: Some(3),
        }
    }

    const HEADER: Header = Header {
        src: IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 2)),
        dst: IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 2, 2)),
        protocol: Some(6),
        port: None,
    };

    #[test]
    fn a_queue_that_drops_everything_is_named_and_one_that_may_is_told_with_its_count() {
        for usual in ["noqueue", "fq_codel", "mq", "clsact"] {
            assert_eq!(judge_queue(&queue(usual, QueueSetting::None), "eth0"), Dropped::default());
        }
        let all = judge_queue(&queue("blackhole", QueueSetting::None), "eth0").surely.unwrap();
        assert_eq!(all.fix, "tc qdisc del dev eth0 root");
        let some = judge_queue(&queue("tbf", QueueSetting::Rate(12_500)), "eth0");
        assert!(some.surely.is_none());
        assert!(some.perhaps[0].rule.contains("100 kbit/s"), "{some:?}");
        assert_eq!(some.perhaps[0].packets, Some(5));
        let usual = judge_queue(&queue("pfifo", QueueSetting::Limit(1_000)), "eth0");
        assert_eq!(usual, Dropped::default());
        assert!(!judge_queue(&queue("pfifo", QueueSetting::Limit(1)), "eth0").perhaps.is_empty());
        let lossy = QueueSetting::Faults { lost: 100, delay: 0 };
        let found = judge_queue(&queue("netem", lossy), "eth0");
        assert!(found.perhaps[0].rule.contains("10.0 %"), "{found:?}");
    }

    #[test]
    fn a_queue_that_delays_is_named_with_its_delay_and_drops_nothing() {
        let delayed = queue("netem", QueueSetting::Faults { lost: 0, delay: 120_500 });
        assert_eq!(judge_queue(&delayed, "eth0"), Dropped::default());
        let device = Device::plain(1, "eth0");
        let named =
            |queue: FoundQueue| Queues { queues: vec![queue], ..Queues::default() }.delays(&device);
        let words = "the queue netem of eth0 delays all that it sends by 120.5 ms; tc qdisc del dev eth0 root";
        assert_eq!(named(delayed).map(|it| it.to_string()).as_deref(), Some(words));
        assert_eq!(named(queue("netem", QueueSetting::Faults { lost: 9, delay: 0 })), None);
        assert_eq!(named(queue("tbf", QueueSetting::Rate(12_500))), None);
    }

    #[test]
    fn a_filter_is_for_the_packets_whose_words_it_asks_for() {
        let judged =
            |effect, selector| judge_filter(&filter(effect, selector), "eth0", "lo", HEADER);
        let drops = |words: &[(u32, u32, i32)]| {
            judged(FilterEffect::Drops, FilterSelector::Words(words.to_vec()))
        };
        let everything = judged(FilterEffect::Drops, FilterSelector::Everything).surely.unwrap();
        assert_eq!(everything.fix, "tc filter del dev eth0 ingress pref 7");
        assert!(drops(&[(0x00ff_0000, 0x0006_0000, 8)]).surely.is_some(), "TCP");
        assert_eq!(drops(&[(0x00ff_0000, 0x0011_0000, 8)]), Dropped::default(), "UDP");
        assert!(drops(&[(u32::MAX, 0x0af4_0202, 16)]).surely.is_some(), "to that pod");
        let port = drops(&[(0x0000_ffff, 80, 20)]);
        assert!(port.surely.is_none() && port.perhaps.len() == 1, "nobody knows the port");
        let program = judged(FilterEffect::Program, FilterSelector::Unknown);
        assert!(program.surely.is_none() && program.perhaps.len() == 1);
        let changed = judged(FilterEffect::Changes, FilterSelector::Everything);
        assert!(changed.surely.is_none(), "it may be meant so");
        assert!(changed.perhaps[0].rule.contains("which changes packets"));
        let stolen = judged(FilterEffect::Redirects(1), FilterSelector::Everything);
        assert!(stolen.surely.unwrap().rule.contains("leads it to lo"));
        let bandwidth = filter(FilterEffect::Redirects(9), FilterSelector::Everything);
        assert_eq!(judge_filter(&bandwidth, "veth1", "bwp12", HEADER), Dropped::default());
    }
}
