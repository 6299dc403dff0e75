//! Hash of a machine id, which is confidential, see machine-id(5): other programs' ids could be made from it.

use std::num::NonZeroU64;

use sha2::{Digest as _, Sha256};

const HASH_KEY: [u8; 16] = *b"flannel-machine1";

/// Hash of a machine id, equal on copies of one machine; `None` for a text that is no machine id.
pub fn machine_hash(id: &str) -> Option<NonZeroU64> {
    let id = parse_machine_id(id)?;
    let hash = Sha256::new().chain_update(HASH_KEY).chain_update(id.to_be_bytes()).finalize();
    let (first, _) = hash.split_first_chunk()?;
    NonZeroU64::new(u64::from_be_bytes(*first))
}

/// 32 hexadecimal digits; an image that is still to get an id says "uninitialized".
pub fn parse_machine_id(id: &str) -> Option<u128> {
    let id = id.trim();
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(id, 16).ok().filter(|id| is_id && *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_id_has_one_hash_that_does_not_tell_it_and_other_texts_have_none() {
        let id = "3d1219c7c4c5404aaa1f6d2a48adfda4";
        let hash = machine_hash(id).unwrap();
        // As leases in stores have it: it never changes.
        assert_eq!(format!("{hash:016x}"), "c6e38b8392b7ff89");
        assert_eq!(machine_hash(&format!("{}\n", id.to_uppercase())), Some(hash));
        assert_ne!(machine_hash("3d1219c7c4c5404aaa1f6d2a48adfda5"), Some(hash));
        let zero = "0".repeat(32);
        for other in ["", "uninitialized", "3d1219c7", &zero, "+d1219c7c4c5404aaa1f6d2a48adfda4"] {
            assert_eq!(machine_hash(other), None, "{other}");
        }
    }
}
