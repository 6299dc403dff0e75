//! Why no interface could be chosen, and what to do about it.

use flannel_common::{Family, IfName};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(pub(super) String);

impl SelectError {
    pub fn no_usable_address(link: IfName, family: Family) -> Self {
        Self(format!(
            "{link} has no usable {family} address: give it one, or name another interface with -iface"
        ))
    }

    pub(super) fn no_default_route(family: Family) -> Self {
        Self(format!(
            "there is no {family} default route: add one, or name the interface with -iface"
        ))
    }
}
