use std::net::{Ipv4Addr, Ipv6Addr};

use flannel_lease::{Claimant, Lease, decide};

use super::*;

const NOW: Millis = 1_800_000_000_000;
const TTL: Millis = LEASE_TTL.as_millis() as Millis;
const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

fn network() -> NetworkName {
    NetworkName::default()
}

fn attrs(node: u32) -> LeaseAttrs {
    LeaseAttrs { public_ip: Some(Ipv4Addr::from_bits(0xc000_0200 + node)), ..Default::default() }
}

fn subnet(key: &str) -> Subnet {
    key.parse().unwrap()
}

fn someone(name: &str, node: u32) -> Who {
    let address = attrs(node).public_ip.unwrap().into();
    let addresses = Addresses::Only([address].into());
    Who { name: Some(name.into()), admin: false, addresses, source: None }
}

/// Somebody who may announce any address, and comes from this node's.
fn anywhere(name: &str, node: u32) -> Who {
    let source = attrs(node).public_ip.map(Into::into);
    Who { name: Some(name.into()), admin: false, addresses: Addresses::Any, source }
}

/// A ledger and what drives it.
struct Desk {
    ledger: Ledger,
    rng: fastrand::Rng,
    now: Millis,
}

impl Desk {
    fn new() -> Self {
        Self::with(CONFIG)
    }

    fn with(config: &str) -> Self {
        let rng = fastrand::Rng::with_seed(7);
        let mut desk = Self { ledger: Ledger::default(), rng, now: NOW };
        let start = desk.ledger.start(1, NOW);
        desk.ledger.apply(&start);
        desk.ask(&Request::SetConfig { text: config.to_owned(), force: false }).unwrap();
        desk
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let (reply, commit) = self.ledger.decide(&network(), request, self.now, &mut self.rng)?;
        if let Some(commit) = commit {
            assert_eq!(Commit::from_json(&commit.to_json().unwrap()).as_ref(), Ok(&commit));
            self.ledger.apply(&commit);
        }
        Ok(reply)
    }

    fn acquire(&mut self, node: u32, previous: Option<&str>) -> Result<(Subnet, Entry), Refusal> {
        self.acquire_as(node, previous, Who::anybody())
    }

    fn acquire_as(
        &mut self,
        node: u32,
        previous: Option<&str>,
        who: Who,
    ) -> Result<(Subnet, Entry), Refusal> {
        let previous = previous.map(subnet);
        match self.ask(&Request::Acquire { attrs: attrs(node), previous, who })? {
            Reply::Lease(subnet, entry) => Ok((subnet, entry)),
            Reply::Done => panic!("acquiring gives a lease"),
        }
    }

    fn renew(&mut self, of: Subnet, node: u32, version: Option<u64>) -> Result<Reply, Refusal> {
        let who = Who::anybody();
        self.ask(&Request::Renew { subnet: of, attrs: attrs(node), version, who })
    }

    fn renew_as(&mut self, of: Subnet, node: u32, who: Who) -> Result<Reply, Refusal> {
        self.ask(&Request::Renew { subnet: of, attrs: attrs(node), version: None, who })
    }

    fn expire(&mut self) {
        while let Some(commit) = self.ledger.expire(self.now) {
            self.ledger.apply(&commit);
        }
    }

    fn leases(&self) -> Vec<Subnet> {
        self.ledger.network(&network()).unwrap().leases().keys().copied().collect()
    }
}

#[test]
fn a_node_gets_a_subnet_and_the_same_one_when_it_asks_again() {
    let mut desk = Desk::new();
    let (first, entry) = desk.acquire(1, None).unwrap();
    assert_eq!(entry.expires, Some(NOW + TTL));
    desk.now += 1_000;
    let (again, entry) = desk.acquire(1, None).unwrap();
    assert_eq!((again, entry.expires), (first, Some(NOW + 1_000 + TTL)));
    let (other, _) = desk.acquire(2, Some(&first.to_string())).unwrap();
    assert_ne!(other, first, "what somebody holds is nobody else's previous one");
    assert_eq!(desk.acquire(3, Some("10.5.77.0-24")).unwrap().0, subnet("10.5.77.0-24"));
}

