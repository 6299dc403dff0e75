//! What tells this machine from others, the same at every boot.

use std::fs;
use std::num::NonZeroU64;

use flannel_lease::{machine_hash, parse_machine_id};

const FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// For what is chosen by chance, and the same at every boot. A machine that has no id gets another one each time.
    pub seed: u64,
    /// What its leases say of its id. A machine that has none says nothing.
    pub hash: Option<NonZeroU64>,
}

impl Machine {
    pub fn read(rng: &mut fastrand::Rng) -> Self {
        let texts = FILES.iter().filter_map(|path| fs::read_to_string(path).ok());
        Self::of(texts, rng)
    }

    fn of(mut texts: impl Iterator<Item = String>, rng: &mut fastrand::Rng) -> Self {
        let id = texts.find_map(|text| Some((parse_machine_id(&text)?, machine_hash(&text))));
        match id {
            Some((id, hash)) => Self { seed: (id >> 64) as u64 ^ id as u64, hash },
            None => Self { seed: rng.u64(..), hash: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_id_gives_a_stable_number_and_a_hash_and_none_gives_neither() {
        let machine = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned());
            Machine::of(texts, &mut fastrand::Rng::with_seed(9))
        };
        let id = "00000000000000010000000000000002\n";
        let known = machine(&["uninitialized\n", id]);
        assert_eq!((known.seed, known.hash), (3, machine_hash(id)));
        let chance = fastrand::Rng::with_seed(9).u64(..);
        let zero = "00000000000000000000000000000000";
        let unknown = machine(&["", "uninitialized\n", zero]);
        assert_eq!((unknown.seed, unknown.hash), (chance, None));
    }
}
