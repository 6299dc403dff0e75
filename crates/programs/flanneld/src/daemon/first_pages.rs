//! Peers that are written while the store is still listing others: after a boot the kernel has nothing, and with thousands of
//! peers it takes longer to write them than to list them. Nothing relies on it: what is declared as a whole, when the list is
//! complete and the lease is taken, puts right what has changed meanwhile.

use flannel_backend::{DesiredState, WantedBy};
use flannel_entries::facts::Facts;
use flannel_lease::Lease;
use flannel_store::Page;

use super::Setup;
use super::link_holders::HolderMap;
use super::network::JoinedNetwork;
use crate::appliers::Appliers;
use crate::link_holders_file::LinkHoldersFile;

pub(super) struct FirstPages<'a> {
    setup: &'a Setup,
    appliers: &'a Appliers,
    network: &'a JoinedNetwork,
    facts: &'a Facts,
    /// Leases whose MACs and keys are known: while not all leases are, others that announce them have to wait.
    remembered: HolderMap,
}

impl<'a> FirstPages<'a> {
    /// `None` when it is better to wait for the whole list: devices that are there are likely to have all that is wanted,
    /// and a backend that must know how peers are reached asks for many at a time.
    pub(super) fn new(
        setup: &'a Setup,
        appliers: &'a Appliers,
        network: &'a JoinedNetwork,
        facts: &'a Facts,
    ) -> Option<Self> {
        let devices = network.devices();
        let bare = !devices.is_empty() && devices.iter().all(|it| facts.interface(*it).is_none());
        (bare && !network.backend.wants_paths()).then(|| {
            let file = LinkHoldersFile::new(&setup.options.data_dir, &setup.subnet_file);
            Self { setup, appliers, network, facts, remembered: file.read() }
        })
    }

    pub(super) fn hear(&self, page: Page) {
        let Self { setup, appliers, network, facts, remembered } = self;
        let Lease { subnet, attrs } = page.own;
        let own = Lease { subnet, attrs: network.attrs(Some(&attrs), facts, setup) };
        let mut beginning = DesiredState::with_capacity(page.leases.len() + 1);
        beginning.want(WantedBy::Node, network.base(&own, &setup.options));
        let is_anothers = |lease: &Lease| {
            let holder = |identity| remembered.get(identity);
            network
                .link_identities(&lease.attrs)
                .iter()
                .filter_map(holder)
                .any(|it| *it != lease.subnet)
        };
        for lease in page.leases.iter().filter(|lease| lease.subnet != own.subnet) {
            if !remembered.is_empty() && is_anothers(lease) {
                continue;
            }
            // What is wrong with a peer is said when all are known.
            if let Ok(wishes) = network.peer(&own, lease) {
                beginning.want(WantedBy::Peer(lease.subnet), wishes);
            }
        }
        appliers.prepare(beginning);
    }
}
