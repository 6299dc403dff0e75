//! IPsec policies: read, written, removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

use flannel_common::xfrm::Direction;
use flannel_entries::kernel::{Entry, Key};
use flannel_netlink::xfrm::{self, ObservedPolicy};
use flannel_netlink::{Connection, Protocol};
use flannel_wanted::Batch;
use ipnet::IpNet;

use super::Reconciler;
use super::write::is_already_gone;
use crate::ownership;

#[derive(Default)]
pub(super) struct Policies {
    /// Opened when it is first needed. A kernel without IPsec has none.
    kernel: Option<Connection>,
    pub(super) removals: Vec<(Direction, IpNet, IpNet)>,
    pub(super) changed_by: Option<u32>,
}

impl Policies {
    pub(super) fn port(&self) -> u32 {
        self.kernel.as_ref().map_or(0, Connection::port)
    }

    fn kernel(&mut self) -> io::Result<&mut Connection> {
        match &mut self.kernel {
            Some(kernel) => Ok(kernel),
            none => Ok(none.insert(Connection::open(Protocol::Xfrm)?)),
        }
    }

    fn read(&mut self) -> io::Result<Vec<ObservedPolicy>> {
        let policies = self.kernel()?.ask_all(&xfrm::list_policies(), xfrm::read_policy)?;
        policies.map_err(|error| io::Error::from_raw_os_error(error.errno))
    }
}

impl<S: Ord + Clone> Reconciler<S> {
    /// Compares all policies with the wanted ones. `by` is who may have changed them.
    pub(super) fn compare_policies(&mut self, by: u32, now: Instant) -> io::Result<()> {
        let first = Key::Policy(Direction::In, IpNet::default(), IpNet::default());
        let wanted: Vec<Key> = self
            .wanted
            .range(first..)
            .map_while(|entry| matches!(entry, Entry::Policy(_)).then(|| entry.key()))
            .collect();
        if !wanted.is_empty() {
            // A kernel without IPsec is reported where they are written.
            let _ = self.monitor.watch_policies();
        }
        let Ok(observed) = self.policies.read() else { return Ok(()) };
        let mut there = BTreeSet::new();
        for policy in observed {
            let key = Key::Policy(policy.direction, policy.src, policy.dst);
            match self.wanted.get(&key) {
                Some(Entry::Policy(wanted)) => {
                    let is_as_wanted = policy.plain && policy.tunnel == Some(wanted.tunnel);
                    self.note_found(&key, is_as_wanted, by, now);
                    there.insert(key);
                }
                _ if ownership::owns_policy(&self.ownership, &policy) => {
                    self.policies.removals.push((policy.direction, policy.src, policy.dst));
                }
                _ => {}
            }
        }
        for key in wanted.iter().filter(|key| !there.contains(key)) {
            self.missing(key, by, now);
        }
        Ok(())
    }

    pub(super) fn write_policies(
        &mut self,
        batch: &Batch<Key>,
        failures: &mut BTreeMap<Key, String>,
    ) -> io::Result<()> {
        let policies = self.wanted.entries(batch).filter_map(|entry| match entry {
            Entry::Policy(policy) => Some((entry.key(), xfrm::put_policy(policy))),
            _ => None,
        });
        let (sent, requests): (Vec<Key>, Vec<_>) = policies.unzip();
        if sent.is_empty() {
            return Ok(());
        }
        match self.policies.kernel() {
            Ok(kernel) => kernel.apply(requests, |at, error| {
                failures.insert(sent[at].clone(), error.to_string());
            }),
            Err(error) => {
                let why = format!("{error}: this kernel has no IPsec (modprobe xfrm_user esp4)");
                failures.extend(sent.into_iter().map(|key| (key, why.clone())));
                Ok(())
            }
        }
    }

    pub(super) fn flush_policy_removals(&mut self) -> io::Result<()> {
        let mut removals = std::mem::take(&mut self.policies.removals);
        // It may be wanted again by now.
        removals.retain(|(direction, src, dst)| {
            self.wanted.get(&Key::Policy(*direction, *src, *dst)).is_none()
        });
        if removals.is_empty() {
            return Ok(());
        }
        let requests = removals.iter().map(|(direction, src, dst)| {
            tracing::debug!("removing xfrm policy {direction} {src} -> {dst}");
            xfrm::delete_policy(*direction, *src, *dst)
        });
        let Ok(kernel) = self.policies.kernel() else { return Ok(()) };
        kernel.apply(requests, |at, error| {
            let (direction, src, dst) = removals[at];
            if !is_already_gone(&error) {
                tracing::warn!("cannot remove xfrm policy {direction} {src} -> {dst}: {error}");
            }
        })
    }
}
