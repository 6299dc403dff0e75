//! The ways from one pod to the other that are compared.

use std::any::Any;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use anyhow::Context as _;
use flannel_entries::tunnel::{Features, OwnAddresses, Peer, TunnelDevice};
use flannel_lab::{Lab, Place as _, Pod};
use flannel_tunnel::Datapath;

use super::empty::Empty;
use super::load::Ends;
use super::naive::Naive;
use super::wireguard;

const PORT: u16 = 8285;
const DEVICE: &str = "flannel0";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Raw,
    HostGw,
    Vxlan,
    Naive,
    Empty,
    Tunnel(Features),
    Wireguard(Features),
    /// The reference implementation, this program.
    WireguardGo(PathBuf),
    /// Set up by a flanneld, with this backend.
    Flanneld {
        program: PathBuf,
        backend: &'static str,
    },
}

/// A path that stands, until it is dropped.
pub(super) struct Standing {
    pub(super) lab: Lab,
    pods: Option<(Pod, Pod)>,
    /// What runs in this process for it.
    _relays: Vec<Box<dyn Any>>,
}

impl Standing {
    pub(super) fn new(path: &Path) -> anyhow::Result<Self> {
        if let Path::Flanneld { program, backend } = path {
            let lab = Lab::builder().nodes(2).wire(true).backend(backend).flanneld(program);
            let lab = lab.no_daemons().start()?;
            // The Go flannel does not see that another took the same subnet at the same time.
            for node in lab.nodes() {
                node.flanneld().start()?;
                node.flanneld().wait_ready()?;
            }
            let pods = (lab.pod(1)?, lab.pod(2)?);
            return Ok(Self { lab, pods: Some(pods), _relays: Vec::new() });
        }
        let lab = Lab::builder().nodes(2).wire(true).bare().start()?;
        if *path == Path::Raw {
            return Ok(Self { lab, pods: None, _relays: Vec::new() });
        }
        let mtu = match path {
            Path::Raw | Path::HostGw => 1500,
            Path::Vxlan => 1450,
            Path::Naive | Path::Empty | Path::Tunnel(_) | Path::Flanneld { .. } => 1472,
            Path::Wireguard(_) | Path::WireguardGo(_) => wireguard::MTU,
        };
        for number in [1, 2] {
            lab.node(number).write_subnet_env(mtu)?;
        }
        let mut relays: Vec<Box<dyn Any>> = Vec::new();
        for (own, other) in [(1, 2), (2, 1)] {
            let node = lab.node(own);
            let device = match path {
                Path::WireguardGo(_) => format!("bench-wg{own}"),
                _ => DEVICE.to_owned(),
            };
            match path {
                Path::Wireguard(features) => {
                    relays.push(wireguard::start(node, &device, own, other, *features)?);
                }
                Path::WireguardGo(program) => {
                    relays.push(wireguard::start_reference(program, node, &device, own, other)?);
                }
                Path::Raw | Path::Flanneld { .. } => {}
                Path::HostGw => {
                    node.ip(&format!("route add 10.244.{other}.0/24 via 192.168.100.{other}"))?;
                }
                Path::Vxlan => {
                    for line in [
                        format!(
                            "link add flannel.1 address 02:00:00:00:00:0{own} mtu {mtu} type vxlan id 1 \
                                 local 192.168.100.{own} dev eth0 dstport 8472 nolearning"
                        ),
                        format!("addr add 10.244.{own}.0/32 dev flannel.1"),
                        "link set flannel.1 up".into(),
                        format!(
                            "neigh add 10.244.{other}.0 lladdr 02:00:00:00:00:0{other} dev flannel.1"
                        ),
                        format!(
                            "route add 10.244.{other}.0/24 via 10.244.{other}.0 dev flannel.1 onlink"
                        ),
                    ] {
                        node.ip(&line)?;
                    }
                    node.exec(&[
                        "bridge",
                        "fdb",
                        "add",
                        &format!("02:00:00:00:00:0{other}"),
                        "dev",
                        "flannel.1",
                        "dst",
                        &format!("192.168.100.{other}"),
                    ])?;
                }
                Path::Naive => {
                    let bind = SocketAddrV4::new(address(own), PORT);
                    let network = u32::from(Ipv4Addr::new(10, 244, other as u8, 0));
                    let route = (network, 0xffff_ff00, SocketAddrV4::new(address(other), PORT));
                    let relay = node.in_netns(|| Naive::start(DEVICE, bind, vec![route]))??;
                    relays.push(Box::new(relay));
                }
                Path::Empty => {
                    let bind = SocketAddrV4::new(address(own), PORT);
                    let peer = SocketAddrV4::new(address(other), PORT);
                    relays.push(Box::new(node.in_netns(|| Empty::start(DEVICE, bind, peer))??));
                }
                Path::Tunnel(features) => {
                    let config = TunnelDevice {
                        device: DEVICE.into(),
                        bind: vec![SocketAddrV4::new(address(own), PORT).into()],
                        own: OwnAddresses {
                            v4: Some(Ipv4Addr::new(10, 244, own as u8, 0)),
                            v6: None,
                        },
                        features: *features,
                        wireguard: None,
                    };
                    let datapath = node.in_netns(|| Datapath::start(config))??;
                    datapath.replace([Peer {
                        subnet: format!("10.244.{other}.0/24").parse()?,
                        endpoint: SocketAddrV4::new(address(other), PORT).into(),
                    }]);
                    relays.push(Box::new(datapath));
                }
            }
            if !matches!(path, Path::HostGw | Path::Vxlan) {
                node.ip(&format!("addr add 10.244.{own}.0/32 dev {device}"))?;
                node.ip(&format!("link set {device} mtu {mtu} txqueuelen 1000 up"))?;
                node.ip(&format!("route add 10.244.0.0/16 dev {device}"))?;
            }
        }
        let pods = (lab.pod(1)?, lab.pod(2)?);
        Ok(Self { lab, pods: Some(pods), _relays: relays })
    }

    /// Processes that carry packets for it.
    pub(super) fn processes(&self) -> Vec<u32> {
        let daemons = self.lab.nodes().iter().filter_map(|node| node.flanneld().pid());
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let tunnels = all.filter_map(|process| {
            let name = fs::read_to_string(process.path().join("comm")).ok()?;
            let pid = process.file_name().to_str()?.parse().ok()?;
            let names = [flannel_tunnel::PROCESS_NAME, "wireguard-go"];
            names.contains(&name.trim_end()).then_some(pid)
        });
        daemons.chain(tunnels).collect()
    }

    pub(super) fn ends(&self) -> anyhow::Result<Ends<'_>> {
        Ok(match &self.pods {
            None => Ends {
                from: self.lab.node(1),
                to: self.lab.node(2),
                target: *self.lab.node(2).addresses().first().context("an address")?,
            },
            Some((from, to)) => {
                Ends { from, to, target: IpAddr::V4(to.v4().context("an address")?) }
            }
        })
    }
}

fn address(node: u16) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 100, node as u8)
}
