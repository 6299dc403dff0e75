//! Trial of a new backend: the part of it that is made beside the one in use, to see whether this node can.
//!
//! Only what everything else depends on: devices, keys, tunnels, processes. A device that both backends name is tried
//! under another name, and a port that the backend in use holds is replaced by a spare one: its own name and port are
//! known to be usable, for they are in use. Nothing here touches what carries packets.

use std::collections::BTreeSet;

use flannel_common::IfName;
use flannel_entries::devices::trial_device;
use flannel_entries::kernel::{Entry, Link, LinkKind, WireguardIdentity};
use flannel_entries::tunnel::{TunnelDevice, TunnelEntry};
use flannel_wanted::{Importance, KeyedEntry};

use crate::Wishes;
use crate::vxlan::KERNEL_DEFAULT_PORT;

/// The part of `next` that can be made while `current` is in use. `exists` tells whether a device of this name is on
/// the node; one that is not of `current` is left alone. `spare_port` is a UDP port that nobody uses.
pub fn trial_wishes(
    current: &Wishes,
    next: &Wishes,
    exists: impl Fn(IfName) -> bool,
    spare_port: u16,
) -> Wishes {
    let held = HeldPort::all(current);
    let mut trial = Wishes::default();
    for name in BTreeSet::from_iter(next.device_names()) {
        let (before, after) = (DeviceParts::of(current, name), DeviceParts::of(next, name));
        if before.differ_only_in_settings(&after) || before.is_empty() && exists(name) {
            continue;
        }
        let named = if before.is_empty() { Some(name) } else { trial_device(name) };
        if let Some(named) = named {
            after.add_to(&mut trial, named, &held, spare_port);
        }
    }
    trial.commands = foundations_beside(&current.commands, &next.commands);
    trial.cloud = foundations_beside(&current.cloud, &next.cloud);
    trial.ipsec = foundations_beside(&current.ipsec, &next.ipsec);
    trial
}

/// Foundations whose keys the backend in use does not have.
fn foundations_beside<E: KeyedEntry>(current: &[E], next: &[E]) -> Vec<E> {
    let is_new = |entry: &&E| !current.iter().any(|other| other.key() == entry.key());
    let is_foundation = |entry: &&E| entry.importance() == Importance::Foundation;
    next.iter().filter(is_foundation).filter(is_new).cloned().collect()
}

