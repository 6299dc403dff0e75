//! Decisions: requests become commits. Nothing is changed here; a commit is applied when it is durable.

use std::net::IpAddr;

use flannel_lease::{Choice, KnownBy, LEASE_TTL, LeaseAttrs, NetworkName, Subnet, SubnetOrigin};
use flannel_store::{KeptLease, MAX_DATA_BYTES, Millis, Refusal, replace_config, split_owner};

use super::{Change, Commit, LeaseState, MIN_LIFE_AFTER_START, Network, Reply, Request, Who};

const MAX_EXPIRED_PER_COMMIT: usize = 256;

impl LeaseState {
    /// Decides a request. Without a commit there is nothing to change.
    pub fn decide(
        &mut self,
        name: &NetworkName,
        request: &Request,
        now: Millis,
        rng: &mut fastrand::Rng,
    ) -> Result<(Reply, Option<Commit>), Refusal> {
        let revision = self.revision + 1;
        let mut scope = RequestScope { lease_state: self, name, now, revision };
        let (reply, changes) = match request {
            Request::SetConfig { text, force } => scope.set_config(text, *force)?,
            Request::RemoveNetwork { force } => scope.remove_network(*force)?,
            Request::Acquire { attrs, previous, who } => {
                scope.acquire(attrs, *previous, who, rng)?
            }
            Request::Renew { subnet, attrs, version, who } => {
                scope.renew(*subnet, attrs, *version, who)?
            }
            Request::Release { subnet, version, who } => scope.release(*subnet, *version, who)?,
            Request::Reserve { subnet, attrs } => scope.reserve(*subnet, attrs)?,
            Request::Unreserve { subnet } => scope.unreserve(*subnet)?,
            Request::Import { subnet, attrs, left } => scope.import(*subnet, attrs, *left)?,
        };
        let commit = (!changes.is_empty()).then(|| self.commit(now, changes));
        Ok((reply, commit))
    }

    pub fn expire(&self, now: Millis) -> Option<Commit> {
        let gone = self.networks.iter().flat_map(|(name, network)| {
            network.expired(now).map(|subnet| Change::Gone { network: name.clone(), subnet })
        });
        let gone: Vec<Change> = gone.take(MAX_EXPIRED_PER_COMMIT).collect();
        (!gone.is_empty()).then(|| self.commit(now, gone))
    }

    /// Commit that notes the time, so that a later start knows how long the server was away.
    pub fn tick(&self, now: Millis) -> Commit {
        self.commit(now, vec![Change::Clock])
    }

    pub fn next_expiry(&self) -> Option<Millis> {
        self.networks.values().filter_map(Network::next_expiry).min()
    }
}

type DecisionResult = Result<(Reply, Vec<Change>), Refusal>;

struct RequestScope<'a> {
    lease_state: &'a mut LeaseState,
    name: &'a NetworkName,
    now: Millis,
    revision: u64,
}

