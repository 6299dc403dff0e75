//! Nothing that comes from outside may bring the daemon down: any text, any bytes, and valid input with
//! a few bytes changed.

use flannel_lease::{LeaseAttrs, NetworkConfig, RawJson, Subnet, SubnetFile, SubnetOrigin};
use proptest::prelude::*;

use crate::support::cases;

const CONFIG: &str = r#"{"EnableIPv4":true,"EnableIPv6":true,"Network":"10.3.0.0/16","SubnetLen":24,
    "SubnetMin":"10.3.5.0","SubnetMax":"10.3.8.0","IPv6Network":"fc00::/48","IPv6SubnetLen":64,
    "IPv6SubnetMin":"fc00:0:0:1::","IPv6SubnetMax":"fc00:0:0:ffff::","EnableNFTables":false,
    "Backend":{"Type":"wireguard","PSK":"abc","ListenPort":51820,"Mode":"auto"}}"#;
const ATTRS: &str = r#"{"PublicIP":"1.2.3.4","PublicIPv6":"fd00::1","BackendType":"vxlan",
    "BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":"\u00e9\"\\"}"#;
const SUBNET_FILE: &str = "export FLANNEL_NETWORK=\"10.5.0.0/16\"\nA='10.5'\nFLANNEL_SUBNET=${A}.34.1/24 # x\n\
    FLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00::1\\/64,fd00:1::$A\nFLANNEL_MTU=1450\n";
const KEY: &str = "10.12.13.0-24&fd00:12:13::-56";

fn read_everything(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(attrs) = LeaseAttrs::from_json(bytes) {
        assert_eq!(LeaseAttrs::from_json(attrs.to_json().as_bytes()), Ok(attrs));
    }
    if let Ok(config) = NetworkConfig::parse(&text) {
        assert_eq!(NetworkConfig::parse(&config.to_json()).as_ref(), Ok(&config));
        let _ = config.backend.int("ListenPort", 1, 1..=65535);
        let _ = config.backend.string("PSK");
        let _ = config.backend.string_list("Mode");
        let _ = config.backend.bool("Learning", false);
    }
    let _ = NetworkConfig::read(&text, SubnetOrigin::Store);
    let _ = text.parse::<Subnet>();
    let _ = SubnetFile::parse(&text);
    if let Ok(Some(raw)) = RawJson::read(&text) {
        assert_eq!(RawJson::read(raw.as_str()), Ok(Some(raw)));
    }
}

/// Replaces, drops or doubles bytes of a valid text.
fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 0u8..3, any::<u8>());
    let byte = prop::sample::select(b"\"{}[]:,\\$#'\n -0:./&nul".to_vec());
    prop::collection::vec((edit, byte), 1..6).prop_map(|edits| {
        let mut bytes = text.as_bytes().to_vec();
        for ((at, kind, random), telling) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = if random & 1 == 0 { telling } else { random },
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, telling),
            }
        }
        bytes
    })
}

#[test]
fn the_texts_that_are_mutated_are_valid() {
    assert!(NetworkConfig::parse(CONFIG).is_ok());
    assert!(LeaseAttrs::from_json(ATTRS.as_bytes()).is_ok());
    assert!(KEY.parse::<Subnet>().is_ok());
    assert_eq!(SubnetFile::parse(SUBNET_FILE).0.networks.len(), 1);
}

#[test]
fn depth_is_survived() {
    for open in ["[", "{\"a\":", "{\"Backend\":{\"a\":"] {
        read_everything(open.repeat(100_000).as_bytes());
    }
    let deep = format!(
        "{{\"PublicIP\":\"1.2.3.4\",\"BackendData\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    read_everything(deep.as_bytes());
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_everything(&bytes);
    }

    #[test]
    fn any_text_is_survived(text in ".{0,80}") {
        read_everything(text.as_bytes());
    }

    #[test]
    fn mutated_input_is_survived(
        bytes in prop_oneof![mutated(CONFIG), mutated(ATTRS), mutated(SUBNET_FILE), mutated(KEY)]
    ) {
        read_everything(&bytes);
    }
}
