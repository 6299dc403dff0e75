//! What `flannel_lease::IdentityEvidence` needs of the world, to tell a node that comes back from a copy of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flannel_backend::LinkIdentity;
use flannel_common::{Mac, OperatorCommands};
use flannel_entries::facts::Facts;
use flannel_lease::{
    IdentityEvidence, Lease, LeaseAttrs, LeaseOwnership, NetworkConfig, NodeIdentity, Subnet,
    SubnetOrigin, SystemEvidence, same_device, same_node,
};
use flannel_store::{Held, Recalled, StoreError, StoredLease};
use rustix::fs::statfs;

use super::Setup;
use super::address_in_use::find_on_link;
use super::link_holders::{HolderMap, IdentityClaim, was_first};
use super::network::JoinedNetwork;
use crate::node_file::NodeFiles;

/// A machine that is slow to answer is not to lose its lease.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

pub(super) struct Identity {
    files: NodeFiles,
    own: Option<NodeIdentity>,
    complained: bool,
}

pub(super) enum FormerLease {
    Regained(Box<Held>),
    /// It is to acquire one, on this subnet if that is free.
    Acquire(Option<Subnet>),
    /// It was given back since it was listed, and is free.
    Vanished,
}

impl Identity {
    /// What was kept under any card of this machine, first under the one that is used.
    pub(super) fn recall(setup: &Setup, network: &JoinedNetwork, facts: &Facts) -> Self {
        let files = NodeFiles::new(&setup.options.data_dir, &setup.subnet_file);
        let own = files.read(cards(network, facts));
        Self { files, own, complained: false }
    }

    /// The subnet that this node had: by its subnet file, else by what it kept.
    pub(super) fn former(&self, previous: Option<Subnet>) -> Option<Subnet> {
        IdentityEvidence { previous, remembered: self.own.as_ref(), ..IdentityEvidence::default() }
            .subnet()
    }

    /// Whether this node wrote this version of a lease, or runs with its device: nobody need be asked whose it is.
    pub(super) fn proves_own(
        &self,
        network: &JoinedNetwork,
        facts: &Facts,
        now: &LeaseAttrs,
        stored: &StoredLease,
    ) -> bool {
        let StoredLease { lease, version, .. } = stored;
        let another_machine =
            lease.attrs.machine.zip(now.machine).is_some_and(|(theirs, ours)| theirs != ours);
        let lives = network.devices().iter().any(|device| facts.interface(*device).is_some());
        self.own.as_ref().is_some_and(|own| own.wrote(lease, *version))
            || lives && !another_machine && same_device(now, &lease.attrs)
    }

    pub(super) fn note(&mut self, held: &Held, card: Option<Mac>) {
        let own = match self.own.take() {
            Some(mut own) => {
                own.note(&held.lease, held.version);
                own
            }
            None => NodeIdentity::new(&held.lease, held.version),
        };
        let written = card.map_or(Ok(()), |card| self.files.write(card, &own));
        self.own = Some(own);
        match written {
            Ok(()) => self.complained = false,
            Err(error) if !self.complained => {
                self.complained = true;
                tracing::warn!(
                    "{error}; a reboot with another address may cost this node its subnet"
                );
            }
            Err(_) => {}
        }
    }

    /// Takes the lease of this node's former subnet, if it is this node's under a former address. Another's is not even wished
    /// for: a lease server would give a copy of a node, which has its token, that node's subnet.
    pub(super) async fn come_back(
        &self,
        setup: &Setup,
        network: &JoinedNetwork,
        facts: &Arc<Facts>,
        recalled: &Recalled,
        previous: Option<Subnet>,
        starting: bool,
    ) -> Result<FormerLease, StoreError> {
        let former = self.former(previous);
        // Where subnets are assigned, nobody asks what a node had.
        let taken = setup.store.subnets() == SubnetOrigin::Pool;
        let accepted = former.filter(|subnet| taken && network.config().accepts(subnet));
        let Some(stored) = accepted.and_then(|subnet| recalled.lease(&subnet)) else {
            return Ok(FormerLease::Acquire(former));
        };
        let lease = &stored.lease;
        let now = network.attrs(None, facts, setup);
        let addresses: Vec<IpAddr> = own_addresses(facts).collect();
        let running = match previous {
            Some(_) if starting => since_boot(setup, network, facts, &now, lease),
            _ => SystemEvidence::Nothing,
        };
        let remembered = self.own.as_ref();
        let evidence = IdentityEvidence { previous, remembered, addresses: &addresses, running };
        let is_ours = match evidence.ownership(network.config(), &now, lease, stored.version) {
            LeaseOwnership::Present => return Ok(FormerLease::Acquire(former)),
            LeaseOwnership::Former => true,
            LeaseOwnership::IfSilent(address) => {
                !self.files.another_kept(&cards(network, facts), lease.subnet)
                    && is_silent(facts, address).await
            }
            LeaseOwnership::Anothers => false,
        };
        if !is_ours {
            if starting {
                say_lost(lease, setup.store.operator_commands());
                withdraw_subnet_file(setup);
            }
            return Ok(FormerLease::Acquire(None));
        }
        let held = stored.held(SystemTime::now());
        self.take_over(setup, network, facts, recalled, held, &now).await
    }

