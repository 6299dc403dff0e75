//! WireGuard in user space: ours, and the reference implementation that Debian has.

use std::any::Any;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flannel_common::{PrivateKey, PublicKey, hex};
use flannel_entries::tunnel::{
    Features, OwnAddresses, TunnelDevice, WireguardDevice, WireguardPeer,
};
use flannel_lab::Node;
use flannel_tunnel::Datapath;

const PORT: u16 = 51820;
/// What both leave of 1500.
pub(super) const MTU: u32 = 1440;
const START: Duration = Duration::from_secs(10);

fn key(node: u16) -> PrivateKey {
    PrivateKey::from_random([node as u8; 32])
}

fn address(node: u16) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 100, node as u8)
}

/// Ours, between `own` and `other`.
pub(super) fn start(
    node: &Node,
    device: &str,
    own: u16,
    other: u16,
    features: Features,
) -> anyhow::Result<Box<dyn Any>> {
    let config = TunnelDevice {
        device: device.into(),
        bind: vec![(Ipv4Addr::UNSPECIFIED, PORT).into()],
        own: OwnAddresses { v4: Some(Ipv4Addr::new(10, 244, own as u8, 0)), v6: None },
        features,
        wireguard: Some(WireguardDevice { private_key: key(own), mtu: MTU }),
    };
    let datapath = node.in_netns(|| Datapath::start(config))??;
    datapath.replace_wireguard(&[WireguardPeer {
        public_key: key(other).public(),
        preshared_key: None,
        endpoint: (address(other), PORT).into(),
        keepalive: 0,
        allowed: vec![format!("10.244.{other}.0/24").parse()?],
    }]);
    Ok(Box::new(datapath))
}

/// A process that is ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The reference implementation, configured as `wg` would.
pub(super) fn start_reference(
    program: &Path,
    node: &Node,
    device: &str,
    own: u16,
    other: u16,
) -> anyhow::Result<Box<dyn Any>> {
    let mut command = Command::new(program);
    command.args(["-f", device]).env("LOG_LEVEL", "error").stdout(Stdio::null());
    let running = Running(node.in_netns(|| command.spawn())??);
    let socket = format!("/var/run/wireguard/{device}.sock");
    let begin = Instant::now();
    let mut stream = loop {
        // Its file is where the node has its files.
        match node.in_netns(|| UnixStream::connect(&socket))? {
            Ok(stream) => break stream,
            Err(error) if begin.elapsed() > START => return Err(error).context(socket),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let PublicKey(peer) = key(other).public();
    let request = format!(
        "set=1\nprivate_key={}\nlisten_port={PORT}\nreplace_peers=true\npublic_key={}\nendpoint={}:{PORT}\n\
         allowed_ip=10.244.{other}.0/24\n\n",
        hex(key(own).bytes()),
        hex(&peer),
        address(other)
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 64];
    let len = stream.read(&mut answer)?;
    ensure!(answer[..len].starts_with(b"errno=0"), "{}", String::from_utf8_lossy(&answer[..len]));
    Ok(Box::new(running))
}
