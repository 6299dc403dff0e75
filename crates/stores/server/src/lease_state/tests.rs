use std::net::{Ipv4Addr, Ipv6Addr};

use flannel_lease::{Claimant, LEASE_TTL, Lease, LeaseAttrs, NoAddress, decide};
use flannel_store::{KeptLease, MAX_DATA_BYTES, Millis, Refusal};

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
    let machine = ClientMachine::Secret(name.into());
    Who { name: Some(name.into()), machine, admin: false, addresses, ..Who::anybody() }
}

/// Somebody who may announce any address, and comes from this node's.
fn anywhere(name: &str, node: u32) -> Who {
    let source = attrs(node).public_ip.map(Into::into);
    let machine = ClientMachine::Secret(name.into());
    Who { name: Some(name.into()), machine, admin: false, source, ..Who::anybody() }
}

/// A lease state and what drives it.
struct LeaseService {
    lease_state: LeaseState,
    rng: fastrand::Rng,
    now: Millis,
}

impl LeaseService {
    fn new() -> Self {
        Self::with(CONFIG)
    }

    fn with(config: &str) -> Self {
        let rng = fastrand::Rng::with_seed(7);
        let mut service = Self { lease_state: LeaseState::default(), rng, now: NOW };
        let start = service.lease_state.start(1, NOW);
        service.lease_state.apply(&start);
        service.ask(&Request::SetConfig { text: config.to_owned(), force: false }).unwrap();
        service
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let (reply, commit) =
            self.lease_state.decide(&network(), request, self.now, &mut self.rng)?;
        if let Some(commit) = commit {
            assert_eq!(Commit::from_json(&commit.to_json().unwrap()).as_ref(), Ok(&commit));
            self.lease_state.apply(&commit);
        }
        Ok(reply)
    }

    fn acquire(
        &mut self,
        node: u32,
        previous: Option<&str>,
    ) -> Result<(Subnet, KeptLease), Refusal> {
        self.acquire_as(node, previous, Who::anybody())
    }

    fn acquire_as(
        &mut self,
        node: u32,
        previous: Option<&str>,
        who: Who,
    ) -> Result<(Subnet, KeptLease), Refusal> {
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
        while let Some(commit) = self.lease_state.expire(self.now) {
            self.lease_state.apply(&commit);
        }
    }

    fn leases(&self) -> Vec<Subnet> {
        self.lease_state.network(&network()).unwrap().leases().keys().copied().collect()
    }
}

#[test]
fn a_node_gets_a_subnet_and_the_same_one_when_it_asks_again() {
    let mut service = LeaseService::new();
    let (first, entry) = service.acquire(1, None).unwrap();
    assert_eq!(entry.expires, Some(NOW + TTL));
    service.now += 1_000;
    let (again, entry) = service.acquire(1, None).unwrap();
    assert_eq!((again, entry.expires), (first, Some(NOW + 1_000 + TTL)));
    let (other, _) = service.acquire(2, Some(&first.to_string())).unwrap();
    assert_ne!(other, first, "what somebody holds is nobody else's previous one");
    assert_eq!(service.acquire(3, Some("10.5.77.0-24")).unwrap().0, subnet("10.5.77.0-24"));
}

#[test]
fn a_lease_nobody_renews_is_gone_a_day_later_and_not_before() {
    let mut service = LeaseService::new();
    service.acquire(1, None).unwrap();
    service.now += TTL - 1;
    service.expire();
    assert_eq!(service.leases().len(), 1);
    service.now += 1;
    service.expire();
    assert_eq!(service.leases(), []);
}

