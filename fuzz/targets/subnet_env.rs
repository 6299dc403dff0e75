//! The subnet file: as the CNI plugin reads it, as flanneld remembers by it, and as it writes it.
#![no_main]

use std::path::Path;

use flannel_cni::flannel::SubnetEnv;
use flannel_lease::{SubnetFile, parse_previous};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let text = String::from_utf8_lossy(text);
    let file = Path::new("subnet.env");
    if let Err(error) = SubnetEnv::parse(&text, file) {
        assert!(error.to_string().contains("subnet.env"));
    }
    let (previous, _) = parse_previous(&text);
    let Some(subnet) = previous.subnet else { return };
    let written = SubnetFile {
        network: previous.network,
        subnet: subnet.v4(),
        ipv6_network: previous.ipv6_network,
        ipv6_subnet: subnet.v6(),
        mtu: 1450,
        ip_masq: true,
    };
    // What flanneld writes, both read.
    let written = written.render();
    assert_eq!(parse_previous(&written).0, previous, "{written}");
    if previous.network.is_some() || previous.ipv6_network.is_some() {
        let env = SubnetEnv::parse(&written, file).expect("the plugin reads it");
        assert_eq!(
            env.subnets.len(),
            [subnet.v4().is_some(), subnet.v6().is_some()].iter().filter(|is| **is).count()
        );
    }
});
