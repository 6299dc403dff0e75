//! What stores say: answers and events of a lease server, records of the embedded log, values and
//! keys in etcd.
#![no_main]

use std::time::SystemTime;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_store::ledger::{Commit, Ledger};
use flannel_store::wire::{WatchResult, WireFault, WireLease, WireReservation};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
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
});

/// A log of commits: each is written as it was read, and all of them make a ledger that goes on.
fn log(text: &str) {
    let mut ledger = Ledger::default();
    for line in text.lines() {
        let Ok(commit) = Commit::from_json(line) else { return };
        assert_eq!(Commit::from_json(&commit.to_json().expect("JSON")).as_ref(), Ok(&commit));
        if commit.revision > ledger.revision() {
            ledger.apply(&commit);
        }
    }
    for now in [0, ledger.time(), i64::MAX.cast_unsigned()] {
        let mut ledger = ledger.clone();
        ledger.apply(&ledger.start(1, now));
        while let Some(expired) = ledger.expire(now) {
            ledger.apply(&expired);
        }
        ledger.apply(&ledger.tick(now));
    }
}