#[test]
fn a_lease_is_renewed_by_its_node_alone() {
    let mut service = LeaseService::new();
    let (of, entry) = service.acquire(1, None).unwrap();
    service.now += TTL / 2;
    assert!(matches!(service.renew(of, 1, Some(entry.version)), Ok(Reply::Lease(..))));
    assert!(
        matches!(service.renew(of, 1, Some(entry.version)), Ok(Reply::Lease(..))),
        "a lost answer"
    );
    assert!(matches!(service.renew(of, 2, Some(entry.version)), Err(Refusal::Taken(..))));
    assert!(matches!(service.renew(of, 2, None), Err(Refusal::Taken(..))));
    let gone = subnet("10.5.200.0-24");
    assert_eq!(service.renew(gone, 1, None), Err(Refusal::Gone(gone)));
    let current = service.lease_state.network(&network()).unwrap().lease(&of).unwrap().version;
    assert!(service.renew(of, 9, Some(current)).is_ok(), "a node may change its address");
}

#[test]
fn a_named_client_touches_nothing_of_others() {
    let mut service = LeaseService::new();
    let (of, _) = service.acquire_as(1, None, someone("a", 1)).unwrap();
    let thief = || someone("b", 2);
    let address = attrs(1).public_ip.unwrap().into();
    assert_eq!(service.acquire_as(1, None, thief()), Err(Refusal::ForeignAddress(address)));
    let renew = Request::Renew { subnet: of, attrs: attrs(1), version: None, who: thief() };
    assert!(matches!(service.ask(&renew), Err(Refusal::NotYours(..))));
    let release = |who| Request::Release { subnet: of, version: None, who };
    assert!(matches!(service.ask(&release(thief())), Err(Refusal::NotYours(..))));
    // Somebody allowed to announce the address, but who is not the one who holds the lease.
    let said = service.acquire_as(1, None, someone("b", 1)).unwrap_err().to_string();
    let cidr = of.v4().unwrap();
    assert!(said.contains("belongs to a;"), "{said}");
    assert!(said.contains(&format!("`flannelctl release {cidr}`")), "{said}");
    assert_eq!(service.leases(), [of]);
    // Another machine with the same token is not the one that holds the lease either.
    for machine in [ClientMachine::Unknown, ClientMachine::Secret("another".into())] {
        let copy = || Who { machine: machine.clone(), ..someone("a", 5) };
        let (other, _) = service.acquire_as(5, Some(&of.to_string()), copy()).unwrap();
        assert_ne!(other, of);
        let version = Some(own_version(&service, of));
        let take = Request::Renew { subnet: of, attrs: attrs(5), version, who: copy() };
        assert!(matches!(service.ask(&take), Err(Refusal::NotYours(..))));
        assert!(matches!(service.ask(&release(copy())), Err(Refusal::NotYours(..))));
        let back = Request::Release { subnet: other, version: None, who: Who::anybody() };
        assert_eq!(service.ask(&back), Ok(Reply::Done));
    }
    // The node itself comes back with another address and still has its subnet.
    let (again, _) = service.acquire_as(5, Some(&of.to_string()), someone("a", 5)).unwrap();
    assert_eq!(again, of);
    assert_eq!(service.ask(&release(someone("a", 5))), Ok(Reply::Done));
    assert_eq!(service.leases(), []);
}

/// The server's own lease, and those that were brought in, have no owner.
#[test]
fn who_may_announce_any_address_still_changes_no_lease_but_its_own() {
    let mut service = LeaseService::new();
    let (named, _) = service.acquire_as(1, None, someone("a", 1)).unwrap();
    let (nameless, _) = service.acquire(2, None).unwrap();
    let brought = subnet("10.5.177.0-24");
    let left = Some(TTL);
    service.ask(&Request::Import { subnet: brought, attrs: attrs(3), left }).unwrap();
    let reserved = subnet("10.5.178.0-24");
    service.ask(&Request::Reserve { subnet: reserved, attrs: attrs(4) }).unwrap();
    let who = || anywhere("nat", 9);
    let (own, _) = service.acquire_as(50, None, who()).unwrap();
    let before = format!("{:?}", service.lease_state);
    for (of, node) in [(named, 1), (nameless, 2), (brought, 3), (reserved, 4)] {
        let version =
            service.lease_state.network(&network()).unwrap().lease(&of).map(|e| e.version);
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
                version: Some(own_version(&service, own)),
                who: who(),
            },
        ] {
            let refused = service.ask(&request);
            assert!(matches!(refused, Err(Refusal::NotYours(..))), "{request:?}: {refused:?}");
        }
    }
    assert_eq!(format!("{:?}", service.lease_state), before);
    // What is at the address it comes from is its own, with an owner or without.
    assert_eq!(service.acquire_as(2, None, anywhere("late", 2)).unwrap().0, nameless);
    assert!(service.renew_as(own, 50, who()).is_ok());
    let release = Request::Release { subnet: own, version: None, who: who() };
    assert_eq!(service.ask(&release), Ok(Reply::Done));
}

