//! Inside of a pod: whether it has the way to others, and lets their packets in.

use std::net::IpAddr;

use flannel_common::Mac;
use flannel_common::xfrm::Direction;
use flannel_kernel::look::{Decision, Device, Kernel, RouteQuery};
use flannel_netlink::NetlinkError;
use flannel_state::{Finding, Layer};

use super::Walk;
use super::dropping::judge_kinds;
use crate::firewall::{Hook, Packet, Rules, TCP};
use crate::ipsec_policies::IpsecPolicies;
use crate::judge::{self, broken};
use crate::pod_namespace::PodNamespace;
use crate::queues::{Header, Queues};
use crate::settings::setting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    Leaves,
    Arrives,
}

/// What a pod has, as far as it concerns packets to one other address.
pub(crate) struct InsidePod {
    pub(crate) device: Device,
    pub(crate) way: Result<Decision, NetlinkError>,
    /// MAC of the gateway, if somebody has written it there.
    pub(crate) written_gateway: Option<Mac>,
    /// Why it says nobody that it has its address.
    pub(crate) ignores_arp: Option<Finding>,
    /// How far its packets go, and the setting that says so.
    pub(crate) ttl: Option<(String, u8)>,
    /// The setting by which it answers no echo request, which all that `--live` sends are.
    ignores_echo: Option<&'static str>,
    rules: Rules,
    policies: IpsecPolicies,
    queues: Queues,
}

impl Walk<'_> {
    /// Whether packets leave the pod, or come in. What cannot be looked at counts as passing.
    pub(super) fn inside_pod(
        &mut self,
        namespace: &PodNamespace,
        pod: IpAddr,
        other: IpAddr,
        leg: Leg,
        bridge: &Device,
    ) -> bool {
        let Ok(Some(inside)) = namespace.run(|| look(pod, other)) else { return true };
        let veth = namespace.veth.and_then(|index| self.kernel.by_index(index));
        if let Some(fault) = judge::inside_pod(&inside, pod, other, bridge, veth) {
            return self.hops.take("pod", Err(fault));
        }
        let (hook, direction, ends) = match leg {
            Leg::Leaves => (Hook::Out, Direction::Out, (pod, other)),
            Leg::Arrives => (Hook::In, Direction::In, (other, pod)),
        };
        if let Some(fault) = inside.policies.blocking(&[direction], ends.0, ends.1, None) {
            return self.hops.take("pod", Err(judge::in_pod(pod, fault)));
        }
        let name = inside.device.name.clone();
        let packet =
            Packet { iif: name.clone(), oif: name, ..Packet::first(hook, ends.0, ends.1, TCP) };
        let header = Header { src: ends.0, dst: ends.1, protocol: None, port: None };
        let queues = match leg {
            Leg::Leaves => {
                let delay = inside.queues.delays(&inside.device).into_iter();
                delay.for_each(|delay| self.hops.found("pod", judge::perhaps_in_pod(pod, delay)));
                inside.queues.going_out(&inside.device, header)
            }
            Leg::Arrives => inside.queues.coming_in(&inside.device, header),
        };
        let (surely, perhaps) = judge_kinds(&inside.rules, &packet, Some(inside.device.mtu));
        if let Some((drop, when)) =
            surely.or_else(|| queues.surely.map(|drop| (drop, String::new())))
        {
            let what = format!("{} drops it{when}", drop.rule);
            self.hops.take("pod", Err(judge::in_pod(pod, broken(Layer::Pods, what, drop.fix))));
            return !when.is_empty();
        }
        let perhaps = perhaps.into_iter().chain(queues.perhaps);
        for drop in judge::some_of_many(perhaps.collect()) {
            let finding = judge::may_drop(Layer::Pods, &drop);
            self.hops.found("pod", judge::perhaps_in_pod(pod, finding));
        }
        if let (Leg::Arrives, Some(setting)) = (leg, inside.ignores_echo) {
            let what = format!(
                "the pod {pod} answers no echo requests ({setting} is 1): ping and --live get nothing from it"
            );
            self.hops.unknown("pod", what);
        }
        true
    }
}

fn look(pod: IpAddr, other: IpAddr) -> Option<InsidePod> {
    let mut kernel = Kernel::open().ok()?;
    let has = |device: &&Device| device.addresses.iter().any(|net| net.addr() == pod);
    let device = kernel.devices.iter().find(has)?.clone();
    let way = kernel.decide(RouteQuery { dst: other, from: None, protocol: Some(TCP) }).ok()?;
    let gateway = way.as_ref().ok().and_then(|way| way.via);
    let neighbours = kernel.neighbours(pod.is_ipv4(), device.index).unwrap_or_default();
    let written =
        neighbours.into_iter().find(|one| Some(one.ip) == gateway && super::is_written(one.state));
    let queues = Queues::read(&mut kernel);
    let (ttl_name, ignoring) = match pod.is_ipv4() {
        true => ("net/ipv4/ip_default_ttl".to_owned(), "net/ipv4/icmp_echo_ignore_all"),
        false => {
            let name = format!("net/ipv6/conf/{}/hop_limit", device.name);
            (name, "net/ipv6/icmp/echo_ignore_all")
        }
    };
    let ttl = setting(&ttl_name).and_then(|value| value.parse().ok());
    Some(InsidePod {
        ignores_arp: pod.is_ipv4().then(|| judge::arp(&device).err()).flatten(),
        ttl: ttl.map(|value| (ttl_name, value)),
        ignores_echo: (setting(ignoring).as_deref() == Some("1")).then_some(ignoring),
        device,
        way,
        written_gateway: written.and_then(|one| one.mac),
        rules: Rules::read(),
        policies: IpsecPolicies::read(),
        queues,
    })
}
