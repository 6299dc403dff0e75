//! Are the reservations true? An address leaks when an attachment ends without a DEL: the host was
//! restarted, the runtime forgot. What is left is a file that nobody will ever remove.
//!
//! A reservation is stale when no network namespace holds the address, the runtime's record of the
//! attachment (if there is one) does not name a namespace that is there, and it was not made just
//! now. The second condition is for sandboxes that take the address away from the interface and use
//! it themselves.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::store::{Holder, Reservation, Store, StoreError};
use crate::netns::Netns;
use crate::protocol::{Call, Command, Conf, Result, Version};
use crate::saved_confs::FIRST_INTERFACE;
use crate::{addresses_in_use, masquerade, portmap};

/// Where the library that runtimes use keeps the results of ADDs.
pub const RESULTS: &str = "/var/lib/cni/results";
/// An ADD that is under way has reserved its address and not yet used it.
const FRESH_RESERVATION_GRACE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub reservation: Reservation,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A namespace holds the address, or the attachment's namespace lives.
    InUse,
    /// Too young to be judged.
    Recent,
    /// It belongs to nothing that lives.
    Stale,
}

pub struct Evidence {
    pub addresses: std::collections::BTreeSet<IpAddr>,
    pub results: PathBuf,
}

impl Evidence {
    /// `None`: this process may not see every namespace, so nothing can be said.
    pub fn gather() -> Option<Self> {
        Some(Self { addresses: addresses_in_use::addresses()?, results: RESULTS.into() })
    }
}

pub fn inspect(
    store: &Store,
    network: &str,
    evidence: &Evidence,
    now: SystemTime,
) -> Result<Vec<Finding>, StoreError> {
    let findings = store.reservations()?.into_iter().map(|reservation| {
        let state = judge(store, network, &reservation, evidence, now);
        Finding { reservation, state }
    });
    Ok(findings.collect())
}

/// Sets the stale ones free and returns them. Whoever gets such an address next must not answer on the
/// ports of its last owner: what the firewall has of that one goes first.
pub fn fix(store: &Store, network: &str, findings: &[Finding]) -> Result<Vec<Reservation>> {
    let lock = store.lock()?;
    let mut freed = Vec::new();
    for finding in findings.iter().filter(|finding| finding.state == State::Stale) {
        let reservation = &finding.reservation;
        if store.owner(reservation.ip)?.as_ref() != Some(&reservation.owner) {
            continue;
        }
        forget_rules(network, &reservation.owner)
            .map_err(|error| error.context(format_args!("{} stays reserved", reservation.ip)))?;
        if store.release(&lock, reservation)? {
            freed.push(reservation.clone());
        }
    }
    Ok(freed)
}

/// Port mappings and masquerading of a container that is gone.
fn forget_rules(network: &str, owner: &Holder) -> Result<()> {
    let (container_id, ifname) = match owner {
        Holder::Attachment { container_id, ifname } => (container_id, ifname.as_str()),
        Holder::Container { container_id } => (container_id, FIRST_INTERFACE),
        // It never got as far as to have any.
        Holder::Nobody => return Ok(()),
    };
    let call = Call {
        command: Command::Del,
        container_id: container_id.clone(),
        netns: String::new(),
        ifname: ifname.to_owned(),
        args: String::new(),
        path: String::new(),
        netns_override: false,
        retried: false,
        conf: Conf {
            members: serde_json::Map::new(),
            name: network.to_owned(),
            version: Version::LATEST,
        },
    };
    portmap::forget(&call)?;
    masquerade::tear_down(&call)
}

/// For an ADD that finds no address: what can be set free is set free, and what cannot be judged stays.
pub(super) fn reclaim(store: &Store, network: &str) {
    if let Some(evidence) = Evidence::gather()
        && let Ok(findings) = inspect(store, network, &evidence, SystemTime::now())
    {
        let _ = fix(store, network, &findings);
    }
}

