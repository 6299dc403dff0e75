//! Keys and peers of WireGuard devices: read, written, removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flannel_common::{IfName, PublicKey};
use flannel_entries::kernel::{Entry, Key, Link, LinkKind};
use flannel_netlink::NetlinkError;
use flannel_wanted::Batch;

use super::Reconciler;
use crate::observed::ObservedKind;
use crate::wireguard::{Change, ObservedDevice, Wireguard};

/// Interval between two readings, because the kernel sends no notification about them; longer if reading takes long.
const READ_INTERVAL: Duration = Duration::from_secs(1);
const PAUSE_PER_WORK: u32 = 50;
/// Number of new peers at once above which it is not their keys that have changed.
const MAX_GREETINGS: usize = 16;

#[derive(Default)]
pub(super) struct Tunnels {
    /// Opened when it is first needed.
    kernel: Option<Wireguard>,
    pub(super) removals: Vec<(IfName, PublicKey)>,
    pub(super) next_look: Option<Instant>,
}

impl Tunnels {
    fn kernel(&mut self) -> io::Result<Result<&mut Wireguard, NetlinkError>> {
        if self.kernel.is_none() {
            match Wireguard::open()? {
                Ok(kernel) => self.kernel = Some(kernel),
                Err(error) => return Ok(Err(error)),
            }
        }
        let none = || NetlinkError::new(libc::ENOENT, "no WireGuard");
        Ok(self.kernel.as_mut().ok_or_else(none))
    }
}

impl<S: Ord + Clone> Reconciler<S> {
    pub(super) fn compare_wireguard(&mut self, now: Instant) -> io::Result<()> {
        let begin = Instant::now();
        let devices: Vec<IfName> = self
            .wanted
            .iter()
            .skip_while(|entry| matches!(entry, Entry::Link(_)))
            .map_while(|entry| match entry {
                Entry::WireguardIdentity(identity) => Some(identity.link),
                _ => None,
            })
            .collect();
        for link in &devices {
            self.compare_wireguard_device(*link, now)?;
        }
        let pause = (begin.elapsed() * PAUSE_PER_WORK).max(READ_INTERVAL);
        self.tunnels.next_look = (!devices.is_empty()).then(|| now + pause);
        Ok(())
    }

    fn compare_wireguard_device(&mut self, link: IfName, now: Instant) -> io::Result<()> {
        let Some(observed) = self.read_wireguard(link)? else { return Ok(()) };
        let key = Key::Wireguard(link);
        let as_wanted = match self.wanted.get(&key) {
            Some(Entry::WireguardIdentity(wanted)) => observed.is(wanted),
            _ => return Ok(()),
        };
        self.note_found(&key, as_wanted, 0, now);
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut there = BTreeSet::new();
        for peer in &observed.peers {
            there.insert(peer.public_key);
            let key = Key::WireguardPeer(link, peer.public_key);
            match self.wanted.get(&key) {
                Some(Entry::WireguardPeer(wanted)) if peer.is(wanted, clock) => {
                    self.wanted.seen(&key);
                }
                Some(_) => self.missing(&key, 0, now),
                None => self.tunnels.removals.push((link, peer.public_key)),
            }
        }
        let bound = |byte| Key::WireguardPeer(link, PublicKey([byte; 32]));
        let all = bound(0)..=bound(255);
        let gone: Vec<Key> = self
            .wanted
            .range(all)
            .map(Entry::key)
            .filter(|key| !matches!(key, Key::WireguardPeer(_, peer) if there.contains(peer)))
            .collect();
        for key in gone {
            self.missing(&key, 0, now);
        }
        Ok(())
    }