fn own_version(service: &LeaseService, of: Subnet) -> u64 {
    service.lease_state.network(&network()).unwrap().lease(&of).unwrap().version
}

#[test]
fn an_operator_who_renews_a_nodes_lease_does_not_take_it_away() {
    let mut service = LeaseService::new();
    let (of, _) = service.acquire_as(1, None, someone("a", 1)).unwrap();
    let boss = Who { admin: true, ..anywhere("boss", 9) };
    assert!(service.renew_as(of, 1, boss).is_ok());
    assert!(service.renew_as(of, 1, someone("a", 1)).is_ok());
}

#[test]
fn a_lease_carries_no_more_than_a_backend_needs() {
    let mut service = LeaseService::new();
    let (of, _) = service.acquire(1, None).unwrap();
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
    service.ask(&renew(with(MAX_DATA_BYTES))).unwrap();
    for large in [with(MAX_DATA_BYTES + 1), with(250_000), split(MAX_DATA_BYTES / 2 + 1)] {
        let size = large.weight();
        for request in [renew(large.clone()), acquire(large.clone()), import(large.clone())] {
            let refused = service.ask(&request).unwrap_err();
            assert_eq!(refused, Refusal::TooLarge(size));
            let said = refused.to_string();
            assert!(said.contains(&size.to_string()) && said.contains("8192"), "{said}");
        }
    }
    let long = LeaseAttrs { backend_type: "x".repeat(MAX_DATA_BYTES + 1).into(), ..attrs(1) };
    assert!(matches!(service.ask(&renew(long)), Err(Refusal::TooLarge(_))));
}

