//! alloc: takes a subnet and leaves everything else to others.

use flannel_lease::Lease;

use crate::{Backend, Node, PeerProblem, Wishes};

pub(crate) struct AllocBackend;

impl Backend for AllocBackend {
    fn kind(&self) -> &'static str {
        "alloc"
    }

    fn lease_type(&self) -> &'static str {
        ""
    }

    fn peer(&self, _node: &Node, _own: &Lease, _peer: &Lease) -> Result<Wishes, PeerProblem> {
        Ok(Wishes::default())
    }
}