    async fn take_over(
        &self,
        setup: &Setup,
        network: &JoinedNetwork,
        facts: &Arc<Facts>,
        recalled: &Recalled,
        held: Held,
        now: &LeaseAttrs,
    ) -> Result<FormerLease, StoreError> {
        let subnet = held.lease.subnet;
        // Nobody has announced anything on a reservation for this address: an operator wants this node there.
        let reserved = |lease: &&Lease| {
            same_node(network.config(), now, &lease.attrs)
                && lease.attrs.backend_type.is_empty()
                && !held.lease.attrs.backend_type.is_empty()
        };
        let mut others = recalled.snapshot.leases.iter().map(|stored| &stored.lease);
        if let Some(other) = others.find(reserved) {
            tracing::warn!(
                "{} is reserved for this node's address: it leaves {subnet}, and pods that are running \
                 have addresses of that one; restart them",
                other.subnet
            );
            return Ok(FormerLease::Acquire(None));
        }
        let was = address(&held.lease.attrs);
        let attrs = network.attrs(Some(&held.lease.attrs), facts, setup);
        match setup.store.renew(&held, &attrs).await {
            Ok(held) => {
                tracing::info!(
                    "This node was at {was} and is now at {}: it keeps its subnet {subnet}",
                    address(&held.lease.attrs)
                );
                Ok(FormerLease::Regained(Box::new(held)))
            }
            // It was written since it was listed, which an operator may have done: whose it is now, the next list tells.
            Err(error) if error.is_transient() || matches!(error, StoreError::Taken { .. }) => {
                Err(error)
            }
            Err(StoreError::Lost { .. }) => Ok(FormerLease::Vanished),
            Err(error) => {
                tracing::error!(
                    "This node had {subnet} at {was} and may not have it at its present address: {error}; \
                     to get it back, let an operator give that lease back ({}) and restart flanneld",
                    setup.store.operator_commands().release(subnet, None)
                );
                Ok(FormerLease::Acquire(None))
            }
        }
    }
}

/// What other nodes of this list were known by before this node, which is `now` announced as, and whose lease is `own`.
pub(super) fn taken_identities(
    network: &JoinedNetwork,
    now: &LeaseAttrs,
    own: Option<&StoredLease>,
    leases: &[StoredLease],
    remembered: &HolderMap,
) -> Vec<(LinkIdentity, Subnet)> {
    let claim = |identity: &LinkIdentity, stored: &StoredLease| IdentityClaim {
        subnet: stored.lease.subnet,
        is_derived: network.backend.is_derived(identity, &stored.lease.attrs),
        since: stored.since,
    };
    let mut taken = Vec::new();
    for other in leases {
        let is_own = own.is_some_and(|own| own.lease.subnet == other.lease.subnet)
            || same_node(network.config(), now, &other.lease.attrs);
        let identities = network.link_identities(&other.lease.attrs);
        taken.extend(identities.into_iter().filter(|_| !is_own).filter_map(|identity| {
            let had =
                |own: &&StoredLease| network.link_identities(&own.lease.attrs).contains(&identity);
            let was_ours = own.filter(had).is_some_and(|own| {
                was_first(remembered, &identity, claim(&identity, own), claim(&identity, other))
            });
            (!was_ours).then_some((identity, other.lease.subnet))
        }));
    }
    taken
}

/// Says that this node would announce what another one had first, and what becomes of that.
pub(super) fn say_taken(
    network: &JoinedNetwork,
    before: &LeaseAttrs,
    after: &LeaseAttrs,
    taken: &[(LinkIdentity, Subnet)],
) {
    let now = network.link_identities(after);
    for identity in network.link_identities(before) {
        let Some((_, holder)) = taken.iter().find(|(it, _)| *it == identity) else { continue };
        if now.contains(&identity) {
            tracing::error!(
                "{identity} of this node is announced by the lease {holder:#}, which had it first: peers send nothing \
                 to this node; {}",
                identity.fix()
            );
        } else {
            tracing::warn!(
                "{identity} of this node is announced by the lease {holder:#}, which had it first, as when one is a copy \
                 of the other; this node's device gets another one"
            );
        }
    }
}

