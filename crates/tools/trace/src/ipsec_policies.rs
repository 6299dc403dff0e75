//! IPsec's policies that block packets, and its default where no policy applies; no program need have set them.

use std::io;
use std::net::IpAddr;

use flannel_common::xfrm::Direction;
use flannel_netlink::xfrm::{self, ObservedPolicy};
use flannel_netlink::{Connection, Protocol};

use flannel_state::{Finding, Layer};

use crate::judge::broken;

#[derive(Clone, Debug, Default)]
pub(crate) struct IpsecPolicies {
    policies: Vec<ObservedPolicy>,
    blocked_by_default: Vec<Direction>,
}

impl IpsecPolicies {
    /// Reads the policies of this network namespace; none where the kernel has no IPsec.
    pub(crate) fn read() -> Self {
        let asked = || -> io::Result<Self> {
            let mut kernel = Connection::open(Protocol::Xfrm)?;
            let policies = kernel.ask_all(&xfrm::list_policies(), xfrm::read_policy)?;
            // Kernels before 5.15 have no such default.
            let blocked = kernel.ask(&xfrm::get_defaults(), xfrm::read_blocked_by_default)?;
            Ok(Self {
                policies: policies.unwrap_or_default(),
                blocked_by_default: blocked.unwrap_or_default(),
            })
        };
        asked().unwrap_or_default()
    }

    /// What blocks such packets: a policy, or the default where none applies. `protocol`: of IP, where it is known.
    pub(crate) fn blocking(
        &self,
        directions: &[Direction],
        src: IpAddr,
        dst: IpAddr,
        protocol: Option<u8>,
    ) -> Option<Finding> {
        let is_for = |policy: &&ObservedPolicy| {
            let of_protocol =
                policy.protocol == 0 || protocol.is_none_or(|protocol| protocol == policy.protocol);
            directions.contains(&policy.direction)
                && policy.src.contains(&src)
                && policy.dst.contains(&dst)
                && of_protocol
        };
        let mut matching = self.policies.iter().filter(is_for);
        if let Some(policy) = matching.clone().find(|policy| policy.blocks) {
            return Some(blocked_by(policy));
        }
        let is_left_to_default = |direction: &&Direction| {
            directions.contains(direction) && !matching.any(|it| it.direction == **direction)
        };
        let direction = self.blocked_by_default.iter().find(is_left_to_default)?;
        let what = format!(
            "IPsec drops what no policy of it is for (ip xfrm policy getdefault: {direction} block), and none is \
             for what goes from {src} to {dst}"
        );
        Some(broken(Layer::Ipsec, what, format!("ip xfrm policy setdefault {direction} accept")))
    }
}

fn blocked_by(policy: &ObservedPolicy) -> Finding {
    let ObservedPolicy { direction, src, dst, .. } = policy;
    let some = match (policy.protocol, policy.whole) {
        (0, true) => String::new(),
        (0, false) => " of some ports, of one device or with a mark".to_owned(),
        (protocol, _) => format!(" of IP protocol {protocol}"),
    };
    let what =
        format!("a policy of IPsec blocks what goes from {src} to {dst}{some} (dir {direction})");
    broken(Layer::Ipsec, what, format!("ip xfrm policy delete dir {direction} src {src} dst {dst}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> ObservedPolicy {
        let net = |text: &str| text.parse().unwrap();
        ObservedPolicy {
            direction: Direction::Out,
            src: net("10.244.1.0/24"),
            dst: net("10.244.0.0/16"),
            protocol: 0,
            whole: true,
            blocks: true,
            tunnel: None,
            plain: false,
        }
    }

    fn found(
        policies: &[ObservedPolicy],
        blocked_by_default: &[Direction],
        direction: Direction,
        protocol: Option<u8>,
    ) -> Option<Finding> {
        let all = IpsecPolicies {
            policies: policies.to_vec(),
            blocked_by_default: blocked_by_default.to_vec(),
        };
        all.blocking(&[direction], [10, 244, 1, 2].into(), [10, 244, 2, 2].into(), protocol)
    }

    #[test]
    fn a_policy_blocks_what_its_networks_its_direction_and_its_protocol_are_for() {
        let fault = found(&[policy()], &[], Direction::Out, None).unwrap();
        assert_eq!(fault.fix, "ip xfrm policy delete dir out src 10.244.1.0/24 dst 10.244.0.0/16");
        assert!(found(&[policy()], &[], Direction::Forward, None).is_none());
        let udp = [ObservedPolicy { protocol: 17, ..policy() }];
        assert!(found(&udp, &[], Direction::Out, Some(6)).is_none());
        assert!(found(&udp, &[], Direction::Out, Some(17)).is_some());
    }

    #[test]
    fn a_default_blocks_what_no_policy_is_for() {
        let fault = found(&[], &[Direction::Forward], Direction::Forward, None).unwrap();
        assert_eq!(fault.fix, "ip xfrm policy setdefault fwd accept");
        assert!(found(&[], &[Direction::Forward], Direction::Out, None).is_none());
        let tunnel = [ObservedPolicy { blocks: false, ..policy() }];
        assert!(found(&tunnel, &[Direction::Out], Direction::Out, None).is_none());
        assert!(found(&tunnel, &[Direction::In], Direction::In, None).is_some());
    }
}
