//! Limits of what clients may use, and the counting for them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections: in all, and from one address, of identified clients and of others; this machine's are free.
    pub connections: usize,
    pub connections_per_address: usize,
    /// Requests per second, on average and at once, of each client and of the unidentified at an address, likewise.
    pub requests_per_second: f64,
    pub request_burst: f64,
    pub max_body_bytes: usize,
    /// Time from the first byte of a body to its last.
    pub body_timeout: Duration,
    /// Time from one request to the end of the next one's head.
    pub head_timeout: Duration,
    pub handshake_timeout: Duration,
    /// Time after which a client that does not read is disconnected.
    pub send_timeout: Duration,
    pub max_poll: Duration,
    /// Snapshots of the lease table that are sent at once; further clients wait.
    pub concurrent_snapshots: usize,
    /// Time after which a client that still reads its snapshot no longer keeps others waiting.
    pub snapshot_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 40_000,
            connections_per_address: 2_048,
            requests_per_second: 200.0,
            request_burst: 2_000.0,
            max_body_bytes: 256 << 10,
            body_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(60),
            max_poll: Duration::from_secs(120),
            concurrent_snapshots: 32,
            snapshot_timeout: Duration::from_secs(5),
        }
    }
}

/// Most buckets that are kept; the oldest goes first.
const MAX_BUCKETS: usize = 65_536;

/// Account of a request. Unidentified clients of an address share one, so that a pod spends nothing of its node's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Payer {
    Unknown(IpAddr),
    Client { name: Arc<str>, source: IpAddr },
}

#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    /// Clients say who they are; so those who have not are told from those who have.
    asks_who: bool,
    state: Mutex<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    next: u64,
    connections: HashMap<IpAddr, AddressConnections>,
    buckets: HashMap<Payer, Bucket>,
    /// Every bucket once, in the order of making or of the last look.
    by_age: VecDeque<(Instant, Payer)>,
}

/// Connections from one address. There is an entry while there are any.
#[derive(Debug, Default)]
struct AddressConnections {
    known: HashSet<u64>,
    /// Oldest first; each is told when it has to go.
    unknown: BTreeMap<u64, Arc<Notify>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    credit: f64,
    at: Instant,
}

/// A connection that is counted until [`Meter::disconnected`].
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    number: u64,
    address: IpAddr,
    /// Rung when the connection has to make room for another one.
    pub(crate) evicted: Arc<Notify>,
}

impl Meter {
    pub(crate) fn new(limits: Limits, asks_who: bool) -> Self {
        Self { limits, asks_who, state: Mutex::default() }
    }

    /// Counts a connection; `None` if there are too many. Where clients identify themselves, the oldest other goes.
    pub(crate) fn connected(&self, address: IpAddr) -> Option<ConnectionSlot> {
        let mut state = self.state.lock();
        let evicted = Arc::new(Notify::new());
        let number = state.next;
        state.next += 1;
        if !address.is_loopback() {
            let of = state.connections.entry(address).or_default();
            if of.unknown.len() >= self.limits.connections_per_address {
                if !self.asks_who {
                    return None;
                }
                if let Some((_, oldest)) = of.unknown.pop_first() {
                    oldest.notify_one();
                }
            }
            of.unknown.insert(number, evicted.clone());
        }
        Some(ConnectionSlot { number, address, evicted })
    }

    pub(crate) fn identified(&self, slot: &ConnectionSlot) {
        let mut state = self.state.lock();
        let Some(of) = state.connections.get_mut(&slot.address) else { return };
        if of.known.len() < self.limits.connections_per_address
            && of.unknown.remove(&slot.number).is_some()
        {
            of.known.insert(slot.number);
        }
    }

    pub(crate) fn disconnected(&self, slot: &ConnectionSlot) {
        let mut state = self.state.lock();
        let Some(of) = state.connections.get_mut(&slot.address) else { return };
        // One that had to make room is no longer among them.
        of.known.remove(&slot.number);
        of.unknown.remove(&slot.number);
        if of.known.is_empty() && of.unknown.is_empty() {
            state.connections.remove(&slot.address);
        }
    }

