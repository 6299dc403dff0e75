//! Who a node is when its address has changed: every case of the rule, and machines that live, move and are
//! copied at random.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use fastrand::Rng;
use flannel_lease::{
    Choice, Claimant, IdentityEvidence, Lease, LeaseAttrs, LeaseOwnership, NodeIdentity, RawJson,
    Subnet, SystemEvidence, Version, decide, same_device, same_node,
};
use proptest::prelude::*;

use crate::support::{any_attrs, any_subnet, cases, config, lease, subnet};

const CONFIG: &str = r#"{"Network":"10.5.0.0/16"}"#;
const OURS: &str = "10.5.1.0-24";
const FORMER: &str = "192.0.2.1";
const NOW: &str = "192.0.2.7";

fn attrs(address: &str, mac: u8) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: address.parse().ok(),
        backend_type: "vxlan".into(),
        backend_data: RawJson::encode(&mac).ok(),
        ..LeaseAttrs::default()
    }
}

fn held(address: &str, mac: u8) -> Lease {
    Lease { subnet: subnet(OURS), attrs: attrs(address, mac) }
}

#[test]
fn every_case_of_the_rule() {
    let kept = NodeIdentity::new(&held(FORMER, 1), Version::new(7));
    let elsewhere = NodeIdentity::new(
        &Lease { subnet: subnet("10.5.9.0-24"), ..held(FORMER, 1) },
        Version::new(7),
    );
    let own = [IpAddr::from([192, 0, 2, 1])];
    let asked = LeaseOwnership::IfSilent(IpAddr::from([192, 0, 2, 1]));
    let file = Some(subnet(OURS));
    let evidence = IdentityEvidence { previous: file, ..IdentityEvidence::default() };
    let with = |remembered| IdentityEvidence { remembered: Some(remembered), ..evidence };
    let cases: [(&str, IdentityEvidence<'_>, Lease, LeaseOwnership); 11] = [
        ("our present address", evidence, held(NOW, 9), LeaseOwnership::Present),
        ("as we last wrote it", with(&kept), held(FORMER, 1), LeaseOwnership::Former),
        (
            "after a reboot",
            IdentityEvidence { previous: None, ..with(&kept) },
            held(FORMER, 1),
            LeaseOwnership::Former,
        ),
        ("written by somebody since", with(&kept), held(FORMER, 2), LeaseOwnership::Anothers),
        ("moved by somebody since", with(&kept), held("192.0.2.5", 1), LeaseOwnership::Anothers),
        ("the subnet file is newer", with(&elsewhere), held(FORMER, 1), LeaseOwnership::Anothers),
        ("the file alone", evidence, held(FORMER, 1), LeaseOwnership::Anothers),
        (
            "running since boot",
            IdentityEvidence { running: SystemEvidence::SinceBoot, ..evidence },
            held(FORMER, 1),
            asked,
        ),
        (
            "running, and nobody to ask",
            IdentityEvidence { running: SystemEvidence::SinceBoot, ..evidence },
            lease(OURS, ""),
            LeaseOwnership::Anothers,
        ),
        (
            "an address that we still have",
            IdentityEvidence { addresses: &own, ..evidence },
            held(FORMER, 1),
            LeaseOwnership::Former,
        ),
        (
            "somebody else's address",
            IdentityEvidence { addresses: &own, ..evidence },
            held("192.0.2.5", 1),
            LeaseOwnership::Anothers,
        ),
    ];
    let now = attrs(NOW, 1);
    for (name, evidence, lease, expected) in cases {
        assert_eq!(
            evidence.ownership(&config(CONFIG), &now, &lease, Version::new(7)),
            expected,
            "{name}"
        );
    }
    // Somebody has written the same again: this node, another flannel on it, or who has its address now.
    assert_eq!(
        with(&kept).ownership(&config(CONFIG), &now, &held(FORMER, 1), Version::new(8)),
        asked
    );
    let unknown = NodeIdentity::new(&held(FORMER, 1), Version::UNKNOWN);
    assert_eq!(
        with(&unknown).ownership(&config(CONFIG), &now, &held(FORMER, 1), Version::UNKNOWN),
        asked
    );
}

#[test]
fn a_node_remembers_its_former_announcements_on_one_subnet_and_not_for_ever() {
    let mut kept = NodeIdentity::new(&held(FORMER, 1), Version::new(7));
    let is_ours = |kept: &NodeIdentity, lease: &Lease| {
        let evidence = IdentityEvidence { remembered: Some(kept), ..IdentityEvidence::default() };
        matches!(
            evidence.ownership(&config(CONFIG), &attrs(NOW, 1), lease, Version::new(9)),
            LeaseOwnership::IfSilent(_)
        )
    };
    kept.note(&held("192.0.2.2", 1), Version::new(8));
    assert!(is_ours(&kept, &held(FORMER, 1)), "a backup knows it");
    (10..20).for_each(|n| kept.note(&held(&format!("192.0.2.{n}"), 1), Version::new(8)));
    assert!(!is_ours(&kept, &held(FORMER, 1)) && is_ours(&kept, &held("192.0.2.19", 1)));
    let moved = Lease { subnet: subnet("10.5.2.0-24"), ..held("192.0.2.3", 1) };
    kept.note(&moved, Version::new(9));
    assert_eq!(kept, NodeIdentity::new(&moved, Version::new(9)));
}

#[test]
fn the_version_is_kept_as_a_number() {
    let text = r#"{"Subnet":"10.5.1.0-24","Version":7,"Announced":[{"PublicIP":"192.0.2.1","PublicIPv6":null}]}"#;
    let kept = NodeIdentity::from_json(text).unwrap();
    assert_eq!(kept.to_json(), text);
}

#[test]
fn what_cannot_be_read_is_said() {
    for text in [
        "",
        "{}",
        "[]",
        r#"{"Subnet":"x","Announced":[]}"#,
        r#"{"Subnet":"10.5.1.0-24","Announced":[{"PublicIP":5}]}"#,
    ] {
        assert!(NodeIdentity::from_json(text).is_err(), "{text}");
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn what_is_kept_is_read_as_the_same(subnet in any_subnet(), all in prop::collection::vec(any_attrs(), 1..6)) {
        let mut attrs = all.into_iter();
        let mut kept = NodeIdentity::new(&Lease { subnet, attrs: attrs.next().unwrap() }, Version::new(1));
        attrs.for_each(|attrs| kept.note(&Lease { subnet, attrs }, Version::new(u64::MAX)));
        prop_assert_eq!(NodeIdentity::from_json(&kept.to_json()), Ok(kept));
    }
}

/// A machine: what its disk, its memory and its card say, and whether its daemon runs.
#[derive(Clone, Debug)]
struct Machine {
    card: usize,
    address: u8,
    /// The disk: what was kept, by card.
    disk: BTreeMap<usize, NodeIdentity>,
    /// In memory: gone with a reboot.
    file: Option<Subnet>,
    device: Option<u8>,
    /// On the air, and so heard by those who ask for its address.
    on: bool,
    holds: Option<Subnet>,
}

struct World {
    rng: Rng,
    machines: Vec<Machine>,
    store: BTreeMap<Subnet, (LeaseAttrs, Version)>,
    revision: u64,
    cards: usize,
    macs: u8,
    kept: u32,
    told_apart: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: Rng::with_seed(seed),
            machines: Vec::new(),
            store: BTreeMap::new(),
            revision: 0,
            cards: 0,
            macs: 0,
            kept: 0,
            told_apart: 0,
        };
        (0..4).for_each(|_| world.buy());
        world
    }

    fn buy(&mut self) {
        self.cards += 1;
        let (card, address) = (self.cards, self.free_address());
        let disk = BTreeMap::new();
        self.machines.push(Machine {
            card,
            address,
            disk,
            file: None,
            device: None,
            on: true,
            holds: None,
        });
    }

    fn free_address(&mut self) -> u8 {
        let taken: BTreeSet<u8> = self.machines.iter().map(|machine| machine.address).collect();
        let free: Vec<u8> = (1..60).filter(|address| !taken.contains(address)).collect();
        free[self.rng.usize(0..free.len())]
    }

    fn start(&mut self, at: usize) {
        let machine = self.machines[at].clone();
        if machine.holds.is_some() || !machine.on {
            return;
        }
        let config = config(CONFIG);
        let address = |last: u8| Ipv4Addr::new(192, 0, 2, last);
        let mac = machine.device.unwrap_or_else(|| {
            self.macs = self.macs.wrapping_add(1);
            self.macs
        });
        let mut now = attrs(&address(machine.address).to_string(), mac);
        let remembered = machine.disk.get(&machine.card);
        let previous = machine.file;
        let mut evidence = IdentityEvidence { previous, remembered, ..IdentityEvidence::default() };
        let former = evidence.subnet();
        let found = former.and_then(|subnet| {
            let (attrs, version) = self.store.get(&subnet)?.clone();
            Some((Lease { subnet, attrs }, version))
        });
        let mut own = None;
        if let Some((lease, version)) = &found {
            let fits = machine.device.is_none_or(|_| same_device(&now, &lease.attrs));
            if machine.file.is_some() && fits {
                evidence.running = SystemEvidence::SinceBoot;
            }
            let copied = machine
                .disk
                .iter()
                .any(|(card, kept)| *card != machine.card && kept.subnet() == lease.subnet);
            let live = |ip: IpAddr| {
                self.machines.iter().any(|m| m.on && IpAddr::V4(address(m.address)) == ip)
            };
            own = match evidence.ownership(&config, &now, lease, *version) {
                LeaseOwnership::Former => Some(lease.clone()),
                LeaseOwnership::IfSilent(ip) if !live(ip) && !copied => Some(lease.clone()),
                _ => None,
            };
        }
        let subnet = match own {
            Some(lease) => {
                self.kept += 1;
                now.backend_data = lease.attrs.backend_data;
                lease.subnet
            }
            None => {
                let leases: Vec<Lease> = self
                    .store
                    .iter()
                    .map(|(s, (a, _))| Lease { subnet: *s, attrs: a.clone() })
                    .collect();
                let me =
                    Claimant { public_ip: now.public_ip, previous: former, ..Claimant::default() };
                let decision = decide(&config, &leases, &me, &mut self.rng).unwrap();
                let (Choice::Keep(subnet) | Choice::Take(subnet)) = decision.choice;
                if let (Choice::Keep(_), Some((known, _))) =
                    (decision.choice, self.store.get(&subnet))
                {
                    now.backend_data = known.backend_data.clone();
                }
                subnet
            }
        };
        let twin = |(other, (attrs, _)): (&Subnet, &(LeaseAttrs, Version))| {
            *other != subnet && !same_node(&config, attrs, &now) && same_device(attrs, &now)
        };
        if self.store.iter().any(twin) {
            self.told_apart += 1;
            self.macs = self.macs.wrapping_add(1);
            now.backend_data = RawJson::encode(&self.macs).ok();
        }
        let mac = now.backend_data.as_ref().and_then(|data| data.parse().ok());
        self.revision += 1;
        let version = Version::new(self.revision);
        self.store.insert(subnet, (now.clone(), version));
        let lease = Lease { subnet, attrs: now };
        let machine = &mut self.machines[at];
        machine.device = mac;
        machine.file = Some(subnet);
        machine.holds = Some(subnet);
        let card = machine.card;
        machine
            .disk
            .entry(card)
            .or_insert_with(|| NodeIdentity::new(&lease, version))
            .note(&lease, version);
    }

    fn step(&mut self) {
        let at = self.rng.usize(0..self.machines.len());
        match self.rng.u8(0..12) {
            0..=3 => self.start(at),
            4 | 5 => self.machines[at].holds = None,
            6 => {
                let machine = &mut self.machines[at];
                machine.on = !machine.on;
                (machine.holds, machine.file, machine.device) = (None, None, None);
            }
            7 | 8 if self.machines[at].holds.is_none() => {
                self.machines[at].address = self.free_address();
            }
            9 => {
                // Two machines that are down exchange their addresses.
                let other = self.rng.usize(0..self.machines.len());
                if self.machines[at].holds.is_none() && self.machines[other].holds.is_none() {
                    let mine = self.machines[at].address;
                    self.machines[at].address =
                        std::mem::replace(&mut self.machines[other].address, mine);
                }
            }
            10 if self.machines.len() < 12 && self.machines[at].on => {
                // A copy of all that can be copied, while the original is on the air.
                self.cards += 1;
                let (card, address) = (self.cards, self.free_address());
                let copy = Machine { card, address, holds: None, ..self.machines[at].clone() };
                self.machines.push(copy);
            }
            _ if self.machines.len() < 12 => self.buy(),
            _ => {}
        }
    }

    /// No two machines that live have one subnet, or one device address; and the store knows of each.
    fn check(&self) {
        let mut taken = BTreeSet::new();
        let mut devices = BTreeSet::new();
        for machine in &self.machines {
            let Some(subnet) = machine.holds else { continue };
            assert!(taken.insert(subnet), "{subnet} twice: {:#?}", self.machines);
            assert!(devices.insert(machine.device), "a device twice: {:#?}", self.machines);
            let told = self.store[&subnet].0.public_ip.map(|ip| ip.octets()[3]);
            assert_eq!(told, Some(machine.address), "{:#?}", self.machines);
        }
    }
}

