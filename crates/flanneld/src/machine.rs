//! What tells this machine from others, the same at every boot.

use std::fs;

/// From the machine id. A machine that has none gets a number of its own each time.
pub fn seed(rng: &mut fastrand::Rng) -> u64 {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|id| parse(id.trim()))
        .unwrap_or_else(|| rng.u64(..))
}

/// The id is 32 hexadecimal digits; an image that is still to get one says "uninitialized".
fn parse(id: &str) -> Option<u64> {
    let id = u128::from_str_radix(id, 16).ok()?;
    (id != 0).then_some((id >> 64) as u64 ^ id as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_id_gives_a_stable_number() {
        assert_eq!(parse("00000000000000010000000000000002"), Some(3));
        assert_eq!(parse("uninitialized"), None);
        assert_eq!(parse("00000000000000000000000000000000"), None);
        assert_eq!(parse(""), None);
    }
}