#[test]
fn a_lease_nobody_renews_is_gone_a_day_later_and_not_before() {
    let mut desk = Desk::new();
    desk.acquire(1, None).unwrap();
    desk.now += TTL - 1;
    desk.expire();
    assert_eq!(desk.leases().len(), 1);
    desk.now += 1;
    desk.expire();
    assert_eq!(desk.leases(), []);
}

#[test]
fn a_lease_is_renewed_by_its_node_alone() {
    let mut desk = Desk::new();
    let (of, entry) = desk.acquire(1, None).unwrap();
    desk.now += TTL / 2;
    assert!(matches!(desk.renew(of, 1, Some(entry.version)), Ok(Reply::Lease(..))));
    assert!(
        matches!(desk.renew(of, 1, Some(entry.version)), Ok(Reply::Lease(..))),
        "a lost answer"
    );
    assert!(matches!(desk.renew(of, 2, Some(entry.version)), Err(Refusal::Taken(..))));
    assert!(matches!(desk.renew(of, 2, None), Err(Refusal::Taken(..))));
    let gone = subnet("10.5.200.0-24");
    assert_eq!(desk.renew(gone, 1, None), Err(Refusal::Gone(gone)));
    let current = desk.ledger.network(&network()).unwrap().lease(&of).unwrap().version;
    assert!(desk.renew(of, 9, Some(current)).is_ok(), "a node may change its address");
}

#[test]
fn a_named_client_touches_nothing_of_others() {
    let mut desk = Desk::new();
    let (of, _) = desk.acquire_as(1, None, someone("a", 1)).unwrap();
    let thief = || someone("b", 2);
    let address = attrs(1).public_ip.unwrap().into();
    assert_eq!(desk.acquire_as(1, None, thief()), Err(Refusal::ForeignAddress(address)));
    let renew = Request::Renew { subnet: of, attrs: attrs(1), version: None, who: thief() };
    assert!(matches!(desk.ask(&renew), Err(Refusal::NotYours(..))));
    let release = |who| Request::Release { subnet: of, version: None, who };
    assert!(matches!(desk.ask(&release(thief())), Err(Refusal::NotYours(..))));
    // Somebody allowed to announce the address, but who is not the one who holds the lease.
    let said = desk.acquire_as(1, None, someone("b", 1)).unwrap_err().to_string();
    let cidr = of.v4().unwrap();
    assert!(said.contains("belongs to a;"), "{said}");
    assert!(said.contains(&format!("`flannelctl release {cidr}`")), "{said}");
    assert_eq!(desk.leases(), [of]);
    // The node itself comes back with another address and still has its subnet.
    let (again, _) = desk.acquire_as(5, Some(&of.to_string()), someone("a", 5)).unwrap();
    assert_eq!(again, of);
    assert_eq!(desk.ask(&release(someone("a", 5))), Ok(Reply::Done));
    assert_eq!(desk.leases(), []);
}