    /// Whether one more request is in order.
    pub(crate) fn requested(&self, payer: &Payer, now: Instant) -> bool {
        let (Payer::Unknown(address) | Payer::Client { source: address, .. }) = payer;
        if address.is_loopback() {
            return true;
        }
        let Limits { requests_per_second, request_burst, .. } = self.limits;
        let mut state = self.state.lock();
        // After that long it would have all its credit back.
        state.forget(now, Duration::from_secs_f64(request_burst / requests_per_second));
        if !state.buckets.contains_key(payer) {
            state.by_age.push_back((now, payer.clone()));
            state.buckets.insert(payer.clone(), Bucket { credit: request_burst, at: now });
        }
        let Some(bucket) = state.buckets.get_mut(payer) else { return true };
        let since = now.duration_since(bucket.at).as_secs_f64();
        bucket.credit = (bucket.credit + since * requests_per_second).min(request_burst);
        bucket.at = now;
        let fits = bucket.credit >= 1.0;
        bucket.credit -= f64::from(u8::from(fits));
        fits
    }
}

impl MeterState {
    /// Costs as much as has been put into `by_age`, however many are known.
    fn forget(&mut self, now: Instant, after: Duration) {
        while let Some((since, _)) = self.by_age.front() {
            let full = self.by_age.len() > MAX_BUCKETS;
            if now.duration_since(*since) < after && !full {
                return;
            }
            let Some((_, payer)) = self.by_age.pop_front() else { return };
            match self.buckets.get(&payer) {
                Some(bucket) if !full && now.duration_since(bucket.at) < after => {
                    self.by_age.push_back((bucket.at, payer));
                }
                _ => _ = self.buckets.remove(&payer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn meter(asks_who: bool) -> Meter {
        let limits = Limits {
            connections_per_address: 2,
            requests_per_second: 1.0,
            request_burst: 3.0,
            ..Limits::default()
        };
        Meter::new(limits, asks_who)
    }

    fn client(name: &str) -> Payer {
        Payer::Client { name: name.into(), source: FAR }
    }

    #[test]
    fn a_payer_has_so_many_requests_at_once_and_then_one_a_second() {
        let (meter, now) = (meter(true), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        let far = Payer::Unknown(FAR);
        let granted = (0..10).filter(|_| meter.requested(&far, now)).count();
        assert_eq!(granted, 3);
        assert!(!meter.requested(&far, at(900)));
        assert!(meter.requested(&far, at(1_500)) && !meter.requested(&far, at(1_500)));
        let other = Payer::Unknown([192, 0, 2, 2].into());
        assert!(meter.requested(&other, now), "others are not concerned");
        let here = Payer::Unknown([127, 0, 0, 1].into());
        assert!((0..100).all(|_| meter.requested(&here, now)));
    }

    #[test]
    fn whoever_is_not_known_spends_nothing_of_the_client_at_the_same_address() {
        let (meter, now) = (meter(true), Instant::now());
        let stranger = Payer::Unknown(FAR);
        assert_eq!((0..100).filter(|_| meter.requested(&stranger, now)).count(), 3);
        assert!((0..3).all(|_| meter.requested(&client("node-1"), now)));
        assert!(!meter.requested(&client("node-1"), now), "it has a limit, too");
        assert!(meter.requested(&client("node-2"), now));
    }

    #[tokio::test]
    async fn connections_of_strangers_make_room_for_one_that_may_be_a_nodes() {
        let meter = meter(true);
        let node = meter.connected(FAR).unwrap();
        meter.identified(&node);
        let strangers: Vec<_> = (0..5).map(|_| meter.connected(FAR).unwrap()).collect();
        for gone in &strangers[..3] {
            gone.evicted.notified().await;
        }
        let newest = meter.connected(FAR).expect("a node that comes back gets in");
        strangers[3].evicted.notified().await;
        meter.identified(&newest);
        for slot in strangers.iter().chain([&node, &newest]) {
            meter.disconnected(slot);
        }
        assert!(meter.state.lock().connections.is_empty(), "all that came have gone");
    }

    #[test]
    fn where_nobody_says_who_he_is_those_who_came_first_stay() {
        let meter = meter(false);
        let first = meter.connected(FAR).unwrap();
        assert!(meter.connected(FAR).is_some());
        assert!(meter.connected(FAR).is_none());
        meter.disconnected(&first);
        assert!(meter.connected(FAR).is_some());
    }

    #[test]
    fn what_is_remembered_is_bounded_however_many_addresses_come_and_go() {
        let (meter, now) = (meter(true), Instant::now());
        let address = |number: u128| IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) + number));
        for number in 0..100_000 {
            assert!(meter.requested(&Payer::Unknown(address(number)), now));
        }
        let known = |meter: &Meter| meter.state.lock().buckets.len();
        assert!(known(&meter) <= MAX_BUCKETS + 1, "{}", known(&meter));
        assert!(meter.requested(&Payer::Unknown(FAR), now + Duration::from_secs(4)));
        assert_eq!(known(&meter), 1, "the others have all their credit back");
    }
}
