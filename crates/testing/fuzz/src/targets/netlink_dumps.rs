//! Dumps and events of the kernel: links, addresses, routes and neighbours, nftables, IPsec.

use flannel_netlink::nfnetlink::{self, NFTABLES};
use flannel_netlink::{AttributeWriter, Attributes, HEADER_LEN, decode, messages, xfrm};
use flannel_nft::testing::{read_rule, rewrite};

const DEPTH: usize = 8;

pub(crate) fn run(bytes: &[u8]) {
    let mut taken = 0;
    for message in messages(bytes) {
        let Ok(message) = message else { return };
        taken += HEADER_LEN + message.payload.len();
        assert!(taken <= bytes.len(), "nothing is read twice");
        let _ = decode(message);
        if let Some(object) = nfnetlink::read(message, NFTABLES) {
            attributes(object.attributes, DEPTH);
            if let Some(rule) = read_rule(object.attributes) {
                // Rules are compared with those that are wanted: once read, they stay the same.
                let written = rewrite(&rule.expressions);
                assert_eq!(rewrite(&written), written, "{rule:?}");
                let _ = (rule.target(), rule.asks_for_destination());
            }
        }
        let _ = (xfrm::read_policy(message), xfrm::read_state(message));
        assert!(xfrm::read_blocked_by_default(message).len() <= 3);
        attributes(Attributes(message.payload), DEPTH);
    }
}

/// What was read and is written again is read as the same, as deep as it may be nested.
fn attributes(read: Attributes<'_>, depth: usize) {
    let mut written = AttributeWriter::default();
    for (kind, value) in read.iter() {
        written = written.bytes(kind, value);
        let _ = (flannel_netlink::text(value), flannel_netlink::ip(value));
        if depth > 0 {
            attributes(Attributes(value), depth - 1);
        }
    }
    assert!(written.read().iter().eq(read.iter()), "read as another");
}
