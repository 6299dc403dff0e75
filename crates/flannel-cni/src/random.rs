//! Randomness for names and MAC addresses, which must differ between processes that start at the
//! same moment.

use std::io;

pub(crate) fn generator() -> io::Result<fastrand::Rng> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(fastrand::Rng::with_seed(u64::from_ne_bytes(seed)))
}
