//! Randomness for names and MAC addresses, which must differ between processes that start at the
//! same moment.

use std::io;

pub(crate) fn generator() -> io::Result<fastrand::Rng> {
    let mut seed = [0; 8];
    // SAFETY: pointer and length describe `seed`, which outlives the call.
    let len = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if len != seed.len() as isize {
        return Err(io::Error::last_os_error());
    }
    Ok(fastrand::Rng::with_seed(u64::from_ne_bytes(seed)))
}
