//! What each network of this node has taken: no two of them can have the same addresses or devices.
//! Of two that want the same, the one named first in `--networks` has it, whichever came first.

use std::collections::BTreeMap;

use flannel_common::{IfName, overlap};
use flannel_lease::NetworkName;
use ipnet::IpNet;
use tokio::sync::watch;

pub struct NetworkClaims {
    order: Vec<NetworkName>,
    /// Changes whenever some network takes something.
    pub(super) taken: watch::Sender<BTreeMap<NetworkName, NetworkClaim>>,
}

pub(super) struct NetworkClaim {
    networks: Vec<IpNet>,
    devices: Vec<IfName>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Conflict {
    #[error(
        "its addresses {ours} overlap {theirs} of the network {other}, which this node has joined as well: \
         change the Network of one of them"
    )]
    Addresses { ours: IpNet, theirs: IpNet, other: NetworkName },
    #[error(
        "its device {device} is that of the network {other}, which this node has joined as well: give one \
         of them another VNI, or, where there is no VNI (wireguard, ipip), use vxlan for one of them"
    )]
    Device { device: IfName, other: NetworkName },
    #[error(
        "a network that comes before it in --networks now wants its addresses or its device, and has them"
    )]
    GivenUp,
}

impl NetworkClaims {
    pub fn new(order: Vec<NetworkName>) -> Self {
        Self { order, taken: watch::Sender::new(BTreeMap::new()) }
    }

    /// Takes this for the network, in place of what it had. Refused as a whole, and then it keeps that.
    pub(super) fn take(
        &self,
        name: &NetworkName,
        networks: &[IpNet],
        devices: &[IfName],
    ) -> Result<(), Conflict> {
        let mut result = Ok(());
        self.taken.send_if_modified(|all| {
            let unchanged = all
                .get(name)
                .is_some_and(|taken| taken.networks == networks && taken.devices == devices);
            if unchanged {
                return false;
            }
            let conflict = |other: &NetworkName, taken: &NetworkClaim| {
                taken.check(networks, devices, other).err()
            };
            let before_us = self.order.iter().take_while(|other| *other != name);
            let refused = before_us.filter_map(|other| conflict(other, all.get(other)?)).next();
            if let Some(refused) = refused {
                result = Err(refused);
                return false;
            }
            all.retain(|other, taken| other == name || conflict(other, taken).is_none());
            let taken = NetworkClaim { networks: networks.to_vec(), devices: devices.to_vec() };
            all.insert(name.clone(), taken);
            true
        });
        result
    }

    pub(super) fn check(&self, name: &NetworkName) -> Result<(), Conflict> {
        self.taken.borrow().contains_key(name).then_some(()).ok_or(Conflict::GivenUp)
    }

    pub(super) fn is_anothers(&self, name: &NetworkName, net: &IpNet) -> bool {
        let all = self.taken.borrow();
        let mut others = all.iter().filter(|(other, _)| *other != name);
        others.any(|(_, taken)| taken.networks.iter().any(|theirs| overlap(theirs, net)))
    }
}

impl NetworkClaim {
    fn check(
        &self,
        networks: &[IpNet],
        devices: &[IfName],
        owner: &NetworkName,
    ) -> Result<(), Conflict> {
        let other = || owner.clone();
        for ours in networks {
            if let Some(theirs) = self.networks.iter().find(|theirs| overlap(theirs, ours)) {
                return Err(Conflict::Addresses { ours: *ours, theirs: *theirs, other: other() });
            }
        }
        match devices.iter().find(|device| self.devices.contains(device)) {
            Some(device) => Err(Conflict::Device { device: *device, other: other() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NetworkName {
        text.parse().expect("a name")
    }

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    fn device(text: &str) -> IfName {
        IfName::new(text).expect("a name")
    }

    fn taken() -> (NetworkClaims, NetworkName, NetworkName) {
        let (blue, green) = (name("blue"), name("green"));
        (NetworkClaims::new(vec![blue.clone(), green.clone()]), blue, green)
    }

    #[test]
    fn what_one_network_has_no_later_one_can_take() {
        let (taken, blue, green) = taken();
        taken.take(&blue, &[net("10.1.0.0/16")], &[device("flannel.1")]).expect("free");
        let conflict = taken.take(&green, &[net("10.1.64.0/18")], &[]).expect_err("taken");
        assert!(conflict.to_string().contains("10.1.0.0/16 of the network blue"), "{conflict}");
        let conflict = taken.take(&green, &[net("10.2.0.0/16")], &[device("flannel.1")]);
        assert_eq!(
            conflict,
            Err(Conflict::Device { device: device("flannel.1"), other: name("blue") })
        );
        taken.take(&green, &[net("10.2.0.0/16")], &[device("flannel.2")]).expect("free");
        assert_eq!((taken.check(&blue), taken.check(&green)), (Ok(()), Ok(())));
    }

    #[test]
    fn the_one_named_first_has_it_whichever_came_first() {
        let (blue_net, green_net) = ([net("10.1.0.0/16")], [net("10.2.0.0/16")]);
        let device = [device("flannel.1")];
        for green_first in [false, true] {
            let (taken, blue, green) = taken();
            if green_first {
                taken.take(&green, &green_net, &device).expect("nobody else is there");
                taken.take(&blue, &blue_net, &device).expect("it is the first in the order");
            } else {
                taken.take(&blue, &blue_net, &device).expect("nobody else is there");
                taken.take(&green, &green_net, &device).expect_err("it is the second");
            }
            assert_eq!((taken.check(&blue), taken.check(&green)), (Ok(()), Err(Conflict::GivenUp)));
        }
    }

    #[test]
    fn a_network_that_moves_leaves_what_it_had_and_one_that_cannot_keeps_it() {
        let (taken, blue, green) = taken();
        taken.take(&blue, &[net("10.1.0.0/16")], &[]).expect("free");
        taken.take(&green, &[net("10.2.0.0/16")], &[]).expect("free");
        taken.take(&green, &[net("10.0.0.0/8")], &[]).expect_err("blue is in there");
        assert!(taken.is_anothers(&blue, &net("10.2.1.0/24")), "green has it still");
        taken.take(&green, &[net("10.3.0.0/16")], &[]).expect("free");
        assert!(!taken.is_anothers(&blue, &net("10.2.1.0/24")));
        taken.take(&blue, &[net("10.2.0.0/16")], &[]).expect("free now");
    }
}
