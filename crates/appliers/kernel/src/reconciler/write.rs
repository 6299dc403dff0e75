//! Writes what is marked: first what must exist, in order of dependency; then, in reverse, removes what must not.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use flannel_common::IfName;
use flannel_entries::kernel::{Entry, Key};
use flannel_netlink::{NetlinkError, Request};
use flannel_wanted::Batch;
use ipnet::IpNet;

use super::Reconciler;
use crate::{encode, settings, wanted};

impl<S: Ord + Clone> Reconciler<S> {
    /// Removes entries by key alone, because the version that was wanted last need not be the one that was written.
    pub(super) fn remove_unwanted(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            // Entries on a device go with it.
            let on = |name| self.links.index(name);
            let request = match &entry {
                Entry::Route(e) => Some(encode::delete_our_route(e.dst, e.metric)),
                Entry::Blackhole(e) => Some(encode::delete_our_route(e.dst, e.metric)),
                Entry::Link(e) => on(e.name).map(Request::delete_link),
                Entry::Address(e) => on(e.link).map(|link| Request::delete_address(link, e.addr)),
                Entry::Neighbour(e) => on(e.link).map(|link| encode::delete_neighbour(link, e.ip)),
                Entry::Fdb(e) => on(e.link).map(|link| encode::delete_fdb(link, e.mac, None)),
                Entry::WireguardPeer(e) => {
                    self.tunnels.removals.push((e.link, e.public_key));
                    None
                }
                Entry::Policy(e) => {
                    self.policies.removals.push((e.direction, e.src, e.dst));
                    None
                }
                // A key goes with its device. Settings stay as they are: what they were before is not known.
                Entry::WireguardIdentity(_) | Entry::Sysctl(_) | Entry::Offload(_) => None,
            };
            self.removals.extend(request.map(|request| (entry.key(), request)));
        }
    }

    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        if self.wanted.is_dirty() {
            self.flush_links(now)?;
            self.flush_entries(now)?;
        }
        self.flush_removals()
    }

    pub(super) fn flush_entries(&mut self, now: Instant) -> io::Result<()> {
        let batch = self.wanted.batch();
        match &batch {
            Batch::Few(keys) => self.watch.look_at(keys),
            Batch::Many => self.watch.look_at_everything(),
        }
        let indices: BTreeMap<IfName, u32> =
            self.links.iter().map(|(link, _)| (link.name, link.index)).collect();
        let connected = self.links.connected(&self.ownership.links);
        let mut failures = BTreeMap::new();
        // Before the routes that lead into the tunnels.
        self.write_wireguard(&batch, &indices, &mut failures)?;
        self.write_policies(&batch, &mut failures)?;
        let mut sent = Vec::new();
        let requests = self.wanted.entries(&batch).filter_map(|entry| {
            let refused = check_not_connected(entry, &connected);
            let written = refused.and_then(|()| write(entry, &indices)).unwrap_or_else(|error| {
                failures.insert(entry.key(), error);
                None
            });
            sent.extend(written.is_some().then_some(entry));
            written
        });
        let mut refused = Vec::new();
        self.connection.apply(requests, |at, error| refused.push((at, error)))?;
        failures.extend(refused.into_iter().map(|(at, e)| (sent[at].key(), e.to_string())));
        self.wanted.written(batch, &failures.keys().cloned().collect());
        for (key, error) in failures {
            self.note_failure(&key, error, now);
        }
        Ok(())
    }

    pub(super) fn flush_removals(&mut self) -> io::Result<()> {
        self.flush_wireguard_removals()?;
        self.flush_other_removals()?;
        // After the routes, so that nothing leaves unencrypted.
        self.flush_policy_removals()
    }

    fn flush_other_removals(&mut self) -> io::Result<()> {
        let mut removals = std::mem::take(&mut self.removals);
        if removals.is_empty() {
            return Ok(());
        }
        removals.sort_by(|(a, _), (b, _)| b.cmp(a));
        let (keys, requests): (Vec<Key>, Vec<Request>) = removals.into_iter().unzip();
        let mut failed = Vec::new();
        self.connection.apply(requests, |at, error| failed.push((at, error)))?;
        for (at, error) in failed {
            if !is_already_gone(&error) {
                tracing::warn!("cannot remove {}: {error}", keys[at]);
            }
        }
        self.watch.look_at(&keys);
        for key in &keys {
            // What was removed may have been in the way of another entry.
            self.wanted.retry(key);
            match key {
                // A metric of 0 means any: the removal may have taken another of ours to the same subnet.
                Key::Route(dst, 0) => wanted::rewrite_routes_to(&mut self.wanted, *dst),
                Key::Link(name) => {
                    let index = self.links.index(*name);
                    self.facts_changed |= index.is_some_and(|index| self.links.remove(index));
                }
                _ => {}
            }
        }
        if keys.len() <= 3 {
            for key in keys {
                tracing::debug!("removed {key}");
            }
        } else {
            tracing::debug!("removed {} entries", keys.len());
        }
        Ok(())
    }

    pub(super) fn note_failure(&mut self, key: &Key, error: String, now: Instant) {
        let entry = self.wanted.get(key).map(ToString::to_string);
        let retry = self.wanted.failed(key, error.clone(), now, &mut self.rng);
        if let (Some(entry), Some((pause, true))) = (entry, retry) {
            self.repairs.failed(&entry, &error, pause, now);
            // A resync removes a former route that is in its way, such as one that leads an IPv6 gateway elsewhere.
            self.resync_due |= matches!(key, Key::Route(..));
        }
    }
}

/// Refuses a route to a directly connected network: it would replace the connected route.
fn check_not_connected(entry: &Entry, connected: &BTreeMap<IpNet, IfName>) -> Result<(), String> {
    let Entry::Route(route) = entry else { return Ok(()) };
    connected.get(&route.dst).map_or(Ok(()), |link| {
        Err(format!("this node is directly connected to {} through {link}", route.dst))
    })
}

fn write(entry: &Entry, indices: &BTreeMap<IfName, u32>) -> Result<Option<Request>, String> {
    let index = match entry.link().map(|name| indices.get(&name).ok_or(name)) {
        Some(Ok(index)) => *index,
        Some(Err(name)) if !matches!(entry, Entry::Link(_)) => {
            return Err(format!("device {name} is not there"));
        }
        _ => 0,
    };
    let done = |result: io::Result<()>| result.map(|()| None).map_err(|error| error.to_string());
    Ok(Some(match entry {
        // Devices were written before; one that was marked since then is written in the next round.
        Entry::Link(_) => return Err("not made yet".to_owned()),
        // Written already: its failures are known.
        Entry::WireguardIdentity(_) | Entry::WireguardPeer(_) | Entry::Policy(_) => {
            return Ok(None);
        }
        Entry::Sysctl(sysctl) => return done(settings::set_sysctl(sysctl)),
        Entry::Offload(offload) => return done(settings::set_offload(offload)),
        Entry::Blackhole(e) => encode::put_blackhole(e.dst, e.metric),
        Entry::Address(e) => encode::put_address(index, e.addr),
        Entry::Neighbour(e) => encode::put_neighbour(index, e.ip, e.mac),
        Entry::Fdb(e) => encode::put_fdb(index, e.mac, e.dst),
        Entry::Route(e) => encode::put_route(e, index),
    }))
}

pub(super) fn is_already_gone(error: &NetlinkError) -> bool {
    matches!(error.errno, libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::EADDRNOTAVAIL)
}
