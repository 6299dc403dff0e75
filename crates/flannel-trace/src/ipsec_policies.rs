//! Policies of IPsec that let no packet through. A kernel has them without any program that would name them.

use std::io;
use std::net::IpAddr;

use flannel_netlink::xfrm::{self, BlockingPolicy, Direction};
use flannel_netlink::{Connection, Protocol};

use crate::judge::Fault;

/// Of this network namespace, as they are now; none where the kernel has no IPsec.
pub(crate) fn read() -> Vec<BlockingPolicy> {
    let asked = || -> io::Result<Vec<BlockingPolicy>> {
        let mut kernel = Connection::open(Protocol::Xfrm)?;
        let found = kernel.ask_all(&xfrm::list_policies(), xfrm::read_blocking_policy)?;
        Ok(found.unwrap_or_default())
    };
    asked().unwrap_or_default()
}

/// The first policy that blocks such packets. `protocol`: of IP, where it is known.
pub(crate) fn blocking(
    policies: &[BlockingPolicy],
    directions: &[Direction],
    src: IpAddr,
    dst: IpAddr,
    protocol: Option<u8>,
) -> Option<Fault> {
    let is_for = |policy: &&BlockingPolicy| {
        let of_protocol =
            policy.protocol == 0 || protocol.is_none_or(|protocol| protocol == policy.protocol);
        directions.contains(&policy.direction)
            && policy.src.contains(&src)
            && policy.dst.contains(&dst)
            && of_protocol
    };
    let policy = policies.iter().find(is_for)?;
    let BlockingPolicy { direction, src, dst, .. } = policy;
    let some = match (policy.protocol, policy.whole) {
        (0, true) => String::new(),
        (0, false) => " of some ports, of one device or with a mark".to_owned(),
        (protocol, _) => format!(" of IP protocol {protocol}"),
    };
    Some(Fault {
        what: format!(
            "a policy of IPsec blocks what goes from {src} to {dst}{some} (dir {direction})"
        ),
        fix: format!("ip xfrm policy delete dir {direction} src {src} dst {dst}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_blocks_what_its_networks_its_direction_and_its_protocol_are_for() {
        let net = |text: &str| text.parse().unwrap();
        let policy = BlockingPolicy {
            direction: Direction::Out,
            src: net("10.244.1.0/24"),
            dst: net("10.244.0.0/16"),
            protocol: 0,
            whole: true,
        };
        let found = |policy: &BlockingPolicy, direction, last, protocol| {
            let (src, dst) = ([10, 244, 1, 2].into(), [10, 244, 2, last].into());
            blocking(std::slice::from_ref(policy), &[direction], src, dst, protocol)
        };
        let fault = found(&policy, Direction::Out, 2, None).unwrap();
        assert_eq!(fault.fix, "ip xfrm policy delete dir out src 10.244.1.0/24 dst 10.244.0.0/16");
        assert!(found(&policy, Direction::Forward, 2, None).is_none());
        let udp = BlockingPolicy { protocol: 17, ..policy };
        assert!(found(&udp, Direction::Out, 2, Some(6)).is_none());
        assert!(found(&udp, Direction::Out, 2, Some(17)).is_some());
    }
}
