//! What the bridge itself must have so that its pods can reach the world. Pure.

use std::net::IpAddr;

use ipnet::IpNet;

use super::conf::BridgeConf;
use crate::ipam::addr::first_of;
use crate::protocol::{Outcome, Route};

/// Completes what the IPAM plugin said: gateways that it left out, default routes where they are
/// wanted, and the interface that has the addresses. Returns the bridge's own addresses.
pub(super) fn complete(outcome: &mut Outcome, conf: &BridgeConf, interface: i64) -> Vec<IpNet> {
    let mut own = Vec::new();
    let mut has_default = [false; 2];
    for ip in &mut outcome.ips {
        let family = usize::from(ip.address.addr().is_ipv6());
        ip.interface = Some(interface);
        if conf.is_gateway {
            let gateway = *ip.gateway.get_or_insert_with(|| first_of(ip.address));
            own.extend(IpNet::new(gateway, ip.address.prefix_len()));
        }
        if conf.is_default_gateway && !has_default[family] {
            let everywhere = everywhere(ip.address.addr());
            if !outcome.routes.iter().any(|route| route.gw.is_some() && route.dst == everywhere) {
                outcome.routes.push(Route::to(everywhere, ip.gateway));
            }
            has_default[family] = true;
        }
    }
    own
}

/// The gateway of a route that names none: that of the first address of its family.
pub(super) fn gateway_of(outcome: &Outcome, route: &Route) -> Option<IpAddr> {
    let same_family = |ip: &IpAddr| ip.is_ipv4() == route.dst.addr().is_ipv4();
    route.gw.or_else(|| outcome.ips.iter().filter_map(|ip| ip.gateway).find(same_family))
}

fn everywhere(ip: IpAddr) -> IpNet {
    match ip {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::IpConfig;

    fn conf(is_gateway: bool, is_default_gateway: bool) -> BridgeConf {
        BridgeConf {
            bridge: "cni0".into(),
            is_gateway,
            is_default_gateway,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: None,
            mtu: None,
            hairpin: false,
            promiscuous: false,
            isolated: false,
            duplicate_detection: false,
            container_interface_down: false,
            mac: None,
            no_spoofing: false,
            vlan: None,
            vlans: None,
            ipam: "host-local".into(),
            dns: Default::default(),
        }
    }

    fn outcome(addresses: &[&str]) -> Outcome {
        let ip = |text: &&str| IpConfig {
            interface: None,
            address: text.parse().unwrap(),
            gateway: None,
            family: None,
        };
        Outcome { ips: addresses.iter().map(ip).collect(), ..Outcome::default() }
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes.iter().map(|route| format!("{} via {:?}", route.dst, route.gw)).collect()
    }

    #[test]
    fn a_default_gateway_gets_an_address_and_a_route_of_every_family() {
        let mut outcome = outcome(&["10.1.2.9/24", "fd00::9/64"]);
        let own = complete(&mut outcome, &conf(true, true), 2);
        assert_eq!(own, ["10.1.2.1/24".parse::<IpNet>().unwrap(), "fd00::1/64".parse().unwrap()]);
        assert_eq!(
            shown(&outcome.routes),
            ["0.0.0.0/0 via Some(10.1.2.1)", "::/0 via Some(fd00::1)"]
        );
        assert!(outcome.ips.iter().all(|ip| ip.interface == Some(2)));
    }

    #[test]
    fn a_default_route_that_the_ipam_plugin_brought_is_not_doubled() {
        let mut outcome = outcome(&["10.1.2.9/24"]);
        outcome
            .routes
            .push(Route::to("0.0.0.0/0".parse().unwrap(), Some("10.1.2.254".parse().unwrap())));
        complete(&mut outcome, &conf(true, true), 2);
        assert_eq!(shown(&outcome.routes), ["0.0.0.0/0 via Some(10.1.2.254)"]);
    }

    #[test]
    fn who_is_no_gateway_has_no_address() {
        let mut outcome = outcome(&["10.1.2.9/24"]);
        assert!(complete(&mut outcome, &conf(false, false), 2).is_empty());
        assert_eq!(outcome.ips[0].gateway, None);
        assert!(outcome.routes.is_empty());
    }
}