impl RequestScope<'_> {
    fn network(&mut self) -> Result<&mut Network, Refusal> {
        let missing = || Refusal::NoNetwork(self.name.clone());
        self.lease_state.networks.get_mut(self.name).ok_or_else(missing)
    }

    fn found(&mut self, subnet: Subnet) -> Result<KeptLease, Refusal> {
        self.network()?.lease(&subnet).cloned().ok_or(Refusal::Gone(subnet))
    }

    fn full_life(&self) -> Option<Millis> {
        Some(self.now + LEASE_TTL.as_millis() as Millis)
    }

    fn put(&self, subnet: Subnet, mut entry: KeptLease) -> (KeptLease, Change) {
        entry.version = self.revision;
        let change = Change::Put {
            network: self.name.clone(),
            subnet,
            attrs: entry.attrs.clone(),
            expires: entry.expires,
            owner: entry.owner.clone(),
        };
        (entry, change)
    }

    fn put_alone(&self, subnet: Subnet, entry: KeptLease) -> DecisionResult {
        let (entry, change) = self.put(subnet, entry);
        Ok((Reply::Lease(subnet, entry), vec![change]))
    }

    fn gone(&self, subnet: Subnet) -> Change {
        Change::Gone { network: self.name.clone(), subnet }
    }

    fn set_config(&mut self, text: &str, force: bool) -> DecisionResult {
        let config = flannel_backend::judge_config_to_write(text, SubnetOrigin::Pool)?.config;
        let mut text = text.to_owned();
        if let Ok(network) = self.network() {
            if network.config_text() == Some(&text) {
                return Ok((Reply::Done, vec![]));
            }
            let (former, leases) = (network.config(), network.leases().keys());
            text = replace_config(&text, &config, former, leases, force)?;
        }
        let text = Some(text);
        Ok((Reply::Done, vec![Change::Config { network: self.name.clone(), text }]))
    }

    fn remove_network(&mut self, force: bool) -> DecisionResult {
        let leases = self.network()?.leases().len();
        if leases > 0 && !force {
            return Err(Refusal::InUse(leases));
        }
        let subnets: Vec<Subnet> = self.network()?.leases().keys().copied().collect();
        let mut changes: Vec<Change> = subnets.into_iter().map(|s| self.gone(s)).collect();
        changes.push(Change::Config { network: self.name.clone(), text: None });
        Ok((Reply::Done, changes))
    }

    fn acquire(
        &mut self,
        attrs: &LeaseAttrs,
        previous: Option<Subnet>,
        who: &Who,
        rng: &mut fastrand::Rng,
    ) -> DecisionResult {
        let node = self.check_known(attrs)?;
        who.check_addresses(attrs)?;
        self.check_identity(attrs, who, None)?;
        let mut ours = self.network()?.leases_of(node, attrs);
        for subnet in &ours {
            self.own(*subnet, who)?;
        }
        // A node that comes back with another address gets its subnet if it can prove who it is.
        if let Some(previous) = previous.filter(|_| ours.is_empty())
            && let Some(entry) = self.network()?.lease(&previous)
            && let Some(owner) = &entry.owner
            && who.acquired(owner, &entry.attrs)
        {
            ours.push(previous);
        }
        let decision = self.network()?.choose(&ours, previous, rng)?;
        let before = match decision.choice {
            Choice::Keep(subnet) => self.network()?.lease(&subnet).cloned(),
            Choice::Take(_) => None,
        };
        let (Choice::Keep(subnet) | Choice::Take(subnet)) = decision.choice;
        let reserved = before.as_ref().is_some_and(|entry| entry.expires.is_none());
        let owner = who.owner_after(before.and_then(|entry| entry.owner));
        let expires = if reserved { None } else { self.full_life() };
        let entry = KeptLease::new(attrs.clone(), expires, owner);
        let (entry, change) = self.put(subnet, entry);
        let mut changes: Vec<Change> =
            decision.discard.into_iter().map(|subnet| self.gone(subnet)).collect();
        changes.push(change);
        Ok((Reply::Lease(subnet, entry), changes))
    }

    /// A lease that this client may change.
    fn own(&mut self, subnet: Subnet, who: &Who) -> Result<KeptLease, Refusal> {
        let entry = self.found(subnet)?;
        if who.owns(entry.owner.as_deref(), &entry.attrs) {
            Ok(entry)
        } else {
            Err(Refusal::NotYours(subnet, Box::new(entry)))
        }
    }

    /// Address by which the node is known. A lease without one would be nobody's.
    fn check_known(&mut self, attrs: &LeaseAttrs) -> Result<IpAddr, Refusal> {
        check_size(attrs)?;
        Ok(self.network()?.known_by().address(attrs)?)
    }

    /// Refuses attributes that another node is known by. `own` is the lease that the client has.
    fn check_identity(
        &mut self,
        attrs: &LeaseAttrs,
        who: &Who,
        own: Option<Subnet>,
    ) -> Result<(), Refusal> {
        let network = self.network()?;
        let known_by = network.known_by();
        for identity in flannel_backend::link_identities(attrs) {
            let others = network.announcing(identity).filter(|subnet| Some(*subnet) != own);
            let others = others.filter_map(|subnet| Some((subnet, network.lease(&subnet)?)));
            let anothers =
                |(_, entry): &(Subnet, &KeptLease)| !who.is_same_client(known_by, attrs, entry);
            if let Some((subnet, entry)) = others.into_iter().find(anothers) {
                let entry = Box::new(entry.clone());
                return Err(Refusal::IdentityTaken { identity, subnet, entry });
            }
        }
        Ok(())
    }

    fn renew(
        &mut self,
        subnet: Subnet,
        attrs: &LeaseAttrs,
        version: Option<u64>,
        who: &Who,
    ) -> DecisionResult {
        let entry = self.own(subnet, who)?;
        let node = self.check_known(attrs)?;
        who.check_addresses(attrs)?;
        self.check_identity(attrs, who, Some(subnet))?;
        let same_node = self.network()?.known_by().same_node(&entry.attrs, attrs);
        if !same_node && version != Some(entry.version) {
            return Err(Refusal::Taken(subnet, Box::new(entry)));
        }
        // A node cannot move to an address at which another node has its lease.
        for other in self.network()?.leases_at(node) {
            self.own(other, who)?;
        }
        let expires = entry.expires.and_then(|_| self.full_life());
        let owner = who.owner_after(entry.owner);
        self.put_alone(subnet, KeptLease::new(attrs.clone(), expires, owner))
    }

    fn release(&mut self, subnet: Subnet, version: Option<u64>, who: &Who) -> DecisionResult {
        let entry = self.own(subnet, who)?;
        if version.is_some_and(|version| version != entry.version) {
            return Err(Refusal::Taken(subnet, Box::new(entry)));
        }
        if entry.expires.is_none() {
            return Err(Refusal::Reserved(subnet));
        }
        Ok((Reply::Done, vec![self.gone(subnet)]))
    }

    fn reserve(&mut self, subnet: Subnet, attrs: &LeaseAttrs) -> DecisionResult {
        if let Some(fault) = self.network()?.config_fault() {
            return Err(Refusal::UnusableConfig(Box::new(fault.clone())));
        }
        if !self.network()?.config().is_some_and(|config| config.accepts(&subnet)) {
            return Err(Refusal::NotInPool(subnet));
        }
        if let Some(entry) = self.network()?.lease(&subnet).cloned() {
            if !self.network()?.known_by().same_node(&entry.attrs, attrs) {
                return Err(Refusal::Taken(subnet, Box::new(entry)));
            }
            if entry.expires.is_none() {
                return Ok((Reply::Lease(subnet, entry), vec![]));
            }
            return self.put_alone(subnet, KeptLease { expires: None, ..entry });
        }
        let node = self.check_known(attrs)?;
        self.check_free(subnet)?;
        self.check_without_lease(node)?;
        self.put_alone(subnet, KeptLease::new(attrs.clone(), None, None))
    }

    /// Refuses a second lease of a node, which it might move to some day.
    fn check_without_lease(&mut self, node: IpAddr) -> Result<(), Refusal> {
        let network = self.network()?;
        let Some(has) = network.leases_at(node).first().copied() else { return Ok(()) };
        let reserved = network.lease(&has).is_some_and(|entry| entry.expires.is_none());
        Err(Refusal::NodeHasLease { node, has, reserved })
    }

    fn check_free(&mut self, subnet: Subnet) -> Result<(), Refusal> {
        let mut others = self.network()?.leases().keys();
        let overlap = others.find(|other| **other != subnet && other.overlaps(&subnet));
        overlap.map_or(Ok(()), |other| Err(Refusal::Overlaps(subnet, *other)))
    }

    fn unreserve(&mut self, subnet: Subnet) -> DecisionResult {
        let entry = self.found(subnet)?;
        if entry.expires.is_some() {
            return Ok((Reply::Lease(subnet, entry), vec![]));
        }
        let expires = self.full_life();
        self.put_alone(subnet, KeptLease { expires, ..entry })
    }

    fn import(&mut self, subnet: Subnet, attrs: &LeaseAttrs, left: Option<u64>) -> DecisionResult {
        self.network()?;
        check_size(attrs)?;
        KnownBy::Ipv4First.address(attrs)?;
        if let Some(entry) = self.network()?.lease(&subnet).cloned()
            && !self.network()?.known_by().same_node(&entry.attrs, attrs)
        {
            return Err(Refusal::Taken(subnet, Box::new(entry)));
        }
        self.check_free(subnet)?;
        // Enough for its node to renew it, whatever the clocks of the two stores say.
        let [least, most] =
            [MIN_LIFE_AFTER_START, LEASE_TTL].map(|life| life.as_millis() as Millis);
        let expires = left.map(|left| self.now + left.clamp(least, most));
        let (attrs, owner) = split_owner(attrs.clone());
        self.put_alone(subnet, KeptLease::new(attrs, expires, owner))
    }
}

/// Refuses attributes larger than a backend needs, since every node keeps them.
pub(crate) fn check_size(attrs: &LeaseAttrs) -> Result<(), Refusal> {
    let size = attrs.weight();
    if size > MAX_DATA_BYTES { Err(Refusal::TooLarge(size)) } else { Ok(()) }
}
