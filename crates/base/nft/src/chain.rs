//! Chains, and where they stand in a packet's way.

use flannel_netlink::Attributes;

use crate::{Nft, Result, TableFamily, of_table, request, userdata, wire};

/// What a base chain does with packets: its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    Route,
}

impl ChainKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// Point of a packet's way through the host (`NF_INET_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HookPoint {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
    /// Frames that a device receives. Read, and never written here, as `Egress`.
    Ingress = 5,
    Egress = 6,
}

/// Place of a base chain: its type, its point, and its priority among others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: ChainKind,
    pub point: HookPoint,
    pub priority: i32,
}

impl Hook {
    /// Destinations of packets that arrive: `type nat hook prerouting priority dstnat`.
    pub const DESTINATION_NAT: Self = Self::nat(HookPoint::Prerouting, -100);
    /// Destinations of packets that the host sends.
    pub const OUTPUT_NAT: Self = Self::nat(HookPoint::Output, -100);
    /// Sources of packets that leave: `type nat hook postrouting priority srcnat`.
    pub const SOURCE_NAT: Self = Self::nat(HookPoint::Postrouting, 100);
    pub const INPUT: Self = Self::filter(HookPoint::Input, 0);
    pub const FORWARD: Self = Self::filter(HookPoint::Forward, 0);
    /// Before anything else has looked at an arriving packet; of the bridge family: at a frame.
    pub const ARRIVAL: Self = Self::filter(HookPoint::Prerouting, -300);

    const fn nat(point: HookPoint, priority: i32) -> Self {
        Self { kind: ChainKind::Nat, point, priority }
    }

    const fn filter(point: HookPoint, priority: i32) -> Self {
        Self { kind: ChainKind::Filter, point, priority }
    }
}

/// A chain, without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// `None` for a chain that is jumped to.
    pub hook: Option<Hook>,
    /// Whether packets pass that no rule has decided about.
    pub accepts: bool,
    pub comment: Option<String>,
    /// Devices whose frames a chain at [`HookPoint::Ingress`] or [`HookPoint::Egress`] sees; `eth*` is all that begin so.
    pub devices: Vec<String>,
}

impl Chain {
    /// Whether it is a base chain at this place and accepts what no rule decides about.
    pub fn stands_at(&self, hook: Hook) -> bool {
        self.hook == Some(hook) && self.accepts
    }
}

impl Nft {
    pub fn chain(
        &mut self,
        family: TableFamily,
        table: &str,
        chain: &str,
    ) -> Result<Option<Chain>> {
        let names = of_table(table).text(wire::CHAIN_NAME, chain);
        Ok(self
            .get(&request(wire::GET_CHAIN, family, names), |chain| read(family, chain))?
            .flatten())
    }

    pub fn has_chain(&mut self, family: TableFamily, table: &str, chain: &str) -> Result<bool> {
        Ok(self.chain(family, table, chain)?.is_some())
    }

    /// All chains of a table. The kernel tells of those of all tables of the family: ask for single ones if their
    /// names are known.
    pub fn chains(&mut self, family: TableFamily, table: &str) -> Result<Vec<Chain>> {
        let question = request(wire::GET_CHAIN, family, of_table(table));
        self.get_all(&question, table, |chain| read(family, chain))
    }
}

fn read(family: TableFamily, chain: Attributes<'_>) -> Option<Chain> {
    let userdata = chain.get(wire::CHAIN_USERDATA).map(userdata::decode).unwrap_or_default();
    let hook = chain.nested(wire::CHAIN_HOOK);
    Some(Chain {
        name: chain.text(wire::CHAIN_NAME)?.to_owned(),
        hook: hook.and_then(|hook| read_hook(family, chain, hook)),
        accepts: chain.be32(wire::CHAIN_POLICY).is_none_or(|policy| policy == wire::ACCEPT),
        comment: userdata.comment,
        devices: hook.map(read_devices).unwrap_or_default(),
    })
}

fn read_hook(family: TableFamily, chain: Attributes<'_>, hook: Attributes<'_>) -> Option<Hook> {
    let kinds = [ChainKind::Filter, ChainKind::Nat, ChainKind::Route];
    let name = chain.text(wire::CHAIN_TYPE)?;
    let kind = kinds.into_iter().find(|kind| kind.name() == name)?;
    let point = match (family, hook.be32(wire::HOOK_NUMBER)?) {
        (TableFamily::Netdev, 0) | (TableFamily::Inet, 5) => HookPoint::Ingress,
        (TableFamily::Netdev, 1) => HookPoint::Egress,
        (TableFamily::Netdev, _) => return None,
        (TableFamily::Arp, 0) => HookPoint::Input,
        (TableFamily::Arp, 1) => HookPoint::Output,
        (_, 0) => HookPoint::Prerouting,
        (_, 1) => HookPoint::Input,
        (_, 2) => HookPoint::Forward,
        (_, 3) => HookPoint::Output,
        (_, 4) => HookPoint::Postrouting,
        _ => return None,
    };
    Some(Hook { kind, point, priority: hook.be32(wire::HOOK_PRIORITY)? as i32 })
}

fn read_devices(hook: Attributes<'_>) -> Vec<String> {
    let Some(list) = hook.nested(wire::HOOK_DEVICES) else {
        return hook.text(wire::HOOK_DEVICE).map(str::to_owned).into_iter().collect();
    };
    let name = |(kind, name)| {
        let name = flannel_netlink::text(name)?;
        match kind {
            wire::DEVICE_NAME => Some(name.to_owned()),
            wire::DEVICE_PREFIX => Some(format!("{name}*")),
            _ => None,
        }
    };
    list.iter().filter_map(name).collect()
}
