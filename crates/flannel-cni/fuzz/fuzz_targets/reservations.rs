//! Files in the directory of host-local's reservations.
#![no_main]

use flannel_cni::ipam::Store;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|content: &[u8]| {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["10.0.0.2", "fd00::2", "last_reserved_ip.0"] {
        std::fs::write(directory.path().join(name), content).expect("a file");
    }
    let store = Store::open(directory.path()).expect("it opens").expect("it is there");
    let _ = store.reservations();
    let _ = store.of_attachment("abc", "eth0");
    let _ = store.last_reserved(0);
});
