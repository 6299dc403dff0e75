//! Two networks overlap if one contains the other: prefixes never overlap in part.

use ipnet::IpNet;

pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_if_one_is_within_the_other_whatever_address_names_them() {
        let both = |one: &str, other: &str| {
            let [one, other]: [IpNet; 2] = [one, other].map(|it| it.parse().expect("a range"));
            assert_eq!(overlap(&one, &other), overlap(&other, &one));
            overlap(&one, &other)
        };
        assert!(both("10.1.0.0/16", "10.1.2.0/24"));
        assert!(both("10.1.2.9/24", "10.1.2.1/28"));
        assert!(both("fd00::/48", "fd00::1/64"));
        assert!(!both("10.1.2.9/24", "10.1.3.9/24"));
        assert!(!both("0.0.0.0/0", "::/0"));
    }
}
