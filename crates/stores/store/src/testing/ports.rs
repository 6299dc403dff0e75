//! Ports nobody uses.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range the kernel takes ports for outgoing connections from: a server that is stopped
/// and started again must find its port still free.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// Loopback TCP ports that are free now, and that no other test of this process gets.
pub fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Different processes start at different places.
    let offset = std::process::id().wrapping_mul(7_919);
    std::array::from_fn(|_| {
        for _ in 0..COUNT {
            let n = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)).wrapping_add(offset);
            let port = FIRST + (n % u32::from(COUNT)) as u16;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
        panic!("no loopback port is free between {FIRST} and {}", FIRST + COUNT);
    })
}
