//! Lease attributes: the bytes of the Go flannel, and a reader as patient as Go's.

use flannel_lease::{LeaseAttrs, RawJson};
use proptest::prelude::*;

use crate::support::{any_attrs, cases};

fn read(json: &str) -> LeaseAttrs {
    LeaseAttrs::from_json(json.as_bytes()).unwrap()
}

fn refused(json: &str) -> String {
    LeaseAttrs::from_json(json.as_bytes()).expect_err(json).to_string()
}

#[test]
fn values_keep_their_bytes_through_reading_and_writing() {
    for json in [
        r#"{"PublicIP":"1.2.3.4","PublicIPv6":null}"#,
        r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00:100::1","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"22:58:f0:41:4f:3c"}}"#,
        r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"wireguard","BackendData":{"PublicKey":"4v+Jk/==","Port":51820}}"#,
        r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"extension","BackendData":"a \u003cb\u003e \u0026 \"c\"\n"}"#,
        r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendData":{"z":1,"a":[1.50,1e2],"z":2}}"#,
    ] {
        assert_eq!(read(json).to_json(), json);
    }
}

#[test]
fn nothing_known_is_still_a_whole_value() {
    assert_eq!(LeaseAttrs::default().to_json(), r#"{"PublicIP":"0.0.0.0","PublicIPv6":null}"#);
    assert_eq!(read("{}"), LeaseAttrs::default());
}

#[test]
fn order_case_blanks_and_unknown_members_do_not_matter() {
    let plain = read(
        r#"{"PublicIP":"1.2.3.4","PublicIPv6":"fd00::1","BackendType":"vxlan","BackendData":{"VNI":1,"Text":"a b"}}"#,
    );
    let odd = read(
        "{ \"backendDATA\" : { \"VNI\" : 1,\n\t\"Text\" : \"a b\" } , \"Future\" : [ { } ], \"backendtype\":\"vxlan\",\
         \"publicipv6\":\"fd00::1\", \"PUBLICIP\": \"1.2.3.4\" }",
    );
    assert_eq!(odd, plain);
    assert_eq!(odd.backend_data.unwrap().as_str(), r#"{"VNI":1,"Text":"a b"}"#);
}

#[test]
fn the_last_of_two_members_counts() {
    let attrs = read(r#"{"PublicIP":"1.1.1.1","publicip":"2.2.2.2"}"#);
    assert_eq!(attrs.public_ip, Some([2, 2, 2, 2].into()));
    let attrs = read(r#"{"publicip":"1.1.1.1","PublicIP":"2.2.2.2"}"#);
    assert_eq!(attrs.public_ip, Some([2, 2, 2, 2].into()));
}

#[test]
fn null_and_the_unspecified_address_mean_none() {
    let attrs = read(
        r#"{"PublicIP":"0.0.0.0","PublicIPv6":"::","BackendType":null,"BackendData":null,"BackendV6Data": null}"#,
    );
    assert_eq!(attrs, LeaseAttrs::default());
    assert_eq!(read(r#"{"PublicIP":null}"#), LeaseAttrs::default());
}

#[test]
fn an_ipv4_address_in_ipv6_clothes_is_an_ipv4_address() {
    assert_eq!(read(r#"{"PublicIP":"::ffff:1.2.3.4"}"#).public_ip, Some([1, 2, 3, 4].into()));
}

#[test]
fn bytes_that_are_no_utf8_do_not_cost_the_lease() {
    let attrs =
        LeaseAttrs::from_json(b"{\"PublicIP\":\"1.2.3.4\",\"BackendData\":\"\xff\"}").unwrap();
    assert_eq!(attrs.backend_data.unwrap().parse::<String>().unwrap(), "\u{fffd}");
}

#[test]
fn what_is_no_lease_value_is_refused_with_the_reason() {
    assert_eq!(
        refused(r#"{"PublicIP":"1.2.3"}"#),
        "lease attribute PublicIP \"1.2.3\" is not an IPv4 address: write one, or leave it out"
    );
    assert!(refused(r#"{"PublicIP":"fd00::1"}"#).contains("not an IPv4 address"));
    for json in
        ["", "null", "[]", "\"text\"", "{", "{}{}", "{\"PublicIP\":7}", "{\"BackendData\":{]}"]
    {
        assert!(refused(json).contains("not a JSON object of the known shape"), "{json}");
    }
    assert!(refused(&format!("{{\"PublicIP\":\"{}\"}}", "9".repeat(100_000))).len() < 500);
    assert!(refused(&format!("\"{}\"", "9".repeat(100_000))).len() < 500);
}

#[test]
fn defect_70_a_public_ipv6_that_is_ipv4_is_refused() {
    assert!(
        refused(r#"{"PublicIPv6":"1.2.3.4"}"#)
            .contains("PublicIPv6 \"1.2.3.4\" is not an IPv6 address")
    );
    assert!(refused(r#"{"PublicIPv6":"::ffff:1.2.3.4"}"#).contains("not an IPv6 address"));
    assert!(
        read(r#"{"PublicIPv6":"::102:304"}"#).to_json().contains(r#""PublicIPv6":"::102:304""#)
    );
}

#[test]
fn backend_data_is_encoded_in_declaration_order_and_read_into_types() {
    #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
    #[serde(rename_all = "PascalCase")]
    struct Data {
        public_key: String,
        port: u16,
    }
    let data = Data { public_key: "k".into(), port: 51820 };
    let raw = RawJson::encode(&data).unwrap();
    assert_eq!(raw.as_str(), r#"{"PublicKey":"k","Port":51820}"#);
    assert_eq!(raw.parse::<Data>().unwrap(), data);
    assert!(raw.parse::<Vec<u8>>().is_err());
}

#[test]
fn blanks_inside_strings_stay_and_others_go() {
    let raw = RawJson::read("{ \"a\" : \"\\\\\" ,\n \"b \\\" c\" : [ 1 , 2 ] }").unwrap().unwrap();
    assert_eq!(raw.as_str(), r#"{"a":"\\","b \" c":[1,2]}"#);
}

#[test]
fn no_backend_data_has_two_spellings() {
    assert_eq!(RawJson::read(" null\n").unwrap(), None);
    assert_eq!(RawJson::read("").unwrap(), None);
    assert!(RawJson::read("{\"VNI\":1").is_err());
    assert!(RawJson::read("1 2").is_err());
}

/// The Go flannel passes over it, and writes none.
#[test]
fn where_a_node_answers_probes_stands_in_its_lease_and_whatever_else_stands_there_is_no_port() {
    let probed = LeaseAttrs {
        public_ip: Some([192, 0, 2, 1].into()),
        probe_port: std::num::NonZeroU16::new(8475),
        ..LeaseAttrs::default()
    };
    let text = probed.to_json();
    assert!(text.ends_with(",\"ProbePort\":8475}"), "{text}");
    assert_eq!(LeaseAttrs::from_json(text.as_bytes()), Ok(probed));
    for other in ["null", "\"8475\"", "0", "-1", "65536", "1.5", "{\"x\":1}", "[]"] {
        let text = format!("{{\"PublicIP\":\"192.0.2.1\",\"ProbePort\":{other}}}");
        assert_eq!(LeaseAttrs::from_json(text.as_bytes()).unwrap().probe_port, None, "{other}");
    }
}

/// The Go flannel passes over it, and writes none.
#[test]
fn which_machine_a_node_is_stands_in_its_lease_as_a_hash_and_whatever_else_stands_there_is_none() {
    let known = LeaseAttrs {
        public_ip: Some([192, 0, 2, 1].into()),
        probe_port: std::num::NonZeroU16::new(8475),
        machine: std::num::NonZeroU64::new(0xab),
        ..LeaseAttrs::default()
    };
    let text = known.to_json();
    assert!(text.ends_with(",\"ProbePort\":8475,\"Machine\":\"00000000000000ab\"}"), "{text}");
    assert_eq!(LeaseAttrs::from_json(text.as_bytes()), Ok(known));
    let zero = "\"0000000000000000\"";
    for other in ["null", "171", "\"ab\"", zero, "\"+0000000000000ab\"", "{\"x\":1}", "[]"] {
        let text = format!("{{\"PublicIP\":\"192.0.2.1\",\"Machine\":{other}}}");
        assert_eq!(LeaseAttrs::from_json(text.as_bytes()).unwrap().machine, None, "{other}");
    }
}

/// Only a lease server writes it; the Go flannel passes over it.
#[test]
fn whose_a_lease_is_may_stand_in_it_and_whatever_else_stands_there_does_no_harm() {
    let owned = LeaseAttrs {
        public_ip: Some([192, 0, 2, 1].into()),
        owner: Some("node \"1\"".into()),
        ..LeaseAttrs::default()
    };
    assert_eq!(LeaseAttrs::from_json(owned.to_json().as_bytes()), Ok(owned.clone()));
    let nameless = LeaseAttrs { owner: None, ..owned.clone() };
    assert!(!nameless.to_json().contains("Owner"));
    assert!(owned != nameless && owned.announce_the_same_as(&nameless));
    assert!(!owned.announce_the_same_as(&LeaseAttrs::default()));
    for other in ["null", "\"\"", "7", "{\"x\":1}", "[]"] {
        let text = format!("{{\"PublicIP\":\"192.0.2.1\",\"Owner\":{other}}}");
        assert_eq!(LeaseAttrs::from_json(text.as_bytes()).unwrap().owner, None, "{other}");
    }
}

#[test]
fn ten_thousand_leases_are_small() {
    assert!(size_of::<LeaseAttrs>() <= 96, "{}", size_of::<LeaseAttrs>());
    assert_eq!(size_of::<Option<RawJson>>(), 16);
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn attributes_are_read_back_as_written(attrs in any_attrs()) {
        let json = attrs.to_json();
        let back = LeaseAttrs::from_json(json.as_bytes()).unwrap();
        prop_assert_eq!(&back, &attrs);
        prop_assert_eq!(back.to_json(), json);
    }

    #[test]
    fn backend_data_keeps_its_meaning_and_order(text in any::<String>(), number in any::<i64>()) {
        let value = serde_json::json!({ "b": [text, number], "a": { "nested": null } });
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let raw = RawJson::read(&pretty).unwrap().unwrap();
        prop_assert_eq!(raw.parse::<serde_json::Value>().unwrap(), value);
        prop_assert_eq!(RawJson::read(raw.as_str()).unwrap().unwrap(), raw);
    }
}

#[test]
fn how_deep_data_is_nested_is_counted_outside_of_strings() {
    let depth = |data: &str| flannel_lease::RawJson::read(data).unwrap().unwrap().depth();
    for (data, deep) in [
        ("1", 0),
        (r#""[[[""#, 0),
        (r#""\"[[[""#, 0),
        (r#"["\\",[]]"#, 2),
        (r#"{"a":{"b":[]},"c":{}}"#, 3),
    ] {
        assert_eq!(depth(data), deep, "{data}");
    }
}

#[test]
fn data_nested_too_deeply_is_read_and_told_of() {
    for key in ["BackendData", "BackendV6Data"] {
        let attrs = |deep: usize| {
            let text = format!("{{\"{key}\":{}{}}}", "[".repeat(deep), "]".repeat(deep));
            flannel_lease::LeaseAttrs::from_json(text.as_bytes()).unwrap()
        };
        assert_eq!(attrs(32).check_depth(), Ok(()));
        for deep in [33, 4_000] {
            let error = attrs(deep).check_depth().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("lease attribute {key} is nested {deep} deep: 32 is the most")
            );
        }
    }
}
