//! The least that any relay in user space is: a thread for each direction that sleeps in the kernel, and hands on
//! what it gets without looking at it. What this takes longer than the kernel's own tunnels is the waking of
//! threads, which nothing in the relay can make cheaper.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::naive;

pub(super) struct Empty {
    stop: Arc<AtomicBool>,
    /// Wakes whoever waits for the device.
    poke: UdpSocket,
}

/// Of no peer; what is sent there only wakes.
const NOBODY: &str = "10.244.99.9:9";

impl Empty {
    /// In the namespace of the calling thread.
    pub(super) fn start(
        device: &str,
        bind: SocketAddrV4,
        peer: SocketAddrV4,
    ) -> anyhow::Result<Self> {
        let mut out = naive::tun(device, 0)?;
        let mut back = out.try_clone()?;
        let socket = UdpSocket::bind(bind)?;
        socket.connect(peer)?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let sender = socket.try_clone()?;
        let stop = Arc::new(AtomicBool::new(false));
        let relay = Self { stop: Arc::clone(&stop), poke: UdpSocket::bind("0.0.0.0:0")? };
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut packet = vec![0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                let Ok(len) = out.read(&mut packet) else { break };
                let _ = sender.send(&packet[..len]);
            }
        });
        std::thread::spawn(move || give_back(&stop, &socket, &mut back));
        Ok(relay)
    }
}

fn give_back(stop: &AtomicBool, socket: &UdpSocket, device: &mut File) {
    let mut packet = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        if let Ok(len) = socket.recv(&mut packet) {
            let _ = device.write(&packet[..len]);
        }
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.poke.send_to(&[0], NOBODY);
    }
}
