//! What carrying packets costs: no memory for each packet, and nothing at all without packets. A program of its
//! own, because it looks at all of its threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

#[path = "it/net.rs"]
mod net;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flannel_entries::tunnel::Features;

use crate::net::{MB, Net};

/// One test at a time: threads of others would be counted too.
static ALONE: Mutex<()> = Mutex::new(());

static ASKED: AtomicU64 = AtomicU64::new(0);

/// Counts what threads ask for that carry packets.
struct Counting;

fn count() {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if name.starts_with(b"tunnel-in") || name.starts_with(b"tunnel-out") {
        ASKED.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn packets(net: &Net) -> u64 {
    let all = net.datapaths.iter().flat_map(|datapath| datapath.peers());
    all.map(|(_, counted)| counted.sent_packets + counted.received_packets).sum()
}

#[test]
fn no_memory_is_asked_for_by_packet() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = net::net([Features::default(); 2]);
    // By then buffers are as large as they get, or nearly so.
    net.check_both_ways();
    let (packets_before, asked_before) = (packets(&net), ASKED.load(Ordering::Relaxed));
    assert!(asked_before > 0, "their buffers at least are counted");
    for _ in 0..3 {
        net.check_both_ways();
    }
    net.lab.tcp_transfer(&net.pods[0], &net.pods[1], 20 * MB).unwrap();
    let (carried, asked) =
        (packets(&net) - packets_before, ASKED.load(Ordering::Relaxed) - asked_before);
    assert!(carried > 100_000, "{carried}");
    assert!(asked * 1000 < carried, "{asked} times for {carried} packets");
    println!("{asked} times for {carried} packets");
}

/// How often each thread of the datapaths in this process has gone to sleep by itself, by direction.
fn sleeps() -> BTreeMap<(String, u32), u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?.trim_end().to_owned();
            let id = task.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let count =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = count?.trim().parse().ok()?;
            name.starts_with("tunnel-").then_some(((name, id), count))
        })
        .collect()
}

/// Which of them have worked since, by direction.
fn worked(before: &BTreeMap<(String, u32), u64>) -> BTreeMap<String, usize> {
    let mut worked = BTreeMap::new();
    for ((name, id), count) in sleeps() {
        if before.get(&(name.clone(), id)).is_some_and(|then| *then != count) {
            *worked.entry(name).or_default() += 1;
        }
    }
    worked
}

#[test]
fn without_traffic_no_thread_wakes_and_one_flow_wakes_one_for_each_direction_and_node() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = net::net([Features::default(); 2]);
    for node in net.lab.nodes() {
        // The kernel's own words on every new device.
        node.exec(&["sysctl", "-q", "-w", "net.ipv6.conf.flannel0.disable_ipv6=1"]).unwrap();
    }
    net.check_both_ways();
    std::thread::sleep(Duration::from_millis(500));
    let before = sleeps();
    assert!(before.len() >= 4, "{before:?}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(worked(&before), BTreeMap::new(), "idle costs nothing");
    for _ in 0..20 {
        net.lab.ping(&net.pods[0], &net.pods[1]).unwrap();
    }
    let worked = worked(&before);
    let expected = [("tunnel-in".to_owned(), 2), ("tunnel-out".to_owned(), 2)];
    assert_eq!(worked, BTreeMap::from(expected));
}