/// Removes the subnet file of a subnet that is another node's, so that no pod gets an address of it.
pub(super) fn withdraw_subnet_file(setup: &Setup) {
    let file = &setup.subnet_file;
    match std::fs::remove_file(file) {
        Ok(()) => tracing::warn!(
            "Removed {}: its subnet is another node's, and no pod may get an address of it; it is written again with \
             this node's own subnet",
            file.display()
        ),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::error!(
                "Cannot remove {}: {error}; remove it, or new pods get addresses of another node's subnet",
                file.display()
            );
        }
        Err(_) => {}
    }
}

fn say_lost(lease: &Lease, commands: OperatorCommands) {
    let (subnet, holder) = (lease.subnet, address(&lease.attrs));
    let release = commands.release(subnet, None);
    tracing::error!(
        "The subnet {subnet} that this node had is leased to {holder}, and nothing shows that this was this \
         node: taking another one. Pods that are running have addresses of {subnet}; restart them. If \
         {holder} is not another node, give that lease back ({release}) and restart flanneld"
    );
}

pub(super) fn address(attrs: &LeaseAttrs) -> String {
    let first = attrs.public_addresses().next();
    first.map_or_else(|| "an unknown address".to_owned(), |ip| ip.to_string())
}

/// The hardware address of the card through which this node reaches its peers.
pub(super) fn card(network: &JoinedNetwork, facts: &Facts) -> Option<Mac> {
    facts.interface(network.underlay().link)?.mac.filter(Mac::is_unicast)
}

pub(super) fn was_in(setup: &Setup, config: &NetworkConfig, facts: &Facts) -> bool {
    let files = NodeFiles::new(&setup.options.data_dir, &setup.subnet_file);
    let cards = facts.interfaces.iter().filter_map(|i| i.mac).filter(Mac::is_unicast);
    let kept = files.read(cards).map(|own| own.subnet());
    setup.previous.lease_subnet().into_iter().chain(kept).any(|subnet| config.accepts(&subnet))
}

/// Hardware addresses of all cards of this node, first the one that is used.
fn cards(network: &JoinedNetwork, facts: &Facts) -> Vec<Mac> {
    let devices = network.devices();
    let all = facts.interfaces.iter().filter(|i| !i.loopback && !devices.contains(&i.name));
    let all = card(network, facts).into_iter().chain(all.filter_map(|i| i.mac));
    all.filter(Mac::is_unicast).collect()
}

pub(super) fn own_addresses(facts: &Facts) -> impl Iterator<Item = IpAddr> {
    let interfaces = facts.interfaces.iter();
    interfaces.flat_map(|i| i.addresses.iter().map(|address| address.addr.addr()))
}

/// An existing device has been here since the machine booted, and so has a file on tmpfs.
fn since_boot(
    setup: &Setup,
    network: &JoinedNetwork,
    facts: &Facts,
    now: &LeaseAttrs,
    lease: &Lease,
) -> SystemEvidence {
    let lives = network.devices().iter().any(|device| facts.interface(*device).is_some());
    let file_system = statfs(&setup.subnet_file).map(|found| found.f_type as u64);
    let fits = if lives {
        same_device(now, &lease.attrs)
    } else {
        now.backend_type == lease.attrs.backend_type
            && file_system.is_ok_and(|kind| kind == TMPFS || kind == RAMFS)
    };
    if fits { SystemEvidence::SinceBoot } else { SystemEvidence::Nothing }
}

/// Whether nobody on a link of this node has the address. What cannot be asked counts as an answer.
async fn is_silent(facts: &Facts, address: IpAddr) -> bool {
    let near =
        |net: &ipnet::IpNet| net.prefix_len() < net.max_prefix_len() && net.contains(&address);
    let mut links = facts.interfaces.iter();
    let link = links.find(|link| link.addresses.iter().any(|found| near(&found.addr)));
    let Some(link) = link.filter(|link| link.up && has_carrier(link.name)) else { return false };
    tracing::info!(
        "Asking whether anybody has the address {address}, where this node may have been"
    );
    let begin = Instant::now();
    while begin.elapsed() < ANSWER_TIMEOUT {
        match find_on_link(link, address).await {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return false,
        }
    }
    true
}

/// A cable that is not plugged in brings no answers either.
fn has_carrier(link: flannel_common::IfName) -> bool {
    let carrier = std::fs::read_to_string(format!("/sys/class/net/{link}/carrier"));
    carrier.is_ok_and(|text| text.trim() == "1")
}