/// The server's own lease, and those that were brought in, have no owner.
#[test]
fn who_may_announce_any_address_still_changes_no_lease_but_its_own() {
    let mut desk = Desk::new();
    let (named, _) = desk.acquire_as(1, None, someone("a", 1)).unwrap();
    let (nameless, _) = desk.acquire(2, None).unwrap();
    let brought = subnet("10.5.177.0-24");
    let left = Some(TTL);
    desk.ask(&Request::Import { subnet: brought, attrs: attrs(3), left }).unwrap();
    let reserved = subnet("10.5.178.0-24");
    desk.ask(&Request::Reserve { subnet: reserved, attrs: attrs(4) }).unwrap();
    let who = || anywhere("nat", 9);
    let (own, _) = desk.acquire_as(50, None, who()).unwrap();
    let before = format!("{:?}", desk.ledger);
    for (of, node) in [(named, 1), (nameless, 2), (brought, 3), (reserved, 4)] {
        let version = desk.ledger.network(&network()).unwrap().lease(&of).map(|e| e.version);
        let previous = Some(of);
        let (theirs, ours) = (attrs(node), attrs(50));
        for request in [
            Request::Acquire { attrs: theirs.clone(), previous, who: who() },
            Request::Renew { subnet: of, attrs: theirs.clone(), version, who: who() },
            Request::Renew { subnet: of, attrs: ours, version, who: who() },
            Request::Release { subnet: of, version, who: who() },
            // It may not sit down at another node's address either.
            Request::Renew {
                subnet: own,
                attrs: theirs,
                version: Some(own_version(&desk, own)),
                who: who(),
            },
        ] {
            let refused = desk.ask(&request);
            assert!(matches!(refused, Err(Refusal::NotYours(..))), "{request:?}: {refused:?}");
        }
    }
    assert_eq!(format!("{:?}", desk.ledger), before);
    // What is at the address it comes from is its own, with an owner or without.
    assert_eq!(desk.acquire_as(2, None, anywhere("late", 2)).unwrap().0, nameless);
    assert!(desk.renew_as(own, 50, who()).is_ok());
    let release = Request::Release { subnet: own, version: None, who: who() };
    assert_eq!(desk.ask(&release), Ok(Reply::Done));
}

fn own_version(desk: &Desk, of: Subnet) -> u64 {
    desk.ledger.network(&network()).unwrap().lease(&of).unwrap().version
}

#[test]
fn an_operator_who_renews_a_nodes_lease_does_not_take_it_away() {
    let mut desk = Desk::new();
    let (of, _) = desk.acquire_as(1, None, someone("a", 1)).unwrap();
    let boss = Who { admin: true, ..anywhere("boss", 9) };
    assert!(desk.renew_as(of, 1, boss).is_ok());
    assert!(desk.renew_as(of, 1, someone("a", 1)).is_ok());
}

#[test]
fn a_lease_carries_no_more_than_a_backend_needs() {
    let mut desk = Desk::new();
    let (of, _) = desk.acquire(1, None).unwrap();
    let with = |size: usize| {
        let data = format!("\"{}\"", "x".repeat(size - 2));
        LeaseAttrs { backend_data: flannel_lease::RawJson::read(&data).unwrap(), ..attrs(1) }
    };
    let split = |size: usize| {
        let LeaseAttrs { backend_data, .. } = with(size);
        LeaseAttrs { backend_v6_data: backend_data.clone(), backend_data, ..attrs(1) }
    };
    let who = Who::anybody;
    let renew = |attrs| Request::Renew { subnet: of, attrs, version: None, who: who() };
    let acquire = |attrs| Request::Acquire { attrs, previous: None, who: who() };
    let import = |attrs| Request::Import { subnet: of, attrs, left: None };
    desk.ask(&renew(with(LARGEST_DATA))).unwrap();
    for large in [with(LARGEST_DATA + 1), with(250_000), split(LARGEST_DATA / 2 + 1)] {
        let size = large.weight();
        for request in [renew(large.clone()), acquire(large.clone()), import(large.clone())] {
            let refused = desk.ask(&request).unwrap_err();
            assert_eq!(refused, Refusal::TooLarge(size));
            let said = refused.to_string();
            assert!(said.contains(&size.to_string()) && said.contains("8192"), "{said}");
        }
    }
    let long = LeaseAttrs { backend_type: "x".repeat(LARGEST_DATA + 1), ..attrs(1) };
    assert!(matches!(desk.ask(&renew(long)), Err(Refusal::TooLarge(_))));
}

