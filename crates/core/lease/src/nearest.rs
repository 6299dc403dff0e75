//! Known name that an unknown, typed one probably means.

/// Most bytes of a name that is compared, longer than any flag by far.
const MAX_NAME_BYTES: usize = 64;

/// The candidate with the fewest edits, if they are few for its length.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if typed.len() > MAX_NAME_BYTES {
        return None;
    }
    let edits = known.into_iter().map(|name| (strsim::levenshtein(typed, name), name));
    let (distance, name) = edits.min_by_key(|(edits, _)| *edits)?;
    (distance <= name.len() / 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_different_word_is_not() {
        let known = ["iface", "iface-regex", "etcd-endpoints", "v", "ip-masq"];
        for (typed, meant) in [
            ("ifac", Some("iface")),
            ("etcd-endpoint", Some("etcd-endpoints")),
            ("etcd_endpoints", Some("etcd-endpoints")),
            ("ipmasq", Some("ip-masq")),
            ("iface-regexp", Some("iface-regex")),
            ("listen", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, known), meant, "{typed}");
        }
    }

    #[test]
    fn a_huge_word_is_not_compared_at_all() {
        assert_eq!(nearest(&"v".repeat(1_000_000), ["v"]), None);
    }
}
