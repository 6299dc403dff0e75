//! alloc: takes a subnet and leaves the rest to somebody else.

use flannel_kernel::{Entry, IfName};
use flannel_lease::{BackendConfig, Lease, LeaseAttrs};

use crate::{Backend, BackendError, Node, Past, PeerProblem};

pub(crate) struct AllocBackend;

impl AllocBackend {
    pub(crate) fn new(_config: &BackendConfig) -> Self {
        Self
    }
}

impl Backend for AllocBackend {
    fn kind(&self) -> &'static str {
        "alloc"
    }

    fn lease_type(&self) -> &'static str {
        ""
    }

    fn check(&self, _node: &Node) -> Result<(), BackendError> {
        Ok(())
    }

    fn mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu
    }

    fn announce(&self, node: &Node, _past: &Past<'_>) -> LeaseAttrs {
        LeaseAttrs {
            public_ip: node.underlay.public_v4.filter(|_| node.network.v4.is_some()),
            public_ipv6: node.underlay.public_v6.filter(|_| node.network.v6.is_some()),
            backend_type: String::new(),
            backend_data: None,
            backend_v6_data: None,
        }
    }

    fn base(&self, _node: &Node, _own: &Lease) -> Vec<Entry> {
        Vec::new()
    }

    fn peer(&self, _node: &Node, _own: &Lease, _peer: &Lease) -> Result<Vec<Entry>, PeerProblem> {
        Ok(Vec::new())
    }

    fn devices(&self, _node: &Node) -> Vec<IfName> {
        Vec::new()
    }
}