/// By whatever clock it was said how long it has left.
#[test]
fn a_lease_that_is_brought_in_can_be_renewed_in_time() {
    let mut desk = Desk::new();
    for (third, left) in [(1, 0), (2, 1_000), (3, TTL), (4, u64::MAX)] {
        let of = subnet(&format!("10.5.{third}.0-24"));
        let request = Request::Import { subnet: of, attrs: attrs(third), left: Some(left) };
        let Ok(Reply::Lease(_, entry)) = desk.ask(&request) else { panic!("brought in") };
        let life = entry.expires.unwrap() - desk.now;
        assert!((GRACE.as_millis() as Millis..=TTL).contains(&life), "{left}: {life}");
    }
}

#[test]
fn a_reservation_outlives_everything_but_its_removal() {
    let mut desk = Desk::new();
    let of = subnet("10.5.9.0-24");
    let reserve = |node| Request::Reserve { subnet: of, attrs: attrs(node) };
    desk.ask(&reserve(1)).unwrap();
    desk.now += TTL * 10;
    desk.expire();
    assert_eq!(desk.leases(), [of]);
    let (got, entry) = desk.acquire(1, None).unwrap();
    assert_eq!((got, entry.expires), (of, None), "it is reused and stays one");
    let Ok(Reply::Lease(_, entry)) = desk.renew(of, 1, None) else { panic!("renewed") };
    assert_eq!(entry.expires, None);
    assert!(matches!(desk.ask(&reserve(2)), Err(Refusal::Taken(..))));
    let release = Request::Release { subnet: of, version: None, who: Who::anybody() };
    assert_eq!(desk.ask(&release), Err(Refusal::Reserved(of)));
    let Ok(Reply::Lease(_, entry)) = desk.ask(&Request::Unreserve { subnet: of }) else {
        panic!("unreserved")
    };
    assert_eq!(entry.expires, Some(desk.now + TTL));
    desk.ask(&reserve(1)).unwrap();
    let outside = subnet("10.6.9.0-24");
    let request = Request::Reserve { subnet: outside, attrs: attrs(1) };
    assert_eq!(desk.ask(&request), Err(Refusal::NotInPool(outside)));
}

#[test]
fn a_config_that_strands_leases_needs_force() {
    let mut desk = Desk::new();
    let (of, _) = desk.acquire(1, None).unwrap();
    let set = |text: &str, force| Request::SetConfig { text: text.to_owned(), force };
    let other = r#"{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan"}}"#;
    assert_eq!(desk.ask(&set(other, false)), Err(Refusal::Stranded { count: 1, example: of }));
    assert!(matches!(desk.ask(&set("{", true)), Err(Refusal::BadConfig(_))));
    let wider = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.5.0.0","Backend":{"Type":"vxlan"}}"#;
    assert_eq!(desk.ask(&set(wider, false)), Ok(Reply::Done), "the lease still fits");
    assert_eq!(desk.ask(&set(other, true)), Ok(Reply::Done));
    let (moved, _) = desk.acquire(1, Some(&of.to_string())).unwrap();
    assert!(moved.to_string().starts_with("10.9."), "{moved}");
    assert_eq!(desk.leases(), [moved], "the stranded lease is discarded with it");
}

#[test]
fn a_network_without_config_is_no_network() {
    let mut ledger = Ledger::default();
    let request = Request::Acquire { attrs: attrs(1), previous: None, who: Who::anybody() };
    let refused = ledger.decide(&network(), &request, NOW, &mut fastrand::Rng::with_seed(1));
    assert_eq!(refused, Err(Refusal::NoNetwork(network())));
    let mut desk = Desk::new();
    let nobody =
        Request::Acquire { attrs: LeaseAttrs::default(), previous: None, who: Who::anybody() };
    assert_eq!(desk.ask(&nobody), Err(Refusal::NoAddress("PublicIP")));
    desk.acquire(1, None).unwrap();
    assert_eq!(desk.ask(&Request::RemoveNetwork { force: false }), Err(Refusal::InUse(1)));
    assert_eq!(desk.ask(&Request::RemoveNetwork { force: true }), Ok(Reply::Done));
    assert!(desk.ledger.network(&network()).is_none());
}