impl Wishes {
    pub fn device_names(&self) -> impl Iterator<Item = IfName> {
        self.kernel.iter().filter_map(|entry| match entry {
            Entry::Link(link) => Some(link.name),
            _ => None,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DeviceParts {
    link: Option<Link>,
    identity: Option<WireguardIdentity>,
    tunnel: Option<TunnelDevice>,
}

impl DeviceParts {
    fn of(wishes: &Wishes, name: IfName) -> Self {
        let mut parts = Self::default();
        for entry in &wishes.kernel {
            match entry {
                Entry::Link(link) if link.name == name => parts.link = Some((**link).clone()),
                Entry::WireguardIdentity(identity) if identity.link == name => {
                    parts.identity = Some((**identity).clone());
                }
                _ => {}
            }
        }
        for entry in &wishes.tunnel {
            if let TunnelEntry::Device(tunnel) = entry
                && tunnel.device == name.as_str()
            {
                parts.tunnel = Some((**tunnel).clone());
            }
        }
        parts
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether one becomes the other by settings that any device accepts.
    fn differ_only_in_settings(&self, other: &Self) -> bool {
        let without_settings = |parts: &Self| {
            let mut parts = parts.clone();
            if let Some(link) = &mut parts.link {
                (link.mtu, link.mac) = (0, None);
            }
            if let Some(tunnel) = &mut parts.tunnel {
                tunnel.own = Default::default();
                if let Some(wireguard) = &mut tunnel.wireguard {
                    wireguard.mtu = 0;
                }
            }
            parts
        };
        without_settings(self) == without_settings(other)
    }

    fn add_to(self, trial: &mut Wishes, named: IfName, held: &[HeldPort], spare_port: u16) {
        let is_held = |port: u16| held.iter().any(|held| held.port == port);
        if let Some(mut link) = self.link {
            if link.name != named {
                // Two devices of one MAC would be taken for one that somebody has renamed.
                (link.name, link.mac) = (named, None);
            }
            if let LinkKind::Vxlan(vxlan) = &mut link.kind {
                let port = vxlan.port.unwrap_or(KERNEL_DEFAULT_PORT);
                let beside = |held: &HeldPort| held.is_shared_with(vxlan.vni, vxlan.gbp);
                if held.iter().any(|held| held.port == port && !beside(held)) {
                    vxlan.port = Some(spare_port);
                }
            }
            trial.kernel.push(Entry::Link(Box::new(link)));
        }
        if let Some(mut identity) = self.identity {
            identity.link = named;
            if is_held(identity.port) {
                identity.port = spare_port;
            }
            trial.kernel.push(Entry::WireguardIdentity(Box::new(identity)));
        }
        if let Some(mut tunnel) = self.tunnel {
            tunnel.device = named.to_string();
            for bind in tunnel.bind.iter_mut().filter(|bind| is_held(bind.port())) {
                bind.set_port(spare_port);
            }
            trial.tunnel.push(TunnelEntry::Device(Box::new(tunnel)));
        }
    }
}

struct HeldPort {
    port: u16,
    /// The VNI of the vxlan device that holds it, and whether it uses group policies.
    vxlan: Option<(u32, bool)>,
}

impl HeldPort {
    fn all(wishes: &Wishes) -> Vec<Self> {
        let kernel = wishes.kernel.iter().filter_map(|entry| match entry {
            Entry::Link(link) => match &link.kind {
                LinkKind::Vxlan(vxlan) => Some(Self {
                    port: vxlan.port.unwrap_or(KERNEL_DEFAULT_PORT),
                    vxlan: Some((vxlan.vni, vxlan.gbp)),
                }),
                _ => None,
            },
            Entry::WireguardIdentity(identity) => Some(Self { port: identity.port, vxlan: None }),
            _ => None,
        });
        let tunnels = wishes.tunnel.iter().filter_map(|entry| match entry {
            TunnelEntry::Device(tunnel) => Some(&tunnel.bind),
            _ => None,
        });
        let tunnels = tunnels.flatten().map(|bind| Self { port: bind.port(), vxlan: None });
        kernel.chain(tunnels).collect()
    }

    /// The kernel lets vxlan devices of different VNIs receive on one port, if they agree on the rest.
    fn is_shared_with(&self, vni: u32, gbp: bool) -> bool {
        self.vxlan.is_some_and(|(other, policies)| other != vni && policies == gbp)
    }
}

/// The part of a trial that stays when the new backend takes over: everything under its own name.
#[must_use]
pub fn without_trial_devices(next: &Wishes, mut trial: Wishes) -> Wishes {
    let names = BTreeSet::from_iter(next.device_names());
    trial.kernel.retain(|entry| entry.link().is_none_or(|link| names.contains(&link)));
    trial.tunnel.retain(|entry| match entry {
        TunnelEntry::Device(tunnel) => names.iter().any(|name| name.as_str() == tunnel.device),
        TunnelEntry::Peer(..) | TunnelEntry::WireguardPeer(..) => false,
    });
    trial
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use flannel_entries::kernel::{Address, Vxlan};
    use flannel_entries::tunnel::{Features, OwnAddresses};

    use super::*;

    const SPARE: u16 = 40_000;

    fn name(text: &str) -> IfName {
        IfName::new(text).expect("a name")
    }

    fn vxlan(vni: u32, port: Option<u16>) -> Wishes {
        let link = Link {
            name: name(&format!("flannel.{vni}")),
            kind: LinkKind::Vxlan(Vxlan {
                vni,
                port,
                parent: name("eth0"),
                local: [192, 0, 2, 1].into(),
                learning: false,
                gbp: false,
            }),
            mac: Some("02:00:00:00:00:01".parse().expect("a MAC")),
            mtu: 1450,
        };
        let address = Address { link: link.name, addr: "10.1.0.0/32".parse().expect("a net") };
        vec![Entry::Link(Box::new(link)), Entry::Address(address)].into()
    }

    fn udp(port: u16) -> Wishes {
        let device = name("flannel0");
        let link = Link { name: device, kind: LinkKind::Tun, mac: None, mtu: 1472 };
        let tunnel = TunnelDevice {
            device: device.to_string(),
            bind: vec![SocketAddr::from(([192, 0, 2, 1], port))],
            own: OwnAddresses::default(),
            features: Features::default(),
            wireguard: None,
        };
        Wishes {
            kernel: vec![Entry::Link(Box::new(link))],
            tunnel: vec![TunnelEntry::Device(Box::new(tunnel))],
            ..Wishes::default()
        }
    }

    fn trial(current: &Wishes, next: &Wishes) -> Wishes {
        trial_wishes(current, next, |_| false, SPARE)
    }

    fn described(wishes: &Wishes) -> Vec<String> {
        wishes.descriptions().collect()
    }

    #[test]
    fn a_new_device_is_tried_under_its_own_name_and_without_its_addresses() {
        let wishes = trial(&vxlan(1, None), &vxlan(42, None));
        let [Entry::Link(link)] = wishes.kernel.as_slice() else { panic!("{wishes:?}") };
        assert_eq!((link.name, link.mac.is_some()), (name("flannel.42"), true));
        let LinkKind::Vxlan(kind) = &link.kind else { panic!("{link:?}") };
        assert_eq!((kind.vni, kind.port), (42, None), "vxlan devices share a port");
        assert_eq!(without_trial_devices(&vxlan(42, None), wishes.clone()), wishes);
    }

    #[test]
    fn a_device_that_both_backends_name_is_tried_under_another_name() {
        let next = vxlan(1, Some(9999));
        let wishes = trial(&vxlan(1, None), &next);
        let [Entry::Link(link)] = wishes.kernel.as_slice() else { panic!("{wishes:?}") };
        assert_eq!((link.name, link.mac), (name("try-flannel.1"), None));
        let LinkKind::Vxlan(kind) = &link.kind else { panic!("{link:?}") };
        assert_eq!(kind.port, Some(9999), "the new port is tried");
        assert!(without_trial_devices(&next, wishes).is_empty(), "it does not stay");
    }

    #[test]
    fn a_port_that_the_backend_in_use_holds_is_replaced_by_a_spare_one() {
        for (current, next) in [
            (udp(8472), vxlan(1, None)),
            (vxlan(1, Some(8285)), udp(8285)),
            (udp(8285), {
                // the same port, other features
                let mut other = udp(8285);
                let TunnelEntry::Device(tunnel) = &mut other.tunnel[0] else { unreachable!() };
                tunnel.features.udp_gso = false;
                other
            }),
        ] {
            let text = format!("{:?}", trial(&current, &next));
            assert!(text.contains("40000"), "{text}");
        }
        let busy = described(&trial(&vxlan(1, None), &udp(8285)));
        assert!(busy.iter().any(|entry| entry.contains(":8285")), "{busy:?}");
    }

    #[test]
    fn what_stays_as_it_is_and_devices_of_others_are_not_tried() {
        let mut wider = vxlan(1, None);
        if let Entry::Link(link) = &mut wider.kernel[0] {
            link.mtu = 1400;
        }
        assert!(trial(&vxlan(1, None), &wider).is_empty(), "any device takes another MTU");
        assert!(trial(&udp(8285), &udp(8285)).is_empty());
        assert!(trial(&vxlan(1, None), &Wishes::default()).is_empty(), "host-gw makes nothing");
        assert!(trial_wishes(&vxlan(1, None), &udp(8285), |_| true, SPARE).is_empty());
    }
}
