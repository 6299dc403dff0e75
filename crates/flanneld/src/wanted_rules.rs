//! Which traffic rules flags and network config ask for.

use flannel_lease::{NetworkConfig, Subnet};
use flannel_traffic::{FamilyRules, Mode, Rules};
use ipnet::IpNet;

use crate::options;

pub fn wanted_rules(wishes: &options::Traffic, config: &NetworkConfig, subnet: Subnet) -> Rules {
    let exclude = |v4: bool| {
        let all = config.masquerade_exclude.iter();
        all.filter(|net| net.addr().is_ipv4() == v4).copied().collect()
    };
    let family = |network: Option<IpNet>, subnet: Option<IpNet>| {
        let (network, subnet) = (network?, subnet?);
        let exclude = exclude(network.addr().is_ipv4());
        Some(FamilyRules { network, subnet, exclude })
    };
    let v4 = config.v4.map(|source| source.network().into());
    let v6 = config.v6.map(|source| source.network().into());
    Rules {
        v4: family(v4, subnet.v4().map(IpNet::V4)),
        v6: family(v6, subnet.v6().map(IpNet::V6)),
        masquerade: wishes.ip_masq,
        random_fully: wishes.random_fully,
        forward: wishes.forward_rules,
        mode: if config.nftables { Mode::Nftables } else { Mode::Iptables },
    }
}
