//! nftables as the plugin uses it: what the kernel takes its time to forget is left to flanneld.

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;

pub(crate) use flannel_nft::{Batch, NftError};

use crate::deferred_kernel_work;

impl From<NftError> for crate::protocol::Error {
    fn from(error: NftError) -> Self {
        Self::internal(error)
    }
}

const TRIES: usize = 5;

pub(crate) struct Nft {
    nft: flannel_nft::Nft,
    /// Whether something was removed, so that closing the socket waits.
    removed: bool,
}

impl Nft {
    pub(crate) fn open() -> Result<Self, NftError> {
        Ok(Self { nft: flannel_nft::Nft::open()?, removed: false })
    }

    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        self.removed |= batch.removes();
        self.nft.commit(batch)
    }

    /// Carries out a batch made of what is there, and makes another where that was removed meanwhile.
    pub(crate) fn commit_made(
        &mut self,
        mut make: impl FnMut(&mut Self) -> Result<Batch, NftError>,
    ) -> Result<(), NftError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let batch = make(self)?;
            match self.commit(&batch) {
                Err(error) if error.is_absence() && tries < TRIES => {}
                other => return other,
            }
        }
    }
}

impl Deref for Nft {
    type Target = flannel_nft::Nft;

    fn deref(&self) -> &Self::Target {
        &self.nft
    }
}

impl DerefMut for Nft {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.nft
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        if self.removed {
            deferred_kernel_work::close_later(self.nft.as_fd());
        }
    }
}