    /// Finds the wanted device under a name that somebody else gave it, by its key and port.
    pub(super) fn renamed_wireguard(&mut self, link: &Link) -> io::Result<Option<(u32, IfName)>> {
        if link.kind != LinkKind::Wireguard {
            return Ok(None);
        }
        let strange: Vec<(u32, IfName)> = self
            .links
            .iter()
            .map(|(other, _)| other)
            .filter(|other| other.kind == Some(ObservedKind::Wireguard))
            .filter(|other| !self.ownership.links.contains(&other.name))
            .map(|other| (other.index, other.name))
            .collect();
        for (index, name) in strange {
            let Some(observed) = self.read_wireguard(name)? else { continue };
            if let Some(Entry::WireguardIdentity(wanted)) =
                self.wanted.get(&Key::Wireguard(link.name))
                && observed.is(wanted)
            {
                return Ok(Some((index, name)));
            }
        }
        Ok(None)
    }

    /// Reads a device; `None` if there is none, or it is not WireGuard's.
    fn read_wireguard(&mut self, link: IfName) -> io::Result<Option<ObservedDevice>> {
        let Some(index) = self.links.index(link) else { return Ok(None) };
        let Ok(kernel) = self.tunnels.kernel()? else { return Ok(None) };
        Ok(kernel.read(index)?.ok())
    }

    pub(super) fn write_wireguard(
        &mut self,
        batch: &Batch<Key>,
        indices: &BTreeMap<IfName, u32>,
        failures: &mut BTreeMap<Key, String>,
    ) -> io::Result<()> {
        let mut sent: Vec<&Entry> = Vec::new();
        let mut changes: Vec<Change<'_>> = Vec::new();
        // It is a peer with a new key, if another goes: its packets for us wait until both have agreed upon a session.
        let mut greetings = if self.tunnels.removals.is_empty() { 0 } else { MAX_GREETINGS };
        for entry in self.wanted.entries(batch) {
            let Some(index) = entry.link().and_then(|link| indices.get(&link)) else { continue };
            match entry {
                Entry::WireguardIdentity(identity) => {
                    changes.push(Change::Identity(*index, identity));
                }
                Entry::WireguardPeer(peer) => {
                    if greetings > 0 {
                        greetings -= 1;
                        changes.push(Change::PutAndGreet(*index, peer));
                        sent.push(entry);
                    }
                    changes.push(Change::Put(*index, peer));
                }
                _ => continue,
            }
            sent.push(entry);
        }
        if changes.is_empty() {
            return Ok(());
        }
        match self.tunnels.kernel()? {
            Ok(kernel) => kernel.apply(changes, |at, error| {
                failures.insert(sent[at].key(), explain(sent[at], &error));
            }),
            Err(error) => {
                let why = format!("{error}: this kernel has no WireGuard (modprobe wireguard)");
                failures.extend(sent.into_iter().map(|entry| (entry.key(), why.clone())));
                Ok(())
            }
        }
    }

    pub(super) fn flush_wireguard_removals(&mut self) -> io::Result<()> {
        let removals = std::mem::take(&mut self.tunnels.removals);
        let changes: Vec<Change<'_>> = removals
            .iter()
            // It may be wanted again by now.
            .filter(|(link, key)| self.wanted.get(&Key::WireguardPeer(*link, *key)).is_none())
            .filter_map(|(link, key)| Some(Change::Remove(self.links.index(*link)?, *key)))
            .collect();
        if changes.is_empty() {
            return Ok(());
        }
        let Ok(kernel) = self.tunnels.kernel()? else { return Ok(()) };
        kernel.apply(changes, |at, error| {
            tracing::warn!("cannot remove the wireguard peer {}: {error}", removals[at].1);
        })
    }
}

fn explain(entry: &Entry, error: &NetlinkError) -> String {
    match entry {
        Entry::WireguardIdentity(identity) if error.errno == libc::EADDRINUSE => {
            let port = identity.port;
            format!(
                "{error}: the UDP port {port} is taken by another program or WireGuard device (ss -ulnp \
                 'sport = :{port}', ip -d link show type wireguard): stop it, or give flannel another \
                 Backend.ListenPort on all nodes"
            )
        }
        _ => error.to_string(),
    }
}
