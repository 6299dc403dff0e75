//! One network: its config and its leases, with indices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use flannel_backend::{LinkIdentity, link_identities};
use flannel_lease::{ConfigError, FreeMap, NetworkConfig, Subnet, SubnetSource};
use flannel_store::{KeptLease, Millis};
use ipnet::{Ipv4Net, Ipv6Net};

#[derive(Clone, Debug, Default)]
pub struct Network {
    config: Option<StoredConfig>,
    leases: BTreeMap<Subnet, KeptLease>,
    by_address: BTreeSet<(IpAddr, Subnet)>,
    by_identity: BTreeSet<(LinkIdentity, Subnet)>,
    by_expiry: BTreeSet<(Millis, Subnet)>,
    pub(super) free_v4: Option<FreeMap<Ipv4Net>>,
    pub(super) free_v6: Option<FreeMap<Ipv6Net>>,
}

#[derive(Clone, Debug)]
struct StoredConfig {
    text: String,
    /// Unusable if another version with other rules has stored it; then it is kept until a usable one is written.
    parsed: Result<NetworkConfig, ConfigError>,
    revision: u64,
}

impl Network {
    pub fn config(&self) -> Option<&NetworkConfig> {
        self.config.as_ref()?.parsed.as_ref().ok()
    }

    pub fn config_fault(&self) -> Option<&ConfigError> {
        self.config.as_ref()?.parsed.as_ref().err()
    }

    pub fn config_text(&self) -> Option<&str> {
        self.config.as_ref().map(|config| config.text.as_str())
    }

    pub fn config_revision(&self) -> u64 {
        self.config.as_ref().map_or(0, |config| config.revision)
    }

    pub fn leases(&self) -> &BTreeMap<Subnet, KeptLease> {
        &self.leases
    }

    pub fn lease(&self, subnet: &Subnet) -> Option<&KeptLease> {
        self.leases.get(subnet)
    }

    pub(super) fn at_address(&self, address: IpAddr) -> impl Iterator<Item = Subnet> {
        let key = |prefix: u8| {
            let net = Ipv4Net::new_assert([0, 0, 0, 0].into(), prefix);
            (address, Subnet::V4(net))
        };
        self.by_address.range(key(0)..).take_while(move |(ip, _)| *ip == address).map(|(_, s)| *s)
    }

    pub(super) fn announcing(&self, identity: LinkIdentity) -> impl Iterator<Item = Subnet> {
        let first = (identity, Subnet::V4(Ipv4Net::default()));
        let all = self.by_identity.range(first..);
        all.take_while(move |(other, _)| *other == identity).map(|(_, subnet)| *subnet)
    }

    pub(super) fn expired(&self, now: Millis) -> impl Iterator<Item = Subnet> {
        self.by_expiry.iter().take_while(move |(at, _)| *at <= now).map(|(_, subnet)| *subnet)
    }

    pub(super) fn next_expiry(&self) -> Option<Millis> {
        self.by_expiry.first().map(|(at, _)| *at)
    }

    pub(crate) fn set_config(&mut self, text: &str, revision: u64) {
        let parsed = NetworkConfig::parse(text);
        let pools = |config: &NetworkConfig| (config.v4, config.v6);
        let (before, after) = (self.config().map(pools), parsed.as_ref().ok().map(pools));
        if before != after {
            let (v4, v6) = after.unwrap_or_default();
            self.free_v4 = v4.and_then(SubnetSource::pool).map(FreeMap::new);
            self.free_v6 = v6.and_then(SubnetSource::pool).map(FreeMap::new);
            let subnets: Vec<Subnet> = self.leases.keys().copied().collect();
            subnets.iter().for_each(|subnet| self.occupy(subnet));
        }
        self.config = Some(StoredConfig { text: text.to_owned(), parsed, revision });
    }

    pub(crate) fn put(&mut self, subnet: Subnet, entry: Option<KeptLease>) -> Option<KeptLease> {
        let before = self.remove(&subnet);
        if let Some(entry) = entry {
            for address in entry.attrs.public_addresses() {
                self.by_address.insert((address, subnet));
            }
            for identity in link_identities(&entry.attrs) {
                self.by_identity.insert((identity, subnet));
            }
            if let Some(at) = entry.expires {
                self.by_expiry.insert((at, subnet));
            }
            self.occupy(&subnet);
            self.leases.insert(subnet, entry);
        }
        before
    }

    pub(super) fn shift(&mut self, away: i64, least: Millis) {
        self.by_expiry.clear();
        for (subnet, entry) in &mut self.leases {
            if let Some(at) = &mut entry.expires {
                *at = at.saturating_add_signed(away).max(least);
                self.by_expiry.insert((*at, *subnet));
            }
        }
    }

    fn remove(&mut self, subnet: &Subnet) -> Option<KeptLease> {
        let entry = self.leases.remove(subnet)?;
        for address in entry.attrs.public_addresses() {
            self.by_address.remove(&(address, *subnet));
        }
        for identity in link_identities(&entry.attrs) {
            self.by_identity.remove(&(identity, *subnet));
        }
        if let Some(at) = entry.expires {
            self.by_expiry.remove(&(at, *subnet));
        }
        self.vacate(subnet);
        Some(entry)
    }

    pub(super) fn occupy(&mut self, subnet: &Subnet) {
        if let Some((free, net)) = self.free_v4.as_mut().zip(subnet.v4()) {
            free.occupy(net);
        }
        if let Some((free, net)) = self.free_v6.as_mut().zip(subnet.v6()) {
            free.occupy(net);
        }
    }

    pub(super) fn vacate(&mut self, subnet: &Subnet) {
        if let Some((free, net)) = self.free_v4.as_mut().zip(subnet.v4()) {
            free.release(net);
        }
        if let Some((free, net)) = self.free_v6.as_mut().zip(subnet.v6()) {
            free.release(net);
        }
    }
}