/// With tokens and without, a node announces neither the MAC nor the key of another; its own lease under a new address is
/// not another's.
#[test]
fn a_mac_or_key_that_another_node_had_first_is_refused() {
    let vxlan = |node: u32, mac: &str| {
        let data = format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:00:{mac}"}}"#);
        let backend_data = flannel_lease::RawJson::read(&data).unwrap();
        LeaseAttrs { backend_type: "vxlan".into(), backend_data, ..attrs(node) }
    };
    let wireguard = |node: u32, first: u8| {
        let data = format!(r#"{{"PublicKey":"{}A{}="}}"#, first as char, "A".repeat(41));
        let backend_data = flannel_lease::RawJson::read(&data).unwrap();
        LeaseAttrs { backend_type: "wireguard".into(), backend_data, ..attrs(node) }
    };
    type ClientOf = fn(u32) -> Who;
    let clients: [(ClientOf, u64); 2] =
        [(|_| Who::anybody(), 1), (|node| anywhere(&format!("node-{node}"), node), 2)];
    for (who, seed) in clients {
        for announce in [
            &(|node, it: u8| vxlan(node, if it == 1 { "01" } else { "02" }))
                as &dyn Fn(u32, u8) -> LeaseAttrs,
            &|node, it: u8| wireguard(node, if it == 1 { b'A' } else { b'B' }),
        ] {
            let mut service = LeaseService::new();
            service.rng = fastrand::Rng::with_seed(seed);
            let acquire = |node, it| Request::Acquire {
                attrs: announce(node, it),
                previous: None,
                who: who(node),
            };
            let Ok(Reply::Lease(first, _)) = service.ask(&acquire(1, 1)) else { panic!("a lease") };
            let refused = service.ask(&acquire(2, 1)).unwrap_err();
            assert!(matches!(refused, Refusal::IdentityTaken { .. }), "{refused:?}");
            assert!(refused.to_string().contains(&first.to_string()), "{refused}");
            let Ok(Reply::Lease(second, _)) = service.ask(&acquire(2, 2)) else {
                panic!("its own is its own")
            };
            let renew = |subnet, node, it| Request::Renew {
                subnet,
                attrs: announce(node, it),
                version: None,
                who: who(node),
            };
            let refused = service.ask(&renew(second, 2, 1)).unwrap_err();
            assert!(matches!(refused, Refusal::IdentityTaken { .. }), "{refused:?}");
            service.ask(&renew(first, 1, 1)).unwrap();
            service.ask(&acquire(1, 1)).unwrap();
            // The first has moved: it is the same lease, though the address is another.
            let version = Some(own_version(&service, first));
            let moved =
                Request::Renew { subnet: first, attrs: announce(9, 1), version, who: who(1) };
            service.ask(&moved).unwrap();
            // What nobody announces any more is free.
            let release = Request::Release { subnet: first, version: None, who: Who::anybody() };
            service.ask(&release).unwrap();
            service.ask(&renew(second, 2, 1)).unwrap();
        }
    }
}

/// By whatever clock it was said how long it has left.
#[test]
fn a_lease_that_is_brought_in_can_be_renewed_in_time() {
    let mut service = LeaseService::new();
    for (third, left) in [(1, 0), (2, 1_000), (3, TTL), (4, u64::MAX)] {
        let of = subnet(&format!("10.5.{third}.0-24"));
        let request = Request::Import { subnet: of, attrs: attrs(third), left: Some(left) };
        let Ok(Reply::Lease(_, entry)) = service.ask(&request) else { panic!("brought in") };
        let life = entry.expires.unwrap() - service.now;
        assert!(
            (MIN_LIFE_AFTER_START.as_millis() as Millis..=TTL).contains(&life),
            "{left}: {life}"
        );
    }
}

#[test]
fn a_reservation_outlives_everything_but_its_removal() {
    let mut service = LeaseService::new();
    let of = subnet("10.5.9.0-24");
    let reserve = |node| Request::Reserve { subnet: of, attrs: attrs(node) };
    service.ask(&reserve(1)).unwrap();
    service.now += TTL * 10;
    service.expire();
    assert_eq!(service.leases(), [of]);
    let (got, entry) = service.acquire(1, None).unwrap();
    assert_eq!((got, entry.expires), (of, None), "it is reused and stays one");
    let Ok(Reply::Lease(_, entry)) = service.renew(of, 1, None) else { panic!("renewed") };
    assert_eq!(entry.expires, None);
    assert!(matches!(service.ask(&reserve(2)), Err(Refusal::Taken(..))));
    let release = Request::Release { subnet: of, version: None, who: Who::anybody() };
    assert_eq!(service.ask(&release), Err(Refusal::Reserved(of)));
    let Ok(Reply::Lease(_, entry)) = service.ask(&Request::Unreserve { subnet: of }) else {
        panic!("unreserved")
    };
    assert_eq!(entry.expires, Some(service.now + TTL));
    service.ask(&reserve(1)).unwrap();
    let outside = subnet("10.6.9.0-24");
    let request = Request::Reserve { subnet: outside, attrs: attrs(1) };
    assert_eq!(service.ask(&request), Err(Refusal::NotInPool(outside)));
}

#[test]
fn a_config_that_strands_leases_needs_force() {
    let mut service = LeaseService::new();
    let (of, _) = service.acquire(1, None).unwrap();
    let set = |text: &str, force| Request::SetConfig { text: text.to_owned(), force };
    let other = r#"{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan"}}"#;
    assert_eq!(service.ask(&set(other, false)), Err(Refusal::Stranded { count: 1, example: of }));
    assert!(matches!(service.ask(&set("{", true)), Err(Refusal::BadConfig(_))));
    let wider = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.5.0.0","Backend":{"Type":"vxlan"}}"#;
    assert_eq!(service.ask(&set(wider, false)), Ok(Reply::Done), "the lease still fits");
    assert_eq!(service.ask(&set(other, true)), Ok(Reply::Done));
    let (moved, _) = service.acquire(1, Some(&of.to_string())).unwrap();
    assert!(moved.to_string().starts_with("10.9."), "{moved}");
    assert_eq!(service.leases(), [moved], "the stranded lease is discarded with it");
}

#[test]
fn a_network_without_config_is_no_network() {
    let mut lease_state = LeaseState::default();
    let request = Request::Acquire { attrs: attrs(1), previous: None, who: Who::anybody() };
    let refused = lease_state.decide(&network(), &request, NOW, &mut fastrand::Rng::with_seed(1));
    assert_eq!(refused, Err(Refusal::NoNetwork(network())));
    let mut service = LeaseService::new();
    let nobody =
        Request::Acquire { attrs: LeaseAttrs::default(), previous: None, who: Who::anybody() };
    assert_eq!(service.ask(&nobody), Err(Refusal::NoAddress(NoAddress("PublicIP"))));
    service.acquire(1, None).unwrap();
    assert_eq!(service.ask(&Request::RemoveNetwork { force: false }), Err(Refusal::InUse(1)));
    assert_eq!(service.ask(&Request::RemoveNetwork { force: true }), Ok(Reply::Done));
    assert!(service.lease_state.network(&network()).is_none());
}

#[test]
fn time_stands_still_while_nobody_serves() {
    for (away, clock) in
        [(0_i64, "right"), (30 * 86_400_000, "a month later"), (-86_400_000, "set back")]
    {
        let mut service = LeaseService::new();
        let (of, _) = service.acquire(1, None).unwrap();
        service.now += TTL / 2;
        let tick = service.lease_state.tick(service.now);
        service.lease_state.apply(&tick);
        let back = service.now.saturating_add_signed(away);
        let start = service.lease_state.start(2, back);
        service.lease_state.apply(&start);
        let entry = service.lease_state.network(&network()).unwrap().lease(&of).unwrap();
        assert_eq!(entry.expires, Some(back + TTL / 2), "the clock is {clock}");
    }
    let mut service = LeaseService::new();
    let (of, _) = service.acquire(1, None).unwrap();
    service.now += TTL - 1;
    let tick = service.lease_state.tick(service.now);
    service.lease_state.apply(&tick);
    let start = service.lease_state.start(2, service.now);
    service.lease_state.apply(&start);
    let entry = service.lease_state.network(&network()).unwrap().lease(&of).unwrap();
    assert_eq!(
        entry.expires,
        Some(service.now + MIN_LIFE_AFTER_START.as_millis() as Millis),
        "time to renew"
    );
}

#[test]
fn a_fork_of_history_is_told_from_its_continuation() {
    let histories = [ServerRun { id: 7, since: 1 }, ServerRun { id: 8, since: 50 }];
    let continues = |history, cursor| LeaseState::continues(&histories, 90, history, cursor);
    assert!(continues(7, 49) && continues(7, 10), "what the former run had told");
    assert!(!continues(7, 50), "the former run went further than what was kept of it");
    assert!(continues(8, 60) && continues(8, 90));
    assert!(!continues(8, 91), "further than we are");
    assert!(!continues(9, 10), "never heard of");
}

#[test]
fn whatever_is_undone_was_never_there() {
    let mut service = LeaseService::new();
    for node in 0..20 {
        service.acquire(node, None).unwrap();
    }
    let before = format!("{:?}", service.lease_state);
    let of = service.leases()[3];
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
            service.lease_state.decide(&network(), request, service.now, &mut service.rng)
        {
            undos.push(service.lease_state.apply(&commit));
        }
    }
    assert!(undos.len() >= 5);
    undos.into_iter().rev().for_each(|undo| service.lease_state.undo(undo));
    assert_eq!(format!("{:?}", service.lease_state), before);
}

