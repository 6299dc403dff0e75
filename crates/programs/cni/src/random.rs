//! Randomness for names and MAC addresses, which must differ between processes that start at the
//! same moment.

use std::io;

pub(crate) fn generator() -> io::Result<fastrand::Rng> {
    Ok(fastrand::Rng::with_seed(u64::from_ne_bytes(flannel_common::random_bytes()?)))
}
