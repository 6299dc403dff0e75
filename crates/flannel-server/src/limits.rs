//! How much clients may take.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
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
        }
    }
}

/// Addresses that are remembered; beyond it, those that have been quiet are forgotten.
const REMEMBERED: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    clients: Mutex<HashMap<IpAddr, Client>>,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    connections: usize,
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
        let limit = self.limits.connections_per_address;
        self.with(address, now, |client| {
            let fits = client.connections < limit;
            client.connections += usize::from(fits);
            fits
        })
    }

    pub(crate) fn disconnected(&self, address: IpAddr, now: Instant) {
        self.with(address, now, |client| {
            client.connections = client.connections.saturating_sub(1);
            true
        });
    }

    /// Whether one more request from there is in order.
    pub(crate) fn requested(&self, address: IpAddr, now: Instant) -> bool {
        let Limits { requests_per_second, request_burst, .. } = self.limits;
        self.with(address, now, |client| {
            let since = now.duration_since(client.at).as_secs_f64();
            client.credit = (client.credit + since * requests_per_second).min(request_burst);
            client.at = now;
            let fits = client.credit >= 1.0;
            client.credit -= f64::from(u8::from(fits));
            fits
        })
    }

    fn with(
        &self,
        address: IpAddr,
        now: Instant,
        change: impl FnOnce(&mut Client) -> bool,
    ) -> bool {
        if address.is_loopback() {
            return true;
        }
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() > REMEMBERED {
            let quiet = Duration::from_secs(60);
            clients.retain(|_, c| c.connections > 0 || now.duration_since(c.at) < quiet);
        }
        let credit = self.limits.request_burst;
        let fresh = || Client { connections: 0, credit, at: now };
        change(clients.entry(address).or_insert_with(fresh))
    }
}

#[cfg(test)]
mod tests {
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
        let granted = (0..10).filter(|_| meter.requested(FAR, now)).count();
        assert_eq!(granted, 3);
        assert!(!meter.requested(FAR, at(900)));
        assert!(meter.requested(FAR, at(1_500)) && !meter.requested(FAR, at(1_500)));
        assert!(
            meter.requested(IpAddr::V4([192, 0, 2, 2].into()), now),
            "others are not concerned"
        );
        assert!((0..100).all(|_| meter.requested(IpAddr::V4([127, 0, 0, 1].into()), now)));
    }

    #[test]
    fn a_connection_counts_until_it_ends() {
        let (meter, now) = (meter(), Instant::now());
        assert!(meter.connected(FAR, now) && meter.connected(FAR, now));
        assert!(!meter.connected(FAR, now));
        meter.disconnected(FAR, now);
        assert!(meter.connected(FAR, now));
    }
}