#[test]
fn no_two_running_machines_ever_share_a_subnet_whatever_is_copied_and_moved() {
    let (mut kept, mut told_apart) = (0, 0);
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step();
            world.check();
        }
        kept += world.kept;
        told_apart += world.told_apart;
    }
    assert!(kept > 500 && told_apart > 20, "it happened: {kept} kept, {told_apart} told apart");
}

#[test]
fn a_machine_that_nobody_copied_always_keeps_its_subnet() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        (0..4).for_each(|at| world.start(at));
        let before: Vec<_> = world.machines.iter().map(|machine| machine.holds).collect();
        for _ in 0..20 {
            // All go down, some are switched off, all get other addresses, some each other's.
            for at in 0..4 {
                let reboots = world.rng.bool();
                let machine = &mut world.machines[at];
                machine.holds = None;
                if reboots {
                    (machine.file, machine.device) = (None, None);
                }
                world.machines[at].address = world.free_address();
            }
            let first = world.machines[0].address;
            world.machines[0].address = std::mem::replace(&mut world.machines[3].address, first);
            let mut order = [0, 1, 2, 3];
            world.rng.shuffle(&mut order);
            order.into_iter().for_each(|at| world.start(at));
            let after: Vec<_> = world.machines.iter().map(|machine| machine.holds).collect();
            assert_eq!(after, before, "seed {seed}");
            world.check();
        }
    }
}
