//! What stores say: answers and events of a lease server, records of the embedded log, values and
//! keys in etcd.

use std::time::SystemTime;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_server::lease_state::{Commit, LeaseState};
use flannel_store::wire::{WatchResult, WireFault, WireLease, WireReservation};

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(attrs) = LeaseAttrs::from_json(bytes) {
        assert_eq!(LeaseAttrs::from_json(attrs.to_json().as_bytes()).as_ref(), Ok(&attrs));
        // What is let in everybody can read.
        let data = [&attrs.backend_data, &attrs.backend_v6_data].into_iter().flatten();
        for data in data.filter(|_| attrs.check_depth().is_ok()) {
            data.parse::<serde_json::Value>().unwrap_or_else(|error| panic!("{error}: {data}"));
        }
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(subnet) = text.parse::<Subnet>() {
        assert_eq!(subnet.to_string().parse(), Ok(subnet));
    }
    let _ = WatchResult::read(&text);
    let _ = WireFault::read(&text);
    if let Ok(lease) = WireLease::read(&text) {
        let _ = lease.lease();
        // A node counts its life on from now.
        let _ = lease.ttl.map(|ttl| SystemTime::now() + ttl);
        let _ = lease.expiry.map(|expiry| expiry.remaining(SystemTime::now()));
    }
    if let Ok(WireReservation { subnet, attrs }) = WireReservation::read(&text) {
        let written = WireReservation::to_json(&subnet, &attrs);
        let again = WireReservation::read(&written);
        assert_eq!(again, Ok(WireReservation { subnet, attrs }), "{written}");
    }
    log(&text);
}

/// A log of commits: each is written as it was read, and all of them make a lease state that goes on.
fn log(text: &str) {
    let mut lease_state = LeaseState::default();
    for line in text.lines() {
        let Ok(commit) = Commit::from_json(line) else { return };
        assert_eq!(Commit::from_json(&commit.to_json().expect("JSON")).as_ref(), Ok(&commit));
        if commit.revision > lease_state.revision {
            lease_state.apply(&commit);
        }
    }
    for now in [0, lease_state.time, i64::MAX.cast_unsigned()] {
        let mut lease_state = lease_state.clone();
        lease_state.apply(&lease_state.start(1, now));
        while let Some(expired) = lease_state.expire(now) {
            lease_state.apply(&expired);
        }
        lease_state.apply(&lease_state.tick(now));
    }
}
