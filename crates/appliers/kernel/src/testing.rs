//! Objects of the kernel for tests.

use flannel_common::IfName;

use crate::observed::ObservedLink;

impl ObservedLink {
    pub(crate) fn plain(index: u32, name: &str) -> Self {
        Self {
            index,
            name: IfName::new(name).unwrap(),
            mac: None,
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            master: None,
            noarp: false,
            protodown: false,
            kind: None,
        }
    }
}
