//! Every target with its seeds, and with mutations of them.
//!
//! `FLANNEL_FUZZ_INPUT=FILE cargo test -p flannel-fuzz --test seeds TARGET` runs one input alone, and
//! `FLANNEL_FUZZ_MUTATION=NUMBER` one mutation.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use flannel_fuzz::{Mutator, TARGETS, Target};

fn run(name: &str) {
    let target = Target::of_name(name).unwrap();
    if name == "host_local_files" {
        own_network();
    }
    if let Some(input) = std::env::var_os("FLANNEL_FUZZ_INPUT") {
        return (target.run)(&std::fs::read(input).unwrap());
    }
    let chosen = std::env::var("FLANNEL_FUZZ_MUTATION").ok().map(|number| number.parse().unwrap());
    let seeds = target.seeds().unwrap();
    assert!(!seeds.is_empty(), "no seeds/{name}");
    if chosen.is_none() {
        for (path, seed) in &seeds {
            run_one(target, seed, &format!("FLANNEL_FUZZ_INPUT={}", path.display()));
        }
    }
    let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
    let words = target.words().unwrap();
    let mutator = Mutator::new(&seeds, &words);
    let numbers = chosen.map_or(0..target.mutations, |number: u64| number..number + 1);
    for number in numbers {
        run_one(target, &mutator.document(number), &format!("FLANNEL_FUZZ_MUTATION={number}"));
    }
}

fn run_one(target: &Target, input: &[u8], setting: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        eprintln!("again: {setting} cargo test -p flannel-fuzz --test seeds {}", target.name);
        eprintln!("input: {}", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

/// Reclaiming an address also looks for its rules in the firewall: not in this machine's own.
fn own_network() {
    if rustix::process::geteuid().is_root() {
        // SAFETY: no file descriptors are unshared, so nobody else's become invalid.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

tests! {
    cni_stdin
    ec2_xml
    etcd_answers
    host_local_files
    kubernetes
    lease_server_request
    marked_frames
    netlink_dumps
    network_config
    node_requests
    page_queries
    probe
    saved_rules
    subnet_env
    test_pod_packets
    tunnel_packets
    vici
    wire
    wireguard_messages
}
