//! What tells this machine from others, the same at every boot.

use std::fs;
use std::num::NonZeroU64;

use flannel_lease::machine_hash;

const FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

pub fn read_machine_hash() -> Option<NonZeroU64> {
    first_hash(FILES.iter().filter_map(|path| fs::read_to_string(path).ok()))
}

fn first_hash(mut ids: impl Iterator<Item = String>) -> Option<NonZeroU64> {
    ids.find_map(|id| machine_hash(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_usable_machine_id_gives_a_hash_and_none_gives_nothing() {
        let hash = |ids: &[&str]| first_hash(ids.iter().map(|id| (*id).to_owned()));
        let id = "00000000000000010000000000000002\n";
        assert_eq!(hash(&["uninitialized\n", id]), machine_hash(id));
        let zero = "00000000000000000000000000000000";
        assert_eq!(hash(&["", "uninitialized\n", zero]), None);
    }
}