/// The lease state's indices against the pure function every other store uses, over random histories.
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
        let mut service = LeaseService::with(configs[(seed % 3) as usize]);
        for _ in 0..60 {
            if rng.u8(..20) == 0 {
                let text = configs[rng.usize(..3)].to_owned();
                service.ask(&Request::SetConfig { text, force: true }).unwrap();
            }
            let node = rng.u32(1..14);
            let who = attrs(node);
            let attrs =
                LeaseAttrs { public_ipv6: Some(Ipv6Addr::from_bits(u128::from(node))), ..who };
            let held = service.leases();
            let previous = (rng.bool() && !held.is_empty()).then(|| held[rng.usize(..held.len())]);
            let state_network = service.lease_state.networks.get_mut(&network()).unwrap();
            let config = state_network.config().unwrap().clone();
            let leases: Vec<Lease> = state_network
                .leases()
                .iter()
                .map(|(subnet, entry)| Lease { subnet: *subnet, attrs: entry.attrs.clone() })
                .collect();
            let claimant = Claimant::new(&attrs, previous);
            let draw = rng.u64(..);
            let expected = decide(&config, &leases, &claimant, &mut fastrand::Rng::with_seed(draw));
            let node = state_network.known_by().address(&attrs);
            let ours = node.map(|node| state_network.leases_of(node, &attrs)).unwrap_or_default();
            let chosen = state_network.choose(&ours, previous, &mut fastrand::Rng::with_seed(draw));
            assert_eq!(chosen, expected.map_err(Refusal::from), "seed {seed}");
            choices += usize::from(chosen.is_ok());
            let _ = service.ask(&Request::Acquire { attrs, previous, who: Who::anybody() });
            if rng.u8(..4) == 0 && !held.is_empty() {
                let subnet = held[rng.usize(..held.len())];
                let _ =
                    service.ask(&Request::Release { subnet, version: None, who: Who::anybody() });
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
    let mut service = LeaseService::new();
    let (has, _) = service.acquire(1, None).unwrap();
    let other = subnet("10.5.9.0-24");
    let reserve = |subnet| Request::Reserve { subnet, attrs: attrs(1) };
    let node = attrs(1).public_ip.unwrap().into();
    let refusal = Refusal::NodeHasLease { node, has, reserved: false };
    assert_eq!(service.ask(&reserve(other)), Err(refusal));
    service.ask(&reserve(has)).unwrap();
    let refusal = Refusal::NodeHasLease { node, has, reserved: true };
    assert_eq!(service.ask(&reserve(other)), Err(refusal));
    assert_eq!(service.leases(), [has], "nothing was changed");
    // The way that the refusal names.
    service.ask(&Request::Unreserve { subnet: has }).unwrap();
    service.ask(&Request::Release { subnet: has, version: None, who: Who::anybody() }).unwrap();
    service.ask(&reserve(other)).unwrap();
    assert_eq!(service.acquire(1, Some(&has.to_string())).unwrap().0, other);
}

#[test]
fn a_reservation_that_no_node_would_find_is_refused() {
    let mut service = LeaseService::new();
    let reserve = |attrs| Request::Reserve { subnet: subnet("10.5.9.0-24"), attrs };
    let nobody = reserve(LeaseAttrs::default());
    assert_eq!(service.ask(&nobody), Err(Refusal::NoAddress(NoAddress("PublicIP"))));
    // A node whose IPv4 travels over IPv6 is known by that address.
    let over_v6 = LeaseAttrs { public_ipv6: "fd00::1".parse().ok(), ..LeaseAttrs::default() };
    service.ask(&reserve(over_v6)).unwrap();
}
