//! How much clients may take.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once, from everybody and from one address. This machine's own are not counted
    /// by address.
    pub connections: usize,
    pub connections_per_address: usize,
    /// Requests per second and address, on average and in a burst. This machine's own are not counted.
    pub requests_per_second: f64,
    pub request_burst: f64,
    pub largest_body: usize,
    /// From the first byte of a body to its last.
    pub slowest_body: Duration,
    /// From one request to the end of the next one's head.
    pub slowest_head: Duration,
    pub slowest_handshake: Duration,
    /// A client that does not take what it is sent is cut off after this.
    pub slowest_reader: Duration,
    pub longest_poll: Duration,
    /// How many whole tables are sent at once; further clients wait.
    pub whole_tables: usize,
    /// A client that takes longer to read its table still gets it, but others go on meanwhile.
    pub longest_turn: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 40_000,
            connections_per_address: 2_048,
            requests_per_second: 200.0,
            request_burst: 2_000.0,
            largest_body: 256 << 10,
            slowest_body: Duration::from_secs(10),
            slowest_head: Duration::from_secs(30),
            slowest_handshake: Duration::from_secs(10),
            slowest_reader: Duration::from_secs(60),
            longest_poll: Duration::from_secs(120),
            whole_tables: 32,
            longest_turn: Duration::from_secs(5),
        }
    }
}

/// Addresses remembered for a while after their last connection has ended; beyond it, the one that
/// left first is forgotten first.
const MOST_DEPARTED: usize = 16_384;

/// Counts what each address takes. It knows those that are connected, which [`Limits::connections`]
/// bounds, and those that left so lately that they would gain by being forgotten.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    known: HashMap<IpAddr, Client>,
    /// In the order of leaving. Some may be back.
    departed: VecDeque<(Instant, IpAddr)>,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    connections: usize,
    /// When the last connection ended.
    left: Instant,
    /// Requests it may still make at once, as of `at`.
    credit: f64,
    at: Instant,
}

impl Meter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, clients: Mutex::default() }
    }

    /// Whether one more connection from there is in order; if so, it is counted until
    /// [`Self::disconnected`].
    pub(crate) fn connected(&self, address: IpAddr, now: Instant) -> bool {
        if address.is_loopback() {
            return true;
        }
        let mut clients = self.clients(now);
        let credit = self.limits.request_burst;
        let fresh = || Client { connections: 0, left: now, credit, at: now };
        let client = clients.known.entry(address).or_insert_with(fresh);
        let fits = client.connections < self.limits.connections_per_address;
        client.connections += usize::from(fits);
        fits
    }

    pub(crate) fn disconnected(&self, address: IpAddr, now: Instant) {
        let mut clients = self.clients(now);
        let Some(client) = clients.known.get_mut(&address) else { return };
        client.connections = client.connections.saturating_sub(1);
        if client.connections == 0 {
            client.left = now;
            clients.departed.push_back((now, address));
        }
    }

    /// Whether one more request from there, over a connection that is counted, is in order.
    pub(crate) fn requested(&self, address: IpAddr, now: Instant) -> bool {
        let Limits { requests_per_second, request_burst, .. } = self.limits;
        let mut clients = self.clients(now);
        let Some(client) = clients.known.get_mut(&address) else { return true };
        let since = now.duration_since(client.at).as_secs_f64();
        client.credit = (client.credit + since * requests_per_second).min(request_burst);
        client.at = now;
        let fits = client.credit >= 1.0;
        client.credit -= f64::from(u8::from(fits));
        fits
    }

    fn clients(&self, now: Instant) -> MutexGuard<'_, Clients> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // After that long it would have all its credit back.
        let Limits { requests_per_second, request_burst, .. } = self.limits;
        clients.forget(now, Duration::from_secs_f64(request_burst / requests_per_second));
        clients
    }
}

impl Clients {
    /// Costs as much as has been put into `departed`, however many are known.
    fn forget(&mut self, now: Instant, after: Duration) {
        while let Some((left, address)) = self.departed.front().copied() {
            if now.duration_since(left) < after && self.departed.len() <= MOST_DEPARTED {
                return;
            }
            self.departed.pop_front();
            if self.known.get(&address).is_some_and(|c| c.connections == 0 && c.left == left) {
                self.known.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn meter() -> Meter {
        Meter::new(Limits {
            connections_per_address: 2,
            requests_per_second: 1.0,
            request_burst: 3.0,
            ..Limits::default()
        })
    }

    #[test]
    fn an_address_has_so_many_requests_at_once_and_then_one_a_second() {
        let (meter, now) = (meter(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        let other = IpAddr::V4([192, 0, 2, 2].into());
        assert!(meter.connected(FAR, now) && meter.connected(other, now));
        let granted = (0..10).filter(|_| meter.requested(FAR, now)).count();
        assert_eq!(granted, 3);
        assert!(!meter.requested(FAR, at(900)));
        assert!(meter.requested(FAR, at(1_500)) && !meter.requested(FAR, at(1_500)));
        assert!(meter.requested(other, now), "others are not concerned");
        let here = IpAddr::V4([127, 0, 0, 1].into());
        assert!((0..100).all(|_| meter.connected(here, now) && meter.requested(here, now)));
    }

    #[test]
    fn a_connection_counts_until_it_ends() {
        let (meter, now) = (meter(), Instant::now());
        assert!(meter.connected(FAR, now) && meter.connected(FAR, now));
        assert!(!meter.connected(FAR, now));
        meter.disconnected(FAR, now);
        assert!(meter.connected(FAR, now));
    }

    #[test]
    fn to_leave_and_come_back_gains_nothing() {
        let (meter, now) = (meter(), Instant::now());
        let mut granted = 0;
        for _ in 0..10 {
            assert!(meter.connected(FAR, now));
            granted += usize::from(meter.requested(FAR, now));
            meter.disconnected(FAR, now);
        }
        assert_eq!(granted, 3);
    }

    #[test]
    fn what_is_remembered_is_bounded_however_many_addresses_come_and_go() {
        let (meter, now) = (meter(), Instant::now());
        let address = |number: u128| IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) + number));
        for number in 0..100_000 {
            assert!(meter.connected(address(number), now));
            meter.disconnected(address(number), now);
        }
        assert!(meter.connected(FAR, now));
        let known = |meter: &Meter| meter.clients.lock().unwrap().known.len();
        assert!(known(&meter) <= MOST_DEPARTED + 1, "{}", known(&meter));
        assert!(meter.requested(FAR, now + Duration::from_secs(4)));
        assert_eq!(known(&meter), 1, "those who are there");
    }
}
