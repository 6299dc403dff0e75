//! What each network of this node has taken: no two of them can have the same addresses or devices.

use std::collections::BTreeMap;

use flannel_kernel::IfName;
use flannel_store::ledger::NetworkName;
use ipnet::IpNet;
use tokio::sync::watch;

/// Shared by the daemons of all networks.
pub struct Territory(watch::Sender<BTreeMap<NetworkName, Taken>>);

struct Taken {
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
         of them another VNI"
    )]
    Device { device: IfName, other: NetworkName },
}

impl Default for Territory {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }
}

impl Territory {
    /// Takes this for the network, in place of what it had. Refused as a whole, and then it keeps that.
    pub(super) fn take(
        &self,
        name: &NetworkName,
        networks: &[IpNet],
        devices: &[IfName],
    ) -> Result<(), Conflict> {
        let mut result = Ok(());
        self.0.send_if_modified(|all| {
            let unchanged = all
                .get(name)
                .is_some_and(|taken| taken.networks == networks && taken.devices == devices);
            if unchanged {
                return false;
            }
            result = others(all, name)
                .try_for_each(|(other, taken)| taken.check(networks, devices, other));
            if result.is_ok() {
                let taken = Taken { networks: networks.to_vec(), devices: devices.to_vec() };
                all.insert(name.clone(), taken);
            }
            result.is_ok()
        });
        result
    }

    /// Whether any of it is another network's.
    pub(super) fn is_anothers(&self, name: &NetworkName, net: &IpNet) -> bool {
        others(&self.0.borrow(), name)
            .any(|(_, taken)| taken.networks.iter().any(|theirs| overlap(theirs, net)))
    }

    /// Wakes whenever some network takes something.
    pub(super) fn changes(&self) -> Changes {
        Changes(self.0.subscribe())
    }
}

pub(super) struct Changes(watch::Receiver<BTreeMap<NetworkName, Taken>>);

impl Changes {
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody is left who could take anything.
            std::future::pending().await
        }
    }
}

fn others<'a>(
    all: &'a BTreeMap<NetworkName, Taken>,
    name: &NetworkName,
) -> impl Iterator<Item = (&'a NetworkName, &'a Taken)> {
    all.iter().filter(move |(other, _)| *other != name)
}

impl Taken {
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

fn overlap(one: &IpNet, two: &IpNet) -> bool {
    one.contains(two) || two.contains(one)
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

    #[test]
    fn what_one_network_has_no_other_can_take() {
        let territory = Territory::default();
        let (blue, green) = (name("blue"), name("green"));
        territory.take(&blue, &[net("10.1.0.0/16")], &[device("flannel.1")]).expect("free");
        let conflict = territory.take(&green, &[net("10.1.64.0/18")], &[]).expect_err("taken");
        assert!(conflict.to_string().contains("10.1.0.0/16 of the network blue"), "{conflict}");
        let conflict = territory.take(&green, &[net("10.2.0.0/16")], &[device("flannel.1")]);
        assert_eq!(
            conflict,
            Err(Conflict::Device { device: device("flannel.1"), other: name("blue") })
        );
        territory.take(&green, &[net("10.2.0.0/16")], &[device("flannel.2")]).expect("free");
    }

    #[test]
    fn a_network_that_moves_leaves_what_it_had_and_one_that_cannot_keeps_it() {
        let territory = Territory::default();
        let (blue, green) = (name("blue"), name("green"));
        territory.take(&blue, &[net("10.1.0.0/16")], &[]).expect("free");
        territory.take(&green, &[net("10.2.0.0/16")], &[]).expect("free");
        territory.take(&blue, &[net("10.0.0.0/8")], &[]).expect_err("green is in there");
        assert!(territory.is_anothers(&green, &net("10.1.0.0/24")), "blue has it still");
        territory.take(&blue, &[net("10.3.0.0/16")], &[]).expect("free");
        assert!(!territory.is_anothers(&green, &net("10.1.0.0/24")));
        territory.take(&green, &[net("10.1.0.0/16")], &[]).expect("free now");
    }
}
