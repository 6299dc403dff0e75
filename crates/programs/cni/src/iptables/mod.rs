//! Rules in the host's iptables: chains of one container each, and such that containers share, named and filled as the Go plugins name
//! and fill them, so that these find, check and remove ours, and we theirs.
//!
//! They are written by the host's own `iptables-restore`, all in one go. Read and removed they are
//! natively where iptables itself writes to nftables. Of the older kind of iptables the kernel shows
//! only that there is something at all; then its own programs are asked.

mod chain;
mod program;
mod remove;
mod saved_nat;
mod transaction;

pub(crate) use chain::{OwnChain, Position, SharedChain, SharedRule, establish, verify};
pub(crate) use remove::{Stale, collect, remove_chain};
pub(crate) use transaction::Rule;

use crate::protocol::{FieldError, Fields};

const NAT: &str = "nat";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Iptables,
    Nftables,
}

impl Backend {
    pub(crate) const WANTED: &str = "\"iptables\" or \"nftables\"";

    /// `None`: the configuration leaves it to the host.
    pub(crate) fn read(fields: Fields<'_>, key: &str) -> Result<Option<Self>, FieldError> {
        match fields.string(key)? {
            None => Ok(None),
            Some("iptables") => Ok(Some(Self::Iptables)),
            Some("nftables") => Ok(Some(Self::Nftables)),
            Some(other) => Err(FieldError::new(key, Self::WANTED, &other.into())),
        }
    }

    /// What the Go plugins would take on this host: iptables wherever it works. Their DEL, in this
    /// mode, removes port mappings from iptables alone.
    pub(crate) fn of_host() -> Self {
        if program::works() { Self::Iptables } else { Self::Nftables }
    }
}
