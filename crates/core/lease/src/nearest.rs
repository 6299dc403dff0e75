//! Known name that an unknown, typed one probably means.

/// Most bytes of a name that is compared, longer than any flag by far.
const MAX_NAME_BYTES: usize = 64;

/// The candidate with the fewest edits, if they are few for its length.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if typed.len() > MAX_NAME_BYTES {
        return None;
    }
    let (distance, name) =
        known.into_iter().map(|name| (edits(typed, name), name)).min_by_key(|(edits, _)| *edits)?;
    (distance <= name.len() / 3).then_some(name)
}

/// Levenshtein's distance.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
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

    #[test]
    fn edits_count_insertions_deletions_and_replacements() {
        for (from, to, count) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(from, to), count, "{from} {to}");
            assert_eq!(edits(to, from), count, "{to} {from}");
        }
    }
}
