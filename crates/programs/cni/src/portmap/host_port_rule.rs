//! What a rule of nftables does with connections to ports of the host. Pure.

use std::net::IpAddr;

use flannel_nft::{Comparison, Expression, Header, MetaKey, Rule, Verdict};

/// Connections to a port of the host. What is `None` may be any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenPort {
    /// Transport protocol: 6 is TCP.
    pub(super) protocol: Option<u8>,
    pub(super) port: Option<u16>,
    pub(super) destination: Option<IpAddr>,
}

impl TakenPort {
    /// Whether all connections of the other one are among these.
    pub(super) fn covers(self, other: Self) -> bool {
        (self.protocol.is_none() || self.protocol == other.protocol)
            && (self.port.is_none() || self.port == other.port)
            && (self.destination.is_none() || self.destination == other.destination)
    }
}

/// Whether the rule sends packets elsewhere than where they wanted to go.
pub(super) fn translates(rule: &Rule) -> bool {
    rule.expressions.0.iter().any(|expression| matches!(expression, Expression::Dnat { .. }))
}

pub(super) fn translated_to(rule: &Rule) -> Option<IpAddr> {
    translates(rule).then_some(())?;
    rule.expressions.0.iter().find_map(|expression| match expression {
        Expression::Immediate { value, .. } => flannel_netlink::ip(value),
        _ => None,
    })
}

/// Connections that the rule takes, so that no later rule gets them; `None` if it takes none, or it is not known which.
pub(super) fn taken_port(rule: &Rule) -> Option<TakenPort> {
    #[derive(Clone, Copy)]
    enum Loaded {
        Protocol,
        Destination,
        Port,
    }
    let (mut taken, mut loaded, mut ends) = (TakenPort::default(), None, false);
    for expression in &rule.expressions.0 {
        match expression {
            Expression::Counter { .. } | Expression::Log => {}
            Expression::Meta { key: MetaKey::TransportProtocol, .. } => {
                loaded = Some(Loaded::Protocol);
            }
            Expression::Payload { header, offset, .. } => {
                loaded = Some(match (header, offset) {
                    (Header::Network, 16 | 24) => Loaded::Destination,
                    // In the header of IPv4, and the next one in that of IPv6.
                    (Header::Network, 9 | 6) => Loaded::Protocol,
                    (Header::Transport, 2) => Loaded::Port,
                    _ => return None,
                });
            }
            Expression::Compare { how: Comparison::Equal, value, .. } => match loaded.take()? {
                Loaded::Protocol => taken.protocol = value.first().copied(),
                Loaded::Port => {
                    taken.port = Some(u16::from_be_bytes(value.as_slice().try_into().ok()?));
                }
                Loaded::Destination => taken.destination = Some(flannel_netlink::ip(value)?),
            },
            // A value for what follows, such as the address that packets are sent to.
            Expression::Immediate { .. } => {}
            Expression::Verdict(Verdict::Drop | Verdict::Accept)
            | Expression::Dnat { .. }
            | Expression::SourceNat { .. }
            | Expression::Redirect
            | Expression::Reject => ends = true,
            // Other chains decide, and may come back.
            _ => return None,
        }
    }
    ends.then_some(taken)
}
