//! The targets, by what they read.

use crate::Target;

macro_rules! targets {
    ($($name:ident: $mutations:literal,)*) => {
        $(mod $name;)*

        /// All of them.
        pub const TARGETS: &[Target] =
            &[$(Target { name: stringify!($name), run: $name::run, mutations: $mutations }),*];
    };
}

targets! {
    cni_stdin: 6_000,
    ec2_xml: 100_000,
    etcd_answers: 200,
    host_local_files: 2_000,
    kubernetes: 10_000,
    lease_server_request: 3_000,
    marked_frames: 100_000,
    netlink_dumps: 5_000,
    network_config: 30_000,
    node_requests: 10_000,
    page_queries: 300,
    probe: 300_000,
    saved_rules: 10_000,
    subnet_env: 50_000,
    test_pod_packets: 20_000,
    tunnel_packets: 20_000,
    vici: 300_000,
    wire: 40_000,
    wireguard_messages: 200,
}

/// What a document of several packets consists of: the first byte of a part says what it is, the next two how long.
fn parts(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut parts = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        parts.push((*kind, &rest[..len]));
        bytes = &rest[len..];
    }
    parts
}
