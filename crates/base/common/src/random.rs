//! Bytes that nobody can guess: keys, tokens, and names that differ between processes that start at the same moment.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::simulation;

/// Fails if the system has no randomness to give.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill_with_random(&mut bytes)?;
    Ok(bytes)
}

pub fn fill_with_random(bytes: &mut [u8]) -> io::Result<()> {
    if let Some(world) = simulation::world() {
        world.fill_with_random(bytes);
        return Ok(());
    }
    let mut filled = 0;
    // A signal may end a long one early.
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        let (one, other) = (random_bytes::<32>().expect("bytes"), random_bytes().expect("bytes"));
        assert_ne!(one, other);
        assert_ne!(one, [0; 32]);
    }
}