#[test]
fn time_stands_still_while_nobody_serves() {
    for (away, clock) in
        [(0_i64, "right"), (30 * 86_400_000, "a month later"), (-86_400_000, "set back")]
    {
        let mut desk = Desk::new();
        let (of, _) = desk.acquire(1, None).unwrap();
        desk.now += TTL / 2;
        let tick = desk.ledger.tick(desk.now);
        desk.ledger.apply(&tick);
        let back = desk.now.saturating_add_signed(away);
        let start = desk.ledger.start(2, back);
        desk.ledger.apply(&start);
        let entry = desk.ledger.network(&network()).unwrap().lease(&of).unwrap();
        assert_eq!(entry.expires, Some(back + TTL / 2), "the clock is {clock}");
    }
    let mut desk = Desk::new();
    let (of, _) = desk.acquire(1, None).unwrap();
    desk.now += TTL - 1;
    let tick = desk.ledger.tick(desk.now);
    desk.ledger.apply(&tick);
    let start = desk.ledger.start(2, desk.now);
    desk.ledger.apply(&start);
    let entry = desk.ledger.network(&network()).unwrap().lease(&of).unwrap();
    assert_eq!(entry.expires, Some(desk.now + GRACE.as_millis() as Millis), "time to renew");
}

#[test]
fn a_fork_of_history_is_told_from_its_continuation() {
    let histories = [History { id: 7, since: 1 }, History { id: 8, since: 50 }];
    let continues = |history, cursor| Ledger::continues(&histories, 90, history, cursor);
    assert!(continues(7, 49) && continues(7, 10), "what the former run had told");
    assert!(!continues(7, 50), "the former run went further than what was kept of it");
    assert!(continues(8, 60) && continues(8, 90));
    assert!(!continues(8, 91), "further than we are");
    assert!(!continues(9, 10), "never heard of");
}

#[test]
fn whatever_is_undone_was_never_there() {
    let mut desk = Desk::new();
    for node in 0..20 {
        desk.acquire(node, None).unwrap();
    }
    let before = format!("{:?}", desk.ledger);
    let of = desk.leases()[3];
    let requests = [
        Request::Acquire { attrs: attrs(99), previous: None, who: Who::anybody() },
        Request::Renew { subnet: of, attrs: attrs(3), version: None, who: Who::anybody() },
        Request::Release { subnet: of, version: None, who: Who::anybody() },
        Request::Reserve { subnet: subnet("10.5.250.0-24"), attrs: attrs(77) },
        Request::SetConfig {
            text: r#"{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan"}}"#.to_owned(),
            force: true,
        },
        Request::RemoveNetwork { force: true },
    ];
    let mut undos = Vec::new();
    for request in &requests {
        // The renewal is of a lease whose address we do not know; let it be what it is.
        if let Ok((_, Some(commit))) =
            desk.ledger.decide(&network(), request, desk.now, &mut desk.rng)
        {
            undos.push(desk.ledger.apply(&commit));
        }
    }
    assert!(undos.len() >= 5);
    undos.into_iter().rev().for_each(|undo| desk.ledger.undo(undo));
    assert_eq!(format!("{:?}", desk.ledger), before);
}

