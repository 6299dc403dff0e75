//! Choice of this host's subnet. A store carries it out, and asks again when another host was faster.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::allocate::FreeMap;
use crate::known_by::public_port;
use crate::net::Net;
use crate::{KnownBy, Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetSource};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimant {
    pub public_ip: Option<Ipv4Addr>,
    pub public_ipv6: Option<Ipv6Addr>,
    /// Its port of that address, if it shares it with others.
    pub public_port: Option<u16>,
    pub previous: Option<Subnet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Our own leases that the config no longer allows, to be deleted before the choice is carried out.
    pub discard: Vec<Subnet>,
    pub choice: Choice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A lease of ours exists: rewrite it with our attributes. A reservation stays one.
    Keep(Subnet),
    /// Create this one if nobody else has done so by then.
    Take(Subnet),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    #[error(
        "out of subnets: all {capacity} /{subnet_len} subnets of {key} {network} from {first} to {last} are \
         leased or reserved: delete the leases of hosts that are gone, choose a larger {key}, or a longer \
         subnet length so that each host takes less"
    )]
    OutOfSubnets {
        key: &'static str,
        network: String,
        subnet_len: u8,
        capacity: u128,
        first: String,
        last: String,
    },
    #[error(
        "no address family is enabled: set EnableIPv4 or EnableIPv6 to true in the network config"
    )]
    NoFamily,
    #[error(
        "the subnets inside {key} {network} are assigned, not taken from a pool, and this host was assigned \
         none"
    )]
    Assigned { key: &'static str, network: String },
}

/// Prefers a lease with our address, the previous one above all, then the previous subnet, then a low free one. Each
/// family is chosen by itself, so that a host keeps its subnet of one when the other is turned on.
pub fn decide<'a>(
    config: &NetworkConfig,
    leases: impl IntoIterator<Item = &'a Lease>,
    me: &Claimant,
    rng: &mut fastrand::Rng,
) -> Result<Decision, AcquireError> {
    let (ours, others): (Vec<&Lease>, Vec<&Lease>) =
        leases.into_iter().partition(|lease| me.has(config, &lease.attrs));
    let (usable, unusable): (Vec<Subnet>, Vec<Subnet>) =
        ours.iter().map(|lease| lease.subnet).partition(|subnet| config.accepts(subnet));

    let kept = me.previous.filter(|previous| usable.contains(previous)).or(usable.first().copied());
    if let Some(kept) = kept {
        return Ok(Decision { discard: unusable, choice: Choice::Keep(kept) });
    }

    let wished: Vec<Subnet> = me.previous.iter().chain(&unusable).copied().collect();
    let v4 = config
        .v4
        .map(|source| choose::<Ipv4Net>(source, "Network", &others, &wished, Subnet::v4, rng))
        .transpose()?;
    let v6 = config
        .v6
        .map(|source| choose::<Ipv6Net>(source, "IPv6Network", &others, &wished, Subnet::v6, rng))
        .transpose()?;
    let subnet = Subnet::new(v4, v6).ok_or(AcquireError::NoFamily)?;
    Ok(Decision { discard: unusable, choice: Choice::Take(subnet) })
}

impl Claimant {
    pub fn new(attrs: &LeaseAttrs, previous: Option<Subnet>) -> Self {
        let LeaseAttrs { public_ip, public_ipv6, .. } = *attrs;
        Self { public_ip, public_ipv6, public_port: public_port(attrs), previous }
    }

    /// Whether a lease with these attributes bears the address by which the claimant is known.
    pub fn has(&self, config: &NetworkConfig, attrs: &LeaseAttrs) -> bool {
        let Self { public_ip, public_ipv6, .. } = *self;
        let me = LeaseAttrs { public_ip, public_ipv6, ..LeaseAttrs::default() };
        KnownBy::of(Some(config)).same_address(&me, attrs) && public_port(attrs) == self.public_port
    }
}

fn choose<N: Net>(
    source: SubnetSource<N>,
    key: &'static str,
    others: &[&Lease],
    wished: &[Subnet],
    part: impl Fn(&Subnet) -> Option<N>,
    rng: &mut fastrand::Rng,
) -> Result<N, AcquireError> {
    let assigned = || AcquireError::Assigned { key, network: source.network().to_string() };
    let mut free = FreeMap::new(source.pool().ok_or_else(assigned)?);
    others.iter().filter_map(|lease| part(&lease.subnet)).for_each(|net| free.occupy(net));
    choose_free(key, &free, wished, part, rng)
}

/// First wished subnet of a family that is free, else a random free one. `key`: member of the config with the pool.
pub fn choose_free<N: Net>(
    key: &'static str,
    free: &FreeMap<N>,
    wished: &[Subnet],
    part: impl Fn(&Subnet) -> Option<N>,
    rng: &mut fastrand::Rng,
) -> Result<N, AcquireError> {
    let pool = free.pool();
    let wish = wished.iter().filter_map(&part).find(|net| free.is_free(*net));
    wish.or_else(|| free.pick(rng)).ok_or_else(|| AcquireError::OutOfSubnets {
        key,
        network: pool.network().to_string(),
        subnet_len: pool.subnet_len(),
        capacity: pool.capacity(),
        first: pool.first().to_string(),
        last: pool.last().to_string(),
    })
}
