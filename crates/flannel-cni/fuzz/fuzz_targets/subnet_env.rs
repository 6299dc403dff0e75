//! The file in which flanneld tells what this node got.
#![no_main]

use std::path::Path;

use flannel_cni::flannel::SubnetEnv;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let _ = SubnetEnv::parse(&String::from_utf8_lossy(text), Path::new("subnet.env"));
});
