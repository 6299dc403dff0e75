//! Looking at the kernel from the outside: is the route there, which index has the device.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

pub(crate) fn index(device: &str) -> anyhow::Result<u32> {
    let output = Command::new("ip").args(["-o", "link", "show", "dev", device]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let index = text.split(':').next().and_then(|index| index.trim().parse().ok());
    index.with_context(|| format!("no device {device}"))
}

pub(crate) fn delete_device(device: &str) -> anyhow::Result<()> {
    let status = Command::new("ip").args(["link", "del", device]).status()?;
    ensure!(status.success(), "cannot delete {device}");
    Ok(())
}

pub(crate) fn count(device: &str) -> anyhow::Result<usize> {
    let output = Command::new("ip").args(["route", "show", "dev", device]).output()?;
    Ok(output.stdout.iter().filter(|byte| **byte == b'\n').count())
}

/// Waits until the kernel sends packets for `subnet` to flannel's device, asking every 50 µs.
pub(crate) fn wait_for(subnet: Ipv4Addr, limit: Duration) -> anyhow::Result<Instant> {
    let inside = Ipv4Addr::from(u32::from(subnet) + 1);
    let start = Instant::now();
    while start.elapsed() < limit {
        // Connecting a datagram socket only looks the route up, and binds the source address once and
        // for all: our VTEP's when it leads through the tunnel.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        if socket.connect((inside, 9)).is_ok()
            && let std::net::SocketAddr::V4(local) = socket.local_addr()?
            && local.ip().octets()[0] == 10
        {
            return Ok(Instant::now());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    bail!("no route to {subnet} after {limit:.0?}")
}