fn judge(
    store: &Store,
    network: &str,
    reservation: &Reservation,
    evidence: &Evidence,
    now: SystemTime,
) -> State {
    if evidence.addresses.contains(&reservation.ip)
        || sandbox_lives(network, reservation, &evidence.results)
    {
        return State::InUse;
    }
    // A time in the future says nothing, like one that cannot be read.
    let age = store.since(reservation.ip).and_then(|since| now.duration_since(since).ok());
    match age {
        Some(age) if age > FRESH_RESERVATION_GRACE => State::Stale,
        _ => State::Recent,
    }
}

fn sandbox_lives(network: &str, reservation: &Reservation, results: &Path) -> bool {
    let Holder::Attachment { container_id, ifname } = &reservation.owner else { return false };
    let Ok(text) = std::fs::read(results.join(format!("{network}-{container_id}-{ifname}"))) else {
        return false;
    };
    let Ok(record) = serde_json::from_slice::<serde_json::Value>(&text) else { return false };
    let sandboxes =
        record["result"]["interfaces"].as_array().into_iter().flatten().map(|it| &it["sandbox"]);
    sandboxes
        .chain([&record["netns"]])
        .filter_map(serde_json::Value::as_str)
        .any(|path| !path.is_empty() && Netns::open(path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_stale_when_nothing_that_lives_speaks_for_it() {
        let root = tempfile::tempdir().unwrap();
        let (networks, results) = (root.path().join("net"), root.path().join("results"));
        std::fs::create_dir_all(&networks).unwrap();
        std::fs::create_dir_all(&results).unwrap();
        let now = SystemTime::now();
        let old = now - 2 * FRESH_RESERVATION_GRACE;
        for (ip, owner, made) in [
            ("10.0.0.2", "has-its-address\r\neth0", old),
            ("10.0.0.3", "took-its-address-away\r\neth0", old),
            ("10.0.0.4", "of-before-the-restart\r\neth0", old),
            ("10.0.0.5", "just-being-added\r\neth0", now),
            ("10.0.0.6", "of-an-old-plugin", old),
            ("10.0.0.7", "", old),
            ("10.0.0.8", "in-the-future\r\neth0", now + FRESH_RESERVATION_GRACE),
        ] {
            let path = networks.join(ip);
            std::fs::write(&path, owner).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(made).unwrap();
        }
        let record = |id: &str, sandbox: &str| {
            let text = serde_json::json!({"result": {"interfaces": [{"sandbox": sandbox}]}});
            std::fs::write(results.join(format!("net-{id}-eth0")), text.to_string()).unwrap();
        };
        record("took-its-address-away", "/proc/self/ns/net");
        record("of-before-the-restart", "/run/netns/long-gone");
        let store = Store::open(&networks).unwrap().unwrap();
        let evidence = Evidence { addresses: ["10.0.0.2".parse().unwrap()].into(), results };
        let mut findings = inspect(&store, "net", &evidence, now).unwrap();
        findings.sort_by_key(|finding| finding.reservation.ip);
        use State::{InUse, Recent, Stale};
        let states: Vec<State> = findings.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [InUse, InUse, Stale, Recent, Stale, Stale, Recent]);
        let freed: Vec<String> =
            fix(&store, "net", &findings).unwrap().iter().map(|it| it.ip.to_string()).collect();
        assert_eq!(freed, ["10.0.0.4", "10.0.0.6", "10.0.0.7"]);
        assert!(fix(&store, "net", &findings).unwrap().is_empty(), "once");
    }

    #[test]
    fn an_address_that_changed_hands_meanwhile_is_not_set_free() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("10.0.0.2");
        std::fs::write(&path, "dead\r\neth0").unwrap();
        let store = Store::open(root.path()).unwrap().unwrap();
        let reservation = store.reservations().unwrap().remove(0);
        std::fs::write(&path, "alive\r\neth0").unwrap();
        assert!(
            fix(&store, "net", &[Finding { reservation, state: State::Stale }]).unwrap().is_empty()
        );
        assert!(path.exists());
    }
}