/// The ledger's indices against the pure function every other store uses, over random histories.
#[test]
fn choosing_is_what_flannel_lease_decides() {
    let configs = [
        r#"{"Network":"10.5.0.0/24","SubnetLen":28,"SubnetMin":"10.5.0.32","Backend":{"Type":"vxlan"}}"#,
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/60","IPv6SubnetLen":64,"Backend":{"Type":"vxlan"}}"#,
        r#"{"EnableIPv6":true,"Network":"10.5.0.0/24","SubnetLen":28,"IPv6Network":"fd00::/56","IPv6SubnetLen":62,"Backend":{"Type":"vxlan"}}"#,
    ];
    let mut choices = 0;
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut desk = Desk::with(configs[(seed % 3) as usize]);
        for _ in 0..60 {
            if rng.u8(..20) == 0 {
                let text = configs[rng.usize(..3)].to_owned();
                desk.ask(&Request::SetConfig { text, force: true }).unwrap();
            }
            let node = rng.u32(1..14);
            let who = attrs(node);
            let attrs =
                LeaseAttrs { public_ipv6: Some(Ipv6Addr::from_bits(u128::from(node))), ..who };
            let held = desk.leases();
            let previous = (rng.bool() && !held.is_empty()).then(|| held[rng.usize(..held.len())]);
            let ledger_network = desk.ledger.networks.get_mut(&network()).unwrap();
            let config = ledger_network.config().unwrap().clone();
            let leases: Vec<Lease> = ledger_network
                .leases()
                .iter()
                .map(|(subnet, entry)| Lease { subnet: *subnet, attrs: entry.attrs.clone() })
                .collect();
            let claimant =
                Claimant { public_ip: attrs.public_ip, public_ipv6: attrs.public_ipv6, previous };
            let draw = rng.u64(..);
            let expected = decide(&config, &leases, &claimant, &mut fastrand::Rng::with_seed(draw));
            let ours = ledger_network.leases_of(&attrs);
            let chosen =
                ledger_network.choose(&ours, previous, &mut fastrand::Rng::with_seed(draw));
            assert_eq!(chosen, expected.map_err(Refusal::from), "seed {seed}");
            choices += usize::from(chosen.is_ok());
            let _ = desk.ask(&Request::Acquire { attrs, previous, who: Who::anybody() });
            if rng.u8(..4) == 0 && !held.is_empty() {
                let subnet = held[rng.usize(..held.len())];
                let _ = desk.ask(&Request::Release { subnet, version: None, who: Who::anybody() });
            }
        }
    }
    assert!(choices > 1_000, "{choices}");
}

#[test]
fn a_record_that_leaves_no_room_to_count_on_is_refused() {
    for (revision, time) in [(u64::MAX, 0), (1, u64::MAX)] {
        let commit = Commit { revision, at: time, changes: vec![Change::Clock] };
        let refused = Commit::from_json(&commit.to_json().unwrap()).unwrap_err();
        assert!(refused.contains("out of reach"), "{refused}");
    }
}

#[test]
fn a_node_that_has_a_lease_is_reserved_that_one_and_no_other() {
    let mut desk = Desk::new();
    let (has, _) = desk.acquire(1, None).unwrap();
    let other = subnet("10.5.9.0-24");
    let reserve = |subnet| Request::Reserve { subnet, attrs: attrs(1) };
    let node = attrs(1).public_ip.unwrap().into();
    let refusal = Refusal::NodeHasLease { node, has, reserved: false };
    assert_eq!(desk.ask(&reserve(other)), Err(refusal));
    desk.ask(&reserve(has)).unwrap();
    let refusal = Refusal::NodeHasLease { node, has, reserved: true };
    assert_eq!(desk.ask(&reserve(other)), Err(refusal));
    assert_eq!(desk.leases(), [has], "nothing was changed");
    // The way that the refusal names.
    desk.ask(&Request::Unreserve { subnet: has }).unwrap();
    desk.ask(&Request::Release { subnet: has, version: None, who: Who::anybody() }).unwrap();
    desk.ask(&reserve(other)).unwrap();
    assert_eq!(desk.acquire(1, Some(&has.to_string())).unwrap().0, other);
}

#[test]
fn a_reservation_that_no_node_would_find_is_refused() {
    let mut desk = Desk::new();
    let attrs = LeaseAttrs { public_ipv6: "fd00::1".parse().ok(), ..LeaseAttrs::default() };
    let request = Request::Reserve { subnet: subnet("10.5.9.0-24"), attrs };
    assert_eq!(desk.ask(&request), Err(Refusal::NoAddress("PublicIP")));
}
