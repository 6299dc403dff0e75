//! Subnet keys: one text per subnet, the one the Go flannel writes.

use flannel_lease::Subnet;
use proptest::prelude::*;

use crate::support::{any_subnet, cases, subnet};

fn refused(key: &str) -> String {
    key.parse::<Subnet>().expect_err(key).to_string()
}

#[test]
fn a_key_names_the_networks_of_a_lease() {
    let v4 = "10.5.52.0/24".parse().unwrap();
    let v6 = "fd00:12:13::/56".parse().unwrap();
    assert_eq!(subnet("10.5.52.0-24"), Subnet::V4(v4));
    assert_eq!(subnet("10.5.52.0-24&fd00:12:13::-56"), Subnet::Dual(v4, v6));
    assert_eq!(subnet("fd00:12:13::-56"), Subnet::V6(v6));
}

#[test]
fn every_length_a_go_reader_takes_is_taken() {
    for key in
        ["0.0.0.0-0", "128.0.0.0-1", "10.0.0.2-31", "10.0.0.0-24&::-0", "10.0.0.0-24&fd00::2-127"]
    {
        assert_eq!(subnet(key).to_string(), key);
    }
    refused("10.0.0.1-32");
    refused("10.0.0.0-24&fd00::1-128");
    refused("10.0.0.0-24&fd00::1-1000000000000000000000");
}

#[test]
fn what_go_rejects_is_rejected() {
    for key in [
        "",
        "10",
        "10.12.13.0",
        "10.12.13-24",
        "10.12.13.300-24",
        "10.12.13.0-24hi",
        "&2001::-56",
        "10.12.13.0-24&:12:13:-56",
        "10.12.13.0-24&20011::-56",
        "10.12.13.0-24&2001-56",
        "10.12.13.0-24&2001::",
        "10.12.13.0-24&2001::-56hi",
        "10.12.13.0-24&",
        "10.12.13.0-24&FD00::-56",
        "10.12.13.0--24",
        "10.12.13.0-+24",
        "10.12.13.0- 24",
        "10.12.13.0/24",
    ] {
        refused(key);
    }
}

#[test]
fn a_key_with_something_before_it_is_somebody_elses() {
    refused("x10.12.13.0-24");
    refused("backup/10.12.13.0-24");
    refused(" 10.12.13.0-24");
}

#[test]
fn a_second_spelling_of_a_subnet_is_no_key() {
    for key in [
        "10.12.13.7-24",
        "10.12.13.0-024",
        "010.12.13.0-24",
        "10.12.13.0-24&fd00::1-56",
        "10.12.13.0-24&fd00:0::-56",
        "10.12.13.0-24&::ffff:1.2.3.0-120",
    ] {
        refused(key);
    }
}

#[test]
fn a_refusal_quotes_the_key_and_says_what_a_key_looks_like() {
    assert_eq!(
        refused("10.12.13.7-24"),
        "subnet key \"10.12.13.7-24\" has IPv4 bits set below its length: it must look like 10.5.52.0-24 or \
         10.5.52.0-24&fd00:12:13::-56"
    );
    assert!(refused(&"1".repeat(1_000_000)).len() < 300);
}

#[test]
fn gos_name_for_a_subnet_without_ipv4_is_understood_but_never_written() {
    let read = subnet("0.0.0.0-0&fd00:244:0:4d::-64");
    assert_eq!(read, Subnet::V6("fd00:244:0:4d::/64".parse().unwrap()));
    assert_eq!(read.to_string(), "fd00:244:0:4d::-64");
}

#[test]
fn defect_70_low_ipv6_values_are_not_printed_as_ipv4() {
    for key in ["::102:300-120", "::-64", "::1:0-112", "::ffff:102:300-120", "::ffff:0:0-96"] {
        assert_eq!(subnet(key).to_string(), key);
    }
}

#[test]
fn defect_16_a_key_that_begins_like_another_is_another() {
    let (v4, dual) = (subnet("10.5.1.0-24"), subnet("10.5.1.0-24&fd00:1::-64"));
    assert!(dual.to_string().starts_with(&v4.to_string()));
    assert_ne!(v4, dual);
}

#[test]
fn subnets_overlap_when_they_share_an_address_in_either_family() {
    let overlap = |a, b| subnet(a).overlaps(&subnet(b));
    assert!(overlap("10.5.1.0-24", "10.5.1.128-25"));
    assert!(overlap("10.5.1.128-25", "10.5.0.0-16"));
    assert!(overlap("10.5.1.0-24&fd00:1::-64", "10.6.1.0-24&fd00:1::-64"));
    assert!(!overlap("10.5.1.0-24&fd00:1::-64", "10.5.2.0-24&fd00:2::-64"));
    assert!(!overlap("10.5.1.0-24", "fd00:1::-64"));
}

#[test]
fn a_subnet_has_at_least_one_family_and_no_host_bits() {
    assert_eq!(Subnet::new(None, None), None);
    let dual = Subnet::new("10.5.1.7/24".parse().ok(), "fd00::7/64".parse().ok()).unwrap();
    assert_eq!(dual.to_string(), "10.5.1.0-24&fd00::-64");
    assert_eq!(format!("{dual:?}"), dual.to_string());
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn every_subnet_is_read_back_from_its_key(subnet in any_subnet()) {
        prop_assert_eq!(subnet.to_string().parse::<Subnet>().unwrap(), subnet);
    }

    #[test]
    fn every_text_that_is_read_is_the_one_that_would_be_written(
        text in "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.0-[0-9]{1,2}(&[a-f0-9:]{2,8}::-[0-9]{1,3})?"
    ) {
        if let Ok(subnet) = text.parse::<Subnet>() {
            let written = subnet.to_string();
            prop_assert!(written == text || text == format!("0.0.0.0-0&{written}"), "{} {}", text, written);
        }
    }
}
